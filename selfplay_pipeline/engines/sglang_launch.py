"""Start SGLang's server; on a CPU without the GPU-only packages, put stand-ins where it imports them.

Run as a module. SGLang 0.5.12 imports torchvision and sgl_kernel at start-up even where a text model on a CPU
never calls them. No numeric code is replaced: without AMX SGLang itself takes plain torch operations. Spawned
workers import this module again, so they find the stand-ins too.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from typing import Any

STAND_INS = (
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
    "torchvision.ops",
    "sgl_kernel",
    "sgl_kernel.kvcacheio",
)


class _StandIn(types.ModuleType):
    """A module whose names can be imported and are never called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _NoImages:
    """For `transformers.AutoImageProcessor`, which refuses even `register` without torchvision."""

    @classmethod
    def register(cls, *args: Any, **kwargs: Any) -> None:
        """SGLang registers its image models here; none is served."""


def install_stand_ins() -> None:
    """Prepare this process to import SGLang on a CPU."""
    import transformers  # noqa: F401  it must look for torchvision before the stand-in is there

    for name in STAND_INS:
        module = _StandIn(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    import sglang  # noqa: F401

    # SGLang puts its own copy of the transformers module into place, so this must come after it.
    sys.modules["transformers"].AutoImageProcessor = _NoImages  # type: ignore[attr-defined]


if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    install_stand_ins()


def main(arguments: list[str]) -> None:
    """Serve until told to stop; takes the arguments of `python -m sglang.launch_server`."""
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        launch_server(prepare_server_args(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
