"""Sends signals at random moments of `selfplay iterate` until each run is finished, and checks what each run holds.

 python -m chaos.signals --runs 20 --seed 0 --out data/chaos_signals
 python -m chaos.signals --members 2 --runs 2 --within 150    # of a population, with an undisturbed one first

The first run launches its own servers; the others are attached to one that stays up. A population always launches its
own.
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
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.outside import MODEL, Running, heed_signals, room
from chaos.traces import contents_of
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.population import BETWEEN_SEEDS, member_folders

EPOCHS, GAMES, EPISODES = 2, 64, 4
GROUPS = GAMES // EPISODES
CONFIG = {
    "base": "tiny",
    "generate": {"num_episodes": GAMES, "episodes_per_state": EPISODES, "temperature": 1.0, "max_concurrency": 4},
    "convert": {"val_fraction": 0.2},
    "train": {"epochs": EPOCHS, "train_batch_size": 64, "micro_batch_size": 16, "save_every": 1,
              "keep_zero_signal": True, "kl_coef": 0.0, "loggers": ["console"]},
    "evaluate": {"monitor_states": 16},
}  # fmt: skip
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
PER_RUN = 9
ROWS_SHARE = 0.25
"""Share of the signals that do not come later than the next conversion begins, which is too short for a chance."""
LIMIT = 1800.0
STOPPED_WITHIN = 60.0


@dataclass(frozen=True)
class Landed:
    """A signal that came before the run had ended, the seconds from the command's start to it, and its effect."""

    stage: str
    after: float
    number: str
    code: int | None
    problems: list[str]


def expected_codes(number: str) -> set[int]:
    """Returns the valid exit codes of a driver after a signal; an early signal ends the interpreter."""
    value = int(signal.Signals[number])
    return {-value} if number == "SIGKILL" else {130, 128 + value, -value}


def stage_begun(said: str) -> str:
    """Returns the newest stage that an attempt announced; start-up before the first."""
    begun = r"^(?:(member_\d+), )?iteration (\d+)/\d+: (generate|convert|train|evaluate) with"
    if not (found := re.findall(begun, said, re.MULTILINE)):
        return "start-up"
    member, number, stage = found[-1]
    return f"{stage} {number}" + f" of {member}" * bool(member)


@dataclass(frozen=True)
class Plan:
    """A command that is disturbed.

    Attributes:
        config: Its configuration file.
        members: Members of the population; 0 stands for `iterate`.
    """

    config: Path
    members: int

    @property
    def iterations(self) -> int:
        """Number of iterations; only from the second one on do members meet each other's own checkpoints."""
        return 2 if self.members else 1

    def arguments(self, seed: int, output: Path) -> list[str]:
        """Returns the arguments of `selfplay`."""
        kind = ["iterate", "--members", str(self.members)] if self.members else ["iterate"]
        number = ["--num-iterations", str(self.iterations)]
        return [*kind, "--config", str(self.config), *number, "--seed", str(seed), "--output", str(output)]

    def runs(self, output: Path, seed: int) -> list[tuple[Path, int]]:
        """Returns the run folder and the seed of each member, or of the only run."""
        if not self.members:
            return [(output, seed)]
        folders = member_folders(output, self.members)
        return [(folder, seed + BETWEEN_SEEDS * at) for at, folder in enumerate(folders)]

    def problems(self, output: Path, seed: int) -> list[str]:
        """Returns the faults of a finished command."""
        return [
            f"{folder.name}: {problem}" if self.members else problem
            for folder, own in self.runs(output, seed)
            for problem in problems_of_run(folder, own, self.iterations)
        ]


def partners_of(output: Path, plan: Plan) -> dict[str, set[str]]:
    """Returns the partners of each group with their seats; a checkpoint is named by the iteration that made it."""
    places = [folder / f"iter_{n}" for folder, _ in plan.runs(output, 0) for n in range(1, plan.iterations + 1)]
    made = {content_hash(str(place / "checkpoint")): str(place.relative_to(output)) for place in places}
    found = dict[str, set[str]]()
    for place in places:
        for record in read_episodes(place / "selfplay_games.jsonl"):
            held = [f"{made.get(one.identity, one.identity)}{' (trained)' * one.trained}" for one in record.seats]
            group = record.episode_id.split("-")[1]
            found.setdefault(f"{place.relative_to(output)}, group {group}", set()).add(", ".join(held))
    return found


def converts(running: Running) -> bool:
    """Whether a command has begun to convert."""
    return ": convert with" in running.said


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
    folder: Path, plan: Plan, url: str | None, chances: random.Random, seed: int, within: float
) -> tuple[list[Landed], list[str]]:
    """Run one run with all its signals.

    Returns:
        The signals, and the differences to an undisturbed run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    attached = ("--set", f"engine.server_url=[{url}]") if url else ()
    command = (*plan.arguments(seed, folder / "run"), *attached)
    landed = list[Landed]()
    killed = False  # files of a killed attempt remain until the next attempt removes them
    with room(folder) as place:
        for _ in range(PER_RUN):
            running = place.start(*command)
            began = time.monotonic()
            event = partial(converts, running) if chances.random() < ROWS_SHARE else lambda: False
            running.when(event, chances.uniform(0, within))
            after = time.monotonic() - began
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
            landed.append(Landed(stage, after, number, ended.code, problems + ["traceback"] * ended.traceback))
            place.end_all()
        ended = place.run(*command, limit=LIMIT)
        problems = place.left()
    problems += plan.problems(folder / "run", seed)
    if ended.code != 0:
        problems.insert(0, f"exit code {ended.code}: {ended.last_line}")
    return landed, problems


def undisturbed_partners(folder: Path, plan: Plan) -> dict[str, set[str]]:
    """Returns the partners of an undisturbed population, which is run first unless the folder holds it."""
    with room(folder) as place:
        ended = place.run(*plan.arguments(0, folder / "run"), limit=LIMIT)
    if problems := [ended.last_line] * (ended.code != 0) + plan.problems(folder / "run", 0):
        raise SystemExit(f"the undisturbed population has faults: {'; '.join(problems)}")
    return partners_of(folder / "run", plan)


def problems_of_run(run: Path, seed: int, iterations: int) -> list[str]:
    """Returns the faults of a finished run."""
    found = [f"{path.relative_to(run)} was left" for path in run.rglob("*.tmp")]
    for n in range(1, iterations + 1):
        groups = range((n - 1) * GROUPS, n * GROUPS)
        ids = [f"s{seed}-g{group:06d}-p{episode}" for group in groups for episode in range(EPISODES)]
        found += [f"iter_{n}: {problem}" for problem in problems_of_iteration(run / f"iter_{n}", ids)]
    return found


def problems_of_iteration(folder: Path, ids: Collection[str]) -> list[str]:
    """Returns the faults of a finished iteration, whose undisturbed episodes have these ids."""
    played = contents_of(folder, texts=False).get("selfplay_games.jsonl", Counter())
    missing, more = Counter(ids) - played, played - Counter(ids)
    found = [f"{missing.total()} episodes are missing, such as {next(iter(missing))}"] if missing else []
    found += [f"{more.total()} episodes are twice or others, such as {next(iter(more))}"] if more else []
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
    options.add_argument("--members", type=int, default=0, help="policies of a population; by default `iterate` is run")
    options.add_argument("--out", type=Path, default=Path("data/chaos_signals"), help="folder of the runs")
    asked = options.parse_args(arguments)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plan = Plan(out / "config.yaml", asked.members)
    plan.config.write_text(json.dumps(CONFIG, indent=1))
    undisturbed = undisturbed_partners(out / "undisturbed", plan) if asked.members else {}
    landed, wrong = list[Landed](), 0
    with contextlib.nullcontext() if asked.members else running_server(out) as url:
        for run in range(asked.runs):
            chances = random.Random(f"{asked.seed} {run}")
            folder = out / f"run_{run}"
            came, problems = disturbed_run(folder, plan, url if run else None, chances, asked.seed + run, asked.within)
            if asked.members and not problems and partners_of(folder / "run", plan) != undisturbed:
                problems.append("the partners differ from those of the undisturbed run")
            landed += came
            problems += [f"{one.number} in {one.stage}: {'; '.join(one.problems)}" for one in came if one.problems]
            wrong += bool(problems)
            print(f"run {run}: {len(came)} signals, {'; '.join(problems) or 'as undisturbed'}", flush=True)
            for one in came:
                print(f"  {one.number} after {one.after:.0f} s in {one.stage}: exit code {one.code}", flush=True)
            if not problems:
                shutil.rmtree(folder, ignore_errors=True)
    for (number, stage), count in sorted(Counter((one.number, one.stage) for one in landed).items()):
        print(f"{number} in {stage}: {count}")
    print(f"{asked.runs - wrong} of {asked.runs} runs as undisturbed")
    return int(wrong > 0)


if __name__ == "__main__":
    heed_signals()
    sys.exit(main())
