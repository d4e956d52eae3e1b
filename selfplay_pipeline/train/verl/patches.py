"""Replacements of verl's and TransferQueue's code: each function's docstring gives the reason, its decorator the code.

`apply` installs the replacements for every verl process, `use_one_process` those for a run without Ray. To
raise verl, run tests/contract/test_verl_patches.py: it names the replacements whose code has changed, and the classes
of this folder that override a method that has changed.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed.tensor  # lets torch load sharded tensors as data
import transfer_queue as tq
from omegaconf import OmegaConf
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.serialization import add_safe_globals
from transfer_queue import interface
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage.simple_storage import SimpleStorageUnit
from transformers import PreTrainedModel
from verl.checkpoint_engine import CheckpointEngineManager
from verl.experimental.reward_loop import RewardLoopManager
from verl.models.transformers import monkey_patch
from verl.single_controller.ray import RayWorkerGroup, ResourcePoolManager
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import ray_utils, torch_functional
from verl.utils import tensordict_utils as tu
from verl.utils.checkpoint import fsdp_checkpoint_manager
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import offload_fsdp_model_to_cpu
from verl.utils.torch_dtypes import PrecisionType
from verl.workers import engine_workers
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerManager

from selfplay_pipeline.core.loopback import ADDRESS, SWITCH, held_port, keep_torch_local
from selfplay_pipeline.core.patches import patch
from selfplay_pipeline.train.adapter import PREFIX, WEIGHTS, added
from selfplay_pipeline.train.online_overrides import CPU_ROLLOUT
from selfplay_pipeline.train.saves import ADAPTER
from selfplay_pipeline.train.stopped import TrainingStopped
from selfplay_pipeline.train.verl.engine import Engine, dtype_of_passes

verl_patch = functools.partial(patch, "verl==0.9.1")
queue_patch = functools.partial(patch, "TransferQueue==0.1.11")

TOKENS_AT_A_TIME = 1024
"""Number of tokens whose log-probs are computed together."""
SHARD = "4GB"
"""Largest size of an exported file of weights."""
ENGINE = "verl.workers.engine.fsdp.transformer_impl"
TRAINER = "verl.trainer.ppo.v1.trainer_base"


@functools.cache
def apply() -> None:
    """Install the replacements that every verl process needs; a second call does nothing."""
    keep_torch_local()
    load_as_data()
    ignore_trl()
    check_saves()
    export_in_own_dtype()
    export_in_shards()
    build_adapters()
    send_merged_weights()
    count_real_rows()
    compute_log_probs_in_blocks()
    use_own_engine()
    scale_logits_in_float32()
    if os.environ.get(SWITCH) == "1":
        reserve_port()
    if os.environ.get("VERL_PLATFORM") == "cpu":
        use_plain_gloo()
        leave_memory_unpinned()
        name_cpu_adapter()


@verl_patch(
    "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint",
    public_way="torch's own switch is used; verl asks torch for unrestricted pickles, and has no option for it.",
)
def load_as_data() -> None:
    """Load trainer states as data: a pickle that names anything but the parts of a tensor is refused.

    A pickle can run code. torch's environment variable forces this for every call of `torch.load` in this process.
    """
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    # The state of numpy's random generator, which verl saves too.
    reconstruct = np.zeros(0).__reduce__()[0]
    name = "numpy._core.multiarray._reconstruct"
    add_safe_globals([(reconstruct, name), np.ndarray, np.dtype, np.dtypes.UInt32DType])


@verl_patch(
    "verl.models.transformers.monkey_patch:is_trl_available",
    public_way="verl looks for an installed TRL before every training, and has no option against it.",
)
def ignore_trl() -> None:
    """Make verl prepare models as if TRL were not installed.

    verl imports a class of TRL's, for models with a value head, that TRL 1.16 no longer has.
    """
    monkey_patch.is_trl_available = lambda: False


@verl_patch(
    "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.save_checkpoint",
    "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager._has_lora",
    "verl.utils.checkpoint.checkpoint_manager:BaseCheckpointManager.register_checkpoint",
    public_way="The engine creates this class by its name; no option names another one.",
)
def check_saves() -> None:
    """Make verl refuse to save weights that are not finite, keep earlier trainings' saves, and save adapters in peft's
    format.
    """
    save = FSDPCheckpointManager.save_checkpoint

    @functools.wraps(save)
    def save_finite(self: Any, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Save unless a weight of this process's shard is not finite in the dtype in which it is exported."""
        largest = torch.finfo(dtype_of_passes(self.model)).max
        for name, parameter in self.model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if local.numel() and not all(abs(end) <= largest for end in torch.aminmax(local)):
                raise TrainingStopped(f"{Path(local_path).parent.name}: the weights are not finite ({name})")
        # verl removes the oldest of these paths; it must not remove saves of an earlier training of this process.
        training = Path(local_path).parent.parent
        self.previous_saved_paths = [path for path in self.previous_saved_paths if Path(path).is_relative_to(training)]
        save(self, local_path, *args, **kwargs)
        if self._has_lora():
            _save_adapter(self.model, Path(local_path) / ADAPTER)

    FSDPCheckpointManager.save_checkpoint = save_finite


def _save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter in peft's format. All ranks must call this function; rank 0 writes.

    Args:
        model: peft's model, sharded or not.
        folder: Folder to create.
    """
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {name: _whole(tensor).cpu().contiguous() for name, tensor in state.items()}
    if torch.distributed.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        model.peft_config["default"].save_pretrained(folder)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _whole(tensor: Any) -> torch.Tensor:
    """Returns the full tensor on the device; `tensor` may be sharded over the ranks and be in host memory."""
    tensor = tensor.detach().to(get_device_id())
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


@verl_patch(
    "verl.utils.checkpoint.fsdp_checkpoint_manager:get_fsdp_full_state_dict",
    "verl.utils.fsdp_utils:get_fsdp_full_state_dict",
    public_way="verl exports the master weights, and has no option for another dtype.",
)
def export_in_own_dtype() -> None:
    """Make verl export weights in the dtype of the passes, which is the checkpoint's, instead of float32."""
    whole = fsdp_checkpoint_manager.get_fsdp_full_state_dict

    def cast(model: Any, **options: Any) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = whole(model, **options)
        dtype = dtype_of_passes(model)
        for name, tensor in state.items():  # one at a time, since both copies of all would not fit
            state[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return state

    fsdp_checkpoint_manager.get_fsdp_full_state_dict = cast


@verl_patch(
    "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.save_checkpoint",
    public_way="verl calls transformers with its default size of files, and has no option for another one.",
)
def export_in_shards() -> None:
    """Make verl's trainer write weights in several files, since a file is hashed by one thread.

    transformers writes up to 50 GB into one file.
    """
    PreTrainedModel.save_pretrained = functools.partialmethod(PreTrainedModel.save_pretrained, max_shard_size=SHARD)


@verl_patch(
    f"{ENGINE}:FSDPEngine._build_lora_module",
    public_way="No option of verl or peft seeds an adapter. verl's `model_dtype` rounds the adapter and buffers too.",
)
def build_adapters() -> None:
    """Make verl build an adapter from seeded random numbers, and hold the frozen weights in the dtype of the passes.

    verl's own adapters are not seeded, and it holds all weights in float32. FSDP casts frozen weights to the dtype of
    the passes before each use, so the results are the same. Buffers such as the frequencies of positions stay in
    float32.
    """
    build = FSDPEngine._build_lora_module

    def built(self: FSDPEngine, module: Any) -> Any:
        torch.manual_seed(self.engine_config.seed)
        found = build(self, module)
        dtype = PrecisionType.to_dtype((self.engine_config.mixed_precision or {}).get("param_dtype", "bf16"))
        for parameter in found.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        return found

    FSDPEngine._build_lora_module = built


@verl_patch(
    f"{ENGINE}:FSDPEngine._merged_lora_per_tensor_param",
    f"{ENGINE}:FSDPEngine.get_per_tensor_param",
    public_way="`lora.merge` is set and chooses this function; no option keeps the precision.",
)
def send_merged_weights() -> None:
    """Make verl send servers the weights with the adapter merged in, in the weights' own precision.

    verl's own function temporarily merges the adapter into the model, and rounds all weights to bfloat16.
    """

    def pushed(self: FSDPEngine) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            yield from _merged_weights(self.module)
        finally:
            if self.is_param_offload_enabled:
                offload_fsdp_model_to_cpu(self.module)

    FSDPEngine._merged_lora_per_tensor_param = pushed


def _merged_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights of a model with its adapter merged in, by the model's own names; the model is not changed.

    All ranks must iterate to the end.
    """
    layers: dict[str, Any] = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    state = model.state_dict()
    for name in state:
        if ".lora_" in name:
            continue
        weight = _whole(state[name])
        layer = layers.get(place := name.removesuffix(".base_layer.weight"))
        if layer is not None:
            first, second = (_whole(state[f"{place}.{part}.default.weight"]) for part in ("lora_A", "lora_B"))
            weight = added(weight, first, second, layer.scaling["default"], transposed=layer.fan_in_fan_out)
        yield name.removeprefix(PREFIX).replace(".base_layer.", "."), weight


class RealRowsWorker(TrainingWorker):  # type: ignore[misc]
    """Training worker that averages over rows with sampled tokens only, and reports the learning rate of the current
    update and its largest pass.

    verl divides a loss of the form `seq-mean-*` by all rows of an update, including padding rows without sampled
    tokens. It reports the learning rate of the next update.
    """

    def train_batch(self, data: Any) -> Any:
        """Make one update and return verl's result."""
        rows = torch.tensor(sum(bool(mask.any()) for mask in data["loss_mask"].unbind()), device=get_device_id())
        torch.distributed.all_reduce(rows, group=self.engine.get_data_parallel_group())
        tu.assign_non_tensor(data, global_batch_size=rows.item())
        rate = self.engine.optimizer.param_groups[0]["lr"]
        self.engine.largest_pass = 0
        output = super().train_batch(data)
        largest = torch.tensor(self.engine.largest_pass, device=get_device_id())
        torch.distributed.all_reduce(
            largest, torch.distributed.ReduceOp.MAX, group=self.engine.get_data_parallel_group()
        )
        if output is not None:
            metrics = tu.get(output, "metrics")
            metrics["selfplay/max_tokens_of_a_pass"] = largest.item()
            if "lr" in metrics:
                metrics["lr"] = rate
        return output


@verl_patch(
    "verl.workers.engine_workers:ActorRolloutRefWorker.actor_worker_cls",
    public_way="Only a subclass can name the class, and online training uses verl's own worker.",
)
def count_real_rows() -> None:
    """Make verl's workers and ours use `RealRowsWorker`."""
    ActorRolloutRefWorker.actor_worker_cls = RealRowsWorker


@verl_patch(
    "verl.single_controller.ray.base:RayWorkerGroup._get_master_addr_port",
    public_way="A worker group takes an address and a port, but verl's trainer gives it none.",
)
def reserve_port() -> None:
    """Reserve the rendezvous port of the workers on one machine until all have connected.

    verl picks a free port, and the first worker listens there only after all its imports. By then another process may
    have taken the port.
    """

    def reserve(group: Any, *_: Any, **__: Any) -> None:
        if group._master_port is None:
            group._master_addr, group._master_port = ADDRESS, str(held_port())

    RayWorkerGroup._get_master_addr_port = reserve


@verl_patch(
    "verl.utils.distributed:initialize_global_process_group_ray",
    "verl.workers.engine_workers:TrainingWorker.__init__",
    "verl.workers.engine_workers:initialize_global_process_group_ray",
    public_way="verl's platform names the backend of a device, but verl itself adds that of the CPU.",
)
def use_plain_gloo() -> None:
    """Make verl request the backend "gloo".

    verl requests "cpu:gloo,<device>:<backend>", which names the CPU twice on a CPU, so torch refuses it.
    """
    initialize = engine_workers.initialize_global_process_group_ray
    engine_workers.initialize_global_process_group_ray = functools.partial(initialize, backend="gloo")


@verl_patch(
    f"{ENGINE}:CPUOffloadPolicy",
    f"{ENGINE}:FSDPEngine._build_fsdp_module",
    public_way="verl offloads every reference model, and has no option for the memory.",
)
def leave_memory_unpinned() -> None:
    """Make verl offload the reference model without pinned memory, which needs an accelerator's driver."""
    transformer_impl.CPUOffloadPolicy = lambda pin_memory: CPUOffloadPolicy(pin_memory=False)


@verl_patch(
    "verl.utils.torch_functional:logprobs_from_logits_v2",
    "verl.utils.torch_functional:logprobs_from_logits",
    public_way="verl chooses this function itself where flash-attn is missing.",
)
def compute_log_probs_in_blocks() -> None:
    """Make verl compute the log-probs of many tokens at a time; its loop over tokens took a tenth of a step."""
    torch_functional.logprobs_from_logits_v2 = log_probs_of


def log_probs_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns log-probs as verl's `logprobs_from_logits_v2` does, in blocks of tokens.

    They are computed in float32, as in verl: in bfloat16 a log-prob is rounded to an eighth of a nat where logits are
    large.

    Args:
        logits: Logits, shape (tokens, vocabulary), float32 or bfloat16.
        labels: Token ids, shape (tokens,).

    Returns:
        Log-probs of the labels, shape (tokens,), float32.
    """
    parts = zip(map(torch.Tensor.float, logits.split(TOKENS_AT_A_TIME)), labels.split(TOKENS_AT_A_TIME), strict=True)
    return torch.cat([part.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - part.logsumexp(-1) for part, chosen in parts])


@verl_patch(
    "verl.workers.engine.base:EngineRegistry.register",
    public_way="verl registers its own engine for GPUs, and refuses a second one.",
)
def use_own_engine() -> None:
    """Make verl use `Engine` on all devices."""
    EngineRegistry._engines["language_model"]["fsdp2"] |= {"cpu": Engine, "cuda": Engine}


@verl_patch(
    f"{ENGINE}:_scale_logits_by_temperature",
    f"{ENGINE}:FSDPEngineWithLMHead.prepare_model_outputs",
    public_way="verl divides logits in their own precision, and has no option for another one.",
)
def scale_logits_in_float32() -> None:
    """Make verl divide logits by the temperature in float32, as SGLang does.

    In bfloat16 the quotient is rounded, and log-probs differ from the sampler's by 0.03 nats on average.
    """

    def scaled(logits: torch.Tensor, temperature: torch.Tensor, *, is_unit_temperature: bool) -> torch.Tensor:
        return logits if is_unit_temperature else logits.float() / temperature.clamp(min=1e-8)

    transformer_impl._scale_logits_by_temperature = scaled


@verl_patch(
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
    "verl.workers.rollout.base:get_rollout_class",
    public_way="Replicas have a registry with a function `register`; the adapters in the trainer's ranks have none.",
)
def name_cpu_adapter() -> None:
    """Register the class that sends weights to a server on a CPU; verl imports it if `rollout.name` is `sglang_cpu`."""
    _ROLLOUT_REGISTRY[CPU_ROLLOUT, "async"] = f"{__package__}.cpu_rollout.CPUAdapter"


class OneWorker(RayWorkerGroup):  # type: ignore[misc]
    """A group of one worker, which is an object of this process."""

    def _init_with_resource_pool(self, resource_pool: Any, ray_cls_with_init: Any, **options: Any) -> None:
        os.environ |= {
            "WORLD_SIZE": "1",
            "RANK": "0",
            "WG_BACKEND": "ray",
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(held_port()),
        }
        self.resource_pool, self._world_size = resource_pool, 1
        self._workers = [plain(ray_cls_with_init.cls)()]

    def _bind_worker_method(self, worker: type, generator: Callable[..., Any]) -> Any:
        """Bind a method so that it runs at once and returns its result, not one of Ray's references."""

        def at_once(*arguments: Any, **options: Any) -> Any:
            return generator(*arguments, **options | {"blocking": False})

        return super()._bind_worker_method(worker, at_once)

    def _execute_remote_single_worker(self, worker: Any, method: str, *arguments: Any, **options: Any) -> Any:
        result = getattr(worker, method)(*arguments, **options)
        return asyncio.run(result) if inspect.iscoroutine(result) else result


class OnePool(ResourcePoolManager):  # type: ignore[misc]
    """Pool manager without Ray's resource check; the one worker reserves none."""

    def _check_resource_available(self) -> None:
        """Check nothing, since nothing is reserved."""


class NoRewards(RewardLoopManager):  # type: ignore[misc]
    """Reward loop without workers, since rewards come with the episodes."""

    def _init_reward_loop_workers(self) -> None:
        self.reward_loop_workers: list[Any] = []


class OneServer(LLMServerManager):  # type: ignore[misc]
    """Server manager for at most one server, which episodes query directly; none if nothing is generated."""

    async def _init_global_load_balancer(self) -> None:
        """Start no load balancer, since there is at most one server."""

    def get_client(self, client_cls: type | None = None, **options: Any) -> Any:
        return self.server_handles[0] if client_cls is None else OneClient(self.config, self.server_handles[0])


class OneClient(FullyAsyncLLMServerClient):  # type: ignore[misc]
    """verl's client that continues aborted completions, with a single server in this process."""

    def __init__(self, config: Any, server: Any) -> None:
        super().__init__(config)
        self._server = SimpleNamespace(generate=SimpleNamespace(remote=server.generate))

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return "", self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Do nothing, since no load is balanced."""


class OneReceiver(CheckpointEngineManager):  # type: ignore[misc]
    """Checkpoint engine for a worker that sends its weights to the server itself."""

    def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        self.actor_wg.update_weights(global_steps=global_steps, mode=self.backend)
        return {}


def is_enough(config: Any) -> bool:
    """Whether a single process is enough for this configuration."""
    trainer = config.trainer
    here = config.ray_kwargs.ray_init.address == "local"
    return bool(here and trainer.device == "cpu" and trainer.n_gpus_per_node * trainer.nnodes == 1)


@verl_patch(
    f"{TRAINER}:RayWorkerGroup",
    f"{TRAINER}:ResourcePoolManager",
    f"{TRAINER}:RewardLoopManager",
    f"{TRAINER}:LLMServerManager",
    f"{TRAINER}:CheckpointEngineManager",
    "verl.utils.ray_utils:parallel_put",
    public_way="verl knows workers only as Ray's actors, and Ray no longer supports its `local_mode`.",
)
def use_one_process() -> None:
    """Make verl's trainers in this process work without Ray from now on, with one worker and a local data store.

    Ray's services and verl's actors are twelve processes. They take 2 GB and half a minute of CPU time to start, and
    each step sends data between them. A single worker on a CPU gains nothing from them. A thread plays the episodes of
    online training, and their server is a child of this process.
    """
    trainer_base.RayWorkerGroup = OneWorker
    trainer_base.ResourcePoolManager = OnePool
    trainer_base.RewardLoopManager = NoRewards
    trainer_base.LLMServerManager = OneServer
    trainer_base.CheckpointEngineManager = OneReceiver
    ray_utils.parallel_put = lambda data, max_workers=None: copy.deepcopy(data)  # a worker has its own arguments
    keep_queue_here()


@queue_patch(
    "transfer_queue.interface:init",
    "transfer_queue.interface:close",
    "transfer_queue.interface:_TQ_STORAGE",
    "transfer_queue.interface:_TQ_CONTROLLER",
    "transfer_queue.interface:_maybe_create_tq_storage",
    "transfer_queue.interface:_maybe_create_tq_client",
    public_way="`init` always creates the controller and the store as Ray's actors.",
)
def keep_queue_here() -> None:
    """Make TransferQueue run its controller and its store as threads of this process."""
    tq.init, tq.close = _init_queue, lambda: None


def _init_queue(config: Any = None) -> None:
    """Start TransferQueue as its `init` does.

    Args:
        config: Section `transfer_queue`; None if the queue must exist already.
    """
    if config is None:
        return
    whole = OmegaConf.merge(
        OmegaConf.create({}, flags={"allow_objects": True}),
        OmegaConf.load(str(resources.files("transfer_queue") / "config.yaml")),
        config,
    )
    backend = whole.backend.SimpleStorage
    controller = plain(TransferQueueController)(polling_mode=whole.controller.polling_mode)
    store = plain(SimpleStorageUnit)(config={**backend, "_run_id": uuid4().hex})
    whole.controller.zmq_info = controller.get_zmq_server_info()
    backend.zmq_info = {"TransferQueueStorageUnit#0": store.get_zmq_server_info()}
    controller.store_config(whole)
    interface._TQ_STORAGE, interface._TQ_CONTROLLER = store, controller  # else they would be garbage-collected
    interface._maybe_create_tq_client(whole)


def plain(remote: Any) -> Any:
    """Returns the plain class behind a Ray actor class."""
    return remote.__ray_actor_class__
