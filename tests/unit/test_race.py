"""The race against TRL: what its table says, and what it refuses before it takes an hour."""

import ast
import re
import sys
from pathlib import Path

import pytest

from bench.race.__main__ import PROJECT, QUICK, Race, _claim
from bench.race.measure import measured, tree_memory
from bench.race.table import Figures, Rise, rows
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.metrics.bootstrap import Interval

OURS = Figures(
    seconds=30, playing=8, in_steps=16, episodes=1600, steps=12, peak_gb=4, looking=0.1, load=0.2, checkpoint="ours"
)
TRL = OURS.model_copy(update={"seconds": 60.0, "playing": 20.0, "in_steps": 32.0, "peak_gb": 1.6})
RISES = {
    "sampled": Rise(
        ours=Interval(value=0.04, low=0.03, high=0.05),
        trl=Interval(value=0.05, low=0.04, high=0.06),
        difference=Interval(value=-0.01, low=-0.02, high=0.001),
    )
}


def test_the_rest_is_what_is_neither_played_nor_trained_and_a_ratio_is_ours_over_trl():
    assert (OURS.rest, TRL.rest) == (6, 8)
    found = {row.name: row[1:] for row in rows({"ours": (OURS,), "trl": (TRL,)}, RISES)}
    assert found["rest, % of wall time"] == ("20.0", "13.3", "1.50")
    assert found["episodes a second while playing"] == ("200.0", "80.0", "2.50")
    assert found["peak memory, GB"] == ("4.00", "1.60", "2.50")
    assert found["sampled reward, rise a minute"] == ("+0.080 [+0.060, +0.100]", "+0.050 [+0.040, +0.060]", "1.60")


def race(work, **changes):
    return Race("tiny", QUICK | changes, 1, work, Path(sys.executable))


def test_a_folder_holds_one_race(tmp_path):
    _claim(race(tmp_path / "race"))
    _claim(race(tmp_path / "race"))
    with pytest.raises(UserError, match="another configuration"):
        _claim(race(tmp_path / "race", **{"generate.temperature": 1.0}))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(UserError, match="not a folder of `make race`"):
        _claim(race(tmp_path / "mine"))


def test_what_trl_cannot_do_is_said_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="144 rows of an iteration are no multiple of 128"):
        _claim(race(tmp_path, **{"generate.num_episodes": 72}))
    with pytest.raises(UserError, match="`make race` makes it"):
        _claim(Race("tiny", QUICK, 1, tmp_path, tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []


HOLD_AND_START_ANOTHER = """
import subprocess, sys, time
held = bytearray(b"x") * 40_000_000
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "inner"])
time.sleep(0.5)
"""


@pytest.mark.long
def test_the_memory_of_a_command_is_that_of_all_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.race.measure.SECONDS_BETWEEN_LOOKS", 0.1)
    monkeypatch.setattr("bench.race.measure.LOOKING", 1.0)
    (tmp_path / "held.py").write_text(HOLD_AND_START_ANOTHER)
    taken = measured([sys.executable, str(tmp_path / "held.py")], tmp_path / "log", {})
    assert 80_000_000 < taken.peak < 300_000_000
    assert 1.0 <= taken.seconds < 60 and 0 < taken.looking < taken.seconds
    assert tree_memory(2**30, lambda folder: 1) == 0  # a process that has ended


def test_a_command_that_fails_is_told_with_the_end_of_its_log(tmp_path):
    with pytest.raises(UserError, match=r"exit code 3(.|\n)*no such opening"):
        measured([sys.executable, "-c", "print('no such opening'); exit(3)"], tmp_path / "log", {})


def test_the_lock_holds_what_the_peer_imports():
    nodes = list(ast.walk(ast.parse((PROJECT / "bench" / "race" / "peer.py").read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) if node.module}
    pins = dict(re.findall(r"([\w.-]+)==([\w.]+)", (PROJECT / "requirements" / "race.txt").read_text()))
    assert names - set(sys.stdlib_module_names) - {"selfplay_pipeline"} == {"torch", "trl", "transformers", "datasets"}
    assert {"trl", "transformers", "datasets", "pydantic", "numpy", "scipy", "Jinja2"} <= pins.keys()
    assert pins["torch"] == "2.13.0" and "torch==2.13.0" in (PROJECT / "Makefile").read_text()
