"""Content hashes of models: a checkpoint's name says where it is, its hash says what it contains."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from selfplay_pipeline.core.checkpoints import check_cached_weights, has_weights, weight_files
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.hub import fetched
from selfplay_pipeline.core.reporting import progress

DIGEST_BYTES = 16
"""Length of a hash in bytes; its text has twice as many hexadecimal digits."""
READ = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Patterns of the files of a hub model that a server, a tokenizer or a trainer reads."""
LARGE = 1 << 30
"""Minimum size of a model in bytes for a progress report while its files are hashed."""
AT_ONCE = 1 << 22
"""Number of bytes read at a time."""


def content_hash(model: str) -> str:
    """Returns the hash of a model's weights and of its config.json, as 32 hexadecimal digits.

    Two folders with equal files have equal hashes, wherever they lie. The hash covers the bytes at the moment of the
    call; it does not notice files that change afterwards. Within a process, a file is read again only when its size,
    its time of change or its inode differs.

    Args:
        model: A model folder, or the name of a hub model, which is downloaded unless it is in the local cache.

    Raises:
        UserError: The folder cannot be read, its files of weights are not one whole set, or the hub does not give the
            model.
    """
    local = Path(model).is_dir()
    folder = Path(model) if local else fetched(model, READ)
    try:
        pickles = not local and not has_weights(folder)  # only a model of the hub may have its weights in pickles
        if not local and not pickles:
            check_cached_weights(folder)
        weights = sorted(folder.glob("*.bin")) if pickles else weight_files(folder, alone=local)
        files = [file for file in (folder / "config.json", *weights) if file.is_file()]
        hashes = _hashes_of(files, model)
    except OSError as error:
        reason = ": ".join(str(part) for part in (error.strerror, error.filename) if part)
        raise UserError(f"model {model}: cannot be read ({reason})") from None
    total = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for file, digest in zip(files, hashes, strict=True):
        total.update(f"{file.name}\0{digest}\n".encode())
    return total.hexdigest()


def _hashes_of(files: Sequence[Path], model: str) -> list[str]:
    """Returns the hashes of a model's files; reports progress if they are large."""
    hashes: list[str] = []
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashlib computes without the interpreter's lock
        found = pool.map(file_hash, files)
        if sum(file.stat().st_size for file in files) < LARGE:
            return list(found)
        with progress(f"reading the weights of {model} for their hash", brief=True) as report:
            for digest in found:
                hashes.append(digest)
                report(len(hashes), len(files), lambda: "files")
    return hashes


def bytes_hash(data: bytes) -> str:
    """Returns the hash that a file with these bytes has."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def file_hash(file: Path) -> str:
    """Returns the hash of a file's bytes at the moment of the call."""
    state = file.stat()
    return _hash_of(file, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@lru_cache(maxsize=4096)
def _hash_of(file: Path, *state: int) -> str:
    """Returns the hash of a file; `state` serves as part of the cache key, so that a changed file is hashed again."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with file.open("rb") as opened:
        while block := opened.read(AT_ONCE):
            digest.update(block)
    return digest.hexdigest()
