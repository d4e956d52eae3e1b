"""What there is to report on in a folder: a run, an iteration, an evaluation, or any episodes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import read_model
from selfplay_pipeline.core.small_files import read_json
from selfplay_pipeline.evaluate.run import Evaluation
from selfplay_pipeline.games.base import Game, GameSettings
from selfplay_pipeline.games.registry import game_named, make_game, parse_game_config
from selfplay_pipeline.generate.records import POLICY, read_lines
from selfplay_pipeline.iterate.manifest import Manifest, RunDirectory, RunState
from selfplay_pipeline.metrics.bootstrap import Interval

Mode = Literal["training", "sampled", "greedy", "scripted", "other"]
EVALUATED: tuple[Mode, ...] = ("sampled", "greedy", "scripted")
NOT_EPISODES = ("metrics.jsonl", "trained_rows.jsonl", "server_*_weights.jsonl")


@dataclass(frozen=True)
class EpisodesFile:
    """A file of episodes.

    Attributes:
        label: which episodes these are, for people.
        iteration: of the run; None outside one.
        player: the name under which the policy that is looked at sits in these episodes.
    """

    path: Path
    mode: Mode
    label: str
    iteration: int | None = None
    player: str = POLICY

    @property
    def trained(self) -> int:
        """How many iterations of training are behind the policy that played."""
        number = self.iteration or 0
        return number - 1 if self.mode == "training" and number else number

    def game_config(self) -> GameSettings | None:
        """The rules that were played by, as `generate` and `evaluate` note them beside the file."""
        given = _arguments(self.path)
        rules = {key.removeprefix("game."): value for key, value in given.items() if key.startswith("game.")}
        try:
            return parse_game_config(rules) if rules else None
        except ValidationError:
            return None

    def game_of(self, name: str) -> Game:
        """The game of this name by the rules that were played by; by its default ones where these are not known."""
        config = self.game_config()
        return make_game(config) if config is not None and config.name == name else game_named(name)


@dataclass(frozen=True)
class Source:
    """All that a report is made from; what is not there yet is empty.

    Attributes:
        steps: verl's metrics, one line a training step, with the iteration.
        evaluation: of a folder that holds one evaluation.
        references: mean rewards to compare with, from the newest evaluation.
    """

    path: Path
    kind: Literal["run", "iteration", "evaluation", "episodes"]
    files: list[EpisodesFile]
    state: RunState = field(default_factory=RunState)
    steps: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    manifest: Manifest | None = None
    evaluation: Evaluation | None = None
    references: dict[str, Interval] = field(default_factory=dict)


def discover(path: Path) -> Source:
    """Find out what lies at `path`.

    Raises:
        UserError: nothing that can be reported on.
    """
    if path.is_file():
        return Source(path, "episodes", [EpisodesFile(path, _mode(path), path.stem)])
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
    state = run.load()
    files, steps, references = [], [], dict[str, Interval]()
    for number in run.numbers():
        folder = run.iteration(number)
        if run.games(number).exists():
            files.append(EpisodesFile(run.games(number), "training", f"iteration {number}, training", number))
        evaluation = _evaluation(folder / "evaluation")
        files += _evaluated(folder / "evaluation", number)
        references = evaluation.references if evaluation else references
        steps += [(number, line) for line in _lines(folder / "metrics.jsonl")]
    return Source(path, "run", files, state, steps, _manifest(path / "manifest.json"), references=references)


def _folder(path: Path) -> Source:
    """An iteration or what `generate` left, an evaluation, or a folder with any episodes (as of `crossplay`)."""
    evaluation = _evaluation(path)
    if evaluation or any((path / f"{mode}.args.json").exists() for mode in EVALUATED):
        files = _evaluated(path, None)
        return Source(
            path, "evaluation", files, evaluation=evaluation, references=evaluation.references if evaluation else {}
        )
    number = re.fullmatch(r"iter_(\d+)", path.resolve().name)
    iteration = int(number.group(1)) if number else None
    files = [EpisodesFile(file, _mode(file), file.stem.replace("_", " "), iteration) for file in _games(path)]
    inner = _evaluation(path / "evaluation")
    files += _evaluated(path / "evaluation", iteration)
    metrics = next(
        (file for file in (path / "metrics.jsonl", path / "training" / "metrics.jsonl") if file.exists()), None
    )
    steps = [(iteration or 1, line) for line in _lines(metrics)] if metrics else []
    return Source(
        path, "iteration" if number else "episodes", files, steps=steps, references=inner.references if inner else {}
    )


def _evaluated(folder: Path, iteration: int | None) -> list[EpisodesFile]:
    """The episodes of an evaluation, also of one that is still going on."""
    where = "" if iteration is None else f"iteration {iteration}, "
    files = [(mode, folder / f"{mode}.jsonl") for mode in EVALUATED]
    return [
        EpisodesFile(path, mode, f"{where}held out, {mode}", iteration, _evaluated_player(path))
        for mode, path in files
        if path.exists()
    ]


def _evaluated_player(games: Path) -> str:
    """The name under which the evaluated player sits: its own if scripted, else as the policy."""
    name, rules = str(_arguments(games).get("first")), EpisodesFile(games, "other", "").game_config()
    return name if rules is not None and name in make_game(rules).players else POLICY


def _arguments(games: Path) -> dict[str, Any]:
    """How episodes were made, as `generate` and `evaluate` note it beside them."""
    path = games.with_suffix(".args.json")
    found = read_json(path) if path.exists() else {}
    return found if isinstance(found, dict) else {}


def _manifest(path: Path) -> Manifest | None:
    return read_model(path, Manifest, "selfplay iterate") if path.exists() else None


def _evaluation(folder: Path) -> Evaluation | None:
    path = folder / "evaluation.json"
    return read_model(path, Evaluation, "selfplay evaluate") if path.exists() else None


def _games(path: Path) -> list[Path]:
    return [file for file in sorted(path.glob("*.jsonl")) if not any(map(file.match, NOT_EPISODES))]


def _mode(path: Path) -> Mode:
    names: dict[str, Mode] = {
        "selfplay_games": "training",
        "sampled": "sampled",
        "greedy": "greedy",
        "scripted": "scripted",
    }
    return names.get(path.stem, "other")


def _lines(path: Path) -> list[dict[str, float]]:
    """Whole lines; a file that is still being written may end with a torn one."""
    if not path.exists():
        return []
    found = []
    for number, line in read_lines(path, "`selfplay train` writes it"):
        if line.endswith(b"\n"):
            try:
                found.append(_step(json.loads(line)))
            except (ValueError, RecursionError):
                raise UserError(f"{path}:{number}: not a step's metrics; `selfplay train` writes this file") from None
    return found


def _step(line: Any) -> dict[str, float]:
    """The numbers of a step's line."""
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise ValueError("no step")
    return {name: value for name, value in line.items() if isinstance(value, int | float) and math.isfinite(value)}
