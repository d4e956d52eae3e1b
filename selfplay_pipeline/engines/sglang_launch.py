"""Start SGLang's server; on a CPU, put stand-ins in place of packages that are missing or need a GPU.

Run as a module. SGLang 0.5.12 imports torchvision and sgl_kernel at start-up, although a text model on a CPU never
calls them. Without AMX, SGLang uses plain torch operations; this module replaces only attention, by one that computes
many sequences at a time. Workers are forked on a CPU. Spawned workers import this module again, so they get the
stand-ins too.
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
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.garbage import collect_seldom
from selfplay_pipeline.core.loopback import held_port, keep_torch_local
from selfplay_pipeline.core.processes import name_semaphores
from selfplay_pipeline.core.server_keys import SERVER_KEY
from selfplay_pipeline.engines import sglang_attention
from selfplay_pipeline.engines.sglang_direct import Direct

STAND_INS = {
    "torchvision": ("io", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional", "ops"),
    "sgl_kernel": ("kvcacheio",),
}
"""Packages that SGLang imports, each with the submodules that SGLang names."""


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


def install_stand_ins() -> None:
    """Prepare this process to import SGLang on a CPU."""
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


ON_CPU = os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"
collect_seldom()
if ON_CPU:
    install_stand_ins()
if ON_CPU and __name__ in ("__main__", "__mp_main__"):
    sglang_attention.register()
keep_torch_local()


class Unprinted(str):
    """A key that is hidden in the list of arguments that SGLang writes to its log."""

    def __repr__(self) -> str:
        return "'(not shown)'"


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


def run_scheduler(server_args: Any, *others: Any) -> None:
    """Run the scheduler of one copy of the model with a random seed of its own.

    SGLang 0.5.12 gives all copies one seed, so that they sample alike: requests with one prompt got equal replies.
    """
    from sglang.srt.managers.scheduler import run_scheduler_process

    dp_rank = inspect.signature(run_scheduler_process).bind(server_args, *others).arguments["dp_rank"]
    server_args.random_seed += dp_rank or 0
    run_scheduler_process(server_args, *others)


def hold_ports() -> None:
    """Let SGLang reserve the ports that it picks in this process for torch's rendezvous.

    SGLang 0.5.12 picks a free port, but listens on it only after a new process has imported all of SGLang. By then
    another process may have taken the port.
    """
    from sglang.srt import server_args

    server_args.get_free_port = held_port


def run_controller(*arguments: Any, **options: Any) -> None:
    """Run the process that distributes requests to the copies of the model. It sleeps until a request comes; SGLang's
    own loop never sleeps.
    """
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


def end_at_once() -> None:
    """Let SIGTERM end the server at once; SGLang itself checks for the signal only every five seconds.

    The driver ends the server only when it waits for no more answers.
    """
    from sglang.srt.managers.tokenizer_manager import SignalHandler
    from sglang.srt.utils import kill_process_tree

    SignalHandler.sigterm_handler = lambda *_: kill_process_tree(os.getpid())


def main(arguments: list[str]) -> None:
    """Serve until stopped, with the arguments of `python -m sglang.launch_server` and the key from the environment."""
    from sglang.srt.entrypoints import engine, http_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    name_semaphores()
    hold_ports()
    engine.run_data_parallel_controller_process = run_controller
    server_args = prepare_server_args(arguments)
    end_at_once()
    if ON_CPU:
        fork_workers()
        http_server.app.add_middleware(Direct)
    key = os.environ.pop(SERVER_KEY, "")
    if key and server_args.tokenizer_worker_num == 1:  # with more workers SGLang checks no key
        server_args.api_key = Unprinted(key)
    try:
        http_server.launch_server(server_args, run_scheduler_process_func=run_scheduler)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
