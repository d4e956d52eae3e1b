"""Other-play: each seat sees its own random renaming of the state's names (Hu et al. 2020, arXiv 2003.02979).

A state whose names are exchanged is the same problem (`Game.renamed`). Each seat plays it in a session
of its own, with names that are drawn for the state and the seat. A legal turn is retold in the names of each other
seat's session. So a code that depends on names, such as one that says a name for another one, does not work: the
hearer's names are others. What depends on the state alone works as before.

Records have states and turns in the state's own names, and for each seat its renaming (`names_of`).
Trajectories hold the tokens that the seats read and wrote, in their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.games.base import (
    INVALID,
    NAMES,
    SAME_SCORE,
    Game,
    Opening,
    Outcome,
    Session,
    State,
    Status,
    Step,
)
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.players import Seat
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord, TurnRecord
from selfplay_pipeline.generate.seated import SeatedEpisode

KEY = "iterate.other_play"
NAMES_SEEN = "names"
"""Key of an episode's `extra` with the renaming of the state that each seat saw."""
AS_SAID = "as_said"
"""Key of a turn's `extra` with its text as the seat wrote it, if it differs."""
Names = list[dict[str, list[int]]]
"""Renaming of the state for each seat."""
_NAMES = TypeAdapter(Names)


def names_of(record: EpisodeRecord) -> Names | None:
    """Returns the renaming of the state that each seat saw; None if all saw the state's names."""
    return record.extra.get(NAMES_SEEN)


def said(turn: TurnRecord) -> str:
    """Returns the text of a turn as the seat wrote it, in its own names."""
    text: str = turn.extra.get(AS_SAID, turn.text)
    return text


def check_extra(record: EpisodeRecord, game: Game, state: State) -> None:
    """Raises ValueError, which names the field, unless each seat has a renaming that the state allows."""
    for number, turn in enumerate(record.turns):
        if not isinstance(turn.extra.get(AS_SAID, ""), str):
            raise ValueError(f"field 'turns.{number}.extra.{AS_SAID}': expected a text")
    if NAMES_SEEN not in record.extra:
        return
    try:
        names = _NAMES.validate_python(record.extra[NAMES_SEEN], strict=True)
    except ValidationError as error:
        raise ValueError(f"field 'extra.{NAMES_SEEN}': {first_line(error)}") from None
    if not game.has("renamed") or len(names) != len(game.roles):
        raise ValueError(
            f"field 'extra.{NAMES_SEEN}': has {len(names)} renamings, which do not fit the game {game.name}"
        )
    for seat, one in enumerate(names):
        try:
            game.renamed(state, one)
        except ValueError as error:
            raise ValueError(f"field 'extra.{NAMES_SEEN}.{seat}': {error}") from None


class RenamedSession:
    """One episode in which each seat has its own names.

    Attributes:
        own: Session in the state's own names.
        worlds: Session of each seat, in the seat's names.
        told: Text of each turn in the state's own names; of an illegal turn, as it was written.
    """

    def __init__(self, game: Game, state: State, names: Sequence[Any]) -> None:
        """Begin an episode; `names` has the renaming of each seat."""
        self.game, self.state, self.names = game, state, names
        self.own: Session = game.start(state)
        self.worlds: list[Session] = [game.start(self.game.renamed(state, one)) for one in names]
        self.told: list[str] = []

    @property
    def seats(self) -> tuple[int, ...]:
        return self.own.seats

    @property
    def status(self) -> str | None:
        return self.own.status

    def opening(self, seat: int) -> Opening:
        return self.worlds[seat].opening(seat)

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take a turn in all sessions; see `games/base.py: Session`.

        Raises:
            UserError: The renaming decides how the episode goes on.
        """
        said = self.worlds[seat].step(seat, text, cut=cut)
        legal = said.action != INVALID
        told = self.game.retold(self.state, self.names[seat], text, back=True) if legal else text
        self.told.append(told)
        step = self.own.step(seat, told, cut=cut)
        heard = [
            said if other == seat else world.step(seat, self._retold(other, told) if legal else text, cut=cut)
            for other, world in enumerate(self.worlds)
        ]
        alike = all(one.action == step.action for one in heard)
        if not alike or any(world.seats != self.own.seats for world in self.worlds):
            raise _differs(self.own, text)
        observations = tuple(one.observations[other] for other, one in enumerate(heard))
        return replace(step, observations=observations, error=said.error)

    def _retold(self, seat: int, told: str) -> str:
        return self.game.retold(self.state, self.names[seat], told)

    def abort(self, status: Status) -> None:
        for session in (self.own, *self.worlds):
            session.abort(status)

    def outcome(self) -> Outcome:
        """Returns the result of an ended episode.

        Raises:
            UserError: A seat's session has other rewards.
        """
        found = self.own.outcome()
        for world in self.worlds:
            if not np.allclose(world.outcome().rewards, found.rewards, rtol=0, atol=SAME_SCORE):
                raise _differs(self.own, "its rewards")
        return found


def _differs(session: Session, what: str) -> UserError:
    return UserError(f"{KEY}: with other names an episode goes on otherwise ({session.status}, {what!r}); leave it out")


@dataclass
class RenamedEpisode(SeatedEpisode):
    """One episode of other-play; all episodes of a state have the same names, so that GRPO compares like with like."""

    def __post_init__(self) -> None:
        seed, group, _ = self.place
        rng = np.random.default_rng([NAMES, seed, group])
        self.session = RenamedSession(
            self.game, self.state, [self.game.draw_names(self.state, rng) for _ in self.game.roles]
        )
        seats = (
            Seat.at(self.game, world, number, self.episode_id, self.place)
            for number, world in enumerate(self.session.worlds)
        )
        players = [player.sit(seat) for player, seat in zip(self.players, seats, strict=True)]
        self.episode = Episode(self.session, players)

    def record(self, policy: PolicyRecord) -> EpisodeRecord:
        turns = [
            turn if turn.text == told else turn.with_extra(**{AS_SAID: turn.text}).model_copy(update={"text": told})
            for turn, told in zip(self.episode.turns, self.session.told, strict=True)
        ]
        names = {NAMES_SEEN: list(self.session.names)}
        return super().record(policy).model_copy(update={"turns": turns}).with_extra(**names)
