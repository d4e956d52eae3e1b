"""The class that gives other parts access to Deal or No Deal; see `games/base.py: Game`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.games.bargaining import draw, measures, rules, wordless
from selfplay_pipeline.games.bargaining.rules import BargainingConfig, BargainingState, check_split
from selfplay_pipeline.games.bargaining.scripted import SCRIPTED, PlayerView, player_view
from selfplay_pipeline.games.bargaining.session import BargainingSession
from selfplay_pipeline.games.bargaining.speaking import Speaking, SpeakingTeacher
from selfplay_pipeline.games.bargaining.teacher import LESSONS, Teacher
from selfplay_pipeline.games.bargaining.text import ErrorKind
from selfplay_pipeline.games.base import Asking, ScriptedPlayer, Turn
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, Table
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.silence import LineName, Rewards, in_words
from selfplay_pipeline.games.tagged_session import TaggedGame


class BargainingGame(TaggedGame):
    """Rules under one `BargainingConfig`.

    The game has no listening test, which needs the best decision after a message: here it depends on the answer to a
    proposal.
    """

    name = "bargaining"
    state = BargainingState
    settings = BargainingConfig
    prompt_folder = Path(__file__).parent / "prompts"
    error_kinds = tuple(kind.value for kind in ErrorKind)
    players: Mapping[str, ScriptedPlayer] = {
        **SCRIPTED, "teacher": Teacher(), "speaking": Speaking(), "speaking-teacher": SpeakingTeacher(),
        **wordless.WORDLESS,
    }  # fmt: skip
    lessons = LESSONS
    figures: Sequence[Figure] = measures.FIGURES
    lines = ("random",)

    @property
    def about_lines(self) -> str:
        proposer, bound = "knows its own values and the rules", self.silence_is_bound
        return in_words(proposer, self.wordless, bound=bound, shared=self.shared_reward)

    @property
    def shared_reward(self) -> bool:
        return bool(self.config.reward == "cooperative")

    def describe(self) -> str:
        items = f"{rules.MIN_ITEMS} to {rules.MAX_ITEMS} items worth {rules.TOTAL_VALUE}"
        return f"{items}, {self.config.reward} reward"

    def sample_state(self, rng: np.random.Generator) -> BargainingState:
        return rules.sample_state(rng)

    def best(self, state: BargainingState) -> float:
        return state.best

    def check_fits(self, state: BargainingState) -> None:
        rules.check_fits(state)

    def problem_of(self, data: dict[str, Any]) -> Any:
        """Returns the counts and both players' values."""
        return [data["counts"], data["values"]]

    def start(self, state: BargainingState) -> BargainingSession:
        return BargainingSession(self, state)

    def draw_view(self, state: BargainingState, seat: int) -> Sequence[Table]:
        return [draw.draw_view(state, seat)]

    def view(self, session: BargainingSession, seat: int) -> PlayerView:
        return player_view(session, seat)

    def rewards(self, state: BargainingState, decision: Any) -> tuple[float, ...]:
        return rules.rewards(self.config, state, check_split(decision, state.counts))

    def score(self, state: BargainingState, decision: Any) -> float:
        return sum(state.worth(check_split(decision, state.counts)))

    def check_rewards(self, state: BargainingState, decision: Any, found: Sequence[float]) -> None:
        rules.check_rewards(state, check_split(decision, state.counts), found)

    def check_decision(self, state: BargainingState, decision: Any) -> None:
        check_split(decision, state.counts)

    def asking(self, state: BargainingState, turns: Sequence[Turn], seat: int) -> Asking:
        return measures.asking(state, turns, seat)

    def references(self, states: Sequence[BargainingState]) -> dict[str, list[float]]:
        return measures.references(states, self.config)

    def redraw(self, state: BargainingState, seat: int, rng: np.random.Generator) -> BargainingState:
        return rules.redraw(state, seat, rng)

    def wordless_rewards(
        self, states: Sequence[BargainingState], rng: np.random.Generator
    ) -> Mapping[LineName, Rewards]:
        return wordless.wordless_rewards(states, self.config)

    def solution(self, state: BargainingState) -> Any:
        """Returns a split of the best sum."""
        return draw.nearest_best(state, (state.counts, (0, 0, 0)))

    def draw_state(self, state: BargainingState) -> StateDrawing:
        return draw.draw_state(state)

    def draw_episode(self, state: BargainingState, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
        return draw.draw_episode(state, turns, decision)


GAME = BargainingGame
"""Class that the registry loads."""
