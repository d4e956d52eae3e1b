"""The class that gives other parts access to mediation; see `games/base.py: Game`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.games.altered import KINDS
from selfplay_pipeline.games.base import Altered, Asking, Choice, Game, HumanEpisode, ScriptedPlayer, Turn
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, Table
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.mediation import altered, draw, humans, measures, rules, states, wordless
from selfplay_pipeline.games.mediation.rules import MediationConfig, MediationState, check_pair
from selfplay_pipeline.games.mediation.scripted import SCRIPTED, PlayerView, player_view
from selfplay_pipeline.games.mediation.session import MediationSession
from selfplay_pipeline.games.mediation.speaking import Speaking, SpeakingTeacher
from selfplay_pipeline.games.mediation.teacher import LESSONS, Teacher
from selfplay_pipeline.games.mediation.text import ErrorKind
from selfplay_pipeline.games.prompts import load_prompts
from selfplay_pipeline.games.questions import count_questions
from selfplay_pipeline.games.silence import LineName, Rewards, in_words
from selfplay_pipeline.games.tags import ActionKind

PROMPTS = ("system", "opening", "heard", "offered", "failed", "next", "error")
"""Names of the template files in a set."""


class MediationGame(Game):
    """Rules under one `MediationConfig`."""

    name = "mediation"
    state = MediationState
    settings = MediationConfig
    roles = rules.ROLES
    actions = frozenset(kind.value for kind in ActionKind)
    error_kinds = tuple(kind.value for kind in ErrorKind)
    disclosing = frozenset({ActionKind.PROPOSE.value})  # a user reads its points, which also depend on hidden numbers
    players: Mapping[str, ScriptedPlayer] = {
        **SCRIPTED, "teacher": Teacher(), "speaking": Speaking(), "speaking-teacher": SpeakingTeacher(),
    }  # fmt: skip
    lessons = LESSONS
    figures: Sequence[Figure] = measures.FIGURES
    reads_facts = False
    lines = ("random",)
    alterations = KINDS
    about_humans = humans.ABOUT

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.prompts = load_prompts(Path(__file__).parent / "prompts", self.config.prompts, PROMPTS)

    @property
    def about_lines(self) -> str:
        return in_words("is the agent, knows its own view and the rules", self.wordless, bound=self.silence_is_bound)

    @property
    def silence_is_bound(self) -> bool:
        return bool(self.config.protocol == "fixed")

    def describe(self) -> str:
        return f"{self.config.flights} flights of each user, {self.config.days} days"

    def sample_state(self, rng: np.random.Generator) -> MediationState:
        return states.sample_state(self.config, rng)

    def best(self, state: MediationState) -> float:
        """Returns the points by which the best pair of flights is above the worst."""
        return state.span

    def check_fits(self, state: MediationState) -> None:
        states.check_fits(self.config, state)

    def start(self, state: MediationState) -> MediationSession:
        return MediationSession(self, state, self.prompts)

    def view(self, session: MediationSession, seat: int) -> PlayerView:
        return player_view(session, seat)

    def choices(self, session: MediationSession, seat: int) -> Sequence[Choice]:
        return session.choices(seat)

    def rewards(self, state: MediationState, decision: Any) -> tuple[float, ...]:
        return (float(state.rewards[check_pair(decision, state)]),) * len(self.roles)

    def score(self, state: MediationState, decision: Any) -> float:
        """Returns the points by which a pair of flights is above the worst."""
        return int(state.scores[check_pair(decision, state)] - state.scores.min())

    def check_decision(self, state: MediationState, decision: Any) -> None:
        check_pair(decision, state)

    def redraw(self, state: MediationState, seat: int, rng: np.random.Generator) -> MediationState:
        return states.redraw(state, seat, self.config, rng)

    def alter(
        self, state: MediationState, turns: Sequence[Turn], kind: str, rng: np.random.Generator
    ) -> Altered | None:
        return altered.altered(self.start(state), turns, kind, rng)

    def keep_named(self, state: MediationState, seat: int, text: str) -> str:
        return altered.keep_named(state, seat, text)

    def asking(self, state: MediationState, turns: Sequence[Turn], seat: int) -> Asking:
        return count_questions(turns, seat)

    def references(self, states: Sequence[MediationState]) -> dict[str, list[float]]:
        return measures.references(states)

    def wordless_rewards(
        self, states: Sequence[MediationState], rng: np.random.Generator
    ) -> Mapping[LineName, Rewards]:
        return wordless.wordless_rewards(states, self.config, rng)

    def human_episodes(self) -> Iterator[HumanEpisode]:
        """Yields the episodes of people if the configuration has DialOp's states, which all fit in its defaults."""
        return humans.human_episodes() if self.config.has_dialops_states else iter(())

    def solution(self, state: MediationState) -> Any:
        """Returns a best pair of flights."""
        return [*state.best_pair]

    def draw_state(self, state: MediationState) -> StateDrawing:
        return draw.draw_state(state)

    def draw_view(self, state: MediationState, seat: int) -> Sequence[Table]:
        return draw.draw_view(state, seat)

    def draw_episode(self, state: MediationState, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
        return draw.draw_episode(state, turns, decision)


GAME = MediationGame
"""Class that the registry loads."""
