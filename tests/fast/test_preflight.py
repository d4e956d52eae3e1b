"""What the machine or the model cannot do is refused in one line before anything starts, in dry runs too."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from command import Done, selfplay

from selfplay_pipeline.config.load import load_config

PLAY = ["generate", "iterate", "evaluate"]


@pytest.fixture
def two_gpus(tmp_path_factory, monkeypatch) -> None:
    """A machine whose `nvidia-smi` lists two GPUs, and whose CUDA toolkit is not where CUDA_HOME says."""
    program = tmp_path_factory.mktemp("bin") / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: H100 (UUID: GPU-1)'\necho 'GPU 1: H100 (UUID: GPU-2)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def run(tmp_path: Path, command: str, *arguments: str, **sections: dict[str, Any]) -> Done:
    """A dry run with the tiny configuration and these sections over it."""
    settings = load_config("tiny", {"model": "data/tiny_model"}).model_dump(mode="json")
    for name, section in sections.items():
        settings[name] |= section
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    checkpoint = ("data/tiny_model", "--num-states", "4") if command == "evaluate" else ()
    output = tmp_path / "output" / "x"
    done = selfplay(command, *checkpoint, "--config", str(file), "--output", str(output), *arguments, "--dry-run")
    assert not output.parent.exists()
    return done


def assert_refused(done: Done, words: str) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    lines = [line for line in done.stderr.splitlines() if line != "sampling held-out states"]
    assert len(lines) == 1 and words in lines[0]


@pytest.mark.parametrize("command", PLAY)
def test_a_server_on_more_gpus_than_are_visible_is_refused(tmp_path, two_gpus, command):
    done = run(tmp_path, command, "--device", "cuda", engine={"tensor_parallel": 2, "data_parallel": 4})
    assert_refused(done, "engine.tensor_parallel 2 × engine.data_parallel 4: needs 8 GPUs, visible: 2")


@pytest.mark.parametrize(("chosen", "visible"), [("1", 1), ("0,1,2", 2), ("", 0), ("-1", 0)])
def test_hidden_gpus_do_not_count(tmp_path, two_gpus, monkeypatch, chosen, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    done = run(tmp_path, "generate", "--device", "cuda", engine={"data_parallel": 3})
    assert_refused(done, f"needs 3 GPUs, visible: {visible}")


@pytest.mark.parametrize("command", ["train", "train-online"])
def test_a_trainer_on_more_gpus_than_are_visible_is_refused(tmp_path, two_gpus, command):
    done = run(tmp_path, command, "--device", "cuda", train={"gpus_per_node": 3})
    assert_refused(done, "train.gpus_per_node 3: needs 3 GPUs, visible: 2")


def test_a_loop_is_refused_for_its_trainer_before_it_plays(tmp_path, two_gpus):
    done = run(tmp_path, "iterate", engine={"device": "cpu"}, train={"device": "cuda", "gpus_per_node": 3})
    assert_refused(done, "train.gpus_per_node 3: needs 3 GPUs, visible: 2")


def test_online_gpus_that_the_servers_cannot_share_evenly_are_refused(tmp_path, two_gpus):
    done = run(tmp_path, "train-online", "--device", "cuda", train={"gpus_per_node": 2}, engine={"tensor_parallel": 4})
    assert_refused(done, "engine.tensor_parallel 4: does not divide train.gpus_per_node 2")


@pytest.mark.parametrize("command", [*PLAY, "train-online"])
def test_a_model_shared_among_cpus_is_refused_and_copies_of_it_are_not(tmp_path, command):
    done = run(tmp_path, command, "--device", "cpu", engine={"tensor_parallel": 2})
    assert_refused(done, "engine.tensor_parallel 2: a model is shared among GPUs only")
    if command in PLAY:
        assert run(tmp_path, command, "--device", "cpu", engine={"data_parallel": 2}).returncode == 0


def test_a_machine_that_cannot_compile_the_servers_kernels_is_refused(tmp_path, two_gpus):
    done = run(tmp_path, "generate", "--device", "cuda", engine={"tensor_parallel": 2})
    assert_refused(done, "SGLang compiles CUDA kernels when it runs, which fails here: ")


@pytest.mark.parametrize("command", [*PLAY, "train-online"])
def test_a_context_that_cannot_hold_the_opening_and_a_turn_is_refused(tmp_path, command):
    done = run(tmp_path, command, game={"size": 8, "prompts": "default"})
    assert_refused(done, "data/tiny_model: its context of 1024 tokens cannot hold an opening prompt of ")


def test_a_context_that_was_cut_too_short_is_refused(tmp_path):
    done = run(tmp_path, "generate", engine={"context_length": 80})
    assert_refused(done, "data/tiny_model: its context of 80 tokens cannot hold an opening prompt of ")


def test_checkpoints_that_do_not_fit_a_gpu_at_the_same_time_are_refused(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n[ $1 = --list-gpus ] && echo 'GPU 0: H100 (UUID: GPU-1)' || echo 4\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    players = ("--player", "policy", "--player", "data/tiny_honest_model")
    done = run(tmp_path, "generate", "--device", "cuda", *players)
    assert_refused(done, "and 2 checkpoints at the same time leave 0.0 GB for each (engine.memory_fraction / 2)")


def test_servers_that_are_attached_to_are_not_asked_for_gpus(tmp_path, two_gpus):
    url = ("--server-url", "http://127.0.0.1:1")
    assert run(tmp_path, "generate", "--device", "cuda", *url, engine={"data_parallel": 3}).returncode == 0
