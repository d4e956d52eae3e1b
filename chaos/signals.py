"""Sends signals at random moments of `selfplay iterate` until each run is finished, and compares it with an undisturbed
one.

 python -m chaos.signals --signals 200 --seed 0 --jobs 2 --out data/chaos_signals

The moments of a run are drawn first: for each a stage, and a share of the time that this stage takes undisturbed. Most
runs are attached to a server that stays up; some launch their own. The command can be stopped and given again; it then
continues with the next run.
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
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos.outside import MODEL, Ended, Room, Running, room
from chaos.runs import problems_of_run
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
STAGES = ("start-up", "evaluate 0", "generate 1", "convert 1", "train 1", "evaluate 1", "between stages")
WEIGHTS = (15, 12, 22, 12, 22, 10, 7)
"""Frequency of each stage. Training takes most of the time, and restarting it takes longest."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
PER_RUN = 9
LAUNCH_EVERY = 20
"""Number of runs of which one launches its own server."""
LIMIT = 900.0
STOPPED_WITHIN = 60.0


@dataclass(frozen=True)
class Moment:
    """Moment of a signal: within a stage, after a share of its undisturbed duration."""

    stage: str
    share: float
    number: str
    group: bool
    """Whether the signal goes to the whole process group, as from a terminal."""


@dataclass(frozen=True)
class Landed:
    """A signal that came before the run had ended, and its effect."""

    run: int
    stage: str
    """Stage of the run at its end; not always the one that was drawn."""
    number: str
    group: bool
    launched: bool
    code: int | None
    left: list[str]
    traceback: bool


@dataclass(frozen=True)
class Finished:
    """A run after all its signals: the number of attempts, its end, and the differences to an undisturbed run."""

    run: int
    attempts: int
    code: int | None
    problems: list[str]
    left: list[str]
    seconds: float


def moments(seed: int, run: int) -> list[Moment]:
    """Returns the moments of a run, in the order of its stages; a moment between stages may be anywhere."""
    chances = random.Random(f"{seed} {run}")
    drawn = [
        Moment(chances.choices(STAGES, WEIGHTS)[0], chances.random(), chances.choice(SIGNALS), chances.random() < 0.25)
        for _ in range(PER_RUN)
    ]
    places = {moment: STAGES.index(moment.stage) for moment in drawn}
    for moment in drawn:  # before any stage, or after one of them
        if moment.stage in ("start-up", "between stages"):
            places[moment] = chances.randrange(len(STAGES) - 1)
    return sorted(drawn, key=lambda moment: places[moment])


def expected_codes(number: str) -> set[int]:
    """Returns the valid exit codes of a driver after a signal; an early signal ends the interpreter."""
    value = int(signal.Signals[number])
    return {-value} if number == "SIGKILL" else {130, 128 + value, -value}


def stages_done(run: Path) -> list[str]:
    """Returns the finished stages in `state.json`, such as `generate 1`."""
    try:
        iterations = json.loads((run / "state.json").read_text())["iterations"]
    except (OSError, ValueError):
        return []
    return [f"{stage} {number}" for number, stages in iterations.items() for stage in stages]


def stage_begun(said: str) -> str:
    """Returns the newest stage that an attempt announced; start-up before the first."""
    found = re.findall(r"^iteration (\d+)/\d+: (generate|convert|train|evaluate) with", said, re.MULTILINE)
    return f"{found[-1][1]} {found[-1][0]}" if found else "start-up"


def stage_at_end(said: str, done: Sequence[str]) -> str:
    """Returns the stage of an attempt at its end."""
    begun = stage_begun(said)
    return "between stages" if begun in done else begun


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


class Disturbed:
    """One run of `iterate`, given again after each signal until it has finished."""

    def __init__(self, number: int, folder: Path, place: Room, config: Path, url: str | None, seed: int) -> None:
        self.number, self.path, self.room = number, folder / "run", place
        attached = ("--server-url", url) if url else ()
        self.launched = url is None
        self.command = (
            "iterate", "--config", str(config), "--num-iterations", "1", "--seed", str(seed), *attached,
            "--output", str(self.path),
        )  # fmt: skip
        self.attempts = 0
        self._killed = False
        """True if files of a killed attempt may remain, which the next attempt removes at its start."""

    def attempt(self, moment: Moment, usual: Mapping[str, float]) -> Landed | Ended | None:
        """Send one signal.

        Args:
            moment: The moment of the signal.
            usual: Undisturbed seconds of each stage.

        Returns:
            The landed signal; the end of the run if that came before; None if the stage was already over.
        """
        if moment.stage in stages_done(self.path):
            return None
        self.attempts += 1
        running = self.room.start(*self.command)
        if not self._wait_for(moment, running, usual):
            return running.ended(LIMIT)
        alive = running.alive
        running.send(signal.Signals[moment.number], group=moment.group)
        ended = running.ended(STOPPED_WITHIN)
        if not alive or ended.code == 0:
            return ended
        stage = stage_at_end(ended.err, stages_done(self.path))
        self._killed = moment.number == "SIGKILL" or (self._killed and stage_begun(ended.err) == "start-up")
        left = self.room.left(files=not self._killed)
        self.room.end_all()
        return Landed(
            self.number, stage, moment.number, moment.group, self.launched, ended.code, left, ended.traceback()
        )

    def _wait_for(self, moment: Moment, running: Running, usual: Mapping[str, float]) -> bool:
        """Wait for the moment; returns False if the run ended before."""
        if moment.stage == "between stages":
            before = len(stages_done(self.path))
            came = running.when(lambda: len(stages_done(self.path)) > before, LIMIT)
            time.sleep(moment.share * 0.05)
            return came
        if moment.stage != "start-up" and not running.when(lambda: stage_begun(running.said) == moment.stage, LIMIT):
            return False
        deadline = time.monotonic() + moment.share * usual.get(moment.stage, 5.0)
        # A stage that is over sooner than usual gets its signal at its end.
        running.when(lambda: time.monotonic() >= deadline or stage_begun(running.said) != moment.stage)
        return True

    def finish(self) -> Ended:
        """Run the command until its end."""
        self.attempts += 1
        return self.room.run(*self.command, limit=LIMIT)


def ids(seed: int) -> list[str]:
    """Returns the ids of the episodes of an undisturbed run."""
    return [f"s{seed}-g{group:06d}-p{episode}" for group in range(GAMES // EPISODES) for episode in range(EPISODES)]


def disturbed_run(
    number: int, seed: int, folder: Path, config: Path, url: str | None, usual: Mapping[str, float]
) -> tuple[list[Landed], Finished]:
    """Run one run with all its signals."""
    began, landed = time.monotonic(), list[Landed]()
    shutil.rmtree(folder, ignore_errors=True)
    with room(folder) as place:
        run = Disturbed(number, folder, place, config, url, seed + number)
        ended: Ended | None = None
        for moment in moments(seed, number):
            came = run.attempt(moment, usual)
            if isinstance(came, Landed):
                landed.append(came)
            elif came is not None:
                ended = came
                break
        ended = ended or run.finish()
        left = place.left()
        problems = problems_of_run(run.path, 1, ids(seed + number), EPOCHS)
        if ended.code != 0:
            problems.insert(0, f"exit code {ended.code}: {ended.message or ended.err[-300:]}")
    finished = Finished(number, run.attempts, ended.code, problems, left, time.monotonic() - began)
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    return landed, finished


def undisturbed_seconds(out: Path, config: Path, url: str) -> dict[str, float]:
    """Returns the seconds of each stage of an undisturbed run, which is done once."""
    record = out / "undisturbed.json"
    if not record.exists():
        folder = out / "undisturbed"
        shutil.rmtree(folder, ignore_errors=True)
        with room(folder) as place:
            run = Disturbed(0, folder, place, config, url, 0)
            running = place.start(*run.command)
            began = time.monotonic()
            running.when(lambda: stage_begun(running.said) != "start-up", LIMIT)
            usual = {"start-up": time.monotonic() - began}
            ended = running.ended(LIMIT)
            if ended.code != 0:
                raise RuntimeError(f"an undisturbed run failed: {ended.err[-1000:]}")
            problems = problems_of_run(run.path, 1, ids(0), EPOCHS)
            if problems:
                raise RuntimeError(f"an undisturbed run is not as expected: {problems}")
            iterations = json.loads((run.path / "state.json").read_text())["iterations"]
        for iteration, stages in iterations.items():
            usual |= {f"{stage} {iteration}": done["seconds"] for stage, done in stages.items()}
        record.write_text(json.dumps(usual, indent=2))
    found: dict[str, float] = json.loads(record.read_text())
    return found


class Results:
    """File of results, with a line of JSON for each signal and each finished run."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        self.landed = [Landed(**line["landed"]) for line in whole if "landed" in line]
        self.finished = [Finished(**line["finished"]) for line in whole if "finished" in line]

    def add(self, landed: Sequence[Landed], finished: Finished) -> None:
        """Write the results of a run, all at once."""
        with self._lock:
            self.landed += landed
            self.finished.append(finished)
            lines: list[dict[str, Any]] = [{"landed": asdict(one)} for one in landed]
            lines.append({"finished": asdict(finished)})
            with self.path.open("a") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))

    def next_run(self, taken: set[int]) -> int:
        """Returns the lowest number of a run that is neither finished nor running."""
        with self._lock:
            used = taken | {run.run for run in self.finished}
            number = next(number for number in range(1, len(used) + 2) if number not in used)
            taken.add(number)
            return number


def table(landed: Sequence[Landed], finished: Sequence[Finished]) -> str:
    """Returns a table of signals by stage and kind, their exit codes, and the results of the runs."""
    rows = [["stage", *SIGNALS, "all", "exit codes", "wrong code", "left", "tracebacks"]]
    for stage in (*sorted({one.stage for one in landed}, key=_order), "all"):
        of_stage = [one for one in landed if stage in (one.stage, "all")]
        counts = Counter(one.number for one in of_stage)
        codes = Counter(one.code for one in of_stage)
        wrong = sum(one.code not in expected_codes(one.number) for one in of_stage)
        said = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items(), key=str))
        rows.append([stage, *(str(counts[name]) for name in SIGNALS), str(len(of_stage)), said, str(wrong),
                     str(sum(bool(one.left) for one in of_stage)),
                     str(sum(one.traceback for one in of_stage))])  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    right = sum(not run.problems and not run.left for run in finished)
    launched, group = sum(one.launched for one in landed), sum(one.group for one in landed)
    lines.append(f"{len(finished)} runs, {right} as undisturbed")
    lines.append(f"{launched} of the signals came to runs with a server of their own, {group} to the whole group")
    lines += [f"run {run.run}: {'; '.join([*run.problems, *run.left])}" for run in finished if run.problems or run.left]
    for one in landed:
        if one.left or one.code not in expected_codes(one.number):
            lines.append(f"run {one.run}, {one.number} in {one.stage}: exit code {one.code}; left {one.left}")
    return "\n".join(lines)


def _order(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the signals; returns 1 if anything differs from an undisturbed run."""
    options = argparse.ArgumentParser(prog="python -m chaos.signals", description=__doc__)
    options.add_argument("--signals", type=int, default=200, help="how many must land")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=2, help="runs at a time, each with a server for itself")
    options.add_argument("--out", type=Path, default=Path("data/chaos_signals"), help="folder of the results")
    asked = options.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    results = Results(asked.out / "results.jsonl")
    config = asked.out.resolve() / "config.yaml"
    config.write_text(json.dumps(CONFIG, indent=1))
    asyncio.run(_send(asked, results, config))
    print(table(results.landed, results.finished))
    well = all(one.code in expected_codes(one.number) and not one.left for one in results.landed)
    return 0 if well and not any(run.problems or run.left for run in results.finished) else 1


async def _send(asked: argparse.Namespace, results: Results, config: Path) -> None:
    calibrated, taken = threading.Lock(), set[int]()

    def job(number: int) -> None:
        if len(results.landed) >= asked.signals:
            return
        folder = asked.out.resolve() / f"job_{number}"
        folder.mkdir(exist_ok=True)
        with running_server(folder) as server_url:
            with calibrated:
                usual = undisturbed_seconds(asked.out.resolve(), config, server_url)
            while len(results.landed) < asked.signals:
                run = results.next_run(taken)
                url = None if run % LAUNCH_EVERY == LAUNCH_EVERY // 2 else server_url
                landed, finished = disturbed_run(
                    run, asked.seed, asked.out.resolve() / f"run_{run}", config, url, usual
                )
                results.add(landed, finished)
                said = "; ".join(finished.problems) or "as undisturbed"
                print(f"run {run}: {len(landed)} signals, {finished.seconds:.0f} s, {said}; "
                      f"{len(results.landed)}/{asked.signals}", flush=True)  # fmt: skip

    await asyncio.gather(*(asyncio.to_thread(job, number) for number in range(asked.jobs)))


if __name__ == "__main__":
    sys.exit(main())
