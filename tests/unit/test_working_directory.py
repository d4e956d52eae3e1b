"""No file of the working directory runs as code."""

import os
import subprocess
import sys

import pytest
from hostile_folder import fill, imported_by_runpy, ran

from selfplay_pipeline.core.processes import spawn

CHILDREN = """
import multiprocessing, subprocess, sys

if __name__ == "__main__":
    import json, selectors
    subprocess.run([sys.executable, "-c", "import json, torch"], check=True)
    process = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    process.start()
    process.join()
"""


@pytest.mark.long
def test_a_module_of_the_program_imports_none(tmp_path):
    fill(tmp_path, spare=imported_by_runpy())
    for module in ("selfplay_pipeline", "selfplay_pipeline.cli"):
        command = [sys.executable, "-m", module, "config", "--config", "tiny"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True)
        assert (ran(tmp_path), done.returncode) == ("", 0)


@pytest.mark.long
def test_a_child_and_what_it_starts_import_none(tmp_path, monkeypatch):
    hostile, own = tmp_path / "hostile", tmp_path / "own"
    hostile.mkdir()
    own.mkdir()
    fill(hostile)
    (own / "children.py").write_text(CHILDREN)
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PYTHONPATH", str(own))  # which stays as the user sets it
    child = spawn([sys.executable, "-m", "children"], tmp_path / "log")
    assert child.wait(600) == 0, child.last_lines()
    assert ran(hostile) == ""
    assert child.last_lines(1) == "spawned"


def test_the_hostile_folder_is_noticed(tmp_path):
    fill(tmp_path)
    subprocess.run([sys.executable, "-c", "import json"], cwd=tmp_path, env=os.environ | {"PYTHONSAFEPATH": ""})
    assert ran(tmp_path) == "json in -c\n"
