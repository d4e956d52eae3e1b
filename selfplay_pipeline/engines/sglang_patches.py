"""Replacements of SGLang's code: each function's docstring gives the reason, its decorator the replaced code.

`sglang_launch.py` puts them in place. To raise SGLang, run tests/unit/test_sglang_patches.py: it names the replacements
whose code has changed.

SGLang's plugin hooks (`sglang.srt.plugins`) cannot take their place: a hook names the same functions, its failure is
only logged, and hooks begin to work too late, after `_set_envs_and_config` and not in the controller.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import inspect
import multiprocessing
import os
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from selfplay_pipeline.core.loopback import held_port
from selfplay_pipeline.core.patches import patch
from selfplay_pipeline.engines.sglang_attention import Attention, Piece, make_pieces

sglang_patch = partial(patch, "sglang==0.5.12")

STAND_INS = {
    "torchvision": ("io", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional", "ops"),
    "sgl_kernel": ("kvcacheio",),
}
"""Packages that SGLang imports, each with the submodules that SGLang names."""
REQUEST = {"input_ids", "sampling_params", "return_logprob"}
"""Fields of `engines/sglang_api.py: request_of`."""
ROUTED = {*REQUEST, "routed_dp_rank"}
"""All fields of a request that selects one copy of the model."""


class _StandIn(types.ModuleType):
    """A module whose names can be imported but are never called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _NoImages:
    """Stands in for `transformers.AutoImageProcessor`, which refuses even `register` without torchvision."""

    @classmethod
    def register(cls, *args: Any, **kwargs: Any) -> None:
        """Ignores SGLang's registration of image models; none is served."""


@sglang_patch(public_way="SGLang imports both packages whatever it serves.")
def install_stand_ins() -> None:
    """Prepare this process to import SGLang on a CPU, where some of its packages are missing or need a GPU driver.

    SGLang imports torchvision and sgl_kernel at start-up, although a text model on a CPU never calls them.
    """
    import transformers  # noqa: F401  it must look for torchvision before the stand-in exists

    missing = [package for package in STAND_INS if not _importable(package)]
    for package in missing:
        for name in (package, *(f"{package}.{module}" for module in STAND_INS[package])):
            stand_in = _StandIn(name)
            stand_in.__path__ = []
            stand_in.__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules[name] = stand_in
    import sglang  # noqa: F401

    if "torchvision" in missing:
        # SGLang replaces the transformers module by a copy of its own, so this must come after it.
        sys.modules["transformers"].AutoImageProcessor = _NoImages  # type: ignore[attr-defined]


def _importable(package: str) -> bool:
    """Whether a package can be imported; a CUDA environment has `sgl_kernel`, which needs a GPU's driver."""
    try:
        importlib.import_module(package)
    except Exception:
        return False
    return True


@sglang_patch(
    "sglang.srt.layers.attention.attention_registry:create_torch_native_backend",
    "sglang.srt.layers.attention.torch_native_backend:TorchNativeAttnBackend",
    public_way="The registry of backends is used, but with the name by which SGLang knows that Triton is not used.",
)
def replace_attention() -> None:
    """Make the backend `torch_native` compute many sequences at a time.

    SGLang's own backend computes the sequences of a batch one by one in every layer, and recomputes the outputs of
    cached prefixes only to discard them.
    """
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend("torch_native")(_attention_backend)


def _attention_backend(runner: Any) -> Any:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    class Backend(TorchNativeAttnBackend):  # type: ignore[misc]  # SGLang has no types
        """Backend that computes many sequences at a time.

        It does so in the common case (causal, one dtype, one head size), and else calls SGLang's own attention.
        """

        def __init__(self, runner: Any) -> None:
            super().__init__(runner)
            self._dtype = runner.dtype
            self._attention = Attention()
            self._pieces: list[Piece] | None = None

        def init_forward_metadata(self, forward_batch: Any) -> None:
            lengths = forward_batch.seq_lens.tolist()
            new = [1] * len(lengths)
            if not forward_batch.forward_mode.is_decode_or_idle():
                new = forward_batch.extend_seq_lens.tolist()
            table = forward_batch.req_to_token_pool.req_to_token
            self._pieces = make_pieces(table, forward_batch.req_pool_indices, lengths, new, self._dtype)

        def _run_sdpa_forward_decode(
            self, query: Any, output: Any, keys: Any, values: Any, *rest: Any, **how: Any
        ) -> Any:
            if not self._plain(query, keys, values):
                return super()._run_sdpa_forward_decode(query, output, keys, values, *rest, **how)
            self._attention.compute(self._pieces or (), query, output, keys, values, how["scaling"])
            return output

        def _run_sdpa_forward_extend(
            self, query: Any, output: Any, keys: Any, values: Any, *rest: Any, **how: Any
        ) -> Any:
            if not (how["causal"] and self._plain(query, keys, values)):
                return super()._run_sdpa_forward_extend(query, output, keys, values, *rest, **how)
            self._attention.compute(self._pieces or (), query, output, keys, values, how["scaling"])
            return output

        def _plain(self, query: Any, keys: Any, values: Any) -> bool:
            one_type = self._dtype == query.dtype == keys.dtype == values.dtype
            return one_type and keys.shape == values.shape and self._pieces is not None

    return Backend(runner)


@sglang_patch(
    "sglang.srt.layers.sampler:sampling_from_probs_torch",
    public_way="SGLang knows no other sampling on a CPU; its backends are kernels for GPUs.",
)
def replace_sampling() -> None:
    """Let SGLang sample by inverse transform, with one random number a row, if no seed is set.

    `torch.multinomial` draws one for each token of the vocabulary, which took an eighth to a quarter of the time of a
    model with a vocabulary of 49,000.
    """
    from sglang.srt.layers import sampler

    usual = sampler.sampling_from_probs_torch

    def sample(probs: Any, sampling_seed: Any = None, positions: Any = None) -> Any:
        return usual(probs, sampling_seed, positions) if sampling_seed is not None else sample_by_inversion(probs)

    sampler.sampling_from_probs_torch = sample


def sample_by_inversion(probs: Any) -> Any:
    """Returns an index drawn from each row of `probs`, shape (rows, indices), as int32 of shape (rows,).

    Rows need not sum to 1. An index without probability is never drawn.
    """
    import torch

    sums = probs.cumsum(-1, dtype=torch.float64)  # in float32, the sum of 150,000 numbers would lose the smallest
    drawn = torch.rand(len(probs), 1, dtype=torch.float64, device=probs.device) * sums[:, -1:]
    return torch.searchsorted(sums, drawn, right=True).view(-1).clamp(max=probs.shape[-1] - 1).to(torch.int32)


@sglang_patch(
    "sglang.srt.entrypoints.engine:_set_envs_and_config",
    "sglang.srt.entrypoints.engine:Engine._launch_scheduler_processes",
    public_way="SGLang sets the start method itself and overwrites an earlier one.",
)
def fork_workers() -> None:
    """Let SGLang fork its workers, so that they need not import everything again.

    SGLang asks for `spawn` because a process that has used CUDA cannot be forked. On a CPU, forking is safe as long as
    no other thread runs, which might hold a lock. If another thread runs, SGLang spawns its workers.
    """
    from sglang.srt.entrypoints import engine

    set_all = engine._set_envs_and_config

    def set_all_and_fork(server_args: Any) -> None:
        set_all(server_args)
        # With several copies of the model (dp_size), SGLang starts the schedulers in threads.
        if server_args.dp_size == 1 and len(list(Path("/proc/self/task").iterdir())) == 1:
            multiprocessing.set_start_method("fork", force=True)
            gc.freeze()  # garbage collection skips what is imported, so that its pages stay shared

    engine._set_envs_and_config = set_all_and_fork


@sglang_patch(
    "sglang.srt.managers.scheduler:run_scheduler_process",
    "sglang.srt.managers.data_parallel_controller:DataParallelController.launch_tensor_parallel_group",
    public_way="`launch_server` takes this function, but no option gives a copy a seed.",
)
def run_scheduler(server_args: Any, *others: Any) -> None:
    """Run the scheduler of one copy of the model with a random seed of its own.

    SGLang gives all copies the same seed, so that different copies would sample the same reply to the same prompt.
    """
    from sglang.srt.managers.scheduler import run_scheduler_process

    dp_rank = inspect.signature(run_scheduler_process).bind(server_args, *others).arguments["dp_rank"]
    server_args.random_seed += dp_rank or 0
    run_scheduler_process(server_args, *others)


@sglang_patch(
    "sglang.srt.server_args:get_free_port",
    "sglang.srt.server_args:PortArgs.init_new",
    public_way="`--nccl-port` names one port, but each copy of the model needs its own.",
)
def hold_ports() -> None:
    """Let SGLang reserve the ports that it picks in this process for torch's rendezvous.

    SGLang picks a free port, but listens on it only after a new process has imported all of SGLang. By then another
    process may have taken the port.
    """
    from sglang.srt import server_args

    server_args.get_free_port = held_port


@sglang_patch(
    "sglang.srt.managers.data_parallel_controller:DataParallelController.event_loop",
    "sglang.srt.managers.data_parallel_controller:run_data_parallel_controller_process",
    "sglang.srt.entrypoints.engine:run_data_parallel_controller_process",
    public_way="No option makes the loop wait.",
)
def let_controller_sleep() -> None:
    """Let the process that distributes requests to the copies of the model sleep until one comes, and hold its ports.

    SGLang's own loop never sleeps.
    """
    from sglang.srt.entrypoints import engine

    engine.run_data_parallel_controller_process = _run_controller


def _run_controller(*arguments: Any, **options: Any) -> None:
    from sglang.srt.managers.data_parallel_controller import (
        DataParallelController,
        run_data_parallel_controller_process,
    )

    hold_ports()
    DataParallelController.event_loop = _hand_on
    run_data_parallel_controller_process(*arguments, **options)


def _hand_on(controller: Any) -> None:
    while True:
        controller.soft_watchdog.feed()
        if controller.recv_from_tokenizer.poll(1000):  # milliseconds
            controller._request_dispatcher(controller.recv_from_tokenizer.recv_pyobj())


@sglang_patch(
    "sglang.srt.managers.tokenizer_manager:SignalHandler.sigterm_handler",
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.auto_create_handle_loop",
    public_way="SGLang sets its handler itself with the first request; no option says how long it drains.",
)
def end_at_once() -> None:
    """Let SIGTERM end the server at once; SGLang itself checks for the signal only every five seconds.

    This is safe because the driver ends the server only after it has received all answers.
    """
    from sglang.srt.managers.tokenizer_manager import SignalHandler
    from sglang.srt.utils import kill_process_tree

    SignalHandler.sigterm_handler = lambda *_: kill_process_tree(os.getpid())


@sglang_patch(
    "sglang.srt.entrypoints.http_server:generate_request",
    public_way="Middleware of SGLang's app is used, but no route of SGLang's skips FastAPI's checks.",
)
class Direct:
    """ASGI middleware that answers an engine's requests to `/generate` without FastAPI.

    With a small model on a CPU, FastAPI takes longer to read and check a request than all other work of the server's
    main process on it. An engine's requests have few fields and come from this package, so they go directly to SGLang's
    handler. Other requests take SGLang's own path. The key has been checked before.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/generate" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        try:
            request = from_json(b"".join(message.get("body", b"") for message in messages))
        except ValueError:
            request = None
        if isinstance(request, dict) and request.keys() in (REQUEST, ROUTED):
            await _answer(request, scope, receive, send)
            return

        async def again() -> Any:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, again, send)


async def _answer(request: dict[str, Any], scope: Any, receive: Any, send: Any) -> None:
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.io_struct import GenerateReqInput

    response = await http_server.generate_request(GenerateReqInput(**request), http_server.Request(scope, receive))
    await response(scope, receive, send)
