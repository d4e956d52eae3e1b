"""Who listens: the sockets of all processes that carry a mark in their environment, looked at again and again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType

import psutil

SECONDS_BETWEEN_LOOKS = 0.25


@dataclass(frozen=True, order=True)
class Listener:
    """A socket on which a process accepts what others send."""

    protocol: str
    address: str
    port: int
    command: str
    """The process's command line, cut."""

    @property
    def is_local(self) -> bool:
        """Whether this machine alone can reach it."""
        return ip_address(self.address).is_loopback


def carriers(mark: str) -> list[psutil.Process]:
    """Processes with the mark in their environment; every descendant of a marked process inherits it."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values():
                found.append(process)
        except psutil.Error:
            continue
    return found


def listeners(processes: Iterable[psutil.Process]) -> set[Listener]:
    """Their listening TCP sockets, and their UDP sockets that are bound and not connected."""
    found = set()
    for process in processes:
        try:
            command = " ".join(process.cmdline())[:200]
            for connection in process.net_connections("inet"):
                if connection.laddr and not connection.raddr and connection.status in ("LISTEN", "NONE"):
                    protocol = "tcp" if connection.type == socket.SOCK_STREAM else "udp"
                    found.add(Listener(protocol, connection.laddr.ip, connection.laddr.port, command))
        except psutil.Error:
            continue
    return found


class Watch:
    """All listeners that were seen while the block ran."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.seen: set[Listener] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            self.seen |= listeners(carriers(self.mark))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
