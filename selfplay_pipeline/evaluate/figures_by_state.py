"""Figures of many episodes, by game state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from selfplay_pipeline.convert.reward import TrainedReward
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.games.figures import Measures
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.metrics.bootstrap import Totals
from selfplay_pipeline.metrics.figures import Sums, measure


class Seating(StrEnum):
    """Seats of the evaluated player."""

    BOTH = "both"
    """The player holds all seats: self-play."""
    EITHER = "either"
    """The player holds one seat, each seat in turn."""
    ONE = "one"
    """The player holds one seat in all episodes, as in training with a partner."""

    def seats(self, episode: int, num_seats: int, seat: int = 0) -> tuple[int, ...]:
        """Returns the seats of the evaluated player in episode number `episode`.

        Args:
            episode: Number of the episode.
            num_seats: Number of seats of the game.
            seat: Seat of `ONE`.
        """
        if self is Seating.BOTH:
            return tuple(range(num_seats))
        return (episode % num_seats,) if self is Seating.EITHER else (seat,)


@dataclass
class Tally:
    """Figures of many episodes, summed by game state. Engine failures are only counted.

    Attributes:
        measures: Function that returns the figures of one episode.
        seat: Seat of the player with `Seating.ONE`.
        reward: Function of the user that gives the reward to train on; None for the game's own reward.
    """

    game: Game
    num_states: int
    seating: Seating
    measures: Callable[[Measured], Measures] = measure
    seat: int = 0
    reward: TrainedReward | None = None
    statuses: Counter[str] = field(default_factory=Counter)
    _sums: Sums = field(default_factory=Sums)

    def add(self, records: Iterable[EpisodeRecord]) -> Tally:
        for record in records:
            self.statuses[record.outcome.status] += 1
            if record.outcome.status == Status.ENGINE_FAILURE:
                continue
            seats = self.seating.seats(record.episode, len(self.game.roles), self.seat)
            trained = self.reward.of(record) if self.reward else None
            self._sums.add(record.group_index, self.measures(Measured(self.game, record, seats, trained)))
        return self

    def totals(self) -> Totals:
        """Returns the sums of all figures.

        Raises:
            EngineError: Every episode failed because of the engine.
        """
        if not self._sums:
            raise EngineError("every episode was lost to the engine; see the server's log")
        return self._sums.totals(range(self.num_states))
