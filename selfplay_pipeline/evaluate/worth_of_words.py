"""Worth of words: the reward minus the reward in episodes in which seats hear swapped messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.games.base import Game
from selfplay_pipeline.generate.episode_wrappers import Swap
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast
from selfplay_pipeline.metrics.figures import REWARD

OTHER_STATES = "swapped messages are those of episodes of other states: this game cannot draw a state anew"


@dataclass(frozen=True)
class SwappedRewards:
    """Episodes in which messages were replaced.

    Attributes:
        totals: Rewards by game state.
        heard: Number of replaced messages.
        empty: Number of replaced messages whose replacement has no content.
    """

    totals: Totals
    heard: int
    empty: int


class Words(BaseModel):
    """Worth of words in one mode, each with its interval; differences are paired by game state.

    Attributes:
        redrawn: Whether replacements come from states redrawn given the hearer's view; False if they come from other
            states of the evaluation.
        swapped_reward: Reward with swapped messages. In the fixed protocol its expectation is at most the silence line.
        worth: Reward minus swapped reward. It contains the harm that a false message does.
        gain: Reward minus silence line, without the line's own error; None if the line is unknown.
        named_reward: Reward if messages name the same things, but tell the facts of the redrawn state about them; None
            for a game without such messages.
        which: Named reward minus swapped reward: the worth of choosing which things to name.
        what: Reward minus named reward: the worth of the facts that are told about the named things.
        heard: Number of swapped messages.
        empty: Number of swapped messages whose replacement has no content, because the counterfactual speaker sent
            none.
        lost: Number of missing episodes with replaced messages.
    """

    model_config = ConfigDict(extra="forbid")

    redrawn: bool
    swapped_reward: Interval
    worth: Interval
    gain: Interval | None = None
    named_reward: Interval | None = None
    which: Interval | None = None
    what: Interval | None = None
    heard: int
    empty: int
    lost: int = 0


class Rise(BaseModel):
    """Figures of one mode minus those of an earlier evaluation, paired by game state.

    Attributes:
        reward: Rise of the reward.
        worth: Rise of the worth of words; None unless both evaluations swapped messages.
    """

    model_config = ConfigDict(extra="forbid")

    reward: Interval
    worth: Interval | None = None


LABELS = {
    "swapped_reward": "reward, messages swapped", "named_reward": "reward, named things kept",
    "gain": "gain over silence", "worth": "worth of words", "which": "of this: which things are named",
    "what": "of this: what is said of them",
}  # fmt: skip
"""Labels of the figures, in display order."""


def worth_of_words(
    game: Game, said: Totals, swapped: Mapping[Swap, SwappedRewards], lost: int, *, whole: bool
) -> Words:
    """Returns the worth of words.

    Args:
        game: The played game.
        said: Rewards by game state of the episodes with the original messages.
        swapped: Episodes on the same states by the rule of replacement; one is `swapped`.
        lost: Number of missing episodes.
        whole: Whether the reward is that of all seats. The silence line bounds only their mean: a seat can reach more,
            by taking from the others.
    """
    totals = {name: one.totals for name, one in swapped.items()}

    def difference(*terms: tuple[float, Totals]) -> Interval:
        return contrast(terms)[REWARD.name]

    anew, named = totals["swapped"], totals.get("named")
    reward, line = difference((1, said)), game.silence
    return Words(
        redrawn=game.has("redraw"),
        swapped_reward=difference((1, anew)),
        worth=difference((1, said), (-1, anew)),
        gain=reward.shifted(-line.value) if line and whole else None,
        named_reward=difference((1, named)) if named else None,
        which=difference((1, named), (-1, anew)) if named else None,
        what=difference((1, said), (-1, named)) if named else None,
        heard=swapped["swapped"].heard,
        empty=swapped["swapped"].empty,
        lost=lost,
    )


def rise_of(said: Sequence[Totals], swapped: Sequence[Totals]) -> Rise:
    """Returns the rise from an earlier evaluation to a later one.

    Args:
        said: Rewards by game state, of the later evaluation and of the earlier one.
        swapped: The same with swapped messages; empty if none were swapped.
    """
    rise = list(zip((1, -1), said, strict=True))
    less = list(zip((-1, 1), swapped, strict=True)) if swapped else []
    return Rise(reward=contrast(rise)[REWARD.name], worth=contrast([*rise, *less])[REWARD.name] if less else None)


def rows_of_words(columns: Sequence[Words | None]) -> list[tuple[str, list[str]]]:
    """Returns the rows (label, cells) of a table of the worth of words, without figures unknown in all columns."""
    rows = []
    for name, label in LABELS.items():
        cells = [None if words is None else getattr(words, name) for words in columns]
        if any(cells):
            rows.append((label, ["" if cell is None else str(cell) for cell in cells]))
    counts = ["" if words is None else f"{words.heard} ({words.empty})" for words in columns]
    return [*rows, ("swapped messages (without content)", counts)] if rows else []
