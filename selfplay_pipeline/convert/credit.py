"""Credits of individual turns, which replace the one reward per episode."""

from __future__ import annotations

from typing import Any

from selfplay_pipeline.config.schema import SELF, Config
from selfplay_pipeline.convert.replay import state_for
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import EpisodeRecord

KEY = "convert.credit: turn"
PARTNERS = "what the partner answers would be no turn's credit"


def check_credit(config: Config) -> None:
    """Raises UserError if turn credits are configured but not possible."""
    if config.convert.credit == "episode":
        return
    make_game(config.game).need("credits", KEY, "leave it at episode")
    for key, value, usual, why in (
        ("iterate.partner", config.iterate.partner, SELF, PARTNERS),
        ("iterate.partners", ", ".join(one.player for one in config.iterate.partners) or SELF, SELF, PARTNERS),
        (
            "reward",
            "another reward" if config.reward.changes else "",
            "",
            "a credit compares the game's own reward with what could be reached before the turn",
        ),
        ("convert.placebo", config.convert.placebo, False, "a permuted reward says nothing of single turns"),
        ("train.method", config.train.method, "grpo", "imitation compares nothing"),
    ):
        if value != usual:
            raise UserError(
                f"{KEY}: cannot be combined with {key}: {str(value).lower()}, since {why}; leave one of them out"
            )


def turn_credits(record: EpisodeRecord, game: Game) -> dict[int, list[float]]:
    """Returns the credits of each seat's own turns, by seat.

    Raises:
        ValueError: The episode has another game or configuration, or a player other than the policy.
    """
    state: Any = state_for(record, game)
    if len(record.trajectories) < len({turn.seat for turn in record.turns}):
        raise ValueError(f"field 'players': {KEY} is for self-play, but another player held a seat")
    found = game.credits(state, record.turns, record.outcome.normalized_reward)
    own: dict[int, list[float]] = {seat: [] for seat in range(len(record.seats))}
    for turn, credit in zip(record.turns, found, strict=True):
        own[turn.seat].append(credit)
    return own
