"""One held-out state of a run, played greedily by the first and the last evaluated model; a rule chooses it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.dialogues import Choice, choose_state, greedy_episodes
from selfplay_pipeline.report.sources import EpisodesFile, discover


@dataclass(frozen=True)
class BeforeAfter:
    """Two evaluations of a run, and their episodes of the chosen state.

    Attributes:
        choice: The chosen state.
        episodes: File and record of the earlier and of the later episode; empty if no state is chosen.
    """

    choice: Choice
    episodes: tuple[tuple[EpisodesFile, EpisodeRecord], ...]


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
    pair = [(file, greedy_episodes(file.path)) for file in (files[0], files[-1])]
    rewards = [
        {state: record.outcome.mean_reward_of(file.seats(record)) for state, record in records.items()}
        for file, records in pair
    ]
    choice = choose_state(*rewards)
    return BeforeAfter(
        choice, tuple((file, records[choice.state]) for file, records in pair if choice.state is not None)
    )
