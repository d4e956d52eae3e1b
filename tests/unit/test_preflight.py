"""What the machine or the model cannot do is refused in one line before anything starts, in dry runs too."""

import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from command import Done, selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core import processes
from selfplay_pipeline.train import loggers

PLAY = ["generate", "iterate", "evaluate"]


def nvidia_smi(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Make this the only GPU program that commands find."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.fixture
def two_gpus(tmp_path_factory, monkeypatch) -> None:
    """A machine whose `nvidia-smi` lists two GPUs, and whose CUDA toolkit is not where CUDA_HOME says."""
    lists = "echo 'GPU 0: H100 (UUID: GPU-1)'\necho 'GPU 1: H100 (UUID: GPU-2)'"
    nvidia_smi(monkeypatch, tmp_path_factory.mktemp("bin"), lists)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def run(tmp_path: Path, command: str, *arguments: str, **sections: dict[str, Any]) -> Done:
    """A command with the tiny configuration and these sections over it; a training has an empty file to train on.

    Trainings and loops run dry, other commands must be refused.
    """
    settings = load_config("tiny", {"model": "data/tiny_model"}).model_dump(mode="json")
    for name, section in sections.items():
        settings[name] |= section
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    checkpoint = ("data/tiny_model", "--num-states", "4") if command == "evaluate" else ()
    if command == "train":
        (tmp_path / "train.parquet").touch()
        checkpoint = (str(tmp_path / "train.parquet"), "--model", "data/tiny_model")
    output = tmp_path / "output" / ("x.jsonl" if command in {"generate", "play"} else "x")
    given = ("--config", str(tmp_path / "config.yaml"), "--output", str(output))
    dry = ("--dry-run",) if command in ("iterate", "train", "train-online") else ()
    done = selfplay(command, *checkpoint, *given, *dry, *arguments)
    assert not output.parent.exists()
    return done


def assert_refused(done: Done, words: str) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line != "sampling held-out states")
    assert words in line


CUDA = ("--set", "device=cuda")
TOO_FEW = "engine.tensor_parallel 2 × engine.data_parallel 4: needs 8 GPUs, visible: 2"
FOR_TRAINER = "train.gpus_per_node 3: needs 3 GPUs, visible: 2"
NO_ROOM = "data/tiny_model: its context of {} tokens cannot hold an opening prompt of "


@pytest.mark.parametrize(
    ("commands", "arguments", "sections", "words"),
    [
        (PLAY, CUDA, {"engine": {"tensor_parallel": 2, "data_parallel": 4}}, TOO_FEW),
        (["train", "train-online"], CUDA, {"train": {"gpus_per_node": 3}}, FOR_TRAINER),
        # for its trainer, before it plays
        (
            ["iterate"], (*CUDA, "--set", "engine.server_url=[http://127.0.0.1:1]"), {"train": {"gpus_per_node": 3}},
            FOR_TRAINER,
        ),
        (
            ["train-online"], CUDA, {"train": {"gpus_per_node": 2}, "engine": {"tensor_parallel": 4}},
            "engine.tensor_parallel 4: does not divide train.gpus_per_node 2",
        ),
        (
            [*PLAY, "train-online"], ("--set", "device=cpu"), {"engine": {"tensor_parallel": 2}},
            "engine.tensor_parallel 2: a model is shared among GPUs only",
        ),
        (
            ["generate"], CUDA, {"engine": {"tensor_parallel": 2}},
            "SGLang compiles CUDA kernels when it runs, which fails here: ",
        ),
        ([*PLAY, "train-online"], (), {"game": {"size": 8, "prompts": "default"}}, NO_ROOM.format(1024)),
        (["generate"], (), {"engine": {"context_length": 80}}, NO_ROOM.format(80)),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(tmp_path, request, commands, arguments, sections, words):
    if "cuda" in str((arguments, sections)):
        request.getfixturevalue("two_gpus")
    for command in commands:
        assert_refused(run(tmp_path, command, *arguments, **sections), words)


@pytest.mark.parametrize(
    ("engine", "advice"),
    [
        (
            {"context_length": 32},
            "; raise engine.context_length (32; the model's own context is 1024), or take a smaller game",
        ),
        ({"context_length": 4096}, "; take a model with a longer context, or take a smaller game"),
        ({}, "; take a model with a longer context, or take a smaller game"),
    ],
)
def test_a_context_that_is_too_short_is_blamed_on_what_limits_it(tmp_path, engine, advice):
    game = {"size": 8, "prompts": "default"} if engine.get("context_length") != 32 else {}
    for command in ("generate", "train-online"):
        assert_refused(run(tmp_path, command, engine=engine, game=game), advice)


@pytest.mark.parametrize(("chosen", "visible"), [("1", 1), ("0,1,2", 2), ("", 0), ("-1", 0)])
def test_hidden_gpus_do_not_count(tmp_path, two_gpus, monkeypatch, chosen, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    done = run(tmp_path, "generate", "--set", "device=cuda", engine={"data_parallel": 3})
    assert_refused(done, f"needs 3 GPUs, visible: {visible}")


def test_checkpoints_that_do_not_fit_a_gpu_at_the_same_time_are_refused(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    nvidia_smi(monkeypatch, tmp_path / "bin", "[ $1 = --list-gpus ] && echo 'GPU 0: H100 (UUID: GPU-1)' || echo 4")
    players = ("--player", "policy", "--player", "data/tiny_honest_model")
    done = run(tmp_path, "generate", *CUDA, *players)
    assert_refused(done, "and 2 checkpoints at the same time leave 0.0 GB for each (engine.memory_fraction / 2)")


@pytest.mark.parametrize(
    "options", [(*CUDA, "--set", "engine.server_url=[http://127.0.0.1:1]"), ("--set", "device=cpu")]
)
def test_attached_servers_and_copies_on_cpus_are_not_asked_for_gpus(tmp_path, two_gpus, options):
    done = run(tmp_path, "iterate", *options, engine={"data_parallel": 3})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["generate", "iterate", "train-online", "train"])
def test_too_few_open_files_are_refused_before_anything_begins(tmp_path, monkeypatch, command):
    """With an attached server and with an engine in this process too, whose first child is the trainer's."""
    monkeypatch.setattr(processes.resource, "getrlimit", lambda _: (256, 256))
    attached = ("--set", "engine.server_url=[http://127.0.0.1:1]") if command == "iterate" else ()
    done = run(tmp_path, command, *attached)
    assert_refused(done, "256 files may be open at once, too few for a server or a trainer; run `ulimit -n 1024`")


# --- a logger without a login


KEY = "0123456789" * 4
TRAINING = {
    "train": ("train", "train.parquet", "--model", "data/tiny_model"), "imitate": ("imitate", "games.jsonl"),
    "train-online": ("train-online",), "iterate": ("iterate",),
}  # fmt: skip


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A home and working directory with an empty file to train on, and an environment without a key."""
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.parquet").touch()
    return tmp_path


@pytest.mark.parametrize("command", TRAINING)
@pytest.mark.long
def test_every_command_that_trains_looks_for_the_login_first(alone, command):
    done = selfplay(*TRAINING[command], "--output", "out", "--set", "train.loggers=[wandb]")
    assert_refused(done, "selfplay: train.loggers: wandb: no API key is there; run `wandb login`, or set WANDB_API_KEY")
    assert not [path for path in (alone / "out").glob("*") if not path.name.startswith(".")]


@pytest.mark.parametrize("logger", loggers.MORE)
def test_a_logger_without_its_package_is_refused_first_and_the_line_says_what_installs_it(alone, monkeypatch, logger):
    monkeypatch.setitem(sys.modules, logger, None)
    done = selfplay(*TRAINING["iterate"], "--output", "out", "--set", f"train.loggers=[{logger}]")
    why = f"selfplay: train.loggers: {logger} needs a package that is not installed; run `"
    assert done.returncode == 2 and done.stderr.startswith(why) and f"setup {logger}`" in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("source", ["offline", "key", "netrc", "wandb offline", "damaged key"])
def test_a_key_or_offline_writing_is_enough(alone, monkeypatch, source):
    if source == "netrc":
        (alone / ".netrc").write_text(f"machine api.wandb.ai\n login user\n password {KEY}\n")
    elif source == "wandb offline":
        (alone / "wandb").mkdir()
        (alone / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    else:
        variables = {"offline": ("WANDB_MODE", "offline"), "key": ("WANDB_API_KEY", KEY)}
        monkeypatch.setenv(*variables.get(source, ("WANDB_API_KEY", "x")))
    no_rows = "train.parquet: not a readable parquet file"
    later = "train.loggers: wandb: WANDB_API_KEY invalid" if source == "damaged key" else no_rows
    done = selfplay(*TRAINING["train"], "--set", "train.loggers=[wandb]")
    assert done.returncode == 2 and later in done.stderr, done.stderr
    assert "WANDB_SERVICE" not in os.environ, "verl's process would take it for its own"


@pytest.mark.long
def test_a_service_of_wandb_that_never_ends_is_ended(alone, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(loggers, "WANDB_PATIENCE", 1.0)
    others = set(psutil.Process().children())
    wandb.setup()
    (service,) = set(psutil.Process().children()) - others
    service.suspend()
    loggers._end_wandb_service()
    assert not service.is_running() and "WANDB_SERVICE" not in os.environ
