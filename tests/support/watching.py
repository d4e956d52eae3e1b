"""What a run opens: sockets and scratch folders of all processes that carry a mark in their environment."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import psutil

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True, order=True)
class Listener:
    """A socket on which a process accepts what others send."""

    protocol: str
    address: str
    port: int
    command: str
    """The process's command line."""

    @property
    def is_local(self) -> bool:
        """Whether this machine alone can reach it."""
        address = ip_address(self.address)
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return address.is_loopback


def carriers(mark: str) -> set[psutil.Process]:
    """Processes with the mark in their environment, and their descendants, which inherit it.

    SGLang's processes rename themselves, which writes over their environment, so that they do not show it.
    """
    found = set()
    for process in psutil.process_iter():
        try:
            if process not in found and mark in process.environ().values():
                found |= {process, *process.children(recursive=True)}
        except psutil.Error:
            continue
    return found


def listeners(processes: Iterable[psutil.Process]) -> set[Listener]:
    """Their listening TCP sockets, and their UDP sockets that are bound and not connected.

    The system is asked once for all processes: asked for each, it took a third of a core beside a training.
    """
    found, of = set(), {process.pid: process for process in processes}
    for connection in psutil.net_connections("inet"):
        if connection.laddr and not connection.raddr and connection.status in ("LISTEN", "NONE"):
            try:
                process = of[connection.pid]
                command = " ".join(process.cmdline()).strip() or process.name()  # Ray's workers rename themselves
            except (KeyError, psutil.Error):
                continue
            protocol = "tcp" if connection.type == socket.SOCK_STREAM else "udp"
            found.add(Listener(protocol, connection.laddr.ip, connection.laddr.port, command))
    return found


def scratch_folders(processes: Iterable[psutil.Process]) -> dict[Path, str]:
    """The folders that their supervisors made for them, with what others may do there, as `ls` shows it."""
    found = {}
    for process in processes:
        try:
            folder = Path(process.environ()["SELFPLAY_SCRATCH"])
            found[folder] = stat.filemode(folder.stat().st_mode)
        except (psutil.Error, KeyError, OSError):
            continue
    return found


class Watch:
    """All that was seen since it began."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.listeners: set[Listener] = set()
        self.scratch: dict[Path, str] = {}
        self.processes: set[psutil.Process] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            processes = carriers(self.mark)
            self.processes |= processes
            self.listeners |= listeners(processes)
            self.scratch |= scratch_folders(processes)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
