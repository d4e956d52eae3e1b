"""Files that are written as a whole or not at all, and not at all once a signal has asked the command to stop."""

from __future__ import annotations

import errno
import glob
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.links import append_to
from selfplay_pipeline.core.locks import create_locked, if_abandoned
from selfplay_pipeline.core.small_files import read_json
from selfplay_pipeline.core.stopping import stop

Model = TypeVar("Model", bound=BaseModel)

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers that mean a full disk, an exhausted quota, or a file at its size limit."""
TOO_MANY_OPEN = {errno.EMFILE, errno.ENFILE}
"""Error numbers of too many open files; messages about them name no file."""


class FileChangedError(RuntimeError):
    """Another program removed, replaced or changed a file while it was written."""


class Append(Protocol):
    """Function that appends bytes to a file."""

    def __call__(self, data: bytes, *, even_stopped: bool = False) -> None:
        """Append bytes.

        Args:
            data: The bytes.
            even_stopped: Whether to append after a signal has asked the command to stop too.
        """
        ...


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it.

    A file with the same text is left alone, so that a command with nothing to do changes nothing.

    Raises:
        UserError: The file cannot be written.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file of bytes under a temporary name, then rename it; a file with the same bytes is left alone."""
    with _explained(path):
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, data: Any) -> None:
    """Write a value as an indented JSON file under a temporary name, then rename it."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def write_lines(path: Path, lines: Iterable[Any]) -> None:
    """Write values as a file of JSON lines under a temporary name, then rename it."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a new file next to `path`, which replaces `path` once it is written.

    If two processes write the same file, the result is the complete file of one of them. The new file is removed if
    anything fails; the file of a killed process is removed by the next process that writes the same path. If the new
    file no longer exists at the end, `path` stays as it is.

    Raises:
        UserError: The file cannot be written, for example because the disk is full.
    """
    with _temporary(path, folder=False) as (temporary, descriptor):
        yield temporary
        stop.check()
        if temporary.exists():
            os.fsync(descriptor)
            temporary.replace(path)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder, which replaces `path` and everything in it once it is written.

    Raises:
        UserError: The folder cannot be written.
    """
    with _temporary(path, folder=True) as (new, _):
        yield new
        stop.check()
        for file in new.rglob("*"):
            if file.is_file():
                _sync(file)
        with _temporary(path, folder=True) as (old, _):
            if path.exists():
                path.replace(old)  # an empty folder may be replaced
            try:
                new.replace(path)
            except OSError:
                old.replace(path)
                raise


@contextmanager
def filling(path: Path) -> Iterator[Path]:
    """Yields a new folder; its files move into the folder `path` once all are written. Other files in `path` are kept.

    Raises:
        UserError: The folder cannot be written.
    """
    with _temporary(path, folder=True) as (new, _):
        yield new
        stop.check()
        path.mkdir(exist_ok=True)
        for file in sorted(
            new.iterdir(), key=lambda file: file.name == "config.json"
        ):  # last, because it makes the folder a model
            _sync(file)
            file.replace(path / file.name)


@contextmanager
def scratch_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens an unnamed file on the disk of `path`; it disappears when it is closed or the process ends.

    Raises:
        UserError: The file cannot be written.
    """
    folder = next(folder for folder in path.parents if folder.is_dir())
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    except OSError as error:
        raise unwritable(path, error) from None
    with _explained(path), file:
        yield file


@contextmanager
def appending(path: Path) -> Iterator[Append]:
    """Yields a function that appends bytes to a file; after a failed call, the file has its earlier length.

    Raises:
        KeyboardInterrupt: A signal has asked the command to stop.
        UserError: The file cannot be written, for example because the disk is full.
        FileChangedError: Another program replaced the file or changed its size; each further write and the end of the
            block check this.
    """
    with _explained(path):
        file = append_to(path)
    with file:
        mine = os.fstat(file.fileno())
        size = mine.st_size

        def check() -> None:
            try:
                found = path.stat()
            except OSError as error:
                what = error.strerror or "gone"
            else:
                if os.path.samestat(found, mine) and found.st_size == size:
                    return
                same = os.path.samestat(found, mine)
                what = f"{found.st_size:,} bytes in place of {size:,}" if same else "another file is there"
            raise FileChangedError(
                f"{path}: changed by another program while it was written ({what}); give the same command again, "
                "which does what is missing there"
            )

        def append(data: bytes, *, even_stopped: bool = False) -> None:
            nonlocal size
            if not even_stopped:
                stop.check()
            check()
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError as error:
                with suppress(OSError):
                    file.truncate(size)  # else the next line would be glued to half of this one
                raise unwritable(path, error) from None
            size += len(data)

        yield append
        check()


def unwritable(path: Path, error: OSError) -> UserError:
    """Returns the error for a file that cannot be written."""
    reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
    if error.errno in FULL:
        return UserError(
            f"{path}: cannot be written ({reason}); make room there or give another place; what was finished is kept, "
            "the same command continues"
        )
    return UserError(f"{path}: cannot be written ({reason}); give another place or make this one writable")


@contextmanager
def _temporary(path: Path, *, folder: bool) -> Iterator[tuple[Path, int]]:
    """Yields a new file or folder next to `path` and its descriptor; removes it at the end if it still exists."""

    def create() -> Path:
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        if folder:
            new.mkdir()
        else:
            new.touch(exist_ok=False)
        return new

    with _explained(path):
        if path.exists() and not (path.is_dir() if folder else path.is_file()):
            what = "a folder" if path.is_dir() else "a file" if path.is_file() else "a device or pipe"
            raise UserError(f"{path}: cannot be written: it is {what}; give a {'folder' if folder else 'file'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        for stale in path.parent.glob(f".{glob.escape(path.name)}.*tmp"):
            with suppress(OSError), if_abandoned(stale) as lock:
                if lock is not None:
                    _remove(stale)
        temporary, descriptor = create_locked(create)
        try:
            yield temporary, descriptor
        finally:
            _remove(temporary)
            os.close(descriptor)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = Path(str(error.filename))
        if error.errno in TOO_MANY_OPEN:
            raise
        if error.filename is None or named in (path, *path.parents) or f".{path.name}." in str(named):
            raise unwritable(path, error) from None
        raise  # the error is about a file that was read meanwhile


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_model(path: Path, kind: type[Model], writer: str) -> Model:
    """Returns the content of a JSON file as a pydantic model.

    Raises:
        UserError: The file is missing, not JSON or does not fit the model; the message names `writer`, the command that
            writes it.
    """
    try:
        return kind.model_validate(read_json(path, f"`{writer}` writes this file"))
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error)}; `{writer}` writes this file") from None


def explain(error: ValidationError) -> str:
    """Returns pydantic's first validation error as one line, with its field."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    what = str(first["msg"]).removeprefix("Value error, ")
    return f"field '{field}': {what}" if field else what


def check_is_folder(path: Path) -> None:
    """Raises UserError unless `path` is a folder, or could become one."""
    for place in (path, *path.absolute().parents):
        if place.is_dir():
            return
        if place.exists():
            what = "a file" if place.is_file() else "a device or pipe"
            raise UserError(f"{place}: is {what}; give a folder")
        if place.is_symlink():
            raise UserError(f"{place}: is a link that leads nowhere; give a folder, or remove the link")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Lock `path` for this process; the system releases the lock when the process ends in any way.

    Raises:
        UserError: Another process holds the lock, or the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(path, timeout=0).acquire()
    except Timeout:
        raise UserError(
            f"{what} is in use by another process (lock {path}); wait for it or use another folder"
        ) from None
    except OSError as error:
        if error.errno in TOO_MANY_OPEN:
            raise
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: is a link, and nothing is written through links; remove it") from None
        raise UserError(f"{path}: cannot be locked ({error.strerror}); use a folder on a disk that has locks") from None
    with held:
        yield
