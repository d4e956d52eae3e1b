"""Cost of a population of three beside three separate runs of the same configuration: time and memory.

python -m bench.population [--config FILE] [--work FOLDER]

The separate runs have the members' seeds, play only themselves, and are run one after the other. Prints one line of
JSON for each command.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.race.measure import measured
from selfplay_pipeline.iterate.population import BETWEEN_SEEDS

MEMBERS = 3


def main() -> None:
    """Measure the population, then each separate run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="bench/population.yaml")
    parser.add_argument("--work", type=Path, help="folder for the runs; by default a temporary one, which is removed")
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp(prefix="population-"))
    commands = {"population": ["population", "--members", str(MEMBERS), "--output", str(work / "population")]}
    for number in range(MEMBERS):
        name = f"run_{number + 1}"
        commands[name] = ["iterate", "--seed", str(BETWEEN_SEEDS * number), "--output", str(work / name)]
    try:
        for name, command in commands.items():
            line = [sys.executable, "-m", "selfplay_pipeline", *command, "--config", asked.config]
            taken = measured(line, work / f"{name}.log", {"CUDA_VISIBLE_DEVICES": ""})
            figures = {"seconds": taken.seconds, "processor_seconds": taken.processor, "peak_gb": taken.peak / 1e9}
            print(json.dumps({"command": name} | {key: round(value, 2) for key, value in figures.items()}), flush=True)
    finally:
        if asked.work is None:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
