"""Sends two signals at random moments of `generate`, `evaluate` and `iterate`; nothing may be stored after the first.

 python -m chaos.twice --tries 50 --seed 0 --out data/chaos_twice

Only tries count in which the command still lived at the second signal. Each command has one output, which its next try
continues.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from chaos.outside import MODEL, Running, heed_signals, room
from chaos.signals import CONFIG, STOPPED_WITHIN, expected_codes, stage_begun

COMMANDS = {"generate": 20.0, "evaluate": 20.0, "iterate": 75.0}
"""Commands, each with the seconds within which the first signal comes."""
START_UP, START_UP_SHARE = 5.0, 0.25
"""Seconds of the imports, and the share of the first signals that come no later."""
ENGINES = ("transformers", "sglang")
SIGNALS = ("SIGTERM", "SIGINT")
APART = (0.001, 0.3)
"""Least and largest number of seconds between the two signals; a stop rarely takes less than the largest."""
GRACE = 0.1
"""Seconds by which a command may hear a signal late."""
NOT_RESULTS = (".log", ".lock", ".tmp")


@dataclass(frozen=True)
class Try:
    """A command that was to get two signals.

    Attributes:
        signals: Number of signals that it got before it ended.
        unsaid: Whether it got the second one before it said that it stops.
        said: What happened.
        problems: What should not have happened.
    """

    signals: int
    unsaid: bool
    said: str
    problems: list[str]


def arguments_of(command: str, engine: str, folder: Path, config: Path, seed: int) -> list[str]:
    """Returns the arguments of `selfplay`."""
    own = {
        "generate": ["generate", "--config", str(config), "--output", str(folder / "games.jsonl")],
        "evaluate": ["evaluate", str(MODEL), "--config", str(config), "--num-states", "200", "--output", str(folder)],
        "iterate": ["iterate", "--config", str(config), "--num-iterations", "1", "--output", str(folder)],
    }[command]
    seed_key = "evaluate.state_seed" if command == "evaluate" else "seed"
    return [*own, "--set", f"engine.kind={engine}", "--set", f"{seed_key}={seed}"]


def stored_after(folder: Path, moment: float) -> list[str]:
    """Returns the results in a folder that were written after a moment, without those of verl's own process."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in NOT_RESULTS]
    return [
        f"{path.relative_to(folder)} was written after the signal"
        for path in files
        if "trainer_state" not in path.parts and path.stat().st_ctime > moment + GRACE  # a renamed file keeps st_mtime
    ]


def delivered(running: Running, name: str) -> bool:
    """Send a signal; returns whether the command lived and was no zombie, which Python's `poll` reaps."""
    alive = running.alive
    running.send(signal.Signals[name])
    return alive


def one_try(place_of: Path, command: str, engine: str, config: Path, chances: random.Random, seed: int) -> Try:
    """Send two signals to a command."""
    output = place_of / "output"
    output.mkdir(parents=True, exist_ok=True)
    within = START_UP if chances.random() < START_UP_SHARE else COMMANDS[command]
    after, apart = chances.uniform(0, within), math.exp(chances.uniform(*map(math.log, APART)))
    first, second = chances.choices(SIGNALS, k=2)
    said = f"{command} {engine}, {first} after {after:.2f} s, {second} after {1000 * apart:.0f} ms more"
    with room(place_of) as place:
        running = place.start(*arguments_of(command, engine, output, config, seed))
        running.when(lambda: False, after)
        asked, signals = time.time(), int(delivered(running, first))
        time.sleep(apart)
        unsaid = "selfplay: stop" not in running.said
        signals += delivered(running, second)
        ended = running.ended(STOPPED_WITHIN)
        problems = place.left()
    if ended.code == 0 and "selfplay: stopping" not in ended.err:
        shutil.rmtree(output)
        return Try(0, False, f"{said}: had ended", problems)
    problems += stored_after(output, asked)
    if not signals or ended.code not in expected_codes(first) | expected_codes(second):
        problems.append(f"exit code {ended.code}: {ended.last_line}")
    if ended.traceback or "Exception ignored" in ended.err:
        problems.append("traceback")
    if problems:
        (place_of / f"problem_{seed}_{after:.3f}.txt").write_text(ended.err)
    said += f" in {stage_begun(ended.err)}" * (command == "iterate")
    said += f"{' (before it said that it stops)' * unsaid}{' (it had ended)' * (signals < 2)}: {ended.code}"
    return Try(signals, unsaid and signals == 2, f"{said} after {ended.seconds - after:.2f} s", problems)


def summary(tries: Sequence[Try]) -> str:
    """Returns the counts of the tries of one command and engine."""
    twice, once, never = (sum(one.signals == number for one in tries) for number in (2, 1, 0))
    return (
        f"{twice} with two signals ({sum(one.unsaid for one in tries)} with the second before it said that it stops), "
        f"{once} ended before the second, {never} before the first, {sum(map(bool, [one.problems for one in tries]))} "
        "with problems"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the signals; returns 1 if any try had a problem."""
    options = argparse.ArgumentParser(prog="python -m chaos.twice", description=__doc__)
    options.add_argument("--tries", type=int, default=50, help="number of tries in which both signals were delivered")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--engine", action="append", choices=ENGINES, help="by default both")
    options.add_argument("--out", type=Path, default=Path("data/chaos_twice"), help="folder of the outputs")
    asked = options.parse_args(arguments)
    out = asked.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config = out / "config.yaml"
    config.write_text(json.dumps(CONFIG, indent=1))
    chances = random.Random(asked.seed)
    tries = {(command, engine): list[Try]() for command in COMMANDS for engine in asked.engine or ENGINES}
    for (command, engine), done in islice(cycle(tries.items()), asked.tries):
        own = (out / f"{command}_{engine}", command, engine, config, chances, asked.seed)
        counts = False
        while not counts:
            done.append(one := one_try(*own))
            print(f"{one.said}; {'; '.join(one.problems) or 'nothing stored, nothing left'}", flush=True)
            counts = one.signals == 2 or bool(one.problems)
    for kind, done in tries.items():
        print(f"{' '.join(kind)}: {summary(done)}")
    every = [one for done in tries.values() for one in done]
    print(f"all: {summary(every)}")
    return int(any(one.problems for one in every))


if __name__ == "__main__":
    heed_signals()
    sys.exit(main())
