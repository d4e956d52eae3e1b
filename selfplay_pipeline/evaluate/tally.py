"""Figures of many plays, by game state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.generate.records import PlayRecord
from selfplay_pipeline.metrics.bootstrap import Totals
from selfplay_pipeline.metrics.figures import Sums, play_figures


class Seating(StrEnum):
    """Which seats the evaluated player holds."""

    BOTH = "both"
    """All: self-play."""
    EITHER = "either"
    """One, in turns from play to play."""
    FIRST = "first"
    """Seat 0, as in a training opposite a partner."""

    def seats(self, play: int, num_players: int) -> tuple[int, ...]:
        """Those of the play of this number."""
        if self is Seating.BOTH:
            return tuple(range(num_players))
        return (play % num_players,) if self is Seating.EITHER else (0,)


@dataclass
class Tally:
    """Figures of many plays, summed by game state. Plays lost to the engine are counted but are in no figure."""

    game: Game
    num_states: int
    seating: Seating
    statuses: Counter[str] = field(default_factory=Counter)
    _sums: Sums = field(default_factory=Sums)

    def add(self, records: Iterable[PlayRecord]) -> Tally:
        for record in records:
            self.statuses[record.outcome.status] += 1
            if record.outcome.status == Status.ENGINE_FAILURE:
                continue
            state = self.game.load_state(record.state)
            seats = self.seating.seats(record.play, self.game.num_players)
            self._sums.add(record.group_index, play_figures(self.game, record, state, seats))
        return self

    def totals(self) -> Totals:
        """The sums of all figures.

        Raises:
            EngineError: every play was lost to the engine.
        """
        if not self._sums:
            raise EngineError("every play was lost to the engine; see the server's log")
        return self._sums.totals(range(self.num_states))
