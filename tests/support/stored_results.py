"""Reads the stored results of studies, to compare figures in documents with them."""

import json
from pathlib import Path
from typing import Any

from selfplay_pipeline.metrics.bootstrap import Interval

ROOT = Path(__file__).parents[2]
MODES = ("sampled", "greedy")
SELF, WARM, MUTED, PLACEBO, NOISE = "self-play", "warm start", "muted", "placebo", "noise"


def stored(name: str) -> Any:
    """Returns the content of a JSON file, by its path from the root of the checkout."""
    return json.loads((ROOT / name).read_text())


def interval(of: Any) -> Interval:
    return Interval(**of)


def page(document: str) -> str:
    """Returns a document with single spaces."""
    return " ".join((ROOT / document).read_text().split())


class Study:
    """A result of `studies.common.learn`: figures by player, part, mode and name."""

    def __init__(self, name: str) -> None:
        self.results = stored(f"studies/{name}.json")

    def of(self, player: str, mode: str, name: str = "reward", part: str = "talking") -> Interval:
        return interval(self.results["players"][player][part][mode][name])

    def both(self, player: str, name: str = "reward", part: str = "talking") -> list[Interval]:
        """Sampled and greedy."""
        return [self.of(player, mode, name, part) for mode in MODES]

    def follows(self, player: str) -> Interval:
        """Returns the share of the proposals that follow a message in which one score was changed."""
        return interval(self.results["players"][player]["listening"]["changed"]["follows"])

    @property
    def silence(self) -> Interval:
        return interval(self.results["references"]["silence"])


class Exam:
    """Rewards of models by what they read, as `studies.common.exam` stores them."""

    def __init__(self, name: str) -> None:
        self.rewards = stored(f"studies/{name}.json")["rewards"]

    def of(self, model: int, read: str) -> float:
        """Returns the reward of a model, the first with number 0."""
        return float(list(self.rewards.values())[model][read])
