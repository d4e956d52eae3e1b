"""`make learn-smollm2` from end to end, with the tiny model in place of SmolLM2 and a few episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.arms import WARM
from bench.smollm2 import BEFORE, CLONING, GRPO, Results, main

SHORT = """\
base: tiny_honest
game: {size: 2, max_length: 10}
generate: {num_episodes: 32}
imitate: {train_batch_size: 8, learning_rate: 1.0e-3}
train: {lora_rank: 4, train_batch_size: 64, mini_batches: 2, keep_zero_signal: true}
"""


@pytest.mark.bench
def test_both_methods_begin_from_one_warm_start_and_the_table_has_all_players(tmp_path: Path) -> None:
    config = tmp_path / "short.yaml"
    config.write_text(SHORT)
    main(
        seeds=1,
        iterations=1,
        config=str(config),
        model=Path("data/tiny_honest_model"),
        teacher="deaf-teacher",
        teacher_episodes=20,
        states=4,
        episodes=1,
        work=tmp_path / "work",
        output=tmp_path / "results",
    )
    results = Results.model_validate_json((tmp_path / "results" / "results.json").read_text())
    assert list(results.players) == [BEFORE, WARM, GRPO, CLONING]
    trained = [results.players[name].budget for name in (GRPO, CLONING)]
    assert [budget.updates for budget in trained if budget] == [2, 2]
    assert [budget.episodes for budget in trained if budget] == [32, 32]
    assert "rise of the reward, greedy" in (tmp_path / "results" / "table.md").read_text()
