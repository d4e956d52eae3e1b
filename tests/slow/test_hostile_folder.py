"""The server, the trainer and Ray's workers run no file of the working directory."""

import shlex
import subprocess
import sys
from pathlib import Path

from hostile_folder import fill, ran

ITERATE = (
    "iterate --config tiny --num-iterations 1 --num-episodes 16 --episodes-per-state 4 --evaluate-every 0 "
    "--gpus-per-node 2 --keep-zero-signal --output run"
)
"""Trains with two processes, which Ray starts."""


def test_an_iteration_in_a_folder_of_strangers_files_runs_none(tmp_path):
    fill(tmp_path)
    command = [Path(sys.executable).with_name("selfplay"), *shlex.split(ITERATE)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran(tmp_path) == ""
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "iter_1" / "checkpoint" / "config.json").exists()
    assert "WorkerDict" in (tmp_path / "run" / "iter_1" / "train.log").read_text()
