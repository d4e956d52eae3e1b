"""The replacements of verl's code: is it still the code that they were written for, and do they do what they say?

Raise verl by one version, run this file, and see what it names.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import isclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from library_code import check_code, check_records, ours
from shared_server import TINY
from tensordict import TensorDict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel
from verl.models.transformers import monkey_patch
from verl.plugin.platform import platform_manager
from verl.utils import tensordict_utils as tu
from verl.utils.checkpoint import fsdp_checkpoint_manager
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.import_utils import is_trl_available
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.config.engine import FSDPEngineConfig
from verl.workers.config.optimizer import FSDPOptimizerConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead

import selfplay_pipeline.train.verl as folder
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.loopback import loopback_environment
from selfplay_pipeline.core.patches import PATCHES
from selfplay_pipeline.train.export import export
from selfplay_pipeline.train.stopped import TrainingStopped
from selfplay_pipeline.train.verl import patches
from selfplay_pipeline.train.verl.cpu import CPUPlatform
from selfplay_pipeline.train.verl.engine import Engine, dtype_of_passes
from selfplay_pipeline.train.verl.patches import (
    TOKENS_AT_A_TIME,
    build_adapters,
    check_saves,
    export_in_own_dtype,
    ignore_trl,
    log_probs_of,
    scale_logits_in_float32,
)

FOUND = [patch for patch in PATCHES if patch.library.startswith(("verl", "TransferQueue"))]
IMPLICIT = {"__module__", "__doc__", "__annotations__", "__abstractmethods__", "__dict__", "__weakref__", "_abc_impl"}
"""What each class has."""


def test_each_replacement_has_its_reasons_and_was_written_for_the_installed_version() -> None:
    check_records(FOUND)


def overridden() -> Iterator[tuple[str, str]]:
    """Yields each part of a class of verl's that a class of this folder overrides, and that class."""
    names = (f"{folder.__name__}.{module.name}" for module in pkgutil.iter_modules(folder.__path__))
    modules = [import_module(name) for name in names if ".load_" not in name]
    for line in {value.__mro__ for module in modules for value in vars(module).values() if isclass(value)}:
        for place, own in enumerate(line):
            if own.__module__.startswith(folder.__name__):
                user = f"{own.__module__}:{own.__qualname__}"
                for name in vars(own).keys() - IMPLICIT:
                    base = next((one for one in line[place + 1 :] if name in vars(one) and is_verls(one)), None)
                    if base is not None:
                        yield f"{base.__module__}:{base.__qualname__}.{name}", user


def is_verls(one: type) -> bool:
    """Whether verl defines this class; Ray makes copies of actor classes inside a function."""
    return one.__module__.startswith("verl.") and "<locals>" not in one.__qualname__


def test_the_replaced_and_overridden_code_is_what_it_was() -> None:
    users: dict[str, set[str]] = {}
    for part, own in [*((part, ours(patch)) for patch in FOUND for part in patch.code), *overridden()]:
        users.setdefault(part, set()).add(own.removeprefix("selfplay_pipeline."))
    check_code("verl_code.txt", users)


IN_A_PROCESS = """
import types, socket
import verl
from verl.single_controller.ray import RayWorkerGroup
from verl.workers.engine import EngineRegistry
from verl.workers.engine_workers import ActorRolloutRefWorker
group = types.SimpleNamespace(_master_addr=None, _master_port=None)
RayWorkerGroup._get_master_addr_port(group, None, bundle_index=0)
try:
    socket.socket().bind((group._master_addr, int(group._master_port)))
except OSError:
    print(group._master_addr)
print(EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__)
print(ActorRolloutRefWorker.actor_worker_cls.__name__)
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
print("selfplay" in _agent_loop_registry)
import torch, os
os.environ |= {"MASTER_ADDR": group._master_addr, "MASTER_PORT": group._master_port}
from verl.workers.engine_workers import initialize_global_process_group_ray
initialize_global_process_group_ray()
print(torch.distributed.get_backend())
class Hostile:
    def __reduce__(self):
        return os.mkdir, ("ran",)
torch.save(Hostile(), "state.pt")
try:
    torch.load("state.pt", weights_only=False)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("extension", ["load_offline", "load_online"])
def test_each_of_verls_processes_gets_the_replacements_with_verl(extension: str, tmp_path: Path) -> None:
    """Its port is held; its engine leaves out the logits of prompts; its updates, offline and online, count the rows
    that have own tokens; online it knows the agent loop; its CPU is named once; and what it loads runs no code.
    """
    extended = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": f"{folder.__name__}.{extension}"}
    env = os.environ | loopback_environment() | extended | {"PYTHONPATH": str(Path.cwd())}
    program = [sys.executable, "-c", IN_A_PROCESS]
    done = subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, text=True)
    loop = str(extension == "load_online")
    expected = ["127.0.0.1", "Engine", "RealRowsWorker", loop, "gloo", "UnpicklingError"]
    assert done.stdout.split() == expected, done.stderr
    assert not (tmp_path / "ran").exists()


PROMPTS, RESPONSES = (11, 9, 14), (6, 12, 3)


def rows(lengths: list[int], make: Any) -> torch.Tensor:
    return torch.nested.as_nested_tensor([make(length) for length in lengths], layout=torch.jagged)


def computed(
    engine_class: type, model: Any, *, packed: bool = False
) -> tuple[dict[str, torch.Tensor], torch.Tensor, int]:
    """Outputs, the gradient of all log-probs of responses, and for how many tokens of a row there were logits."""
    torch.manual_seed(0)
    whole = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    batch = TensorDict(
        {
            "input_ids": rows(whole, lambda length: torch.randint(0, model.config.vocab_size, (length,))),
            "position_ids": rows(whole, torch.arange),
            "response_mask": rows([*RESPONSES], torch.ones),
            "temperature": torch.full((len(whole),), 0.8),
        },
        batch_size=len(whole),
    )
    tu.assign_non_tensor(batch, use_remove_padding=packed, calculate_entropy=True)
    engine = object.__new__(engine_class)
    engine.pad_to_length, engine.use_ulysses_sp = None, False
    engine.engine_config = SimpleNamespace(
        entropy_checkpointing=False, entropy_from_logits_with_chunking=False, ulysses_sequence_parallel_size=1
    )
    engine.compute_entropy_from_logits = entropy_from_logits
    inputs, arguments = engine.prepare_model_inputs(batch)
    output = model(**inputs, use_cache=False)
    found = engine.prepare_model_outputs(output, arguments, batch, None)
    model.zero_grad()
    sum(part.sum() for part in read(found["log_probs"])).backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    return found, gradient, output.logits.shape[1]


def read(values: torch.Tensor) -> list[torch.Tensor]:
    """Of each row what belongs to its response: what the last token of the prompt predicts, and so on."""
    return [row[prompt - 1 : -1] for row, prompt in zip(values.unbind(), PROMPTS, strict=True)]


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32, attn_implementation="sdpa")


def test_trl_beside_verl_stops_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' chat templates are TRL's; verl imports from it what it no longer has."""
    own = AutoModelForCausalLM.from_pretrained(TINY)
    ignore_trl()
    monkey_patch.apply_monkey_patch(own)
    monkeypatch.setattr(monkey_patch, "is_trl_available", is_trl_available)
    with pytest.raises(ImportError, match="AutoModelForCausalLMWithValueHead"):
        monkey_patch.apply_monkey_patch(own)


@pytest.mark.parametrize("packed", [False, True])
def test_no_logits_of_prompts_give_the_same_log_probs_entropies_and_gradients(model: Any, packed: bool) -> None:
    """Padded rows have logits from the last token of the shortest prompt on, packed ones from that of their own."""
    whole, gradient, _ = computed(FSDPEngineWithLMHead, model)
    short, other, tokens = computed(Engine, model, packed=packed)
    longest = max(prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True))
    assert tokens == (sum(RESPONSES) + len(PROMPTS) if packed else longest - (min(PROMPTS) - 1))
    assert whole.keys() == short.keys() == {"log_probs", "entropy"}
    for name in whole:
        for one, two in zip(read(whole[name]), read(short[name]), strict=True):
            torch.testing.assert_close(one, two)
    torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5 * gradient.abs().max().item())


def test_logits_are_divided_by_the_temperature_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs are those of float64; verl's own quotient is rounded to bfloat16."""
    monkeypatch.setattr(transformer_impl, "_scale_logits_by_temperature", None)  # restored afterwards
    scale_logits_in_float32()
    logits = 20 * torch.randn(5, 300).bfloat16()
    temperature = torch.full((5, 1), 0.7)
    scaled = transformer_impl._scale_logits_by_temperature(logits, temperature, is_unit_temperature=False)
    gap = scaled.log_softmax(-1) - (logits.double() / 0.7).log_softmax(-1)
    assert scaled.dtype == torch.float32 and gap.abs().max() < 1e-4
    assert transformer_impl._scale_logits_by_temperature(logits, temperature, is_unit_temperature=True) is logits


@pytest.fixture
def one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.distributed with this process alone, and verl's platform of a CPU."""
    monkeypatch.setattr(platform_manager, "_current_platform", CPUPlatform())
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def engine_of(engine_class: type, dtype: str) -> Any:
    """An engine with the tiny model and an optimizer, as verl builds them on one rank."""
    engine = object.__new__(engine_class)
    engine.engine_config = FSDPEngineConfig(strategy="fsdp2", mixed_precision={"param_dtype": dtype})
    engine.model_config = SimpleNamespace(lora_rank=0, enable_activation_offload=False)
    engine.optimizer_config = FSDPOptimizerConfig(lr=1e-3, clip_grad=0.5)
    engine.device_mesh, engine._qat_enabled = init_device_mesh("cpu", (1,)), False
    engine.module = engine._build_fsdp_module(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32))
    engine.optimizer = engine._build_optimizer(engine.module)
    return engine


def update(engine: Any, seed: int) -> list[float]:
    """Make an update of two passes; returns the losses and the norm of the gradient before it was clipped."""
    torch.manual_seed(seed)
    losses = []
    for last in (False, True):
        ids = torch.randint(0, 50, (2, 12))
        with engine._gradient_sync_context(is_last_micro_batch=last):
            loss = engine.module(input_ids=ids, labels=ids).loss
            loss.backward()
        losses.append(loss.item())
    norm = engine.optimizer_step()
    engine.optimizer_zero_grad()
    return [*losses, norm]


def test_one_float32_worker_on_a_cpu_trains_without_fsdp_as_with_it(one_rank: None) -> None:
    """Losses, norms and weights are equal; in bfloat16 FSDP casts the weights, and stays."""
    usual, ours = engine_of(FSDPEngineWithLMHead, "fp32"), engine_of(Engine, "fp32")
    assert isinstance(usual.module, FSDPModule) and not isinstance(ours.module, FSDPModule)
    assert isinstance(engine_of(Engine, "bf16").module, FSDPModule)
    assert [dtype_of_passes(one.module) for one in (usual, ours)] == [torch.float32] * 2
    for seed in (1, 2, 3):
        assert update(usual, seed) == pytest.approx(update(ours, seed), rel=1e-6)
    for (name, weight), other in zip(usual.module.named_parameters(), ours.module.parameters(), strict=True):
        torch.testing.assert_close(weight.full_tensor(), other, rtol=1e-5, atol=1e-7, msg=name)


def test_a_save_that_fsdp_wrote_is_continued_without_it(one_rank: None, tmp_path: Path) -> None:
    usual, ours = engine_of(FSDPEngineWithLMHead, "fp32"), engine_of(Engine, "fp32")
    update(usual, 1)
    torch.save([usual.module.state_dict(), usual.optimizer.state_dict()], tmp_path / "save.pt")
    weights, moments = torch.load(tmp_path / "save.pt", weights_only=True)
    ours.module.load_state_dict(weights)
    ours.optimizer.load_state_dict(moments)
    assert update(usual, 2) == pytest.approx(update(ours, 2), rel=1e-6)
    for weight, other in zip(usual.module.parameters(), ours.module.parameters(), strict=True):
        torch.testing.assert_close(weight.full_tensor(), other, rtol=1e-5, atol=1e-7)


def in_bfloat16(model: Any) -> Any:
    """Has FSDP make the passes of a model in bfloat16."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fully_shard(model, mp_policy=policy, mesh=init_device_mesh("cpu", (1,)))


@pytest.fixture
def sharded(one_rank: None) -> Any:
    """The tiny model on one rank, with weights in float32 and passes in bfloat16."""
    return in_bfloat16(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32))


def test_frozen_weights_are_held_in_the_dtype_of_the_passes_and_nothing_else_changes(
    monkeypatch: pytest.MonkeyPatch, one_rank: None
) -> None:
    build = FSDPEngine._build_lora_module
    monkeypatch.setattr(FSDPEngine, "_build_lora_module", build)  # restored afterwards
    chosen = {"lora_rank": 4, "lora_alpha": 4, "target_modules": "all-linear", "target_parameters": None}
    engine: Any = SimpleNamespace(
        model_config=SimpleNamespace(**chosen, exclude_modules=None),
        engine_config=SimpleNamespace(seed=7, mixed_precision={"param_dtype": "bfloat16"}),
    )

    def built() -> Any:
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
        found = FSDPEngine._build_lora_module(engine, model)
        for name, parameter in found.named_parameters():  # peft's B is 0, for which A has no gradient
            parameter.data += 0.1 * torch.ones_like(parameter) * ("lora_B" in name)
        return found

    def gradients(model: Any) -> dict[str, torch.Tensor]:
        ids = torch.arange(24).reshape(2, 12)
        loss = in_bfloat16(model)(input_ids=ids, labels=ids).loss
        loss.backward()
        found = {name: own.grad.full_tensor() for name, own in model.named_parameters() if own.requires_grad}
        return {"loss": loss.detach()} | found

    usual = built()
    build_adapters()
    ours = built()
    assert {own.dtype for own in usual.parameters()} == {torch.float32}
    assert {own.dtype for own in ours.parameters() if own.requires_grad} == {torch.float32}
    assert {own.dtype for own in ours.parameters() if not own.requires_grad} == {torch.bfloat16}
    assert {buffer.dtype for buffer in ours.buffers()} == {torch.float32}
    expected, found = gradients(usual), gradients(ours)
    assert expected.keys() == found.keys() and len(found) > 8
    for name, value in expected.items():
        assert value.any() and torch.equal(value, found[name]), name


def test_weights_are_exported_in_the_dtype_of_the_passes(monkeypatch: pytest.MonkeyPatch, sharded: Any) -> None:
    """The master weights stay in float32."""
    whole = fsdp_checkpoint_manager.get_fsdp_full_state_dict
    monkeypatch.setattr(fsdp_checkpoint_manager, "get_fsdp_full_state_dict", whole)  # restored afterwards
    master = whole(sharded)
    export_in_own_dtype()
    exported = fsdp_checkpoint_manager.get_fsdp_full_state_dict(sharded, offload_to_cpu=True, rank0_only=True)
    assert {tensor.dtype for tensor in sharded.state_dict().values()} == {torch.float32}
    assert exported.keys() == master.keys()
    assert all(torch.equal(exported[name], master[name].bfloat16()) for name in master)


def test_weights_that_are_not_finite_in_the_exported_dtype_are_not_saved(
    monkeypatch: pytest.MonkeyPatch, sharded: Any
) -> None:
    """The largest number of float32 is infinite in bfloat16, the largest of bfloat16 is saved."""
    saved: list[str] = []
    monkeypatch.setattr(FSDPCheckpointManager, "save_checkpoint", lambda self, path: saved.append(path))
    check_saves()
    manager = SimpleNamespace(
        model=sharded, previous_saved_paths=["other/global_step_1/actor"], _has_lora=lambda: False
    )
    weight = sharded.model.norm.weight.to_local().detach()
    for number in (float("nan"), float("inf"), -float("inf"), torch.finfo(torch.float32).max):
        weight[3] = number
        with pytest.raises(
            TrainingStopped, match=r"^global_step_7: the weights are not finite \(model\.norm\.weight\)"
        ):
            FSDPCheckpointManager.save_checkpoint(manager, "run/global_step_7/actor")
    assert saved == []
    weight[3] = torch.finfo(torch.bfloat16).max
    FSDPCheckpointManager.save_checkpoint(manager, "run/global_step_7/actor")
    assert saved == ["run/global_step_7/actor"] and manager.previous_saved_paths == []


def test_a_large_model_is_saved_in_several_files_and_its_checkpoint_is_their_second_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", PreTrainedModel.save_pretrained)  # restored afterwards
    monkeypatch.setattr(patches, "SHARD", "1MB")
    patches.export_in_shards()
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "saved", state_dict=model.state_dict())
    files = sorted((tmp_path / "saved").glob("*.safetensors"))
    assert len(files) > 1
    export(str(tmp_path / "saved"), str(TINY), str(tmp_path / "checkpoint"), "bfloat16")
    check_checkpoint(str(tmp_path / "checkpoint"))
    assert all((tmp_path / "checkpoint" / file.name).samefile(file) for file in files)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in model.state_dict().items())


def test_log_probs_of_bfloat16_logits_are_computed_in_float32():
    torch.manual_seed(0)
    logits = 20 * torch.randn(TOKENS_AT_A_TIME + 5, 300).bfloat16()
    labels = torch.randint(0, 300, (len(logits),))
    expected = logits.float().log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    torch.testing.assert_close(log_probs_of(logits, labels), expected)
