"""Good inputs, made once by the real commands; the bad ones are copies of these with one fault."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.command import Limits, run

MODEL = Path(__file__).parents[2] / "data" / "tiny_model"
PLAY = ("--engine", "transformers", "--episodes-per-state", "2", "--num-episodes", "8")
_making = threading.Lock()


@dataclass(frozen=True)
class Good:
    """Good inputs, in one folder."""

    root: Path

    @property
    def games(self) -> Path:
        """Eight games of the tiny model with itself, two per state."""
        return self._made("games", ("generate", *PLAY, "--output", "selfplay_games.jsonl")) / "selfplay_games.jsonl"

    @property
    def parquet(self) -> Path:
        """Rows of these games."""
        arguments = ("convert", "selfplay_games.jsonl", "--val-fraction", "0.25")
        return self._made("rows", arguments, lambda folder: copy(self.games, folder)) / "train.parquet"

    @property
    def scripted(self) -> Path:
        """Games of two scripted partners; the file, with its arguments and its summary beside it."""
        players = ("--player", "random", "--player", "random", "--num-episodes", "16")
        return self._made("scripted", ("generate", *players, "--output", "games.jsonl")) / "games.jsonl"

    @property
    def evaluation(self) -> Path:
        return self._made("evaluation", ("evaluate", "own-view", "--num-states", "4", "--output", ".")) / ""

    @property
    def crossplay(self) -> Path:
        return self._made("crossplay", ("crossplay", "random", "quiet", "--num-states", "4", "--output", ".")) / ""

    @property
    def online_games(self) -> Path:
        return self._made("online_games", ("games", "--num-train", "40", "--num-test", "4", "--output", "."))

    @property
    def training(self) -> Path:
        """Folder of a training that was interrupted at its start."""
        arguments = ("train", "train.parquet", "--output", ".")
        return self._made("training", arguments, lambda folder: copy(self.parquet, folder), begins=True)

    @property
    def online_training(self) -> Path:
        """Folder of an online training that was interrupted at its start."""
        arguments = ("train-online", "games", "--output", "training")
        folder = self._made(
            "online", arguments, lambda folder: copy_folder(self.online_games, folder / "games"), begins=True
        )
        return folder / "training"

    @property
    def slime_data(self) -> Path:
        return self._made(
            "slime", ("slime", "data", "--config", "tiny", "--num-states", "4", "--output", "d.jsonl")
        ) / ("d.jsonl")

    @property
    def states(self) -> Path:
        """The states of the games, in DialOp's fields."""
        folder = self._own("states", lambda folder: write_rows(folder / "states.jsonl", self._states()))
        return folder / "states.jsonl"

    def _states(self) -> list[Any]:
        found = {row["group_index"]: row["state"] for row in rows(self.games)}
        return [{**state, "proposal_reward": state["best_assignment_reward"]} for state in found.values()]

    @property
    def asked(self) -> Path:
        """Records that slime's log hook would have written for the games."""

        def make(folder: Path) -> None:
            from selfplay_pipeline.generate.records import read_episodes
            from selfplay_pipeline.report.questions.analysis import records_of
            from selfplay_pipeline.report.questions.records import log_step

            for step in range(4):
                episodes = read_episodes(self.games)
                log_step(folder, step, [row for episode in episodes for row in records_of(episode, step)])

        return self._own("asked", make) / "questions.jsonl"

    @property
    def iterations(self) -> Path:
        """Folder of a run whose first iteration has played and converted."""

        def make(folder: Path) -> None:
            from selfplay_pipeline.config.load import load_config
            from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord

            directory = RunDirectory(folder)
            directory.open(load_config("tiny", {}))
            for source in (self.games.parent, self.parquet.parent):
                copy_folder(source, folder / "iter_1")
            played = json.loads(self.games.with_suffix(".summary.json").read_text())
            for stage in ("generate", "convert"):
                directory.finish(1, stage, StageRecord(seconds=1.0, figures=played))
            write_rows(folder / "metrics.jsonl", [{"iteration": 1, "reward": 0.5}])
            write_rows(folder / "iter_1" / "metrics.jsonl", [{"step": 1, "actor/pg_loss": 0.1}])

        return self._own("iterations", make)

    def _made(
        self,
        name: str,
        arguments: tuple[str, ...],
        prepare: Callable[[Path], None] | None = None,
        *,
        begins: bool = False,
    ) -> Path:
        """Returns the output folder of a command."""

        def make(folder: Path) -> None:
            (folder / "data").mkdir()
            link_model(folder)
            if prepare is not None:
                prepare(folder)
            ended = run(arguments, folder, limits=Limits(seconds=120))
            (folder / "data" / "tiny_model").unlink()
            (folder / "data").rmdir()
            if not (ended.began if begins else ended.code == 0):
                raise RuntimeError(f"a good input was refused: {' '.join(arguments)}\n{ended.stdout}{ended.stderr}")

        return self._own(name, make)

    def _own(self, name: str, make: Callable[[Path], None]) -> Path:
        """Returns a folder that is created when it is first needed."""
        folder = self.root / name
        if folder.is_dir():
            return folder
        making = self.root / f"{name}.{threading.get_ident()}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        make(making)
        with _making:
            if folder.is_dir():  # another thread was faster
                shutil.rmtree(making)
            else:
                making.rename(folder)
        return folder


def link_model(folder: Path) -> None:
    """Create a link to the model for the built-in configuration."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "tiny_model").symlink_to(MODEL)


def copy(file: Path, to: Path) -> None:
    shutil.copyfile(file, to / file.name if to.is_dir() else to)


def copy_folder(folder: Path, to: Path) -> None:
    shutil.copytree(folder, to, dirs_exist_ok=True)


def rows(file: Path) -> list[Any]:
    """Returns the lines of a JSONL file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_rows(file: Path, lines: list[Any]) -> None:
    """Write a JSONL file; text and bytes are written unchanged."""
    parts = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    file.write_bytes(b"".join(part + b"\n" for part in parts))
