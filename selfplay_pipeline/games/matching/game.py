"""The class that gives other parts access to the matching game; see `games/base.py: Game`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.altered import KINDS
from selfplay_pipeline.games.base import Altered, Asking, HumanEpisode, KnownLine, ScriptedPlayer, Turn
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, Table
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.matching import draw, humans, measures, renaming, states
from selfplay_pipeline.games.matching.altered import EXCHANGED, altered
from selfplay_pipeline.games.matching.proposals import ErrorKind
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.matching.redraw import keep_named, redraw
from selfplay_pipeline.games.matching.rules import (
    MatchingConfig,
    MatchingState,
    best_matching,
    check_matching,
)
from selfplay_pipeline.games.matching.scripted import OwnView, PlayerView, Random, Sharing, Silent, player_view
from selfplay_pipeline.games.matching.session import MatchingSession
from selfplay_pipeline.games.matching.shy import Asker, Quiet, Shy
from selfplay_pipeline.games.matching.speaking import Speaking, SpeakingTeacher
from selfplay_pipeline.games.matching.teacher import (
    DEAF,
    LESSONS,
    LISTENING,
    NAMING,
    SPELLING,
    CountingTeacher,
    Teacher,
)
from selfplay_pipeline.games.matching.wordless import draws_for, wordless_rewards
from selfplay_pipeline.games.matching.wordless_players import WORDLESS
from selfplay_pipeline.games.silence import LineName, Rewards, in_words
from selfplay_pipeline.games.tagged_session import TaggedGame

SCRIPTED: Mapping[str, ScriptedPlayer] = {
    "random": Random(),
    "own-view": OwnView(),
    "sharing": Sharing(),
    "silent": Silent(),
    "shy": Shy(),
    "asker": Asker(),
    "quiet": Quiet(),
    "teacher": Teacher(),
    "listening-teacher": LISTENING,
    "deaf-teacher": DEAF,
    "spelling-teacher": SPELLING,
    "naming-teacher": NAMING,
    "counting-teacher": CountingTeacher(),
    "speaking": Speaking(),
    **{f"speaking-{most}": Speaking(most=most) for most in (1, 2, 3)},
    "speaking-teacher": SpeakingTeacher(),
    **WORDLESS,
}


class MatchingGame(TaggedGame):
    """The matching game under one configuration."""

    name = "matching"
    settings = MatchingConfig
    prompt_folder = Path(__file__).parent / "prompts"
    data_source = "dialop_matching_selfplay"
    error_kinds = tuple(kind.value for kind in ErrorKind)
    players = SCRIPTED
    lessons = LESSONS
    figures: Sequence[Figure] = measures.FIGURES
    lines = ("random", "own_view")
    about_humans = humans.ABOUT
    alterations: Sequence[str] = KINDS

    def __init__(self, config: MatchingConfig | None = None) -> None:
        """Store the configuration. Who sees nothing can follow names alone, so there names are altered too."""
        super().__init__(config)
        if self.config.visibility == "one_sided":
            self.alterations = (*KINDS, EXCHANGED)

    @property
    def about_lines(self) -> str:
        rules = "the rules, the hard filter too," if self.config.hard_factor else "the rules"
        one_sided = self.config.visibility == "one_sided"
        known = f"knows only {rules}" if one_sided else f"makes the best of its own view and of {rules}"
        return in_words(known, self.wordless, bound=self.silence_is_bound)

    def describe(self) -> str:
        return f"board {self.config.size}×{self.config.size}"

    def sample_state(self, rng: np.random.Generator) -> MatchingState:
        return states.sample_state(self.config, rng)

    def state_to_json(self, state: MatchingState) -> dict[str, Any]:
        return state.to_dict()

    def state_from_json(self, data: Any) -> MatchingState:
        return states.load_state(data)

    def best(self, state: MatchingState) -> float:
        return state.best

    def check_fits(self, state: MatchingState) -> None:
        states.check_fits(self.config, state)

    def problem_of(self, data: dict[str, Any]) -> Any:
        """Returns the table and both masks."""
        return [data["table"], data["mask1"], data["mask2"]]

    def start(self, state: MatchingState) -> MatchingSession:
        return MatchingSession(self, state)

    def draw_view(self, state: MatchingState, seat: int) -> Sequence[Table]:
        return [draw.draw_view(state, seat)]

    def view(self, session: MatchingSession, seat: int) -> PlayerView:
        return player_view(session, seat)

    def rewards(self, state: MatchingState, decision: Any) -> tuple[float, ...]:
        return (self.score(state, decision) / state.best,) * len(self.roles)

    def score(self, state: MatchingState, decision: Any) -> float:
        return state.score(tuple((reviewer, paper) for reviewer, paper in decision))

    def check_decision(self, state: MatchingState, decision: Any) -> None:
        check_matching(decision, state.size)

    def asking(self, state: MatchingState, turns: Sequence[Turn], seat: int) -> Asking:
        return asking(turns, state, seat)

    def alter(self, state: MatchingState, turns: Sequence[Turn], kind: str, rng: np.random.Generator) -> Altered | None:
        return altered(state, turns, kind, self.config, rng)

    def redraw(self, state: MatchingState, seat: int, rng: np.random.Generator) -> MatchingState:
        return redraw(state, seat, self.config, rng)

    def keep_named(self, state: MatchingState, seat: int, text: str) -> str:
        return keep_named(state, seat, text)

    def draw_names(self, state: MatchingState, rng: np.random.Generator) -> dict[str, list[int]]:
        return renaming.draw_names(state, rng)

    def renamed(self, state: MatchingState, names: Mapping[str, Sequence[int]]) -> MatchingState:
        return renaming.renamed(state, names)

    def retold(self, state: MatchingState, names: Mapping[str, Sequence[int]], text: str, *, back: bool = False) -> str:
        return renaming.retold(state, names, text, back=back)

    def references(self, states: Sequence[MatchingState]) -> dict[str, list[float]]:
        return measures.references(states, self.config)

    def wordless_rewards(self, states: Sequence[MatchingState], rng: np.random.Generator) -> Mapping[LineName, Rewards]:
        return wordless_rewards(states, self.config, rng, draws_for(self.config))

    def known_reward(self, state: MatchingState, data: dict[str, Any]) -> float | None:
        """Returns DialOp's `proposal_reward`, the score of a human pair, as a share of the best score."""
        score = data.get("proposal_reward")
        if score is None:
            return None
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= state.best:
            raise UserError(f"field 'proposal_reward': {score!r} is not a score between 0 and {state.best}")
        return float(score / state.best)

    def known_lines(self) -> dict[str, KnownLine]:
        return measures.KNOWN_LINES if self.config.is_dialops_board else {}

    def human_episodes(self) -> Iterator[HumanEpisode]:
        return humans.human_episodes() if self.config.is_dialops_board else iter(())

    def solution(self, state: MatchingState) -> Any:
        """Returns the paper of each reviewer in a best matching."""
        return {state.reviewers[row]: state.papers[column] for row, column in best_matching(state.table)[0]}

    def draw_state(self, state: MatchingState) -> StateDrawing:
        return draw.draw_state(state)

    def draw_episode(self, state: MatchingState, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
        return draw.draw_episode(state, turns, decision, self.config)


GAME = MatchingGame
"""Class that the registry loads."""
