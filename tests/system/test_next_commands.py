"""Each printed command, given as it is printed, does the right thing: what played is what is trained."""

import json
from pathlib import Path

from command import next_words, selfplay
from test_train import farthest

from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.generate.records import read_episodes

PLAYED, USUAL = "data/tiny_model", "data/tiny_honest_model"


def test_the_printed_commands_train_the_model_that_played(sglang_server, tmp_path):
    folder = tmp_path / "my episodes"
    played = ("generate", "--model", PLAYED, "--num-episodes", "32", "--episodes-per-state", "8", "--seed", "3")
    place = ("--server-url", sglang_server.url, "--output", str(folder / "selfplay_games.jsonl"))
    converted = next_words(selfplay(*played, *place))
    assert {record.policy.weights for record in read_episodes(folder / "selfplay_games.jsonl")} == {
        content_hash(PLAYED)
    }
    trained = selfplay(*next_words(selfplay(*converted)))
    assert trained.returncode == 0, trained.stderr
    (output,) = (path.parent for path in folder.glob("*/metrics.jsonl"))
    record = json.loads((output / "trainer_state" / "training.json").read_text())
    first, *_ = map(json.loads, (output / "metrics.jsonl").open())
    print({key: first[key] for key in first if key.startswith("selfplay/log_prob_gap")})
    assert (record["model"], record["seed"], record["weights.model"]) == (PLAYED, 3, content_hash(PLAYED))
    assert first["selfplay/log_prob_gap/mean"] < 1e-4
    checkpoint = output / "checkpoint"
    assert farthest(checkpoint, Path(PLAYED)) < farthest(checkpoint, Path(USUAL)) / 10
