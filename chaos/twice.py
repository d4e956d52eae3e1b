"""Sends two signals at random moments of `generate`, `evaluate` and `iterate`, and checks that nothing is stored after.

 python -m chaos.twice --tries 50 --seed 0 --out data/chaos_twice

Each command has one output, which its next try continues.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from chaos.outside import MODEL, heed_signals, room
from chaos.signals import CONFIG, STOPPED_WITHIN, expected_codes

COMMANDS = {"generate": 30.0, "evaluate": 30.0, "iterate": 90.0}
"""Commands, each with the seconds within which the first signal comes."""
ENGINES = ("transformers", "sglang")
SIGNALS = ("SIGTERM", "SIGINT")
APART = 1.0
"""Largest number of seconds between the two signals."""
GRACE = 0.1
"""Seconds by which the harness may see late that a command has heard a signal."""
NOT_RESULTS = (".log", ".lock", ".tmp")


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
        if "trainer_state" not in path.parts and path.stat().st_mtime > moment + GRACE
    ]


def one_try(place_of: Path, command: str, engine: str, config: Path, chances: random.Random, seed: int) -> list[str]:
    """Send two signals to a command; returns what happened, and the problems after it."""
    output = place_of / "output"
    output.mkdir(parents=True, exist_ok=True)
    with room(place_of) as place:
        running = place.start(*arguments_of(command, engine, output, config, seed))
        after = chances.uniform(0, COMMANDS[command])
        running.when(lambda: False, after)
        first, second = chances.choices(SIGNALS, k=2)
        said = f"{command} {engine} {first} after {after:.1f} s, {second}"
        if running.alive:
            running.send(signal.Signals[first])
            running.when(lambda: "selfplay: stopping" in running.said, STOPPED_WITHIN)
            heard = time.time()
            running.when(lambda: False, chances.uniform(0, APART))
            running.send(signal.Signals[second])
        else:
            heard = time.time()
        ended = running.ended(STOPPED_WITHIN)
        problems = place.left()
    if ended.code == 0 and "selfplay: stopping" not in ended.err:
        shutil.rmtree(output)
        return [f"{said}: had ended", *problems]
    problems += stored_after(output, heard)
    if ended.code not in expected_codes(first) | expected_codes(second):
        problems.append(f"exit code {ended.code}: {ended.last_line}")
    if ended.traceback or "Exception ignored" in ended.err:
        problems.append("traceback")
    if problems:
        (place_of / f"problem_{seed}_{after:.3f}.txt").write_text(ended.err)
    return [f"{said}: {ended.code} after {ended.seconds - after:.1f} s", *problems]


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the signals; returns 1 if any try had a problem."""
    options = argparse.ArgumentParser(prog="python -m chaos.twice", description=__doc__)
    options.add_argument("--tries", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--engine", action="append", choices=ENGINES, help="by default both")
    options.add_argument("--out", type=Path, default=Path("data/chaos_twice"), help="folder of the outputs")
    asked = options.parse_args(arguments)
    out = asked.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config = out / "config.yaml"
    config.write_text(json.dumps(CONFIG, indent=1))
    chances, outcomes = random.Random(asked.seed), Counter[str]()
    kinds = [(command, engine) for command in COMMANDS for engine in asked.engine or ENGINES]
    for number, (command, engine) in enumerate(islice(cycle(kinds), asked.tries)):
        said, *problems = one_try(out / f"{command}_{engine}", command, engine, config, chances, asked.seed)
        outcomes["problem" if problems else "ended before" if said.endswith("had ended") else "stopped"] += 1
        print(f"{number}: {said}; {'; '.join(problems) or 'nothing stored, nothing left'}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    return int(outcomes["problem"] > 0)


if __name__ == "__main__":
    heed_signals()
    sys.exit(main())
