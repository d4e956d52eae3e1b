"""Restriction of processes to the loopback address, for runs on one machine.

TransferQueue, Ray and SGLang's processes talk to each other over sockets, and some unpickle data from any sender: if
other machines can reach such a socket, they can run code. docs/security.md lists these sockets.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from selfplay_pipeline.core.patches import patch

ADDRESS = "127.0.0.1"
SWITCH = "SELFPLAY_LOOPBACK"
"""Environment variable that is set if all processes run on this machine; it is not set for a trainer that joins a
cluster.
"""


TAKEN = "Address already in use"
"""Text of the error EADDRINUSE, which libraries print, in varying case, if a port is taken."""


def hold_port(ports: Iterable[int] = (0,)) -> socket.socket:
    """Reserves a port of the loopback address until the returned socket is closed.

    The socket is bound but does not listen. Linux does not give its port to a process that asks for any free port. A
    server that names the port and sets SO_REUSEADDR, as servers do, can listen on it.

    Args:
        ports: Candidate ports; 0 lets the system choose.

    Raises:
        OSError: No candidate is free.
    """
    refused = OSError("no ports to choose from")
    for port in ports:
        holder = socket.socket()
        try:
            holder.bind((ADDRESS, port))
        except OSError as error:
            refused = error
            holder.close()
            continue
        # Set only now: two sockets that both set it before they are bound could hold the same port.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    raise refused


_held: list[socket.socket] = []


def held_port() -> int:
    """Reserves a port of the loopback address until this process ends; returns the port."""
    _held.append(hold_port())
    return port_of(_held[-1])


def port_of(holder: socket.socket) -> int:
    """Returns the port that a socket is bound to."""
    return int(holder.getsockname()[1])


def loopback_environment() -> dict[str, str]:
    """Returns variables that keep a server or a trainer, and all processes that it starts, on the loopback address."""
    return {
        SWITCH: "1",
        # Ray's own switch, set on other systems: its node is 127.0.0.1. verl and TransferQueue take Ray's address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "SGLANG_HOST_IP": ADDRESS,
    }


@patch(
    "torch>=2.11,<2.14",
    "torch.distributed.rendezvous:TCPStore",
    public_way="The store takes a bound socket, but torch's rendezvous passes none.",
)
def keep_torch_local() -> None:
    """Make torch's rendezvous store of this process listen on the loopback address if SELFPLAY_LOOPBACK=1.

    torch's TCPStore otherwise listens on all interfaces, whatever host it is given.
    """
    if os.environ.get(SWITCH) != "1":
        return
    # An import statement would give the function of the same name.
    import_module("torch.distributed.rendezvous").TCPStore = _local_store  # type: ignore[attr-defined]


def _local_store(host_name: str, port: int, *, is_master: bool = False, **options: Any) -> Any:
    """Returns a `TCPStore`; a store for this machine alone gets a socket that is bound to the loopback address."""
    from torch.distributed import TCPStore

    if not is_master or host_name not in (ADDRESS, "localhost"):
        return TCPStore(host_name, port, is_master=is_master, **options)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen()
        port = listener.getsockname()[1]
        # The store closes the socket that it is given, so it gets a copy.
        return TCPStore(host_name, port, is_master=True, master_listen_fd=os.dup(listener.fileno()), **options)
