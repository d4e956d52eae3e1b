"""Memory and disk are counted as an audit of verl's engine found them, and what cannot fit is refused in one line."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.checkpoints import number_of_weights
from selfplay_pipeline.core.hub import look_for
from selfplay_pipeline.core.model_sizes import KNOWN, ModelSizes, sizes_of
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.train import memory_check
from selfplay_pipeline.train.memory import (
    STATE,
    Room,
    Setup,
    disk,
    in_host,
    kv_bytes,
    lacks,
    layer_activations,
    logits,
    needs,
    on_device,
    remedy,
    surely_lacks,
)
from selfplay_pipeline.train.memory_check import offload_here, resolve_offload, setup_of
from selfplay_pipeline.train.online_overrides import online_tokens_of_pass

GPU_MODEL = "Qwen/Qwen2.5-7B-Instruct"
GB = 10**9
H100 = Room(gpu=80 * GB, host=None)


ONE = Setup(processes=1, tokens=8192, checkpointing=True)
EIGHT = Setup(processes=8, processes_per_node=8, tokens=8192)


@pytest.fixture(scope="module")
def qwen():
    return sizes_of(GPU_MODEL)


def state(sizes, setup):
    return sum(need.device for need in needs(sizes, setup) if need.what in STATE)


def host_of(sizes, setup):
    return {need.what: need.host for need in needs(sizes, setup)}


# --- the figures of the audit -------------------------------------------------------------------------------


def test_the_gpu_model_is_counted_without_a_hub_to_the_last_parameter(qwen):
    assert qwen.parameters == 7_615_616_512  # model.safetensors.index.json of the hub: 15,231,233,024 bytes in bfloat16
    assert (qwen.layers, qwen.hidden, qwen.context) == (28, 3584, 32768)
    assert qwen.embedding == qwen.head == 152064 * 3584


def test_a_shipped_model_has_as_many_parameters_as_its_weights_have_numbers():
    folder = shipped("data/tiny_model")
    assert sizes_of(folder).parameters == number_of_weights(Path(folder))


def test_full_training_takes_16_bytes_a_parameter(qwen):
    assert state(qwen, Setup(processes=1, tokens=1)) == 16 * qwen.parameters == pytest.approx(122 * GB, rel=0.01)
    assert state(qwen, Setup(processes=8, tokens=1)) == pytest.approx(15.2 * GB, rel=0.01)


def test_a_token_takes_6_mb_of_activations_3_mb_of_logits_and_57_or_115_kb_of_cache(qwen):
    assert qwen.layers * layer_activations(qwen, 2) == pytest.approx(6.3e6, rel=0.05)
    assert logits(qwen, Setup(processes=8, tokens=1000)) == pytest.approx(3.04 * GB, rel=0.01)
    assert [kv_bytes(qwen, half=half) for half in (True, False)] == [57344, 114688]


def test_eight_gpus_without_checkpointing_hold_at_most_6600_tokens_a_pass(qwen):
    fitting = [tokens for tokens in range(100, 20000, 100) if not lacks(qwen, replace(EIGHT, tokens=tokens), H100)]
    assert 5000 < max(fitting) < 6700


def test_lora_has_gradients_and_optimizer_of_the_adapter_alone(qwen):
    adapter = 28 * 32 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    for half, size in ((True, 2), (False, 4)):
        setup = Setup(processes=1, tokens=1, lora_rank=32, half=half)
        assert state(qwen, setup) == size * qwen.parameters + 16 * adapter


def test_offloading_moves_the_state_to_the_host_where_pinned_memory_is_rounded_up(qwen):
    offloaded = replace(ONE, offload=True)
    assert state(qwen, offloaded) == 0
    assert 16 * qwen.parameters < host_of(qwen, offloaded)["offloaded"] < 24 * qwen.parameters


@pytest.mark.parametrize("waits", [{"offload": True}, {"shares_gpu": True}, {}])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_each_node_holds_its_share_of_all_that_waits_in_host_memory(qwen, nodes, waits):
    one, each = (
        host_of(qwen, Setup(processes=8 * count, processes_per_node=8, tokens=1, reference=True, **waits))
        for count in (1, nodes)
    )
    shared = {"offloaded", "waiting trainer", "reference model"} & one.keys()
    assert one["reference model"] > 2 * qwen.parameters
    for what, size in one.items():
        assert each[what] == (pytest.approx(size / nodes, rel=0.01) if what in shared else size)


@pytest.mark.parametrize("cuda", [True, False])
def test_a_reference_model_takes_memory_with_a_kl_term_and_without_an_adapter_only(qwen, cuda):
    def size(**changes):
        found = needs(qwen, Setup(processes=2, tokens=1, cuda=cuda, **changes))
        return sum(need.device + need.host for need in found if need.what == "reference model")

    assert size(reference=True) > 0
    assert size() == size(lora_rank=8) == size(reference=True, lora_rank=8) == 0


def test_a_trainer_state_takes_91_gb_and_the_disk_of_two_trainings_198(qwen):
    written = disk(qwen, Setup(processes=1, tokens=1))
    assert written.state == pytest.approx(91 * GB, rel=0.01)
    assert 2 * written.state + written.saving + written.checkpoint == pytest.approx(198 * GB, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_layer_keeps_for_its_backward_pass_what_is_counted(kind: str) -> None:
    """Compared with what autograd saves in a real layer, each tensor once and without the weights."""
    import torch
    from transformers import Qwen2Config, Qwen2Model

    config = Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=2, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=64, attn_implementation="sdpa",
    )  # fmt: skip
    model = Qwen2Model(config).to(getattr(torch, kind))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = 128
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    measured = sum(storage.nbytes() for storage in kept.values()) / tokens / config.num_hidden_layers
    assert result.last_hidden_state.requires_grad
    sizes = ModelSizes(0, (), 0, 0, 0, 2, 896, 4864, 128, 64, 0, 0)
    assert layer_activations(sizes, 4 if kind == "float32" else 2) == pytest.approx(measured, rel=0.1)


# --- decisions ----------------------------------------------------------------------------------------------


def options_of(**changes):
    return load_config("default", {"device": "cuda", **changes}, gpus=1).train


@pytest.mark.parametrize(
    ("changes", "room", "offload"),
    [
        ({}, H100, "cpu"), ({"train.gpus_per_node": 8}, H100, "none"), ({"train.offload": "none"}, H100, "none"),
        ({"train.gpus_per_node": 8, "train.offload": "cpu"}, H100, "cpu"), ({}, Room(None, None), "none"),
    ],
    ids=["one GPU", "eight", "as told", "also so", "of a GPU whose memory is not known nothing is decided"],
)  # fmt: skip
def test_weights_leave_the_gpus_where_these_cannot_hold_them_or_as_told(qwen, changes, room, offload):
    options = options_of(**changes)
    assert resolve_offload(options, qwen, setup_of(options, "cuda"), room) == offload


@pytest.mark.parametrize(("told", "device", "offload"), [("auto", "cpu", "none"), ("cpu", "cpu", "cpu"),
                                                         ("none", "cuda", "none"), ("cpu", "cuda", "cpu")])  # fmt: skip
def test_on_a_cpu_nothing_is_moved_unless_told(told, device, offload):
    assert offload_here(options_of(**{"train.offload": told}), device, "nobody/nothing", None) == offload


@pytest.mark.parametrize(("context", "gpus", "offload"), [(8192, 4, "none"), (16384, 4, "cpu"), (16384, 8, "cpu")])
def test_a_training_leaves_the_weights_where_doctor_does(qwen, monkeypatch, context, gpus, offload):
    options = options_of(**{"train.gpus_per_node": gpus})
    monkeypatch.setattr(memory_check, "sizes_of", lambda model: qwen)
    monkeypatch.setattr(memory_check, "gpu_memory", lambda: 80 * 10**9)
    assert offload_here(options, "cuda", "qwen", context) == offload
    setup = setup_of(options, "cuda", tokens=max(options.max_tokens_per_pass, context))
    assert resolve_offload(options, qwen, setup, H100) == offload


def test_a_file_of_ones_own_keeps_the_defaults_of_a_gpu(tmp_path):
    (tmp_path / "my.yaml").write_text("train: {epochs: 2}")
    config = load_config(str(tmp_path / "my.yaml"), {}, gpus=1)
    assert (config.model, config.train.epochs) == (GPU_MODEL, 2)
    assert (config.train.gradient_checkpointing, config.train.max_tokens_per_pass) == (True, 8192)
    context = config.engine.context_length
    assert context == online_tokens_of_pass(config.train, "cuda", context) == 8192


@pytest.mark.parametrize(
    ("setup", "room", "advice"),
    [
        (EIGHT, H100, "set train.gradient_checkpointing true"),
        (replace(EIGHT, tokens=32768, checkpointing=True), H100, "set train.max_tokens_per_pass 8192"),
        (ONE, H100, "set train.offload cpu"), (ONE, Room(80 * GB, 64 * GB), "set train.lora_rank 32"),
        (ONE, Room(8 * GB, 8 * GB), "take a smaller model, more GPUs, or larger ones"),
    ],
)  # fmt: skip
def test_the_remedy_is_the_cheapest_that_fits(qwen, setup, room, advice):
    assert remedy(qwen, setup, room) == advice


def test_a_shorter_pass_than_the_longest_row_needs_a_shorter_context_too(qwen):
    long = replace(EIGHT, tokens=32768, checkpointing=True)
    for longest, context in ((8192, ""), (8193, " and engine.context_length 8192")):
        assert remedy(qwen, long, H100, longest) == f"set train.max_tokens_per_pass 8192{context}"


def test_what_fits_to_the_byte_fits(qwen):
    for setup in (ONE, replace(ONE, cuda=False, half=False)):
        found = needs(qwen, setup)
        gpu, host = on_device(found) if setup.cuda else None, in_host(found, setup)
        assert lacks(qwen, setup, Room(gpu, host)) is None
        assert "host memory" in lacks(qwen, setup, Room(gpu, host - 1))
        assert not setup.cuda or "on each GPU" in lacks(qwen, setup, Room(gpu - 1, host))


def test_nothing_is_refused_that_may_fit(qwen):
    assert surely_lacks(qwen, ONE, H100) is not None
    tight = Room(gpu=on_device(needs(qwen, ONE)) - 5 * GB, host=None)
    assert lacks(qwen, ONE, tight) is not None
    assert surely_lacks(qwen, ONE, tight) is None, "what was assumed is no reason to refuse"
    cpu = replace(ONE, cuda=False, half=False)
    assert surely_lacks(qwen, cpu, Room(None, 121 * GB)) == "121.8 GB of 121.0 GB host memory"
    assert surely_lacks(qwen, cpu, Room(None, 123 * GB)) is None


# --- the command --------------------------------------------------------------------------------------------


def doctor(arguments: str, returncode: int = 0) -> list[str]:
    """The lines that the command prints."""
    done = selfplay("doctor", *arguments.split())
    assert done.returncode == returncode, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_rows_of_a_token_are_estimated():
    assert doctor("--gpus 8 --row-tokens 1")


@pytest.mark.parametrize(
    ("machine", "advice"),
    [
        ("--config default --gpus 1 --gpu-memory 80 --host-memory 128", "train.lora_rank 32"),
        ("--gpus 8 --gpu-memory 24", "of 24.0 GB on each GPU with rows of 8,192 tokens: set train.max_tokens_per"),
    ],
)
def test_what_does_not_fit_is_told_with_the_setting_to_change(machine, advice):
    (line,) = [line for line in doctor(machine, 2) if line.startswith("does not fit: training needs ")]
    assert advice in line


def test_what_rendered_history_repeats_is_said_not_to_be_counted():
    (line,) = [
        line for line in doctor("--gpus 8 --gpu-memory 80 --set generate.history=rendered") if "rendered" in line
    ]
    assert "each turn is a row, which repeats what stood before it; not counted" in line
    assert not [line for line in doctor("--gpus 8 --gpu-memory 80") if "rendered" in line]


@pytest.mark.parametrize("nodes", [1, 2])
def test_eight_h100_hold_a_share_of_the_state_each(qwen, nodes):
    found = json.loads("\n".join(doctor(f"--gpus 8 --gpu-memory 80 --nodes {nodes} --json")))
    assert sum(found["training"][what]["device"] for what in STATE) == 16 * qwen.parameters // (8 * nodes)
    assert found["fits"] and found["device_total"] < 80 * GB and found["serving"]["tokens"] > 8192


def test_too_little_disk_is_said():
    assert "3 iterations take 228.5 GB of disk, 100.0 GB are free" in "\n".join(doctor("--gpus 8 --disk 100", 2))


@pytest.fixture
def alone(monkeypatch):
    """No GPU, and a hub whose port nothing listens on."""
    look_for.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


def test_a_model_that_needs_a_gpu_is_counted_for_one_where_there_is_none(alone):
    lines = doctor(f"--model {GPU_MODEL}", 2)
    assert lines[0].startswith("no GPU is visible on this machine, and training on its CPU needs at least 121.8 GB")
    described = doctor(f"--model {GPU_MODEL} --gpus 1 --gpu-memory 80")
    totals = [[line for line in found if line.startswith(" together")] for found in (lines, described)]
    assert totals[0] == totals[1]
    assert lines[-3].startswith("does not fit here: no GPU is visible") and lines[-2] == "fits on 1 GPU of 80.0 GB"
    assert f"could not be asked: chat template: model {GPU_MODEL}" in lines[-1], "which is no fault"
    assert not any(line.startswith("does not fit: chat template") for line in lines)


@pytest.mark.long
def test_this_machine_is_looked_at_with_the_shipped_model(tmp_path):
    said = "\n".join(doctor(f"--config tiny --device cpu --output {tmp_path / 'none' / 'yet'}"))
    assert "ok  chat template: a turn ends with <|im_end|>" in said
    assert "ok  ports" in said and f"ok  folders: {tmp_path} can be written" in said
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    below = " ".join(doctor(f"--config tiny --device cpu --output {tmp_path / 'file' / 'run'}", 2))
    assert f"NO  folders: {tmp_path / 'file'}: is a file; give a folder" in below


WITHOUT_SGLANG = """
import importlib.metadata as packages, shlex, sys
sys.modules["sglang"] = None
version = packages.version
packages.version = lambda name: version(name.replace("sglang", "none-such"))
from selfplay_pipeline.cli import main
for command in sys.argv[1:]:
    sys.argv[1:] = shlex.split(command)
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code or 0, flush=True)
"""


@pytest.mark.long
def test_a_machine_without_sglang_plays_with_transformers_and_has_no_fault_then(tmp_path):
    (tmp_path / "bare.yaml").write_text(
        "base: tiny\nengine: {kind: transformers}\ngenerate: {num_episodes: 2, episodes_per_state: 2}\n"
    )
    with_transformers = f"--config {tmp_path / 'bare.yaml'}"
    commands = (
        "doctor --config tiny --device cpu",
        f"doctor --device cpu {with_transformers}",
        f"generate --output {tmp_path / 'games.jsonl'} {with_transformers}",
    )
    done = subprocess.run([sys.executable, "-c", WITHOUT_SGLANG, *commands], capture_output=True, text=True)
    refused, fine, played = re.split(r"(?<=ended with \d)\n", done.stdout.strip())
    assert refused.endswith("ended with 2") and "NO  versions: sglang missing (locked: " in refused, done.stdout
    assert fine.endswith("ended with 0") and played.endswith("ended with 0"), done.stdout + done.stderr


def test_a_folder_with_a_configuration_alone_is_enough(tmp_path):
    (tmp_path / "config.json").write_bytes(KNOWN[GPU_MODEL].read_bytes())
    assert "7,615,616,512 parameters" in "\n".join(doctor(f"--gpus 8 --model {tmp_path}"))


def test_memory_of_gpus_that_are_not_there_is_refused():
    done = selfplay("doctor", "--gpus", "0", "--gpu-memory", "40")
    assert (done.returncode, done.stdout) == (2, "") and "with --gpus 0 there is no GPU" in done.stderr


@pytest.mark.parametrize("option", ["--gpu-memory=24", "--nodes=2", "--host-memory=64", "--disk=1"])
def test_half_a_description_of_a_machine_is_refused(option):
    done = selfplay("doctor", option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "give --gpus, its number of GPUs" in done.stderr


@pytest.mark.parametrize(("gpus", "device", "fits"), [(8, "cpu", "cuda"), (0, "cuda", "cpu")])
def test_a_device_that_the_described_machine_lacks_is_refused(gpus, device, fits):
    done = selfplay("doctor", f"--gpus={gpus}", f"--device={device}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--gpus {gpus} describes a machine for --device {fits}, not {device}" in done.stderr


@pytest.fixture
def small_gpu(tmp_path_factory, monkeypatch):
    """A machine whose `nvidia-smi` shows one GPU of 1 MiB."""
    program = tmp_path_factory.mktemp("bin") / "nvidia-smi"
    program.write_text('#!/bin/sh\ncase "$1" in --list-gpus) echo "GPU 0: H100 (UUID: GPU-1)";; *) echo 1;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_loop_whose_training_cannot_fit_is_refused_before_it_plays(tmp_path, small_gpu):
    (tmp_path / "my.yaml").write_text("{device: cuda, engine: {server_url: ['http://127.0.0.1:1']}}")
    output = tmp_path / "run"
    done = selfplay("iterate", "--dry-run", "--config", str(tmp_path / "my.yaml"), "--output", str(output))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert "training it needs at least" in line and "of 0.0 GB on each GPU; take a smaller model" in line
    assert not output.exists()
