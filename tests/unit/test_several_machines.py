"""What a training on several machines asks of verl, of Ray and of a cluster. No torch, no verl."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import ValidationError
from test_train_config import DATA, config

import selfplay_pipeline
from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.config.training import TrainOptions
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.loopback import loopback_environment
from selfplay_pipeline.train.cluster import facts, no_room
from selfplay_pipeline.train.offline import check_training
from selfplay_pipeline.train.verl_overrides import environment, verl_overrides

CLUSTER = {"nodes": 2, "gpus_per_node": 4, "ray_address": "10.0.0.1:6379"}
OURS = "ray_kwargs.ray_init."


def told(device: Any, **changes: Any) -> dict[str, Any]:
    """What Hydra makes of the overrides."""
    parsed = OverridesParser.create().parse_overrides(verl_overrides(config(**changes), DATA, 13, device))
    return {override.key_or_group: override.value() for override in parsed}


def test_verl_is_told_of_all_nodes_and_of_the_cluster():
    found = told("cuda", **CLUSTER)
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == (2, 4)
    assert found[OURS + "address"] == "10.0.0.1:6379"
    assert found["data.train_batch_size"] % 8 == 0, "verl's check wants a multiple of the processes"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_cluster_that_runs_keeps_its_resources_folders_token_and_addresses(device):
    found, variables = told(device, **CLUSTER), environment(config(**CLUSTER), device, {})
    alone, variables_alone = told(device, gpus_per_node=4), environment(config(gpus_per_node=4), device, {})
    ray = {key.removeprefix(OURS) for key in found if key.startswith(OURS)}
    assert {key for key in ray if not key.startswith("runtime_env.")} == {"address"}
    assert loopback_environment().items() <= variables_alone.items()
    assert not loopback_environment().keys() & variables.keys()
    assert not {name for name in variables if name.startswith("RAY_")} - {"RAY_DEDUP_LOGS"}
    assert alone[OURS + "address"] == "local" and OURS + "include_dashboard" in alone


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_workers_of_a_cluster_get_as_text_what_they_inherit_elsewhere(device):
    found, inherited = told(device, **CLUSTER), environment(config(), device, {})
    brought = {key.split("env_vars.")[1]: value for key, value in found.items() if "env_vars." in key}
    assert brought["VERL_USE_EXTERNAL_MODULES"] == "selfplay_pipeline.train.verl.load_offline"
    assert ("VERL_PLATFORM" in brought) == (device == "cpu")
    assert brought.items() <= inherited.items()
    assert not any("env_vars." in key for key in told(device))


def test_where_a_training_runs_may_change_and_how_many_processes_it_has_may_not():
    decides = deciding(config(**CLUSTER), "train")
    assert (decides["nodes"], decides["gpus_per_node"]) == (2, 4)
    assert "ray_address" not in decides


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "10.0.0.1", "Local", "", "http://a:1"])
def test_what_is_no_address_of_a_cluster_is_refused(address):
    with pytest.raises(ValidationError, match="expected local, auto or HOST:PORT"):
        TrainOptions(ray_address=address)


def test_several_nodes_without_a_cluster_are_refused():
    with pytest.raises(UserError, match=r"train.nodes 2: this machine is one node; start a Ray cluster"):
        check_training(TrainOptions(nodes=2), "cpu")


@pytest.mark.parametrize(
    ("free", "nodes", "gpus", "room"),
    [
        ({"a": (8, 64), "b": (8, 64)}, 2, 8, True),
        ({"a": (8, 64), "b": (7, 64)}, 2, 8, False),
        ({"a": (8, 64), "b": (8, 26)}, 2, 8, False),
        ({"a": (8, 64), "b": (8, 27)}, 2, 8, True),
        ({"a": (8, 64)}, 2, 4, True),
        ({"a": (4, 64), "b": (4, 64)}, 1, 8, False),
        ({}, 1, 1, False),
    ],
)
def test_room_is_counted_by_whole_nodes_of_gpus_and_logical_cpus(free, nodes, gpus, room):
    said = no_room(free, nodes, gpus)
    assert (said is None) == room
    if said:
        assert said.startswith(f"train.nodes {nodes} × train.gpus_per_node {gpus}: the Ray cluster has room for ")
        assert "\n" not in said


def test_a_file_is_told_by_its_size_and_its_end_and_an_absent_one_by_the_reason(tmp_path):
    (tmp_path / "one").write_bytes(b"a" * 100_000)
    (tmp_path / "other").write_bytes(b"b" * 99_999 + b"a")
    files = {name: str(tmp_path / name) for name in ("one", "other", "none")}
    found = facts(files, "none")
    assert found["one"] != found["other"]
    assert found["none"] == "No such file or directory"
    (tmp_path / "other").write_bytes(b"a" * 100_000)
    assert facts(files, "none")["other"] == found["one"]
    assert found["the package selfplay_pipeline"] == selfplay_pipeline.__file__
