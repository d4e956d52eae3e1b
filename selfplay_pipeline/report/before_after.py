"""One held-out state of a run, played greedily by the first and the last evaluated model; a rule chooses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from selfplay_pipeline.games.base import SAME_SCORE
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.report.sources import EpisodesFile, discover


@dataclass(frozen=True)
class Choice:
    """The state to show, and the number of states among which it was chosen.

    Attributes:
        state: Number of the state; None if no reward changed.
        states: Number of states that were played both times.
        rose: Number of states whose reward rose.
        fell: Number of states whose reward fell.
    """

    state: int | None
    states: int
    rose: int
    fell: int

    def in_words(self) -> str:
        """Returns the rule and its result in one line."""
        played = f"{self.states} held-out states, played greedily (always the likeliest token) before and after"
        if self.state is None:
            return f"No dialogue to show: the reward changed on none of {played}."
        return (
            f"One dialogue as an example, chosen by a rule: of {played}, the reward rose on {self.rose} and fell on "
            f"{self.fell}; of these {self.rose + self.fell}, state {self.state} is the first with the (lower) "
            "median change."
        )


@dataclass(frozen=True)
class BeforeAfter:
    """Two evaluations of a run, and their episodes of the chosen state.

    Attributes:
        choice: The chosen state.
        episodes: File and record of the earlier and of the later episode; empty if no state is chosen.
    """

    choice: Choice
    episodes: tuple[tuple[EpisodesFile, EpisodeRecord], ...]


def choose_state(before: Mapping[int, float], after: Mapping[int, float]) -> Choice:
    """Returns the first state with the median change, among the states whose reward changed. Pure.

    Of two changes in the middle, the lower one is the median. Rewards that differ by less than `SAME_SCORE` are
    equal, and a state that only one side has does not count.

    Args:
        before: Earlier rewards by number of the state.
        after: Later rewards by number of the state.
    """
    both = sorted(before.keys() & after.keys())
    changes = {state: after[state] - before[state] for state in both}
    changes = {state: change for state, change in changes.items() if abs(change) >= SAME_SCORE}
    chosen = None
    if changes:
        median = median_low(changes.values())
        chosen = next(state for state, change in changes.items() if abs(change - median) < SAME_SCORE)
    rose = sum(change > 0 for change in changes.values())
    return Choice(chosen, len(both), rose, len(changes) - rose)


def before_and_after(run: Path) -> BeforeAfter | None:
    """Returns the chosen episodes of a run's first and last evaluation; None if fewer than two left greedy episodes.

    A checkpoint that was carried forward was not played again, so the later episode may be of an earlier iteration.

    Raises:
        UserError: A file of the run is damaged.
    """
    source = discover(run)
    files = [
        file
        for file in source.files
        if file.mode == "greedy" and file.iteration is not None and source.state.evaluated(file.iteration)
    ]
    if len(files) < 2:
        return None
    pair = [(file, _episodes(file)) for file in (files[0], files[-1])]
    rewards = [
        {state: record.outcome.mean_reward_of(file.seats(record)) for state, record in records.items()}
        for file, records in pair
    ]
    choice = choose_state(*rewards)
    return BeforeAfter(
        choice, tuple((file, records[choice.state]) for file, records in pair if choice.state is not None)
    )


def _episodes(file: EpisodesFile) -> dict[int, EpisodeRecord]:
    """Returns the episodes by state; to save memory, without their tokens."""
    return {record.group_index: record.model_copy(update={"trajectories": []}) for record in read_episodes(file.path)}
