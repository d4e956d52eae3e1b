"""Nothing that another machine could reach listens."""

import os
import socket
from importlib import import_module

import psutil
import pytest

from selfplay_pipeline.engines.sglang_server import ServerSpec
from selfplay_pipeline.loopback import SWITCH, keep_torch_local, loopback_environment
from selfplay_pipeline.train.config import TrainConfig
from selfplay_pipeline.train.overrides import environment


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def rendezvous(monkeypatch):
    """torch's module, put back as it was."""
    module = import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(module, "TCPStore", module.TCPStore)
    return module


def test_torchs_store_listens_where_this_machine_alone_reaches_it(rendezvous, monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    keep_torch_local()
    port = free_port()
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
