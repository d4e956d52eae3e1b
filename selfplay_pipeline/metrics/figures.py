"""Figures of any game, each defined once.

Pure; every figure is a ratio of sums, so that `bootstrap` can resample states.

A game's own figures follow them (`Game.figures`). The caller chooses the seats to measure: an evaluation measures the
seats of the evaluated player; the summary of a file measures the policy's, or all seats for figures with `everyone`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np

from selfplay_pipeline.games.base import CUT, INVALID, MESSAGE, Game
from selfplay_pipeline.games.figures import Figure, Measures
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.tags import untagged
from selfplay_pipeline.metrics.bootstrap import Totals

BY_SEAT = "reward_seat_"
"""Prefix of the names of figures of one seat's reward, which are measured only for a single seat."""


def _words(episode: Measured) -> int:
    return sum(len(untagged(text).split()) for text in episode.said)


def _untold(episode: Measured) -> bool:
    return next((turn.action for turn in episode.record.turns if turn.action != INVALID), MESSAGE) != MESSAGE


def _legal(episode: Measured) -> int:
    return sum(turn.error is None for turn in episode.turns)


def _surprise(episode: Measured) -> float:
    return -sum(sum(one.response_logprobs) for one in episode.record.trajectories if one.seat in episode.seats)


def _sampled_tokens(episode: Measured) -> int:
    """Returns the number of sampled tokens; 0 for greedy play, whose log-probs belong to no sampling distribution."""
    record = episode.record
    own = (one for one in record.trajectories if one.seat in episode.seats)
    return sum(sum(one.response_mask) for one in own if record.sampler_of(one).temperature)


def _repeated_messages(episode: Measured) -> int:
    return episode.messages - len({text.strip() for text in episode.said})


def _has_talk(episode: Measured) -> bool:
    """Whether the talk score is measured: the silence line must be known, and bound all play without words.

    It bounds the mean over all seats: if rewards differ, a seat can reach more, by taking from the others.
    """
    game = episode.game
    whole = game.shared_reward or len(episode.seats) == len(game.roles)
    return game.silence is not None and game.silence_is_bound and whole


def talk_score(reward: float, silence: float) -> float:
    """Returns (reward - silence) / (1 - silence): 0 at the silence line, 1 at the optimum.

    It is measured only if no play without words can exceed the silence line, so that a score above 0 is due to words. A
    reward below the silence line gives a negative score. The score is linear in the reward, so the ends of a reward's
    interval give the ends of the score's. They ignore the error of the stored silence line. If the silence line is the
    optimum, nothing can be gained by talk, and the score is 0.
    """
    return (reward - silence) / (1 - silence) if silence < 1 else 0.0


def _talk(episode: Measured) -> float:
    return talk_score(episode.reward, episode.game.silence.value) if episode.game.silence else 0.0


REWARD = Figure(
    "reward", "normalised reward", lambda e: e.reward,
    better="higher", unit="reward", chart="Reward", summary="mean_reward",
)  # fmt: skip
TALK = Figure(
    "talk_score", "talk score", _talk, better="higher", chart="Talk score",
    note="(reward - silence) / (1 - silence): 0 is the most that is reached without words in the fixed protocol, 1 the "
    "optimum.",
)  # fmt: skip
"""Talk score; measured only for games with a known silence line that bounds all play without words."""
TRAINED = Figure("trained_reward", "trained reward", lambda e: e.trained_reward, better="higher")
"""Reward of the user's function, in its own unit; measured only where the policy is trained on it."""
FIGURES = (
    REWARD,
    TRAINED,
    TALK,
    Figure(
        "agreed", "agreement rate", lambda e: e.agreed,
        better="higher", unit="share", chart="Agreement", summary="agreement_rate",
    ),
    Figure(
        "reward_if_agreed", "reward given agreement", lambda e: e.reward * e.agreed, lambda e: e.agreed,
        better="higher", unit="reward",
    ),
    Figure("legal", "legal actions", _legal, lambda e: len(e.turns), better="higher", unit="share"),
    Figure(
        "illegal", "illegal actions an episode", lambda e: sum(turn.error is not None for turn in e.turns),
        better="lower", chart="Illegal actions", summary="illegal_per_episode", everyone=True,
    ),
    Figure(
        "messages", "messages an episode", lambda e: e.messages,
        chart="Messages", summary="messages_per_episode", everyone=True,
    ),
    Figure(
        "repeated_messages", "messages that repeat an earlier one", _repeated_messages, lambda e: e.messages,
        unit="share", summary="repeated_messages", everyone=True,
    ),
    Figure(
        "untold", "episodes that do not begin with a message", _untold,
        unit="share", summary="proposed_without_message", everyone=True,
    ),
    Figure("words", "words an episode", _words),
    Figure("words_per_message", "words a message", _words, lambda e: e.messages, chart="Message length"),
    Figure("turns", "turns of the measured seats an episode", lambda e: len(e.turns)),
    Figure("length", "turns of all seats an episode", lambda e: e.length, summary="turns_per_episode"),
    Figure(
        "entropy", "nats a sampled token", _surprise, _sampled_tokens,
        unit="nats", chart="Entropy of the policy", summary="token_entropy", everyone=True,
        note="Mean of -log-prob over the sampled tokens, under the distribution that they were sampled from, which is "
        "an unbiased estimate of its entropy.",
    ),
    Figure(
        "questions", "questions an episode", lambda e: e.asked.questions,
        chart="Questions", summary="questions_per_episode", note="Messages that ask.", reads="questions",
    ),
    Figure("facts", "facts asked for an episode", lambda e: e.asked.facts, reads="facts"),
    Figure(
        "asking", "share of messages that ask", lambda e: e.asked.questions, lambda e: e.messages,
        unit="share", reads="questions",
    ),
    Figure(
        "specific", "questions for a fact", lambda e: e.asked.specific, lambda e: e.asked.questions,
        unit="share", summary="specific_questions", reads="facts",
    ),
    Figure(
        "repeated", "of these, asked again", lambda e: e.asked.repeated, lambda e: e.asked.specific,
        unit="share", reads="facts",
    ),
    Figure(
        "learned", "facts learned a question", lambda e: e.asked.learned, lambda e: e.asked.questions,
        better="higher", summary="learned_per_question", reads="facts",
    ),
    Figure(
        "leaks", "partner's messages with facts that nobody asked for",
        lambda e: e.asked.leaks, lambda e: e.asked.partner_messages,
        unit="share", summary="leaks_per_message", reads="facts",
    ),
)  # fmt: skip


@cache
def _of_kind(kind: str) -> Figure:
    """Returns the figure that counts illegal actions of one kind."""
    label = f"illegal: {kind.replace('_', ' ')}"
    return Figure(f"illegal_{kind}", label, lambda e: sum(turn.error_kind == kind for turn in e.turns), better="lower")


@cache
def _in_seat(seat: int, role: str) -> Figure:
    """Returns the figure of the reward in episodes that measure only this seat."""
    return Figure(
        f"{BY_SEAT}{seat}", f"reward in seat {seat}" + f", {role}" * bool(role),
        lambda e: e.reward * (tuple(e.seats) == (seat,)), lambda e: tuple(e.seats) == (seat,),
        better="higher", unit="reward",
    )  # fmt: skip


def figures_of(*games: Game) -> dict[str, Figure]:
    """Returns the figures of these games by name, in display order; without games, the figures that every game has.

    The figures `illegal_…`, one per kind of error, follow the figure `illegal`.
    """
    found: dict[str, Figure] = {}
    for figure in _in_order(games):
        found.setdefault(figure.name, figure)
    return found


def _in_order(games: Sequence[Game]) -> Iterator[Figure]:
    for figure in FIGURES:
        yield figure
        if figure.name == "reward_if_agreed":
            longest = max((game.roles for game in games), key=len, default=())
            roles = longest if len(games) == 1 else [""] * len(longest)
            yield from (_in_seat(seat, role) for seat, role in enumerate(roles))
        if figure.name == "illegal":
            yield from map(_of_kind, dict.fromkeys(kind for game in games for kind in (CUT, *game.error_kinds)))
    for game in games:
        yield from game.figures


def bounded(*games: Game) -> frozenset[str]:
    """Returns the names of these games' figures that lie in [0, 1], rewards and shares; so do their intervals."""
    return frozenset(name for name, figure in figures_of(*games).items() if figure.unit in ("share", "reward"))


def summarised(*games: Game) -> dict[str, Figure]:
    """Returns the figures in summaries of files of these games' episodes, by their keys there.

    Without games, the figures that every game may have.
    """
    return {
        figure.summary: figure
        for figure in figures_of(*games).values()
        if figure.summary and (not games or any(_reads(game, figure) for game in games))
    }


def rows_of(columns: Sequence[Mapping[str, Any]], *games: Game) -> list[tuple[str, list[Any]]]:
    """Returns the rows (label, cells) of a table of these games' figures.

    A figure without a value in any column has no row, and neither has a kind of error that never occurred.
    """
    rows = []
    for name, figure in figures_of(*games).items():
        cells = [column.get(name) for column in columns]
        values = [cell.value for cell in cells if cell is not None and cell.value is not None]
        if any(values) if name.startswith("illegal_") else values:
            rows.append((figure.label, cells))
    return rows


def measure(episode: Measured) -> Measures:
    """Returns all figures of one episode."""
    return {
        name: figure.parts(episode) for name, figure in figures_of(episode.game).items() if is_measured(episode, figure)
    }


def is_measured(episode: Measured, figure: Figure) -> bool:
    """Whether a figure can be measured in an episode."""
    if figure is TALK:
        return _has_talk(episode)
    if figure is TRAINED:
        return episode.trained is not None
    return _reads(episode.game, figure) and (len(episode.seats) == 1 or not figure.name.startswith(BY_SEAT))


def _reads(game: Game, figure: Figure) -> bool:
    """Whether a game reads in messages what a figure counts."""
    return not figure.reads or (game.has("asking") and (game.reads_facts or figure.reads == "questions"))


def measure_reward(episode: Measured) -> Measures:
    """Returns only the reward of one episode, which takes a fraction of the time of all figures."""
    return {REWARD.name: REWARD.parts(episode)}


@dataclass
class Sums:
    """Figures of episodes, summed by figure and game state.

    Memory grows by 16 bytes per state and figure.
    """

    _places: dict[int, int] = field(default_factory=dict)
    """Place of each state's sums in the columns."""
    _columns: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)
    """Sums of numerators and denominators of each figure; a column ends at the last state that has the figure."""

    def __bool__(self) -> bool:
        return bool(self._columns)

    def add(self, state: int, figures: Measures) -> None:
        """Add the figures of one episode of state number `state`."""
        place = self._places.setdefault(state, len(self._places))
        for name, pair in figures.items():
            for column, part in zip(self._columns.setdefault(name, (array("d"), array("d"))), pair, strict=True):
                if place >= len(column):
                    column.extend(repeat(0.0, place + 1 - len(column)))
                column[place] += part

    def totals(self, states: Iterable[int]) -> Totals:
        """Returns the sums for these states; they are 0 for a state without an episode."""
        places = [self._places.get(state, -1) for state in states]
        return Totals.of(
            {name: (_at(above, places), _at(below, places)) for name, (above, below) in self._columns.items()}
        )


def _at(column: array[float], places: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the values at these places; 0 for a place outside of the column."""
    return np.array([column[place] if 0 <= place < len(column) else 0.0 for place in places])
