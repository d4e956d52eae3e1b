"""A CPU as a verl platform. Loaded only with VERL_PLATFORM=cpu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


_MODULE = SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("_")}
    | {
        "set_device": _nothing,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
        "reset_peak_memory_stats": _nothing,
        "max_memory_allocated": _zero,
        "max_memory_reserved": _zero,
        "memory_allocated": _zero,
        "memory_reserved": _zero,
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: torch.device("cpu"),
        "mem_get_info": lambda *args: (0, 0),
        "get_device_name": lambda *args: "cpu",
    }
)
"""`torch.cpu` with the functions of `torch.cuda` that verl calls; memory counters read 0."""


@PlatformRegistry.register("cpu")
class CPUPlatform(PlatformBase):  # type: ignore[misc]
    """Platform with logical devices that are all the same CPU."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = cast(ModuleType, _MODULE)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        """Returns the device, not an index: verl passes it to `Tensor.to`, where 0 would mean the first accelerator."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        """Returns the name of Ray's resource: `ray_kwargs.ray_init.num_gpus` declares one logical GPU per training
        process.
        """
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
