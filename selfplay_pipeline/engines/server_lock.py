"""Locks on attached servers: commands of one user share a server only while they use the same weights.

A server has the weights of one model at a time. Commands that play with the same weights share a server; a command that
loads weights locks it for itself. The lock is a file in the user's cache folder, so it also works between machines that
share this folder. Other programs that change the weights are detected by the weight version in each answer
(`Client.check`).
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from selfplay_pipeline.core.errors import UserError

PAUSE = 0.2
"""Seconds between two attempts to take a lock."""
WAIT_SECONDS = 900
"""Longest time that a command waits for a server which another command uses."""


def lock_folder() -> Path:
    """Returns the folder of the locks. It does not depend on TMPDIR, which may differ between commands."""
    try:
        home = Path.home()
    except RuntimeError:  # the user has no passwd entry, as in containers
        home = Path("/tmp") / f"selfplay-{os.getuid()}"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "selfplay" / "servers"


class ServerLock:
    """Lock on the server at one address.

    If no file can be locked, every attempt succeeds, and only the version in each answer protects the command.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = lock_folder() / f"{hashlib.blake2b(_address(url).encode(), digest_size=8).hexdigest()}.lock"
        self._file: int | None = None

    def take(self, *, alone: bool) -> bool:
        """Try to lock the server, or to change the kind of the lock.

        Returns False if another command holds a conflicting lock.
        """
        try:
            return self._take(fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        except BlockingIOError:
            return False
        except OSError:  # no home folder, or a file system that cannot lock
            return True

    def _take(self, kind: int) -> bool:
        while True:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), self.path.stat()):
                    break
            os.close(self._file)  # the last holder has removed the file
            self._file = None
        others = "" if kind == fcntl.LOCK_EX else self.others()
        _write(self._file, " and ".join(filter(None, [others, _command()])))
        return True

    def others(self) -> str:
        """Returns the names of the other commands that use the server, from the lock file."""
        try:
            return " and ".join(
                name for name in self.path.read_text("utf-8")[:1000].split(" and ") if name != _command()
            )
        except (OSError, ValueError):
            return ""

    def release(self) -> None:
        """Unlock the server; the last command to do so removes the lock file."""
        file, self._file = self._file, None
        if file is None:
            return
        with suppress(OSError):
            _write(file, self.others())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), self.path.stat()):
                self.path.unlink()
        os.close(file)


def in_lock_order(urls: Sequence[str]) -> list[str]:
    """Returns one address per server, in the order in which every command locks servers."""
    by_path = {ServerLock(url).path: url for url in urls}  # two addresses may lead to one server
    return [by_path[path] for path in sorted(by_path)]


class ServerLocks:
    """Locks on all servers of one engine, which are taken together.

    All commands take locks in the same order, and release their locks before they begin to wait, so that no two
    commands wait for each other.
    """

    def __init__(self, urls: Sequence[str], tell: Callable[[str], None], seconds: float = WAIT_SECONDS) -> None:
        """Args:
        tell: Takes a one-line status message when a wait begins.
        seconds: Longest time to wait for other commands.
        """
        self._locks = [ServerLock(url) for url in in_lock_order(urls)]
        self._seconds, self._tell = seconds, tell

    async def take(self, *, alone: bool) -> None:
        """Lock all servers; wait for commands that hold conflicting locks.

        Args:
            alone: Whether no other command may use the servers meanwhile.

        Raises:
            UserError: A server was not free in time.
        """
        if all(lock.take(alone=alone) for lock in self._locks):
            return
        self.release()
        started, told = time.monotonic(), False
        for lock in self._locks:
            while not lock.take(alone=alone):
                used = f"{lock.url} is in use by {lock.others() or 'another command'}"
                if not told:
                    self._tell(f"{used}; waiting up to {self._seconds:.0f} s until it ends")
                    told = True
                if time.monotonic() - started > self._seconds:
                    self.release()
                    raise UserError(
                        f"{used}; it was not free within {self._seconds:.0f} s; "
                        "wait until that command ends, or use another server"
                    )
                await asyncio.sleep(PAUSE)

    def release(self) -> None:
        for lock in self._locks:
            lock.release()


def _address(url: str) -> str:
    """Returns host, port and path of an address; two names of one host give the same result."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    with suppress(OSError, UnicodeError):
        host = socket.gethostbyname(host)
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}{parts.path}"


def _write(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode(), 0)


def _command() -> str:
    return f"`{' '.join(['selfplay', *sys.argv[1:2]])}` (process {os.getpid()})"
