"""People of a study: each plays the episodes of a list of their own, alone with a partner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from selfplay_pipeline.games.base import STUDY, Game
from selfplay_pipeline.generate.episode import AS_IT_IS, Player
from selfplay_pipeline.generate.episode_wrappers import is_words, swap_of
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.run import GenerateJob
from selfplay_pipeline.generate.state_source import StateSource
from selfplay_pipeline.people.altered_messages import Altered
from selfplay_pipeline.people.log import BegunLine, Line, TurnLine
from selfplay_pipeline.people.logged_episode import SOMEBODY, LoggedEpisode
from selfplay_pipeline.people.web.lobby import Lobby, Someone
from selfplay_pipeline.people.web.study import MOST_PEOPLE, OpenStudy
from selfplay_pipeline.people.web.trial_order import Trial

DONORS = 0x5A7
"""Seed of the random stream that chooses messages of other episodes."""


class StudyLobby(Lobby):
    """All people and episodes of a study. Number `n` of a state is the episode of person `n`."""

    def __init__(
        self,
        study: OpenStudy,
        games: tuple[Game, Game],
        job: GenerateJob,
        partners: Mapping[str, Player],
        ended: Mapping[str, EpisodeRecord],
        writers: tuple[Callable[[EpisodeRecord], None], Callable[[Line], None]],
        *,
        patience: float,
    ) -> None:
        """Make a lobby without people; `partners` are players by name, shared arguments as in `Lobby`."""
        super().__init__(games, job, (), ended, writers, patience=patience, limit=0)
        self.study, self.order, self.partners = study.study, study.order, partners
        self._states = StateSource(study.states.states.__getitem__, keep=64)

    def is_over(self, person: Someone | None) -> bool:
        """Whether all episodes of a person's list have ended, or no further person can come."""
        if person is None:
            return len(self.people) >= MOST_PEOPLE
        return not (person.starts or self.is_busy(person)) and self._next_of(person) is None

    def progress_of(self, person: Someone) -> tuple[int, int]:
        """Returns the numbers of a person's episodes so far and in all; an episode that was lost does not count."""
        begun = sum((trial.state, person.number) in self._taken for trial in self.order.trials(person.number))
        return begun, self.study.episodes

    async def ask_for_episode(self, person: Someone) -> None:
        """Begin the next episode of a person's list."""
        number = self._next_of(person)
        if person.starts or self.is_busy(person) or number is None:
            return
        trial = self.order.trials(person.number)[number]
        await self._begin((trial.state, person.number), {trial.seat: person}, number)

    def _next_of(self, person: Someone) -> int | None:
        """Returns the number of the next episode in a person's list; None at its end."""
        trials = enumerate(self.order.trials(person.number))
        return next((at for at, trial in trials if (trial.state, person.number) not in self._taken), None)

    def _place_of(self, begun: BegunLine) -> tuple[int, int]:
        (name,) = begun.people.values()
        return begun.group, Someone(name, "").number

    async def _seat(
        self, episode_id: str, place: tuple[int, int], people: dict[int, str], turns: Sequence[TurnLine]
    ) -> LoggedEpisode:
        state, person = place
        trial = next(trial for trial in self.order.trials(person) if trial.state == state)
        partner = self.partners[self.study.partners[trial.partner]]
        altered = Altered(partial(self._messages, trial, person), [turn.heard for turn in turns])
        return LoggedEpisode(
            self.game,
            await self._states.state(state),
            [SOMEBODY if seat == trial.seat else partner for seat, _ in enumerate(self.game.roles)],
            episode_id,
            (self.job.seed, state, person),
            for_people=self.for_people,
            people=people,
            log=self._log,
            kept=turns,
            patience=self.patience,
            wrapper=altered if trial.altered else AS_IT_IS,
        )

    def _messages(self, trial: Trial, person: int, seat: int, number: int) -> Iterator[str]:
        """Yields what people wrote as message `number` of earlier episodes on other states, in random order.

        Messages of the same seat come first, and the last messages of shorter episodes at the end. Only episodes count
        in which all messages were heard as they were written.
        """
        rng = np.random.default_rng([STUDY, self.job.seed, DONORS, trial.state, person])
        others = [one for one in self.ended.values() if swap_of(one) is None and one.group_index != trial.state]
        shuffled = [others[int(at)] for at in rng.permutation(len(others))]
        later, shorter = list[str](), list[str]()
        for record in shuffled:
            own = next(at for at, held in enumerate(record.seats) if held.kind == "person")
            said = [turn.text for turn in record.turns if turn.seat == own and is_words(turn)]
            if number < len(said) and own == seat:
                yield said[number]
            elif number < len(said):
                later.append(said[number])
            else:
                shorter += said[-1:]
        yield from (*later, *shorter)
