"""Finds the results in a folder: a run, an iteration, an evaluation, or any episodes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from selfplay_pipeline.config.identity import section
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import read_model
from selfplay_pipeline.core.small_files import read_json
from selfplay_pipeline.evaluate.crossplay import CrossPlay
from selfplay_pipeline.evaluate.figures_by_state import Seating
from selfplay_pipeline.evaluate.run import Evaluation
from selfplay_pipeline.games.base import Game, GameSettings
from selfplay_pipeline.games.registry import game_of, make_game, stored_game_config
from selfplay_pipeline.generate.read_records import arguments_path
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.store import NOT_EPISODES
from selfplay_pipeline.iterate.folder import Manifest, RunDirectory, RunState
from selfplay_pipeline.iterate.schedule import source_of_games
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.train.saves import read_lines

Mode = Literal["training", "sampled", "greedy", "scripted", "other"]
EVALUATED: tuple[Mode, ...] = ("sampled", "greedy", "scripted")


@dataclass(frozen=True)
class EpisodesFile:
    """A file of episodes.

    Attributes:
        label: Displayed description of the episodes.
        iteration: Iteration of the run; None outside a run.
        player: Name of the evaluated player, if it is not the trained policy.
        seating: Seats of the evaluated player; None before the evaluation has ended, when its name tells them.
        seat: Seat of `Seating.ONE`.
        ahead: Number of iterations that playing was ahead (`iterate.ahead`).
    """

    path: Path
    mode: Mode
    label: str
    iteration: int | None = None
    player: str = ""
    seating: Seating | None = None
    seat: int = 0
    ahead: int = 0

    @property
    def trained(self) -> int:
        """Number of training iterations that the playing policy had completed."""
        number = self.iteration or 0
        return source_of_games(number, self.ahead) if self.mode == "training" else number

    def seats(self, record: EpisodeRecord) -> Sequence[int]:
        """Returns the seats to measure in an episode."""
        if self.seating is None:
            return record.seats_of(self.player)
        return self.seating.seats(record.episode, len(record.seats), self.seat)

    def game_config(self) -> GameSettings | None:
        """Returns the played rules, which `generate` and `evaluate` store next to the file; None if unknown."""
        rules = section(_arguments(self.path), "game")
        try:
            return stored_game_config(rules) if rules else None
        except ValidationError:
            return None

    def game_of(self, record: EpisodeRecord) -> Game:
        """Returns the game of an episode, with the played rules, or its default rules if the played ones are unknown.

        It runs no code that the file names.
        """
        config = self.game_config()
        if config is None or config.name != record.game:
            return game_of(record.game, record.state)
        return make_game(config).of_state(record.state)


@dataclass(frozen=True)
class Source:
    """All data of a report; data that do not exist yet are empty.

    Attributes:
        steps: verl's metrics, one line per training step, with the iteration.
        evaluation: The evaluation, if the folder holds exactly one.
        references: Mean reference rewards by name, from the newest evaluation.
        crossplay: The matrix of a folder of `crossplay`.
        ahead: Number of iterations that the run's playing was ahead.
    """

    path: Path
    kind: Literal["run", "iteration", "evaluation", "episodes"]
    files: list[EpisodesFile]
    state: RunState = field(default_factory=RunState)
    steps: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    manifest: Manifest | None = None
    evaluation: Evaluation | None = None
    references: dict[str, Interval] = field(default_factory=dict)
    crossplay: CrossPlay | None = None
    ahead: int = 0


def discover(path: Path) -> Source:
    """Returns the results at `path`.

    Raises:
        UserError: The path holds no results.
    """
    if path.is_file():
        return Source(path, "episodes", [EpisodesFile(path, _mode(path), _name(path))])
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder; give a run directory, an evaluation or a file of episodes")
    source = _run(path) if RunDirectory(path).numbers() else _folder(path)
    if not (source.files or source.steps or source.state.iterations):
        raise UserError(
            f"{path}: no episodes in it (yet); give a run directory, an iteration, an evaluation or a file of episodes"
        )
    return source


def _run(path: Path) -> Source:
    run = RunDirectory(path)
    state, manifest = run.load(), _manifest(path / "manifest.json")
    ahead = manifest.config["iterate"].get("ahead", 0) if manifest else 0
    files, steps, references = [], [], dict[str, Interval]()
    for number in run.numbers():
        folder = run.iteration(number)
        if run.games(number).exists():
            label = f"iteration {number}, training"
            files.append(EpisodesFile(run.games(number), "training", label, number, ahead=ahead))
        evaluation = _evaluation(folder / "evaluation")
        files += _evaluated(folder / "evaluation", number)
        references = evaluation.references if evaluation else references
        steps += [(number, line) for line in _lines(folder / "metrics.jsonl")]
    return Source(path, "run", files, state, steps, manifest, references=references, ahead=ahead)


def _folder(path: Path) -> Source:
    """Returns the results of one folder: an iteration, a `generate` output, an evaluation, or any episodes."""
    evaluation = _evaluation(path)
    if evaluation or any((path / f"{mode}.args.json").exists() for mode in EVALUATED):
        files = _evaluated(path, None)
        return Source(
            path, "evaluation", files, evaluation=evaluation, references=evaluation.references if evaluation else {}
        )
    number = re.fullmatch(r"iter_(\d+)", path.resolve().name)
    iteration = int(number.group(1)) if number else None
    files = [EpisodesFile(file, _mode(file), _name(file).replace("_", " "), iteration) for file in _games(path)]
    inner = _evaluation(path / "evaluation")
    files += _evaluated(path / "evaluation", iteration)
    metrics = next(
        (file for file in (path / "metrics.jsonl", path / "training" / "metrics.jsonl") if file.exists()), None
    )
    steps = [(iteration or 1, line) for line in _lines(metrics)] if metrics else []
    matrix = path / "crossplay.json"
    return Source(
        path,
        "iteration" if number else "episodes",
        files,
        steps=steps,
        references=inner.references if inner else {},
        crossplay=read_model(matrix, CrossPlay, "selfplay crossplay") if matrix.exists() else None,
    )


def _evaluated(folder: Path, iteration: int | None) -> list[EpisodesFile]:
    """Returns the episodes of an evaluation, also of an unfinished one."""
    where = "" if iteration is None else f"iteration {iteration}, "
    files = [(mode, folder / f"{mode}.jsonl") for mode in EVALUATED]
    done = _evaluation(folder)
    seating, seat = (done.seating, done.seat or 0) if done else (None, 0)
    return [
        EpisodesFile(path, mode, f"{where}held out, {mode}", iteration, _evaluated_player(path), seating, seat)
        for mode, path in files
        if path.exists()
    ]


def _evaluated_player(games: Path) -> str:
    """Returns the name of the evaluated player; an evaluated checkpoint is recorded as `policy`."""
    return str(_arguments(games).get("first", ""))


def _arguments(games: Path) -> dict[str, Any]:
    """Returns the settings of the episodes, which `generate` and `evaluate` store next to the file."""
    path = arguments_path(games)
    found = read_json(path) if path.exists() else {}
    return found if isinstance(found, dict) else {}


def _manifest(path: Path) -> Manifest | None:
    return read_model(path, Manifest, "selfplay iterate") if path.exists() else None


def _evaluation(folder: Path) -> Evaluation | None:
    path = folder / "evaluation.json"
    return read_model(path, Evaluation, "selfplay evaluate") if path.exists() else None


def _games(path: Path) -> list[Path]:
    files = [*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]
    return [file for file in sorted(files) if not any(map(Path(file.name.removesuffix(".gz")).match, NOT_EPISODES))]


def _name(games: Path) -> str:
    """Returns the name of a file of episodes without its endings."""
    return games.name.removesuffix(".gz").removesuffix(".jsonl")


def _mode(path: Path) -> Mode:
    names: dict[str, Mode] = {
        "selfplay_games": "training",
        "sampled": "sampled",
        "greedy": "greedy",
        "scripted": "scripted",
    }
    return names.get(_name(path), "other")


def _lines(path: Path) -> list[dict[str, float]]:
    """Returns the numbers in each line of metrics."""
    return [
        {name: value for name, value in line.items() if isinstance(value, int | float) and math.isfinite(value)}
        for line in read_lines(path)
    ]
