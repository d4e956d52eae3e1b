"""GPT-3.5's games: their tables come from both views, and what was accepted is read by our rules."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.gpt35 import COLUMNS, PLAYERS, ROWS, accepted, different_games, displayed, reward_of, true_scores
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.proposals import format_proposal, short
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, best_matching

GAME = MatchingGame(MatchingConfig(hard_factor=0))


def observed(state: MatchingState, seat: int) -> str:
    """A view as that repository wrote it."""
    rows = (
        f"{name}: " + ", ".join(f"{n} for {short(c)}" for c, n in zip(COLUMNS, row, strict=True) if n is not None)
        for name, row in zip(ROWS, state.view(seat), strict=True)
    )
    return "NEW SET: \n " + " \n ".join(rows)


def game_of(state: MatchingState, *dialogue: str) -> dict[str, object]:
    return {
        "player_observations": {player: observed(state, seat) for seat, player in enumerate(PLAYERS)},
        "best_assignment_reward": state.best,
        "dialog_history": list(dialogue),
    }


@pytest.mark.parametrize("index", range(8))
def test_the_table_is_recovered_from_both_views(index: int) -> None:
    state = GAME.sample_state(state_rng(0, index))
    assert displayed(observed(state, 0)).keys() == {(r, c) for r, c in np.argwhere(state.masks[0]).tolist()}
    assert (true_scores(game_of(state)) == state.table).all()


def test_the_proposal_that_was_accepted_is_scored_and_what_is_no_matching_is_worth_nothing() -> None:
    state = GAME.sample_state(state_rng(0, 3))
    best = best_matching(state.table)[0]
    good = format_proposal(best, COLUMNS, ROWS).replace("\n", "<br/>- ")
    bad = good.replace(ROWS[0], ROWS[1])
    closed = game_of(state, "PLAYER-1: [message] hi", f"PLAYER-2: {good}", "PLAYER-1: [accept]")
    assert reward_of(closed) == 1.0
    assert accepted([f"PLAYER-2: {good}", f"PLAYER-1: {bad}", "PLAYER-1: [accept]"]) == best, "the other's is accepted"
    assert accepted([f"PLAYER-2: {bad}", "PLAYER-1: [accept]"]) is None
    assert accepted([f"PLAYER-2: {good}", "PLAYER-1: [message] no"]) is None


def test_each_dialogue_counts_once_and_an_empty_folder_is_refused(tmp_path: Path) -> None:
    for name, dialogues in {"a_optimization_1": ["x", "y"], "b_optimization_2": ["y", "z"]}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps([{"dialog_history": [text]} for text in dialogues]))
    assert len(different_games(tmp_path)) == 3
    with pytest.raises(UserError, match="name the folder `outputs`"):
        different_games(tmp_path / "a")
