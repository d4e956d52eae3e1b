"""Compares play, conversion and training of this code with an earlier revision.

`python -m bench.same_as REVISION [--train]` unpacks the revision into a temporary folder and runs the same commands
with both codes, in separate processes and the same environment. It prints a line for each comparison, and exits with 1
if anything differs. `FIELDS` lists the allowed differences, each with its reason.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from safetensors.numpy import load_file

from bench import command
from bench.differences import Fields, first_difference, first_different_line
from selfplay_pipeline.core.errors import UserError

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]

GAMES = "a line of a games file"
ROWS = "a row of train.parquet and its columns"
FACTS = "the metadata of train.parquet"
STEPS = "a line of metrics.jsonl"
TRAINED = "a line of trained_rows.jsonl"
FIELDS = {
    GAMES: Fields(),
    ROWS: Fields(),
    FACTS: Fields(),
    STEPS: Fields(
        apart={
            "time": "the clock",
            "timing_*": "seconds",
            "perf/*": "tokens a second",
            "actor/perf/*": "memory in use on the machine",
        }
    ),
    TRAINED: Fields(),
}
"""Allowed differences with their reasons; an entry names the commit that caused it. All entries are printed."""

TOLERANCE = 5e-6
"""Tolerance of the numbers that a training computes; all other values must be equal."""
STOP_SECONDS = 30
ROOT = Path(__file__).parents[1]
CONFIGS = {
    "muted": """
game: {size: 3, max_score: 9, scale_max: 1, max_length: 20, max_errors: 1, prompts: compact, mute: true}
generate: {temperature: 0.8, max_new_tokens: 64, max_concurrency: 1}
""",
    "hot": """
game: {size: 4, max_score: 99, scale_max: 10, max_length: 30, max_errors: 4, prompts: default}
generate: {temperature: 2.0, max_new_tokens: 48, max_concurrency: 1}
""",
    "training": """
train: {epochs: 1, train_batch_size: 16, micro_batch_size: 8, learning_rate: 7.0e-5, kl_coef: 0.05,
        loggers: [console], overrides: [selfplay.dump_rows=true]}
""",
}
"""Configurations that are not built in."""


@dataclass(frozen=True)
class Case:
    """Episodes to play: configuration, players, number of episodes, and episodes per state."""

    config: str
    players: tuple[str, str]
    games: int = 100
    per_state: int = 2


CASES = (
    Case("tiny", ("sharing", "sharing")),
    Case("tiny", ("asker", "shy")),
    Case("tiny", ("random", "sharing")),
    Case("tiny4x4", ("asker", "shy")),
    Case("tiny4x4", ("silent", "sharing")),
    Case("tiny4x4", ("quiet", "shy")),
    Case("default", ("sharing", "sharing")),
    Case("default", ("own-view", "sharing")),
    Case("default", ("asker", "shy")),
    Case("muted", ("sharing", "own-view")),
    Case("tiny", ("policy", "policy"), 32, 4),
    Case("tiny", ("shy", "policy"), 32, 4),
    Case("hot", ("policy", "policy"), 8, 2),
)
"""Cases to compare; a case's index in this list is its seed."""
CONVERTED = (10, 11)
"""Indices of the cases whose episodes, played by the earlier code, both codes convert; training uses the first."""
CONTEXT_LENGTH = 4096
"""Context length of the playing model.

The shipped model's own context is too short for DialOp's prompts. The quality of play does not matter here.
"""


class CommandFailedError(Exception):
    """A command of one of the two codes failed."""


@dataclass(frozen=True)
class Code:
    """A working tree, and a folder for the output of its commands."""

    name: str
    tree: Path
    work: Path

    def rows(self, number: int) -> Path:
        """Returns the path of a case's train.parquet."""
        return self.work / f"rows_{number}" / "train.parquet"

    def selfplay(self, *arguments: object) -> None:
        """Run a command of `selfplay`.

        Raises:
            CommandFailedError: The command failed.
        """
        self.python("-m", "selfplay_pipeline", *arguments)

    def python(self, *arguments: object) -> str:
        """Run Python with this tree's modules, without a GPU; returns its output.

        Raises:
            CommandFailedError: Python failed.
        """
        here = {"PYTHONPATH": str(self.tree), "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=self.tree,
            env={"OMP_NUM_THREADS": "1", **os.environ, **here},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that only this process forwards Ctrl-C to it
        )
        try:
            printed, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=STOP_SECONDS)
            process.kill()
            raise
        if process.returncode != 0:
            last = " ".join(printed.strip().splitlines()[-3:])
            raise CommandFailedError(f"{self.name} ended with exit code {process.returncode}: {last}")
        return printed


@dataclass
class Comparison:
    """Both codes; `same` is True while all comparisons are equal."""

    old: Code
    new: Code
    model: Path
    same: bool = True

    @property
    def work(self) -> Path:
        """Folder with the input of both codes."""
        return self.model.parent

    def check(self, what: str, found: Callable[[], tuple[str | None, str]]) -> None:
        """Compare a result of both codes and print the outcome.

        Args:
            what: Name of the result.
            found: Function that returns the first difference, if any, and the amount that was compared.
        """
        try:
            difference, much = found()
        except (CommandFailedError, OSError) as error:  # OSError: a failed command has left no file
            difference, much = str(error), ""
        self.same = self.same and difference is None
        print(f"identical: {what}: {much}" if difference is None else f"different: {what}: {difference}", flush=True)

    def both(self, do: Callable[[Code], T]) -> tuple[T, T]:
        """Returns the results of an action for the earlier code and for this one."""
        return do(self.old), do(self.new)


def main(
    revision: Annotated[str, typer.Argument(help="What git calls it.")],
    train: Annotated[bool, typer.Option("--train", help="Also train on the same rows, which takes minutes.")] = False,
) -> None:
    """Compare this working tree with a revision."""
    with tempfile.TemporaryDirectory(prefix="same-as-", ignore_cleanup_errors=True) as folder:
        same = run(revision, Path(folder), train)
    raise typer.Exit(0 if same else 1)


def run(revision: str, work: Path, train: bool) -> bool:
    """Run and print all comparisons; returns whether nothing differs."""
    tree = unpack(revision, work / "code")
    codes = Code(revision, tree, work / "old"), Code("this code", ROOT, work / "new")
    for code in codes:
        code.work.mkdir()
        check_module(code)
    built_in = {case.config: f"base: {case.config}\ngenerate: {{max_concurrency: 1}}\n" for case in CASES}
    for name, text in (built_in | CONFIGS).items():
        (work / f"{name}.yaml").write_text(text)
    comparison = Comparison(*codes, model=longer_model(tree / "data" / "tiny_model", work / "model"))
    for seed, case in enumerate(CASES):
        what = f"games of {' and '.join(case.players)}, {case.config}"
        comparison.check(what, partial(same_games, comparison, case, seed))
    for number in CONVERTED:
        rows = f"rows of {' and '.join(CASES[number].players)}"
        comparison.check(rows, partial(same_rows, comparison, number))
        comparison.check(f"tensors of these {rows}", partial(same_tensors, comparison, number))
    if train:
        comparison.check("metrics of a training", partial(same_steps, comparison))
        comparison.check("its log-probs and advantages", partial(same_advantages, comparison))
        comparison.check("its weights", partial(same_weights, comparison))
    for what, fields in FIELDS.items():
        for line in fields.described():
            print(f"allowed in {what}: {line}")
    return comparison.same


def longer_model(shipped: Path, folder: Path) -> Path:
    """Copy a model and extend its context for longer dialogues; returns the copy."""
    shutil.copytree(shipped, folder)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": CONTEXT_LENGTH}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def unpack(revision: str, folder: Path) -> Path:
    """Write the files of a revision to a folder; unlike a git worktree, this leaves nothing in the repository.

    Raises:
        UserError: The revision does not exist.
    """
    git = subprocess.run(["git", "-C", ROOT, "archive", "--format=tar", revision], capture_output=True)
    if git.returncode != 0:
        raise UserError(f"git archive {revision}: {git.stderr.decode().strip().splitlines()[-1]}")
    with tarfile.open(fileobj=io.BytesIO(git.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def check_module(code: Code) -> None:
    """Raises UserError if Python imports an installed package instead of the tree's own modules."""
    found = code.python("-c", "import selfplay_pipeline; print(selfplay_pipeline.__file__)").strip()
    if Path(found).resolve().parents[1] != code.tree.resolve():
        raise UserError(f"{code.name}: Python imports {found}, not what is in {code.tree}")


def same_games(comparison: Comparison, case: Case, seed: int) -> tuple[str | None, str]:
    """Compare the episodes of both codes; they are played one at a time, which fixes the order of draws and lines."""
    options = ["--config", comparison.work / f"{case.config}.yaml", "--seed", seed]
    options += ["--player", case.players[0], "--player", case.players[1]]
    options += ["--num-episodes", case.games, "--episodes-per-state", case.per_state]
    options += ["--engine", "transformers", "--model", comparison.model]

    def play(code: Code) -> list[dict[str, Any]]:
        games = code.work / f"{seed}.jsonl"
        code.selfplay("generate", *options, "--output", games)
        return lines(games)

    old, new = comparison.both(play)
    turns = sum(len(line["turns"]) for line in old)
    return first_different_line(old, new, FIELDS[GAMES]), f"{len(old)} episodes, {turns:,} turns"


def same_rows(comparison: Comparison, number: int) -> tuple[str | None, str]:
    """Compare the rows that both codes make from the episodes of the earlier code."""
    games = comparison.old.work / f"{number}.jsonl"
    options = ["--config", "tiny", "--val-fraction", 0.25, "--seed", number]
    for code in (comparison.old, comparison.new):
        code.selfplay("convert", games, *options, "--output", code.rows(number).parent)
    much = []
    for name in ("train.parquet", "val.parquet"):
        old, new = (pq.read_table(code.rows(number).with_name(name)) for code in (comparison.old, comparison.new))
        difference = different_table(old, new)
        if difference is not None:
            return f"{name}: {difference}", ""
        much.append(f"{name} has {old.num_rows} rows of {old.num_columns} columns")
    return None, ", ".join(much)


def different_table(old: pa.Table, new: pa.Table) -> str | None:
    """Returns the first difference of columns, metadata and rows."""
    types = first_difference(column_types(old.schema), column_types(new.schema), FIELDS[ROWS])
    before, now = (json.loads(table.schema.metadata[b"selfplay"]) for table in (old, new))
    facts = first_difference(before, now, FIELDS[FACTS])
    if types or facts:
        return f"column {types}" if types else f"metadata: {facts}"
    difference = first_different_line(old.to_pylist(), new.to_pylist(), FIELDS[ROWS])
    return difference and difference.replace("line", "row", 1)


def column_types(fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    """Returns the names and types of columns; a structure's own fields are nested."""
    return {
        field.name: column_types(field.type) if pa.types.is_struct(field.type) else str(field.type) for field in fields
    }


def same_tensors(comparison: Comparison, number: int) -> tuple[str | None, str]:
    """Compare the tensors that each code makes from its own rows as input of the trainer."""

    def tensors(code: Code) -> dict[str, Array]:
        written = code.work / "tensors.npz"
        code.python("-P", ROOT / "bench" / "tensors.py", code.rows(number), written)
        return dict(np.load(written))

    old, new = comparison.both(tensors)
    return different_array(old, new), f"{sum(array.size for array in old.values()):,} numbers of {len(old)} arrays"


def different_array(old: Mapping[str, Array], new: Mapping[str, Array]) -> str | None:
    """Returns a description of the first array that differs; None if all are equal."""
    for name, before in old.items():
        now = new.get(name)
        if now is None:
            return f"{name} is gone"
        if before.dtype != now.dtype or before.shape != now.shape:
            return f"{name} is {now.dtype} {now.shape}, and was {before.dtype} {before.shape}"
        if not np.array_equal(before, now):
            at = int(np.flatnonzero(before != now)[0])
            return f"{name}: number {at} is {now[at]}, and was {before[at]}"
    return None


def same_steps(comparison: Comparison) -> tuple[str | None, str]:
    """Compare the metrics of one training per code, each on its own, equal rows."""
    options = ["--config", comparison.work / "training.yaml", "--model", comparison.model, "--seed", 7]

    def train(code: Code) -> list[dict[str, Any]]:
        code.selfplay("train", *options, "--data", code.rows(CONVERTED[0]), "--output", code.work / "training")
        return lines(code.work / "training" / "metrics.jsonl")

    old, new = comparison.both(train)
    return first_different_line(old, new, FIELDS[STEPS], TOLERANCE), f"{len(old)} steps of {len(old[0])} figures"


def same_advantages(comparison: Comparison) -> tuple[str | None, str]:
    """Compare verl's values per token, sorted by step and row, since verl's order within a step is random."""

    def trained(code: Code) -> list[dict[str, Any]]:
        rows = lines(code.work / "training" / "trained_rows.jsonl")
        return sorted(rows, key=lambda row: [value for value in row.values() if not isinstance(value, list)])

    old, new = comparison.both(trained)
    numbers = sum(len(row["advantages"]) for row in old)
    return first_different_line(old, new, FIELDS[TRAINED], TOLERANCE), f"{len(old)} rows, {numbers:,} tokens"


def same_weights(comparison: Comparison) -> tuple[str | None, str]:
    """Compare the checkpoints after the last step."""
    old, new = comparison.both(lambda code: load_file(code.work / "training" / "checkpoint" / "model.safetensors"))
    if {name: weights.shape for name, weights in old.items()} != {name: weights.shape for name, weights in new.items()}:
        return "other names or shapes", ""
    gap = max(float(np.abs(new[name] - weights).max()) for name, weights in old.items())
    much = f"{sum(weights.size for weights in old.values()):,} numbers, the largest difference is {gap:g}"
    return None if gap <= TOLERANCE else much, much


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    command.run(main)
