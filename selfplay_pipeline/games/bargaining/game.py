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
from selfplay_pipeline.games.base import SAME_SCORE, Asking, Choice, Game, ScriptedPlayer, Turn
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, Table
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.prompts import load_prompts
from selfplay_pipeline.games.silence import LineName, Rewards, in_words
from selfplay_pipeline.games.tagged_session import check_protocol
from selfplay_pipeline.games.tags import ActionKind

PROMPTS = ("system", "opening", "partner", "error", "rejected")
"""Names of the template files in a set of prompts."""

FOLDER = Path(__file__).parent
"""Folder with `prompts/`, which a game derived from this one uses too."""


class BargainingGame(Game):
    """Rules under one `BargainingConfig`.

    The game has neither a listening test nor turn credits: both need the best decision after a message, which here
        depends on the answer to a proposal.
    """

    name = "bargaining"
    settings = BargainingConfig
    actions = frozenset(kind.value for kind in ActionKind)
    error_kinds = tuple(kind.value for kind in ErrorKind)
    players: Mapping[str, ScriptedPlayer] = {
        **SCRIPTED, "teacher": Teacher(), "speaking": Speaking(), "speaking-teacher": SpeakingTeacher(),
        **wordless.WORDLESS,
    }  # fmt: skip
    lessons = LESSONS
    figures: Sequence[Figure] = measures.FIGURES
    lines = ("random",)

    def __init__(self, config: BargainingConfig | None = None) -> None:
        super().__init__(config)
        self.prompts = load_prompts(FOLDER / "prompts", self.config.prompts, PROMPTS)

    @property
    def about_lines(self) -> str:
        return in_words("knows its own values and the rules", self.wordless, bound=self.silence_is_bound)

    @property
    def shared_reward(self) -> bool:
        return bool(self.config.reward == "cooperative")

    @property
    def silence_is_bound(self) -> bool:
        return bool(self.config.protocol == "fixed")

    def describe(self) -> str:
        items = f"{rules.MIN_ITEMS} to {rules.MAX_ITEMS} items worth {rules.TOTAL_VALUE}"
        return f"{items}, {self.config.reward} reward"

    def sample_state(self, rng: np.random.Generator) -> BargainingState:
        return rules.sample_state(rng)

    def state_to_json(self, state: BargainingState) -> dict[str, Any]:
        return state.to_dict()

    def state_from_json(self, data: Any) -> BargainingState:
        return rules.load_state(data)

    def best(self, state: BargainingState) -> float:
        return state.best

    def check_fits(self, state: BargainingState) -> None:
        rules.check_fits(state)

    def problem_of(self, data: dict[str, Any]) -> Any:
        """Returns the counts and both players' values."""
        return [data["counts"], data["values"]]

    def start(self, state: BargainingState) -> BargainingSession:
        return BargainingSession(state, self.config, self.prompts)

    def choices(self, session: BargainingSession, seat: int) -> Sequence[Choice]:
        return session.choices()

    def draw_view(self, state: BargainingState, seat: int) -> Sequence[Table]:
        return [draw.draw_view(state, seat)]

    def view(self, session: BargainingSession, seat: int) -> PlayerView:
        return player_view(session, seat)

    def check_outcome(self, state: BargainingState, outcome: Any) -> None:
        check_protocol(self.config, outcome)
        try:
            split = check_split(outcome.proposal, state.counts)
        except ValueError as error:
            raise ValueError(f"field 'outcome.proposal': {error}") from None
        score = sum(state.worth(split))
        if abs(outcome.score - score) > SAME_SCORE:
            raise ValueError(f"field 'outcome.score': {outcome.score:g}, but the proposal scores {score}")
        try:
            rules.check_rewards(state, split, outcome.rewards or [outcome.normalized_reward] * len(self.roles))
        except ValueError as error:
            raise ValueError(f"field 'outcome.rewards': {error}") from None

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
