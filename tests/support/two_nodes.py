"""A Ray cluster of two nodes on this machine, in a process of its own: it must not be Ray's driver, nor this one.

Each line of standard input is answered with a line of JSON: `address`; `state`, what there is in the cluster but for
what Ray itself runs; `blind FOLDER`, which adds a node that sees an empty folder there; `alone`, which removes it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NODE = {"num_gpus": 1, "num_cpus": 8}
"""Logical; so much is each node said to have."""


class TwoNodes:
    """The cluster as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = str(self.ask("address"))
        while [*self.state()["free"].values()] != [[NODE["num_cpus"], NODE["num_gpus"]]] * 2:
            time.sleep(0.2)  # a node that has just begun has told of nothing yet

    def ask(self, line: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def state(self) -> Any:
        return self.ask("state")

    def settles_at(self, state: Any, seconds: float = 300) -> None:
        """Ray ends what a driver leaves once it has noticed."""
        until = time.monotonic() + seconds
        while self.state() != state and time.monotonic() < until:
            time.sleep(0.2)
        assert self.state() == state


@contextmanager
def two_nodes(setenv: Any) -> Iterator[TwoNodes]:
    """Start the cluster.

    Args:
        setenv: sets what who joins needs too: Ray's token, which is in a file.
    """
    home = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))  # paths of sockets may have 107 characters
    (home / "token").write_text("0123456789abcdef" * 4)
    setenv("RAY_AUTH_MODE", "token")
    setenv("RAY_AUTH_TOKEN_PATH", str(home / "token"))
    env = {"RAY_TMPDIR": str(home), "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | env
    )
    try:
        yield TwoNodes(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(300)
        shutil.rmtree(home)


def answers() -> None:
    """Be the cluster until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own words

    from patient_ray import patient
    from ray._private import services
    from ray.cluster_utils import Cluster

    services.get_node = patient(services.get_node)
    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(**NODE, include_dashboard=False)
    blind: subprocess.Popen[bytes] | None = None
    for line in sys.stdin:
        words, answer = line.split(), None
        if words[0] == "address":
            answer = cluster.address
        elif words[0] == "state":
            answer = state_of(cluster.global_state)
        elif words[0] == "blind":
            before = len(nodes_of(cluster.global_state))
            blind = add_blind_node(cluster.address, words[1])
            while len(nodes_of(cluster.global_state)) == before:
                time.sleep(0.2)
        elif blind is not None:
            before = len(nodes_of(cluster.global_state))
            blind.terminate()
            blind.wait()
            while len(nodes_of(cluster.global_state)) == before:
                time.sleep(0.2)
        out.write(json.dumps(answer) + "\n")
        out.flush()
    cluster.shutdown()


def add_blind_node(address: str, folder: str) -> subprocess.Popen[bytes]:
    """A node whose processes have an empty file system in the folder's place."""
    ray = f"{sys.executable} {Path(__file__).with_name('patient_ray.py')}"
    start = f"exec {ray} start --address={address} --num-cpus=1 --num-gpus=0 --block"
    return subprocess.Popen(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {folder} && {start}"])


def nodes_of(state: Any) -> list[str]:
    return sorted(node["NodeID"] for node in state.node_table() if node["Alive"])


def state_of(state: Any) -> dict[str, Any]:
    """Nodes, and what is free of them; actors, placement groups and drivers."""
    free = state.available_resources_per_node()
    return {
        "nodes": nodes_of(state),
        "free": {
            node: [free[node].get(name, 0) for name in ("CPU", "GPU")] for node in nodes_of(state) if node in free
        },
        "actors": [actor["Name"] for actor in state.actor_table(None).values() if actor["State"] != "DEAD"],
        "groups": [group["name"] for group in state.placement_group_table().values() if group["state"] != "REMOVED"],
        "drivers": [job["JobID"] for job in state.job_table() if not job["IsDead"]],
    }


if __name__ == "__main__":
    answers()
