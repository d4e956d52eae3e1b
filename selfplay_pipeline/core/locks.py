"""Files and folders that stay locked while their creator lives, so that other processes can remove abandoned ones.

Supervisors of child processes import this module, so it imports little.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def create_locked(create: Callable[[], Path]) -> tuple[Path, int]:
    """Create a file or folder, and lock it until this process ends or closes the descriptor.

    Returns:
        The path, and the descriptor that holds the lock.
    """
    while True:
        path = create()
        with suppress(FileNotFoundError):  # another process took it for abandoned before it was locked
            descriptor = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))
            with suppress(OSError):  # not every file system can lock; without locks, nothing counts as abandoned
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


@contextmanager
def if_abandoned(path: Path) -> Iterator[int | None]:
    """Yields a descriptor with the lock of a file or folder; None if a process holds it, or if it cannot be locked."""
    with ExitStack() as stack:
        lock = None
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock = descriptor
        yield lock
