"""Reads a file of episodes in one pass: its figures, and each episode's position in the file.

Memory does not grow with the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.evaluate.silence import above_silence
from selfplay_pipeline.evaluate.states import StateSet, references
from selfplay_pipeline.games.base import Game, State
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import (
    GroupStates,
    NoEpisodeError,
    arguments_path,
    named_at,
    parse_episode,
    read_lines,
)
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.metrics.figures import Sums, measure
from selfplay_pipeline.report.sources import EpisodesFile

REFERENCE_STATES = 500
"""Number of a file's states on which reference lines are computed, if no evaluation has done so."""

SILENCE_STATES = 200
"""Number of a file's states on which rewards are compared with silence, which takes seconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position of an episode in its file, and the values that decide whether it is sampled."""

    offset: int
    """Number of bytes before the episode, counted from the first line."""
    group: int
    episode: int
    reward: float
    illegal: int


@dataclass
class Scan:
    """Result of one pass over a file of episodes.

    Attributes:
        figures: Figures as in `selfplay evaluate`, with intervals over game states.
        references: Mean reference rewards by name, on up to `REFERENCE_STATES` of the file's states.
    """

    file: EpisodesFile
    places: list[Place]
    summary: Summary
    figures: dict[str, Interval]
    references: dict[str, Interval]
    checkpoint: str | None = None
    """The checkpoint that played the last episode."""
    game: str = ""
    """Name of the game that was played."""
    rules: dict[str, Game] = field(default_factory=dict)
    """The played games by name, each with the rules under which it was played."""
    above_silence: Interval | None = None
    """Reward minus silence on the first `SILENCE_STATES` states; None unless asked for and known."""

    @cached_property
    def groups(self) -> dict[int, list[Place]]:
        """The episodes of each state, in their order."""
        found: dict[int, list[Place]] = {}
        for place in sorted(self.places, key=lambda place: (place.group, place.episode)):
            found.setdefault(place.group, []).append(place)
        return found


def scan(
    file: EpisodesFile, on_bytes: Callable[[int], None] = lambda count: None, *, with_silence: bool = False
) -> Scan:
    """Returns the scan of a file of episodes, which may still be growing.

    Args:
        file: The file.
        on_bytes: Function that is called with the number of bytes read since its last call.
        with_silence: Whether rewards are compared with silence on the same states.

    Raises:
        UserError: A line is bad, or a group has two states; the message names file, line or episode, and field.
    """
    summary = Summary()
    states: dict[int, State] = {}
    sums, of_groups = Sums(), GroupStates()
    result = Scan(file, [], summary, {}, {})

    for offset, size, record in episodes(file.path):
        on_bytes(size)
        try:
            of_groups.check(record)
        except ValueError as error:
            where = f"{file.path}: episode {record.episode_id}"
            raise UserError(f"{where}: {error}; give the files of different runs one by one") from None
        summary.add(record)
        result.checkpoint, result.game = next(iter(record.checkpoints), None), record.game
        if record.game not in result.rules:
            result.rules[record.game] = file.game_of(record)
            if file.game_config() is None:
                logger.warning(
                    f"{file.path}: read with the default rules of {record.game}, since the file with its own, "
                    f"{arguments_path(file.path).name}, is not beside it"
                )
        episode = Measured(result.rules[record.game], record, file.seats(record))
        illegal = record.outcome.num_illegal
        result.places.append(Place(offset, record.group_index, record.episode, episode.reward, illegal))
        if len(states) < REFERENCE_STATES:
            states.setdefault(record.group_index, episode.state)
        sums.add(record.group_index, measure(episode))
    if sums:
        result.figures = sums.totals(sorted(summary.rewards)).intervals()
        config = file.game_config()
        if config is not None:
            game = make_game(config)
            result.references = references(game, StateSet(file.label, tuple(states.values())))
            if with_silence:
                few = dict(islice(states.items(), SILENCE_STATES))
                result.above_silence = above_silence(game, list(few.values()), {"": sums.totals(few)}).get("")
    return result


def episodes(path: Path) -> Iterator[tuple[int, int, EpisodeRecord]]:
    """Yields offset, size in bytes and content of each complete line; an incomplete last line is still being written.

    Raises:
        UserError: A line is bad.
    """
    offset = 0
    for number, line in read_lines(path):
        if line.endswith(b"\n") and line.strip():
            yield offset, len(line), parse(line, f"{path}:{number}")
        offset += len(line)


def parse(line: bytes, where: str) -> EpisodeRecord:
    """Returns the episode of one line.

    Raises:
        UserError: The line is not an episode, or the episode is impossible.
    """
    try:
        return parse_episode(line)
    except ValueError as error:
        if isinstance(error, NoEpisodeError):
            raise UserError(f"{where}: {error}") from None
        hint = named_at(Path(where.rpartition(":")[0]), error) or "; `selfplay generate` writes this file"
        raise UserError(f"{where}: {error}{hint}") from None
