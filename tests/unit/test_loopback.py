"""Nothing that another machine could reach listens."""

import os
import socket
from importlib import import_module

import psutil
import pytest

from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.core.loopback import (
    SWITCH,
    held_port,
    hold_port,
    keep_torch_local,
    loopback_environment,
    port_of,
)
from selfplay_pipeline.engines.sglang_server import ServerSpec
from selfplay_pipeline.train.verl_overrides import environment


@pytest.fixture
def rendezvous(monkeypatch):
    """torch's module, put back as it was."""
    module = import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(module, "TCPStore", module.TCPStore)
    return module


def bound(port: int, *, shares: bool) -> socket.socket:
    """Binds a port as a server does, which sets SO_REUSEADDR, or as a program that looks for a free one."""
    taker = socket.socket()
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shares)
    taker.bind(("127.0.0.1", port))
    return taker


def test_a_port_that_is_held_is_free_only_for_the_server_that_names_it():
    with hold_port() as holder:
        port = port_of(holder)
        for take in (lambda: hold_port([port]), lambda: bound(port, shares=False)):
            with pytest.raises(OSError, match="Address already in use"):
                take()
        with bound(port, shares=True) as server, socket.socket() as client:
            server.listen()
            client.connect(("127.0.0.1", port))
    with hold_port([port, 0]) as again, hold_port([port, 0]) as other:
        assert port_of(again) != port_of(other), "the second candidate"


def test_torchs_store_listens_where_this_machine_alone_reaches_it(rendezvous, monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    keep_torch_local()
    port = held_port()
    handler = rendezvous.rendezvous(f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    store, _, _ = next(handler)
    store.set("name", "value")
    assert store.get("name") == b"value"
    listening = {c.laddr.ip for c in psutil.Process(os.getpid()).net_connections("tcp") if c.laddr.port == port}
    assert listening == {"127.0.0.1"}


def test_servers_and_trainers_are_told_to_stay_on_this_machine(tmp_path):
    spec = ServerSpec(model="m", device="cuda", log_path=tmp_path / "log")
    train_config = TrainConfig(model="m", data=tmp_path / "train.parquet", output=tmp_path)
    for variables in (spec.environment(), environment(train_config, "cuda"), environment(train_config, "cpu")):
        assert loopback_environment().items() <= variables.items()
    assert "--host=127.0.0.1" in spec.command(1)
