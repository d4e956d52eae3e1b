"""Logs of inspect_ai: they hold each evaluated seat with its figures."""

from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import pytest

import selfplay_pipeline as sp

pytestmark = pytest.mark.skipif(not find_spec("inspect_ai"), reason="`pip install inspect_ai` installs it")


@pytest.mark.parametrize(("partner", "seats"), [("self", 2), ("own-view", 1)])
def test_a_log_has_each_evaluated_seat_and_the_means_of_the_evaluation(tmp_path, monkeypatch, partner, seats):
    from inspect_ai.log import read_eval_log

    monkeypatch.syspath_prepend(str(Path("integrations/inspect").resolve()))
    from selfplay_inspect import write_logs

    config = sp.load_config("tiny", {})
    states = sp.sample_held_out(config, 5)
    sp.evaluate_player(config, "silent", tmp_path, partner=partner, states=states, episodes=2)
    (path,) = write_logs(tmp_path)
    log = read_eval_log(str(path))
    episodes = sp.episodes_frame(tmp_path / path.with_suffix(".jsonl").name)
    assert len(log.samples) == seats * len(episodes)
    (reward,) = (score for score in log.results.scores if score.name == "reward")
    assert fmean(sample.scores["reward"].value for sample in log.samples) == pytest.approx(reward.metrics["mean"].value)
    assert reward.metrics["low"].value <= reward.metrics["mean"].value <= reward.metrics["high"].value
    assert all(sample.messages[-1].text for sample in log.samples)
