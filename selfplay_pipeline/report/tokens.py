"""Decodes token ids to text, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

NO_TOKENS = "No tokens: the policy's seat left no trajectory, or its tokenizer is not on this machine."


class CheckpointDecoder:
    """A checkpoint's tokenizer with a cache of the texts of single tokens, special ones included."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def decode(self, ids: list[int]) -> str:
        if len(ids) != 1:
            return self._decode(ids)
        if ids[0] not in self._known:
            self._known[ids[0]] = self._decode(ids)
        return self._known[ids[0]]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def find_decoder(checkpoints: Iterable[str | None]) -> CheckpointDecoder | None:
    """Returns the tokenizer of the first of these checkpoints that is on this machine; fetches nothing from a hub.

    The checkpoints of a run share their tokenizer, so any of them decodes all its episodes.
    """
    found = (_load(name) for name in dict.fromkeys(checkpoints) if name is not None)
    return next((decoder for decoder in found if decoder is not None), None)


def nearby_checkpoints(path: Path) -> Iterator[str]:
    """Yields checkpoints of the run around a file or folder, for episodes whose own checkpoint was moved."""
    for folder in (path, *path.resolve().parents[:3]):
        for checkpoint in (folder / "checkpoint", *sorted(folder.glob("iter_*/checkpoint"))):
            if checkpoint.is_dir():
                yield str(checkpoint)


@cache
def _load(name: str) -> CheckpointDecoder | None:
    try:
        from transformers import AutoTokenizer

        return CheckpointDecoder(AutoTokenizer.from_pretrained(name, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None
