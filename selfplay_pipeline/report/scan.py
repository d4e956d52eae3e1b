"""One pass over a file of plays: its figures, and where in the file each play is. Memory does not grow with texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.evaluate.bootstrap import Interval
from selfplay_pipeline.evaluate.figures import Sums, play_figures
from selfplay_pipeline.evaluate.states import StateSet, references
from selfplay_pipeline.files import explain
from selfplay_pipeline.games.matching.rules import MatchingGame, MatchingState
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.generate.records import PlayRecord, read_lines
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.report.sources import GamesFile

REFERENCE_STATES = 500
"""States of a file from which reference lines are computed where no evaluation gave them."""


@dataclass(frozen=True)
class Place:
    """A play in its file, and what one may choose it by."""

    offset: int
    group: int
    play: int
    reward: float
    illegal: int
    status: str


@dataclass
class Scan:
    """A file of plays, read once.

    Attributes:
        figures: as `selfplay evaluate` computes them, with intervals over game states.
        rewards: normalised, of all plays but those lost to the engine.
        references: mean rewards to compare with, on up to `REFERENCE_STATES` of the file's states.
    """

    file: GamesFile
    places: list[Place]
    summary: Summary
    figures: dict[str, Interval]
    rewards: list[float]
    references: dict[str, Interval]
    checkpoint: str | None = None
    """Of the last play."""

    @property
    def flat_groups(self) -> float | None:
        """Share of the groups of two plays and more whose plays all scored alike, None if there are none."""
        groups = [rewards for rewards in self.summary.rewards.values() if len(rewards) > 1]
        return sum(max(rewards) == min(rewards) for rewards in groups) / len(groups) if groups else None

    @cached_property
    def groups(self) -> dict[int, list[Place]]:
        """The plays of each state, in their order."""
        found: dict[int, list[Place]] = {}
        for place in sorted(self.places, key=lambda place: (place.group, place.play)):
            found.setdefault(place.group, []).append(place)
        return found


def scan(file: GamesFile, on_bytes: Callable[[int], None] = lambda count: None) -> Scan:
    """Read a file of plays, which may still be growing.

    Args:
        on_bytes: told how many bytes were read since it was last told.

    Raises:
        UserError: a line is bad; names file, line and field.
    """
    game, summary = MatchingGame(), Summary()
    states: dict[int, MatchingState] = {}
    sums = Sums()
    result = Scan(file, [], summary, {}, [], {})

    for offset, size, record in plays(file.path):
        on_bytes(size)
        outcome = record.outcome
        summary.add(record)
        result.checkpoint = record.policy.checkpoint
        result.places.append(
            Place(
                offset,
                record.group_index,
                record.play,
                outcome.normalized_reward,
                outcome.num_illegal,
                outcome.status.value,
            )
        )
        if outcome.status is Status.ENGINE_FAILURE:
            continue
        result.rewards.append(outcome.normalized_reward)
        state = game.load_state(record.state)
        if len(states) < REFERENCE_STATES:
            states.setdefault(record.group_index, state)
        seats = [seat for seat, name in enumerate(record.players) if name == file.player] or [0, 1]
        sums.add(record.group_index, play_figures(record, state, seats))
    if sums:
        result.figures = sums.totals(sorted(summary.rewards)).intervals()
        config = file.game_config()
        if config is not None:
            result.references = references(StateSet(file.label, tuple(states.values())), config)
    return result


def plays(path: Path) -> Iterator[tuple[int, int, PlayRecord]]:
    """Offset, size in bytes and content of each whole line; a torn last one is still being written.

    Raises:
        UserError: a line is bad.
    """
    offset = 0
    for number, line in read_lines(path):
        if line.endswith(b"\n") and line.strip():
            yield offset, len(line), parse(line, f"{path}:{number}")
        offset += len(line)


def parse(line: bytes, where: str) -> PlayRecord:
    """One line.

    Raises:
        UserError: it is no play, or one that cannot have been.
    """
    try:
        record = PlayRecord.model_validate_json(line)
        _check(record)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error)}; `selfplay generate` writes this file") from None
    except (UserError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UserError(f"{where}: {error}; `selfplay generate` writes this file") from None
    return record


def _check(record: PlayRecord) -> None:
    """What the schema does not say: names, indices and numbers that fit each other and the board.

    Raises:
        UserError, TypeError, ValueError, AttributeError: they do not.
    """
    size = MatchingGame().load_state(record.state).size
    if len(record.players) != 2 or {turn.player for turn in record.turns} - {0, 1}:
        raise ValueError("field 'players': expected two, and turns of players 0 and 1")
    for proposal in (record.outcome.proposal, *(turn.proposal for turn in record.turns)):
        if proposal and not all(sorted(indices) == list(range(size)) for indices in zip(*proposal, strict=True)):
            raise ValueError(f"field 'proposal': {proposal} is no matching of {size} reviewers and papers")
    numbers = [record.outcome.score, record.outcome.best]
    if not all(math.isfinite(n) for n in itertools.chain(numbers, *(t.response_logprobs for t in record.trajectories))):
        raise ValueError("a score or log-prob is not a finite number")
