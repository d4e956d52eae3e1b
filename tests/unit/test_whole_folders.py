"""A folder that is whole can be deleted with its line in one list, and the rest of the package works without it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from selfplay_pipeline.cli import GROUPS, WHOLE

PACKAGE = Path("selfplay_pipeline").absolute()
COMMANDS = {"people": "play", "slime": "slime"}
NAMED_IN = {"people": ["cli/measure.py"], "slime": []}
"""Files elsewhere that name the folder: `evaluate --people` is an option of a command that stays."""
STAGES = (
    "generate.stage", "convert.stage", "train.offline_stage", "train.online_stage", "iterate.loop", "evaluate.run",
    "evaluate.crossplay", "evaluate.listen", "report.run", "report.terminal", "doctor.examine", "dataset", "simple",
)  # fmt: skip
GENERATE = "generate --config tiny --num-episodes 2 --player random --player sharing --output played/games.jsonl"


@pytest.fixture(params=WHOLE)
def rest(request, tmp_path):
    """The package without a folder: the name of the folder, and a function that runs Python with this package."""
    folder, copy = request.param, tmp_path / PACKAGE.name
    copy.mkdir()
    for each in PACKAGE.iterdir():
        if each.name not in (folder, "cli"):
            (copy / each.name).symlink_to(each)
    shutil.copytree(PACKAGE / "cli", copy / "cli")
    program = copy / "cli" / "__init__.py"
    lines = program.read_text().splitlines()
    lines.remove(f'    "{folder}",')
    program.write_text("\n".join(lines))

    def run(*words):
        # An editable installation would find the folder at its own place; -S leaves such files of site-packages unread.
        places = os.pathsep.join([str(tmp_path), sysconfig.get_paths()["purelib"]])
        environment = {**os.environ, "PYTHONPATH": places, "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-S", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return folder, run


@pytest.mark.long
def test_the_package_works_without_a_folder_that_is_whole(rest, tmp_path):
    folder, run = rest
    imports = "".join(f"import {PACKAGE.name}.{stage}\n" for stage in STAGES)
    assert run("-c", f"{imports}print({PACKAGE.name}.__file__)").startswith(str(tmp_path))
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", run("-m", PACKAGE.name, "--help"), re.MULTILINE)
    assert listed == [name for names in GROUPS.values() for name in names if name != COMMANDS[folder]]
    run("-m", PACKAGE.name, *GENERATE.split())
    assert "reward" in run("-m", PACKAGE.name, "show", "played/games.jsonl")


@pytest.mark.parametrize("folder", WHOLE)
def test_no_code_elsewhere_names_a_folder_that_is_whole(folder):
    """The rules of the architecture check imports; modules that are found by their names are found here."""
    others = [path for path in PACKAGE.rglob("*.py") if PACKAGE / folder not in path.parents]
    naming = [path for path in others if f"{PACKAGE.name}.{folder}" in path.read_text()]
    assert [str(path.relative_to(PACKAGE)) for path in naming] == NAMED_IN[folder]
