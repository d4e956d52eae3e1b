"""Input of the figures' formulas: an episode, and the seats to measure in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from selfplay_pipeline.games.base import MESSAGE, Asking, Game

HEARD = "heard"
"""Key of a turn's `extra`, at which are the messages that seats heard in its place, by seat."""


def heard_of(turn: Any) -> dict[int, str]:
    """Returns the messages that seats heard in place of a turn; empty if all heard the turn itself.

    Args:
        turn: A `TurnRecord`, or a turn of a running session, which was always heard.
    """
    return {int(seat): text for seat, text in getattr(turn, "extra", {}).get(HEARD, {}).items()}


@dataclass(frozen=True, eq=False)
class Measured:
    """One episode, and the seats to measure in it: figures cover only these seats, unless their labels say all seats.

    Attributes:
        record: An `EpisodeRecord` of `generate/records.py`.
        trained: Reward of each seat that the policy is trained on; None if it is the game's own.
    """

    game: Game
    record: Any
    seats: Sequence[int]
    trained: Sequence[float] | None = None

    @cached_property
    def state(self) -> Any:
        return self.game.state_from_json(self.record.state)

    @cached_property
    def reward(self) -> float:
        """Mean reward over the seats."""
        return float(self.record.outcome.mean_reward_of(self.seats))

    @property
    def trained_reward(self) -> float:
        """Mean trained reward over the seats; 0 if it is the game's own reward that is trained on."""
        return sum(self.trained[seat] for seat in self.seats) / len(self.seats) if self.trained else 0.0

    @property
    def agreed(self) -> bool:
        """Whether the episode reached the game's goal."""
        return self.record.outcome.status in self.game.goals

    @cached_property
    def turns(self) -> list[Any]:
        return [turn for turn in self.record.turns if turn.seat in self.seats]

    @property
    def length(self) -> int:
        """Number of turns of all seats."""
        return len(self.record.turns)

    @cached_property
    def said(self) -> list[str]:
        """Texts of the measured seats' messages, as they were written."""
        return [turn.text for turn in self.turns if turn.action == MESSAGE]

    @property
    def messages(self) -> int:
        return len(self.said)

    @cached_property
    def asked(self) -> Asking:
        """Sums of these seats' counts of questions and answers."""
        found: Counter[str] = Counter()
        for seat in self.seats:
            found.update(asdict(self.game.asking(self.state, self.record.turns, seat)))
        return Asking(**found)

    @cached_property
    def sampled_tokens(self) -> int:
        return sum(sum(one.response_mask) for one in self.record.trajectories if one.seat in self.seats)
