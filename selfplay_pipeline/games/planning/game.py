"""The class that gives other parts access to planning; see `games/base.py: Game`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.games.base import Asking, HumanEpisode, ScriptedPlayer, Turn
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, Table
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.planning import draw, humans, measures, rules, states, wordless
from selfplay_pipeline.games.planning.rules import PlanningConfig, PlanningState, check_itinerary
from selfplay_pipeline.games.planning.scripted import SCRIPTED, PlayerView, player_view
from selfplay_pipeline.games.planning.search import SEARCH
from selfplay_pipeline.games.planning.session import PlanningSession
from selfplay_pipeline.games.planning.speaking import Speaking, SpeakingTeacher
from selfplay_pipeline.games.planning.teacher import LESSONS, Teacher
from selfplay_pipeline.games.planning.text import ErrorKind
from selfplay_pipeline.games.questions import count_questions
from selfplay_pipeline.games.silence import LineName, Rewards, in_words
from selfplay_pipeline.games.tagged_session import TaggedGame
from selfplay_pipeline.games.tags import ActionKind


class PlanningGame(TaggedGame):
    """Rules under one `PlanningConfig`."""

    name = "planning"
    state = PlanningState
    settings = PlanningConfig
    prompt_folder = Path(__file__).parent / "prompts"
    roles = rules.ROLES
    actions = TaggedGame.actions | {SEARCH}
    error_kinds = tuple(kind.value for kind in ErrorKind)
    disclosing = frozenset({ActionKind.PROPOSE.value})  # the user reads its points, which also depend on hidden weights
    players: Mapping[str, ScriptedPlayer] = {
        **SCRIPTED, "teacher": Teacher(), "speaking": Speaking(), "speaking-teacher": SpeakingTeacher(),
    }  # fmt: skip
    lessons = LESSONS
    figures: Sequence[Figure] = measures.FIGURES
    reads_facts = False
    lines = ("random",)
    about_humans = humans.ABOUT

    @property
    def about_lines(self) -> str:
        return in_words("is the agent, knows the places and the rules", self.wordless, bound=self.silence_is_bound)

    def describe(self) -> str:
        return f"{self.config.places} places, at most {self.config.preferences} preferences"

    def sample_state(self, rng: np.random.Generator) -> PlanningState:
        return states.sample_state(self.config, rng)

    def best(self, state: PlanningState) -> float:
        """Returns the points by which the best itinerary is above the worst."""
        return state.span

    def check_fits(self, state: PlanningState) -> None:
        states.check_fits(self.config, state)

    def start(self, state: PlanningState) -> PlanningSession:
        return PlanningSession(self, state)

    def view(self, session: PlanningSession, seat: int) -> PlayerView:
        return player_view(session, seat)

    def rewards(self, state: PlanningState, decision: Any) -> tuple[float, ...]:
        return (float(state.rewards[state.at(check_itinerary(decision, state))]),) * len(self.roles)

    def score(self, state: PlanningState, decision: Any) -> float:
        """Returns the points by which an itinerary is above the worst."""
        return int(state.scores[state.at(check_itinerary(decision, state))]) - state.worst

    def check_decision(self, state: PlanningState, decision: Any) -> None:
        check_itinerary(decision, state)

    def redraw(self, state: PlanningState, seat: int, rng: np.random.Generator) -> PlanningState:
        return states.redraw(state, seat, self.config, rng)

    def asking(self, state: PlanningState, turns: Sequence[Turn], seat: int) -> Asking:
        return count_questions(turns, seat)

    def references(self, states: Sequence[PlanningState]) -> dict[str, list[float]]:
        return measures.references(states)

    def wordless_rewards(self, states: Sequence[PlanningState], rng: np.random.Generator) -> Mapping[LineName, Rewards]:
        return wordless.wordless_rewards(states, self.config, rng)

    def human_episodes(self) -> Iterator[HumanEpisode]:
        """Yields the episodes of people if the configuration has DialOp's states, which all fit in its defaults."""
        return humans.human_episodes() if self.config.has_dialops_states else iter(())

    def solution(self, state: PlanningState) -> Any:
        """Returns a best itinerary."""
        return [*state.best_itinerary]

    def draw_state(self, state: PlanningState) -> StateDrawing:
        return draw.draw_state(state)

    def draw_view(self, state: PlanningState, seat: int) -> Sequence[Table]:
        return draw.draw_view(state, seat)

    def draw_episode(self, state: PlanningState, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
        return draw.draw_episode(state, turns, decision)


GAME = PlanningGame
"""Class that the registry loads."""
