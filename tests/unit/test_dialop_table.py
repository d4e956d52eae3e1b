"""The table of DialOp's games: a bad `--policy` is refused before anything is played."""

import pytest

import bench.dialop
from bench.dialop import main
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped

MODEL = shipped("data/tiny_model")


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([f"tiny_honest={MODEL}"] * 2, "--policy: tiny_honest is given twice"),
        ([f"tiny_honest={MODEL}", f"tiny_nothing={MODEL}"], "tiny_nothing"),
        (["tiny_honest=nowhere"], "nowhere holds no checkpoint"),
        (["tiny_honest"], "give CONFIG=CHECKPOINT"),
    ],
)
def test_a_bad_policy_is_refused_before_anything_is_played(policies, words, monkeypatch, tmp_path):
    def played(*_):
        raise AssertionError("an episode is played")

    monkeypatch.setattr(bench.dialop, "_scripted", played)
    with pytest.raises(UserError, match=words):
        main(states=2, policy=policies, policy_states=2, work=tmp_path, output=None)
