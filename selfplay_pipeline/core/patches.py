"""Records of the replacements of other libraries' code; tests compare them with the installed libraries.

`engines/sglang_patches.py` replaces code of SGLang, `train/verl/patches.py` code of verl and TransferQueue,
`train/cluster.py` code of Ray, and `core/loopback.py` code of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Replacement = TypeVar("Replacement", bound=Callable[..., Any])


@dataclass(frozen=True)
class Patch:
    """Replacement of another library's code, or use of its private parts.

    Attributes:
        replacement: Function or class of ours; its docstring gives the reason.
        library: Versions that the replacement was written for, as a requirement: `sglang==0.5.12`.
        code: Parts of the library that are replaced or used, as `module:name`.
        public_way: Public alternative that was considered, and the reason why it is insufficient.
    """

    replacement: Callable[..., Any]
    library: str
    code: tuple[str, ...]
    public_way: str


PATCHES: list[Patch] = []
"""Replacements of all modules that this process has imported."""


def patch(library: str, *code: str, public_way: str) -> Callable[[Replacement], Replacement]:
    """Returns a decorator that records a replacement and returns it unchanged. The parameters are those of `Patch`."""

    def record(replacement: Replacement) -> Replacement:
        PATCHES.append(Patch(replacement, library, code, public_way))
        return replacement

    return record
