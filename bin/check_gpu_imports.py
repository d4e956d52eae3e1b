"""Imports the modules for playing and training on a GPU, and prints versions. `bin/check_gpu_lock.sh` runs it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from selfplay_pipeline.engines.sglang_server import ServerSpec

MODULES = (
    "torch",
    "torchvision",
    "transformers.models.qwen2.modeling_qwen2",
    "sgl_kernel",
    "flashinfer",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.qwen2",
    "selfplay_pipeline.engines.sglang_launch",
    "verl.trainer.main_ppo",
    "verl.workers.engine_workers",
    "verl.workers.rollout.router",
    "verl.workers.rollout.sglang_rollout.async_sglang_server",
    "selfplay_pipeline.train.verl.main",
    "selfplay_pipeline.train.verl.load_offline",
    "selfplay_pipeline.train.verl.dataset",
    "selfplay_pipeline.train.verl.replay",
    "selfplay_pipeline.train.verl.load_online",
    "selfplay_pipeline.train.verl.online_sampler",
    "selfplay_pipeline.train.verl.agent_loop",
)
PACKAGES = ("torch", "sglang", "sglang-kernel", "flashinfer-python", "verl", "transformers", "kernels", "ray")


def main() -> int:
    """Import everything, then run the parts that need no GPU; returns the number of failures."""
    print("versions: " + ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    failures = sum(not _works(f"import {name}", partial(importlib.import_module, name)) for name in MODULES)
    failures += not _works("load data/tiny_model with the attention that training asks for", load_as_training_does)
    failures += not _works("start a process as SGLang's memory saver does", preload_memory_saver)
    print(f"compiler: {_compiler()}")
    print(f"{failures} failed" if failures else "all works")
    return failures


def load_as_training_does() -> None:
    """Load a model with the attention implementation that verl is configured with on a GPU."""
    from transformers import AutoModelForCausalLM

    from selfplay_pipeline.config.load import load_config
    from selfplay_pipeline.train.offline_stage import training_of
    from selfplay_pipeline.train.verl_overrides import policy_settings

    training = training_of(load_config("tiny", {}), Path("rows.parquet"), Path("checkpoint"))
    attention = policy_settings(training, "cuda")["+actor_rollout_ref.model.override_config.attn_implementation"]
    print(f"attention: {attention}")
    AutoModelForCausalLM.from_pretrained("data/tiny_model", attn_implementation=attention)


def preload_memory_saver() -> None:
    """Start Python as a server starts its schedulers if they are to release the GPU's memory.

    Raises:
        CalledProcessError: The dynamic linker does not find the libraries of the preloaded library, or another library
            allocates the memory.
    """
    import torch_memory_saver

    spec = ServerSpec(model="m", device="cuda", log_path=Path("log"), shares_gpu=True)
    code = (
        "import ctypes, os; address = lambda library: ctypes.cast(library.cudaMalloc, ctypes.c_void_p).value; "
        "assert address(ctypes.CDLL(None)) == address(ctypes.CDLL(os.environ['LD_PRELOAD'].split(':')[0]))"
    )
    with torch_memory_saver.configure_subprocess():
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **spec.environment()}, check=True)


def _works(what: str, do: Callable[[], object]) -> bool:
    began = time.monotonic()
    try:
        do()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"FAILED {what}: {reason[:300]}", flush=True)
        return False
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
    return True


def _compiler() -> str:
    """Returns whether SGLang's kernels can be compiled here, in words; this depends on the machine, not on the lock."""
    from selfplay_pipeline.core.errors import UserError
    from selfplay_pipeline.engines.compiler import check_compiler

    os.environ.setdefault("TVM_FFI_CUDA_ARCH_LIST", "9.0")  # else it is read from the GPU
    try:
        check_compiler()
    except UserError as error:
        return str(error)
    return "SGLang's CUDA kernels can be compiled here"


if __name__ == "__main__":
    sys.exit(min(main(), 1))
