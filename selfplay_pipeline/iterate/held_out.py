"""Figures of a checkpoint on the held-out states of a run: each is defined here once.

The name of a figure is its place in a line of `metrics.jsonl`: `held_out_words.greedy.worth` stands there as
`{"held_out_words": {"greedy": {"worth": …}}}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, field_validator

from selfplay_pipeline.evaluate.run import Evaluation, Mode
from selfplay_pipeline.evaluate.worth_of_words import LABELS, Rise
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.iterate.results import KnownInterval, StageResult, known
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.metrics.figures import REWARD, TALK, TRAINED, figures_of

Value = Interval | bool | int | float
"""An estimate with its interval, or a number without one."""
Figures = dict[str, Value]
"""Figures by name."""
PLAYED: tuple[Mode, ...] = ("sampled", "greedy")
"""Modes in which a run plays its held-out states."""
PARTS = "held_out_parts"
"""First part of the names of figures that are parts of one total, such as the causes of lost reward."""
WORDLESS = "wordless"
"""First part of the names of expected rewards of strategies without words."""


@dataclass(frozen=True)
class HeldOut:
    """One figure on held-out states.

    Attributes:
        name: Name of the figure.
        mode: Mode of the episodes in which it is measured.
        label: Label among the figures with which the page begins; "" for a figure that is not there.
        heading: Heading of its column in the table of a run; "" without a column.
    """

    name: str
    mode: Mode
    label: str = ""
    heading: str = ""


SAMPLED_REWARD = HeldOut("held_out_reward", "sampled", "reward", "\neval")
GREEDY_REWARD = HeldOut("held_out_greedy_reward", "greedy", "reward", "eval\ngreedy")
TRAINED_REWARD = HeldOut("held_out_trained_reward", "sampled")
"""Reward of the user's function; measured only where the policy is trained on it."""
AGREED = HeldOut("held_out_agreed", "sampled")
ILLEGAL = HeldOut("held_out_illegal", "sampled")
SAMPLED_TALK = HeldOut("held_out_talk_score", "sampled", TALK.label, "\ntalk")
"""Talk score; it is measured only if no play without words exceeds the silence line."""
GREEDY_TALK = HeldOut("held_out_greedy_talk_score", "greedy", TALK.label)
QUESTIONS = HeldOut("held_out_questions", "sampled")
"""Questions per episode; not measured in self-play."""
WORTH = {
    mode: HeldOut(f"held_out_words.{mode}.worth", mode, LABELS["worth"], heading)
    for mode, heading in zip(PLAYED, ("\nworth", "worth\ngreedy"), strict=True)
}
"""Worth of words; measured only if messages were swapped."""
FOREIGN_REWARD = HeldOut("held_out_foreign.reward", "sampled", heading="\nforeign")
"""Reward of the policy's seats with the foreign player, in each seat in turn or in `iterate.seat`."""
FOREIGN_RISE = HeldOut("held_out_foreign.rise", "sampled")
REWARD_RISE = {mode: HeldOut(f"held_out_rises.{mode}.reward", mode) for mode in PLAYED}
"""Rise over the run's first evaluation, paired by state, as are all rises."""
WORTH_RISE = {mode: HeldOut(f"held_out_rises.{mode}.worth", mode) for mode in PLAYED}

IN_TABLE = (SAMPLED_REWARD, GREEDY_REWARD, FOREIGN_REWARD, SAMPLED_TALK, *WORTH.values())
"""Figures with a column in the table of a run, in the order of the columns."""
IN_TILES = (SAMPLED_REWARD, GREEDY_REWARD, SAMPLED_TALK, GREEDY_TALK, *WORTH.values())
"""Figures with which the page begins."""


class Evaluated(StageResult):
    """Figures of a checkpoint on the held-out states of a run, by name; a figure that was not measured is absent."""

    checkpoint: str
    states_shared_with_training: int = 0
    figures: Figures

    @field_validator("figures")
    @classmethod
    def _has_rewards(cls, figures: Figures) -> Figures:
        """Raises ValueError unless both rewards, by which runs are compared, have their intervals."""
        for reward in (SAMPLED_REWARD, GREEDY_REWARD):
            found = figures.get(reward.name)
            if not isinstance(found, Interval) or None in (found.value, found.low, found.high):
                raise ValueError(f"{reward.name} is missing, or has no interval")
        return figures

    @property
    def reward(self) -> KnownInterval:
        return self._known(SAMPLED_REWARD)

    @property
    def greedy_reward(self) -> KnownInterval:
        return self._known(GREEDY_REWARD)

    def _known(self, figure: HeldOut) -> KnownInterval:
        interval = self.interval(figure)
        assert interval is not None
        return known(interval)

    def interval(self, figure: HeldOut) -> Interval | None:
        """Returns a figure; None if it was not measured."""
        value = self.figures.get(figure.name)
        return value if isinstance(value, Interval) else None

    def by_mode(self, figures: Mapping[Mode, HeldOut]) -> dict[str, Interval]:
        """Returns a figure by mode, without the modes in which it was not measured."""
        found: dict[str, Interval | None] = {mode: self.interval(figure) for mode, figure in figures.items()}
        return {mode: interval for mode, interval in found.items() if interval is not None}

    def below(self, first: str) -> dict[str, Interval]:
        """Returns the figures whose names begin with `first` and a dot, by the rest of their names."""
        return {
            name.removeprefix(f"{first}."): value
            for name, value in self.figures.items()
            if name.startswith(f"{first}.") and isinstance(value, Interval)
        }

    def to_line(self) -> dict[str, Any]:
        """Returns the figures as they stand in a line of `metrics.jsonl`."""
        line = self.model_dump(exclude={"figures"})
        for name, value in self.figures.items():
            *outer, last = name.split(".")
            place = line
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = value.model_dump() if isinstance(value, Interval) else value
        return line


def measured(game: Game, evaluation: Evaluation, rises: Mapping[Mode, Rise], *, partnered: bool) -> Figures:
    """Returns the held-out figures of an evaluation that was played sampled and greedily.

    Args:
        game: The played game.
        evaluation: The evaluation.
        rises: Rises over the run's first evaluation; empty for the first one.
        partnered: Whether the policy plays with a partner; only then are its questions a figure of its own.

    Raises:
        EngineError: A reward has no interval, because too few states are left.
    """
    sampled, greedy = (evaluation.modes[mode].figures for mode in PLAYED)
    found: dict[str, Value | None] = {
        SAMPLED_REWARD.name: known(sampled[REWARD.name]),
        GREEDY_REWARD.name: known(greedy[REWARD.name]),
        AGREED.name: sampled["agreed"].value,
        ILLEGAL.name: sampled["illegal"].value,
        TRAINED_REWARD.name: sampled.get(TRAINED.name),
        SAMPLED_TALK.name: sampled.get(TALK.name),
        GREEDY_TALK.name: greedy.get(TALK.name),
        QUESTIONS.name: sampled.get("questions") if partnered else None,
    }
    found |= {f"{PARTS}.{name}": sampled[name] for name, figure in figures_of(game).items() if figure.part_of}
    for mode, report in evaluation.modes.items():
        found |= _named(f"held_out_words.{mode}", report.words)
    for mode, rise in rises.items():
        found |= _named(f"held_out_rises.{mode}", rise)
    found |= {f"{WORDLESS}.{name}": evaluation.references[name] for name in game.wordless}
    return {name: value for name, value in found.items() if value is not None}


def measured_with_foreign(evaluation: Evaluation, rises: Mapping[Mode, Rise]) -> Figures:
    """Returns the figures of an evaluation with the foreign player, with the arguments of `measured`."""
    reward = known(evaluation.modes["sampled"].figures[REWARD.name])
    rise = {FOREIGN_RISE.name: rises["sampled"].reward} if rises else {}
    return {FOREIGN_REWARD.name: reward, **rise}


def _named(first: str, figures: BaseModel | None) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a model of figures, with their names below `first`."""
    for name, value in figures or ():
        yield f"{first}.{name}", value
