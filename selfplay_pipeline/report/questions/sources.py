"""Reads episodes to analyse: logged by slime's hook, or played by a run of our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.games.registry import FIRST_GAME, game_named, make_game
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.report.questions.records import FILE_NAME, AskingRecord, log_in, read_records
from selfplay_pipeline.report.scan import episodes
from selfplay_pipeline.report.sources import EpisodesFile


@dataclass(frozen=True)
class Records:
    """Episodes of a log directory or a run.

    Attributes:
        unit: Name of a step, for people.
        lost: Number of episodes left out because a machine failed.
        comparable: The game, if people have played states of the same configuration.
    """

    path: Path
    unit: str
    records: list[AskingRecord]
    lost: int
    comparable: Game | None = None


def read(path: Path) -> Records:
    """Read a log directory of slime's hook, or a run directory of `selfplay iterate`.

    Raises:
        UserError: The folder has no episode to analyse, or a line is bad.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give the log directory, or a run directory of `selfplay iterate`")
    log = log_in(path)
    if log is not None:
        unit, records = "training step", list(read_records(log))
        comparable = game_named(FIRST_GAME) if all(record.people_played for record in records) else None
    else:
        unit, records = "iteration", list(_run(path))
        comparable = _comparable(path)
    kept = [record for record in records if record.status != Status.ENGINE_FAILURE]
    if not kept:
        raise UserError(
            f"{path}: no episode in it (yet); expected {FILE_NAME} of slime's log hook, or "
            "iter_1/selfplay_games.jsonl of `selfplay iterate`, with episodes that did not all fail"
        )
    return Records(path, unit, kept, len(records) - len(kept), comparable)


def _run(path: Path) -> Iterator[AskingRecord]:
    """Yields all episodes of a run; their step is the iteration that trained on them.

    An iteration that is still playing is left out, because episodes with few questions end first.
    """
    run = RunDirectory(path)
    for number in run.numbers():
        if run.games(number).with_suffix(".summary.json").exists():
            for _, _, record in episodes(run.games(number)):
                yield from records_of(record, number)


def _comparable(path: Path) -> Game | None:
    """Returns the game of a run, if people have played states of the same configuration as all of the run's."""
    run = RunDirectory(path)
    games = [run.games(number) for number in run.numbers() if run.games(number).exists()]
    configs = [EpisodesFile(path, "training", "").game_config() for path in games]
    played = [make_game(config) for config in configs if config is not None]
    return played[0] if played and len(played) == len(configs) and all(game.known_lines() for game in played) else None


def records_of(record: EpisodeRecord, step: int) -> Iterator[AskingRecord]:
    """Yields an episode's record for each trained seat."""
    game = game_named(record.game)
    state = game.state_from_json(record.state)
    for seat in record.trained_seats:
        yield AskingRecord(
            step=step,
            episode_id=record.episode_id,
            group=record.group_index,
            reward=record.outcome.reward_of(seat),
            status=record.outcome.status,
            turns=record.outcome.num_turns,
            **asdict(game.asking(state, record.turns, seat)),
        )
