"""What the package imports is declared, what is declared is locked, and what is shipped is found from anywhere."""

import ast
import hashlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from selfplay_pipeline import __version__
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import GAMES, as_listed, shipped
from selfplay_pipeline.doctor.install import LISTS, MACHINES, install_commands
from selfplay_pipeline.train.loggers import MORE

PACKAGE = Path("selfplay_pipeline")
PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
EXTRAS = ("models", "gpu", "loggers", "textarena", "pettingzoo")
MODELS, GPU, CLIENTS, *ADAPTERS = (PROJECT["optional-dependencies"][name] for name in EXTRAS)
NOT_HERE = {"tvm_ffi": ["apache-tvm-ffi"], "mlflow": ["mlflow-skinny"], "clearml": ["clearml"], "swanlab": ["swanlab"]}
NOT_HERE |= {name: [name] for name in ("textarena", "nltk", "pettingzoo", "gymnasium")}
"""Modules that a CPU's environment may lack, and what provides them."""


def declared(*groups: list[str]) -> list[Requirement]:
    found = [Requirement(line) for group in groups for line in group]
    return [requirement for requirement in found if requirement.name != PROJECT["name"]]


def locked(name: str) -> dict[str, str]:
    """Versions by package, in the lists of a machine or logger."""
    text = "".join((LISTS / file).read_text() for file in MACHINES.get(name, [f"{name}.txt"]))
    return {canonicalize_name(package): version for package, version in re.findall(r"([\w.-]+)==([\w.]+)", text)}


def imported() -> set[str]:
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {PACKAGE.name}


@pytest.mark.long
def test_whatever_is_imported_is_declared():
    providers = packages_distributions()
    names = {
        canonicalize_name(requirement.name)
        for requirement in declared(PROJECT["dependencies"], MODELS, GPU, CLIENTS, *ADAPTERS)
    }
    undeclared = {
        module
        for module in imported()
        if not names & {canonicalize_name(name) for name in providers.get(module, NOT_HERE.get(module, []))}
    }
    assert undeclared == set()


@pytest.mark.parametrize(("lock", "extras"), [("cpu", [MODELS]), ("gpu", [MODELS, GPU])])
def test_whatever_is_declared_is_locked_in_a_version_that_is_asked_for(lock, extras):
    pins = locked(lock)
    for requirement in declared(PROJECT["dependencies"], *extras):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    asked = {canonicalize_name(requirement.name): requirement.specifier for requirement in declared(GPU)}
    assert all(asked[name].contains(pins[name]) for name in ("sglang", "verl", "transferqueue")), "on both the same"


def test_the_environments_of_other_libraries_are_tested_in_a_version_that_is_asked_for():
    pins = dict(re.findall(r"([\w.-]+)==([\w.]+)", Path("requirements/dev.txt").read_text()))
    for requirement in declared(*ADAPTERS):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("logger", MORE)
def test_a_loggers_list_changes_no_package_of_a_machine(logger):
    own = locked(logger)
    assert {name for name in own if name.startswith(logger)} <= {client.name for client in declared(CLIENTS)}
    assert any(name.startswith(logger) for name in own)
    for machine in MACHINES:
        assert {name: version for name, version in locked(machine).items() if own.get(name, version) != version} == {}


def test_setup_says_what_it_would_install_and_refuses_what_it_does_not_know():
    torch, rest = (shlex.join(command) for command in install_commands(["cpu", "mlflow"], "python"))
    assert torch.startswith("python -m pip install") and torch.endswith("torch.txt") and "--no-deps" not in torch
    assert "--no-deps" in rest and rest.endswith(f"{LISTS / 'cpu.txt'} -r {LISTS / 'mlflow.txt'}")
    with pytest.raises(UserError, match="setup: 'tpu' is nothing to install; name some of cpu, gpu, clearml"):
        install_commands(["tpu"])


def test_the_lock_for_gpus_is_the_one_that_was_installed_and_tried():
    tried, _ = Path("requirements/gpu.checked.txt").read_text().split(maxsplit=1)
    now = hashlib.sha256(Path("requirements/gpu.txt").read_bytes()).hexdigest()
    assert tried == now, "run `make check-gpu-lock`, and commit requirements/gpu.checked.txt, which it writes"


@pytest.mark.long
def test_the_check_of_that_lock_loads_a_model_as_a_training_does(capsys):
    runpy.run_path("bin/check_gpu_imports.py")["load_as_training_does"]()
    assert capsys.readouterr().out.startswith("attention: ")


def test_what_is_shipped_is_found_from_any_folder_and_what_lies_there_comes_first(tmp_path, monkeypatch):
    models, people = GAMES / "matching" / "data", "dialop/mediation_human.jsonl.gz"
    assert shipped("data/tiny_model") == load_config("tiny", {}).model == "data/tiny_model"
    assert shipped(f"data/{people}") == str(GAMES / "mediation" / "data" / people), "of any game"
    monkeypatch.chdir(tmp_path)
    assert shipped("./data/tiny_model/") == load_config("tiny", {}).model == str(models / "tiny_model")
    assert shipped("data/dialop/optimization_human.jsonl") == str(models / "dialop" / "optimization_human.jsonl")
    for other in ("data/none", "data/../data/tiny_model", "tiny_model", "", "Qwen/Qwen2.5-7B-Instruct", "x" * 5000):
        assert shipped(other) == other
    (tmp_path / "data" / "tiny_model").mkdir(parents=True)
    assert shipped("data/tiny_model") == "data/tiny_model"


def test_what_is_shipped_has_one_name_in_records_wherever_the_package_has_it():
    folders = (PACKAGE.resolve() / "data", GAMES / "matching" / "data")
    for path in ("data/tiny_model", *(str(folder / "tiny_model") for folder in folders)):
        assert as_listed(path) == "data/tiny_model"
    assert as_listed("/elsewhere/data/tiny_model") == "/elsewhere/data/tiny_model"


WITHOUT_EXTRAS = """
import sys
for module in {modules}:
    sys.modules[module] = None
from selfplay_pipeline.cli import main
for arguments in {commands}:
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments
"""


@pytest.mark.long
def test_scripted_players_and_looking_at_what_there_is_need_no_extra(tmp_path):
    providers = packages_distributions()
    extras = {canonicalize_name(requirement.name) for requirement in declared(MODELS, GPU, *ADAPTERS)}
    modules = [name for name, given in providers.items() if extras & {canonicalize_name(one) for one in given}]
    commands = (
        "generate --config tiny --player random --player sharing --num-episodes 8 --output episodes.jsonl",
        "evaluate own-view --config default --states data/dialop/optimization_human.jsonl --episodes 1 --output people",
        "crossplay sharing random --config tiny --num-states 4",
        "report people",
        "show episodes.jsonl",
        "slime data --config tiny --num-states 4",
    )
    program = WITHOUT_EXTRAS.format(modules=modules, commands=[command.split() for command in commands])
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_wheel_holds_every_file_of_the_package_and_weighs_little(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    done = subprocess.run([*build, str(tmp_path), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    files = {str(path.relative_to(source)) for path in (source / PACKAGE).rglob("*") if path.is_file()}
    assert files == {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert wheel.stat().st_size < 20e6
    assert wheel.name.startswith(f"selfplay_pipeline-{__version__}-")


def test_the_version_has_one_home_and_is_that_of_the_changelog():
    newest = re.search(r"^## (\S+)(.*)$", Path("CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    version = Version(__version__)
    assert f"{version.major}.{version.minor}" == newest[1] and version.is_devrelease == ("not released" in newest[2])
    own = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    assert "version" not in own and own["dynamic"] == ["version"]
    assert "\nversion:" not in Path("CITATION.cff").read_text()
