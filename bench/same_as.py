"""Compares play, conversion and training of this code with an earlier revision.

`python -m bench.same_as REVISION [--train]` unpacks the revision into a temporary folder and gives the same commands to
both codes, each in processes of its own, in one environment and with options as the revision names them. Prints a line
for each comparison, and exits with 1 if anything differs. `FIELDS` below lists the allowed differences with reasons.
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
from selfplay_pipeline.core.content import content_hash
from selfplay_pipeline.core.errors import UserError

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]

GAMES = "a line of a games file"
ROWS = "a row of train.parquet and its columns"
FACTS = "the metadata of train.parquet"
STEPS = "a line of metrics.jsonl"
TRAINED = "a line of trained_rows.jsonl"
VERSION = "version 2 has other names"
SAMPLER = "episodes and rows name the model that sampled them, with its content hash"
FIELDS = {
    GAMES: Fields(
        renamed={
            "game_id": ["episode_id"],
            "play": ["episode"],
            "turns.*.player": ["turns.*.seat"],
            "trajectories.*.player_index": ["trajectories.*.seat"],
        },
        added={
            "policy.thinking": "47d9014: whether the model was told to think before it acts",
            "policy.weights": SAMPLER,
        },
        apart={"schema_version": VERSION},
    ),
    ROWS: Fields(
        renamed={
            f"extra_info.{old}": [f"extra_info.{new}"]
            for old, new in (
                ("game_id", "episode_id"),
                ("player_index", "seat"),
                ("play", "episode"),
                ("plays_per_state", "episodes_per_state"),
            )
        }
    ),
    FACTS: Fields(
        renamed={"plays_per_state": ["episodes_per_state"]},
        apart={"schema_version": VERSION},
        added={
            "game": "there are several games",
            "shared_reward": "seats may have rewards of their own",
            "checkpoint": SAMPLER,
            "weights": SAMPLER,
        },
    ),
    STEPS: Fields(
        apart={
            "time": "the clock",
            "timing_*": "seconds",
            "perf/*": "tokens a second",
            "actor/perf/*": "memory in use on the machine",
        }
    ),
    TRAINED: Fields(renamed={"play": ["episode"], "player": ["seat"]}),
}
"""Allowed differences and their reasons; an entry names the commit that caused it. All of it is printed."""
TENSORS_NOW = {
    "row/input_ids": "verl/input_ids",
    "row/position_ids": "verl/position_ids",
    "row/response_mask": "verl/response_mask",
    "row/token_level_rewards": "verl/rm_scores",
    "row/response_logprobs": "verl/rollout_log_probs",
    "row/attention_mask": "verl/ones",
}
"""Tensors of `row_tensors` in earlier code, and the same tensors today, in verl's input."""

TOLERANCE = 5e-6
"""Tolerance for the results of a training; everything else must be equal.

It was 1e-6 until the rows of an update were sorted by length and log-probs taken of many tokens at a time: float32 sums
are rounded differently since, which AdamW amplifies to 1.7e-6 in three steps.
"""
STOP_SECONDS = 30
ROOT = Path(__file__).parents[1]
CONFIGS = {
    "muted": """
game: {size: 3, max_score: 9, scale_min: 1, scale_max: 1, max_length: 20, max_errors: 1, prompts: compact, mute: true}
generate: {temperature: 0.8, max_new_tokens: 64}
""",
    "hot": """
game: {size: 4, max_score: 99, scale_min: 1, scale_max: 10, max_length: 30, max_errors: 4, prompts: default}
generate: {temperature: 2.0, max_new_tokens: 48}
""",
    "training": """
train: {epochs: 1, train_batch_size: 16, micro_batch_size: 8, learning_rate: 7.0e-5, kl_coef: 0.05,
        loggers: [console], dump_rows: true}
""",
}
"""Configurations that are not built in. They set all keys that matter, because defaults differed before d7c9358."""


@dataclass(frozen=True)
class Case:
    """Episodes to play.

    Attributes:
        since: The commit that changed these episodes on purpose, and its change; None if there is none.
    """

    config: str
    players: tuple[str, str]
    games: int = 100
    per_state: int = 2
    since: tuple[str, str] | None = None


READER = ("14894f3", "which turns are understood, and what an illegal one is told")
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
    Case("hot", ("policy", "policy"), 8, 2, READER),
)
"""Cases to compare; a case's index in this list is its seed."""
CONVERTED = (10, 11)
"""Cases whose episodes of the earlier code are converted by both codes. Training uses the first case's rows."""
CONTEXT_LENGTH = 4096
"""Context length of the model that plays.

The shipped model's own context cannot hold DialOp's prompts, and skill does not matter here.
"""
START = "from selfplay_pipeline.cli import main; main()"
"""Program that starts a code without `__main__`."""


class CommandFailedError(Exception):
    """A command of one of the codes failed."""


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
        has_main = (self.tree / "selfplay_pipeline" / "__main__.py").exists()
        self.python(*(["-m", "selfplay_pipeline"] if has_main else ["-c", START]), *arguments)

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
    """Both codes, and whether all comparisons were equal so far."""

    old: Code
    new: Code
    model: Path
    same: bool = True

    @property
    def work(self) -> Path:
        """Folder of the input of both codes."""
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
    for name, text in CONFIGS.items():
        (work / f"{name}.yaml").write_text(text)
    comparison = Comparison(*codes, model=longer_model(tree / "data" / "tiny_model", work / "model"))
    for seed, case in enumerate(CASES):
        what = f"games of {' and '.join(case.players)}, {case.config}"
        if case.since and not contains(revision, case.since[0]):
            print(f"not compared: {what}: since {case.since[0]} they are others on purpose: {case.since[1]}")
            continue
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


def contains(revision: str, commit: str) -> bool:
    """Whether a revision has a commit in its history."""
    return subprocess.run(["git", "-C", ROOT, "merge-base", "--is-ancestor", commit, revision]).returncode == 0


def longer_model(shipped: Path, folder: Path) -> Path:
    """Copy a model and extend its context for longer dialogues; returns the copy."""
    shutil.copytree(shipped, folder)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": CONTEXT_LENGTH}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def unpack(revision: str, folder: Path) -> Path:
    """Write the files of a revision. Unlike a git worktree, this leaves nothing in the repository.

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
    """Raises UserError unless Python finds the tree's own modules instead of an installed package's.

    Raises:
        UserError: Python imports modules from another place.
    """
    found = code.python("-c", "import selfplay_pipeline; print(selfplay_pipeline.__file__)").strip()
    if Path(found).resolve().parents[1] != code.tree.resolve():
        raise UserError(f"{code.name}: Python imports {found}, not what is in {code.tree}")


def same_games(comparison: Comparison, case: Case, seed: int) -> tuple[str | None, str]:
    """Compare the episodes of both codes, played one at a time, so that the order of draws and of lines is fixed."""
    own = comparison.work / f"{case.config}.yaml"
    options = ["--config", own if case.config in CONFIGS else case.config, "--seed", seed]
    options += ["--player0", case.players[0], "--player1", case.players[1]]
    options += ["--num-games", case.games, "--plays-per-state", case.per_state, "--max-concurrency", 1]
    options += ["--engine", "transformers", "--model", comparison.model]

    def play(code: Code) -> list[dict[str, Any]]:
        games = code.work / f"{seed}.jsonl"
        code.selfplay("generate", *options, "--output", games)
        return lines(games)

    old, new = comparison.both(play)
    turns = sum(len(line["turns"]) for line in old)
    return first_different_line(old, new, FIELDS[GAMES]), f"{len(old)} episodes, {turns:,} turns"


def same_rows(comparison: Comparison, number: int) -> tuple[str | None, str]:
    """Compare the rows that both codes make of the earlier code's episodes.

    This code needs the model's content hash in them, which is added.
    """
    written, named = comparison.old.work / f"{number}.jsonl", comparison.new.work / f"earlier_{number}.jsonl"
    weights = {"weights": content_hash(str(comparison.model))}
    lines_now = [line | {"policy": weights | line["policy"]} for line in lines(written)]
    named.write_text("".join(json.dumps(line) + "\n" for line in lines_now))
    options = ["--config", "tiny", "--val-fraction", 0.25, "--seed", number]
    for code, games in ((comparison.old, written), (comparison.new, named)):
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
    """Compare the trainer's input, made by each code of its own rows."""

    def tensors(code: Code) -> dict[str, Array]:
        written = code.work / "tensors.npz"
        code.python("-P", ROOT / "bench" / "tensors.py", code.rows(number), written)
        return dict(np.load(written))

    old, new = comparison.both(tensors)
    return different_array(old, new), f"{sum(array.size for array in old.values()):,} numbers of {len(old)} arrays"


def different_array(old: Mapping[str, Array], new: Mapping[str, Array]) -> str | None:
    """Returns the first of the named arrays that is not equal."""
    for name, before in old.items():
        now = new.get(name)
        if now is None:
            tensor, slash, shape = name.partition("/shape")
            now = new.get(TENSORS_NOW.get(tensor, "") + slash + shape)
        if now is None:
            return f"{name} is gone"
        if before.dtype != now.dtype or before.shape != now.shape:
            return f"{name} is {now.dtype} {now.shape}, and was {before.dtype} {before.shape}"
        if not np.array_equal(before, now):
            at = int(np.flatnonzero(before != now)[0])
            return f"{name}: number {at} is {now[at]}, and was {before[at]}"
    return None


def same_steps(comparison: Comparison) -> tuple[str | None, str]:
    """Compare the metrics of a training of each code on its own rows, which are equal."""
    options = ["--config", comparison.work / "training.yaml", "--model", comparison.model, "--seed", 7]

    def train(code: Code) -> list[dict[str, Any]]:
        code.selfplay("train", *options, "--data", code.rows(CONVERTED[0]), "--output", code.work / "training")
        return lines(code.work / "training" / "metrics.jsonl")

    old, new = comparison.both(train)
    return first_different_line(old, new, FIELDS[STEPS], TOLERANCE), f"{len(old)} steps of {len(old[0])} figures"


def same_advantages(comparison: Comparison) -> tuple[str | None, str]:
    """Compare verl's results for each token, sorted by step and row, because verl's order within a step is random."""

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
