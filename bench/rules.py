"""Measures the speed of the rules on one core, on DialOp's own 8×8 board."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.proposals import format_proposal
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState

SECONDS = 3.0


def run() -> dict[str, Any]:
    """Returns game states sampled per second (hard filter included), and environment steps per second."""
    game = MatchingGame(MatchingConfig(size=8))
    started, states = time.perf_counter(), list[MatchingState]()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        states.append(game.sample_state(state_rng(0, len(states))))
    sampled_per_second = len(states) / elapsed

    rng, steps = np.random.default_rng(0), 0
    matching = tuple(enumerate(rng.permutation(8).tolist()))
    proposal = format_proposal(matching, states[0].papers, states[0].reviewers)
    turns = ["[message] I see that Ava scores 40 on BLEU. What do you see?", proposal, "[reject]", proposal, "[accept]"]
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        session = game.start(states[0])
        for turn in turns:
            session.step(session.seats[0], turn)
            steps += 1
        assert session.status is not None
    return {"states_per_second": round(sampled_per_second), "steps_per_second": round(steps / elapsed)}
