"""Sends signals at random moments of `selfplay iterate` until each run is finished, and checks what each run holds.

 python -m chaos.signals --runs 20 --seed 0 --out data/chaos_signals

The first run launches its own servers; the others are attached to one that stays up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.outside import MODEL, room
from chaos.traces import contents_of
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer

EPOCHS, GAMES, EPISODES = 2, 64, 4
CONFIG = {
    "base": "tiny",
    "generate": {"num_episodes": GAMES, "episodes_per_state": EPISODES, "temperature": 1.0, "max_concurrency": 4},
    "convert": {"val_fraction": 0.2},
    "train": {"epochs": EPOCHS, "train_batch_size": 64, "micro_batch_size": 16, "save_every": 1,
              "keep_zero_signal": True, "kl_coef": 0.0, "loggers": ["console"]},
    "iterate": {"evaluate_states": 16},
}  # fmt: skip
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
PER_RUN = 9
LIMIT = 900.0
STOPPED_WITHIN = 60.0


@dataclass(frozen=True)
class Landed:
    """A signal that came before the run had ended, and its effect."""

    stage: str
    number: str
    code: int | None
    problems: list[str]


def expected_codes(number: str) -> set[int]:
    """Returns the valid exit codes of a driver after a signal; an early signal ends the interpreter."""
    value = int(signal.Signals[number])
    return {-value} if number == "SIGKILL" else {130, 128 + value, -value}


def stage_begun(said: str) -> str:
    """Returns the newest stage that an attempt announced; start-up before the first."""
    found = re.findall(r"^iteration (\d+)/\d+: (generate|convert|train|evaluate) with", said, re.MULTILINE)
    return f"{found[-1][1]} {found[-1][0]}" if found else "start-up"


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """Yields the address of a real server of the tiny model, which stays up for many runs."""
    server = SGLangServer(ServerSpec(model=str(MODEL), device="cpu", log_path=folder / "server.log"))
    server.key = ""  # runs attach to it as to a server without a key
    asyncio.run(server.start())
    try:
        yield server.url
    finally:
        server.stop()


def disturbed_run(
    folder: Path, config: Path, url: str | None, chances: random.Random, seed: int, within: float
) -> tuple[list[Landed], list[str]]:
    """Run one run with all its signals.

    Returns:
        The signals, and the differences to an undisturbed run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    attached = ("--server-url", url) if url else ()
    command = (
        "iterate", "--config", str(config), "--num-iterations", "1", "--seed", str(seed), *attached,
        "--output", str(folder / "run"),
    )  # fmt: skip
    landed = list[Landed]()
    killed = False  # files of a killed attempt remain until the next attempt removes them
    with room(folder) as place:
        for _ in range(PER_RUN):
            running = place.start(*command)
            running.when(lambda: False, chances.uniform(0, within))
            if not running.alive:
                break
            number = chances.choice(SIGNALS)
            running.send(signal.Signals[number], group=chances.random() < 0.25)
            ended = running.ended(STOPPED_WITHIN)
            if ended.code == 0:
                break
            stage = stage_begun(ended.err)
            killed = number == "SIGKILL" or (killed and stage == "start-up")
            problems = place.left(files=not killed)
            if ended.code not in expected_codes(number):
                problems.append(f"exit code {ended.code}: {ended.last_line}")
            landed.append(Landed(stage, number, ended.code, problems + ["traceback"] * ended.traceback))
            place.end_all()
        ended = place.run(*command, limit=LIMIT)
        problems = place.left()
    ids = [f"s{seed}-g{group:06d}-p{episode}" for group in range(GAMES // EPISODES) for episode in range(EPISODES)]
    problems += problems_of_run(folder / "run", ids)
    if ended.code != 0:
        problems.insert(0, f"exit code {ended.code}: {ended.last_line}")
    return landed, problems


def problems_of_run(run: Path, ids: Collection[str]) -> list[str]:
    """Returns the faults of a finished run of one iteration, whose undisturbed episodes have these ids."""
    folder = run / "iter_1"
    played = contents_of(folder, texts=False).get("selfplay_games.jsonl", Counter())
    missing, more = Counter(ids) - played, played - Counter(ids)
    found = [f"{missing.total()} episodes are missing, such as {next(iter(missing))}"] if missing else []
    found += [f"{more.total()} episodes are twice or others, such as {next(iter(more))}"] if more else []
    found += [f"{path.relative_to(run)} was left" for path in run.rglob("*.tmp")]
    return found + problems_of_training(folder)


def problems_of_training(folder: Path) -> list[str]:
    """Returns the faults of a training on all groups of `train.parquet` in the folder."""
    try:
        rows = pq.read_table(folder / "train.parquet", columns=["extra_info"]).to_pylist()
        pq.read_table(folder / "val.parquet")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError, pa.ArrowException) as error:
        return [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    found = []
    steps = [line["step"] for line in lines]
    if not steps or steps != list(range(1, len(steps) + 1)):
        found.append(f"metrics.jsonl has the steps {steps}")
    seen = Counter(group for line in lines for _, group in line["groups"])
    if seen != Counter(dict.fromkeys([row["extra_info"]["index"] for row in rows], EPOCHS)):
        found.append(f"groups were not all trained on {EPOCHS} times: {dict(seen)}")
    return found + problems_of_checkpoint(folder / "checkpoint")


def problems_of_checkpoint(folder: Path) -> list[str]:
    """Returns the faults of a checkpoint that cannot be loaded, or whose weights are not finite."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
    except (OSError, ValueError, RuntimeError) as error:
        return [f"the checkpoint cannot be loaded: {str(error).splitlines()[0]}"]
    finite = all(bool(torch.isfinite(weights).all()) for weights in model.parameters())
    return [] if finite else ["the checkpoint holds weights that are not finite"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the signals; returns 1 if anything differs from an undisturbed run."""
    options = argparse.ArgumentParser(prog="python -m chaos.signals", description=__doc__)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--within", type=float, default=90.0, help="seconds of an attempt within which a signal comes")
    options.add_argument("--out", type=Path, default=Path("data/chaos_signals"), help="folder of the runs")
    asked = options.parse_args(arguments)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    config = out / "config.yaml"
    config.write_text(json.dumps(CONFIG, indent=1))
    landed, wrong = list[Landed](), 0
    with running_server(out) as url:
        for run in range(asked.runs):
            chances = random.Random(f"{asked.seed} {run}")
            folder = out / f"run_{run}"
            came, problems = disturbed_run(
                folder, config, url if run else None, chances, asked.seed + run, asked.within
            )
            landed += came
            problems += [f"{one.number} in {one.stage}: {'; '.join(one.problems)}" for one in came if one.problems]
            wrong += bool(problems)
            print(f"run {run}: {len(came)} signals, {'; '.join(problems) or 'as undisturbed'}", flush=True)
            if not problems:
                shutil.rmtree(folder, ignore_errors=True)
    for (number, stage), count in sorted(Counter((one.number, one.stage) for one in landed).items()):
        print(f"{number} in {stage}: {count}")
    print(f"{asked.runs - wrong} of {asked.runs} runs as undisturbed")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
