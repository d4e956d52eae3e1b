"""Checks a running Ray cluster before a training: free GPUs and CPUs, and the same files and packages on all nodes.

python -m selfplay_pipeline.train.cluster

The check runs in a process of its own, which joins the cluster. It reads a `Question` from standard input. If the
cluster is unusable, the last line of its output is the reason, and its exit code is 2.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfplay_pipeline.config.training import TrainOptions
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.patches import patch
from selfplay_pipeline.core.processes import environment

CPUS_PER_GPU, CPUS_FOR_OTHERS = 3, 3
"""Logical CPUs that verl reserves with each GPU, and at most for its other processes on one node."""
PATIENCE = 15.0
"""Seconds to wait for free resources, since Ray needs time to free the resources of an ended training."""
LOOK_SECONDS = 120.0
"""Timeout in seconds for a node's report about its files; a slower node counts as unusable."""
CONNECT_SECONDS, ASK_SECONDS = 10.0, 300.0
PACKAGES = ("verl", "torch", "transformers")
END = 1 << 16
"""Number of bytes at the end of a file that are compared."""
MOST_NODES = 4
"""Largest number of nodes that a message lists."""


class Question(BaseModel):
    """Resources and files that a training needs in a cluster."""

    address: str
    nodes: int
    gpus_per_node: int
    files: dict[str, str]
    """Path of each file by the name that messages use. All nodes must see the same files as this machine."""


def check_cluster(options: TrainOptions, read: Iterable[str | Path | None], output: Path) -> None:
    """Raises UserError unless the cluster has room for the training and all its nodes see its files.

    A training that starts Ray itself is not checked.

    Args:
        options: The cluster's address, and the resources that the training needs.
        read: Models (folders or hub names) and files that the training reads; None entries are skipped.
        output: The folder to write, which need not exist yet.

    Raises:
        UserError: The cluster cannot be joined, has too few free resources, or a node does not see a file.
    """
    if not options.joins_cluster:
        return
    _connect(options.ray_address)
    files = {}
    for place in read:
        path = Path(place or "").resolve()
        if place is not None and path.exists():  # a path that does not exist is a hub name
            files[str(place)] = str(path / "config.json" if path.is_dir() else path)
    with _marker(output) as marker:
        question = Question(
            address=options.ray_address,
            nodes=options.nodes,
            gpus_per_node=options.gpus_per_node,
            files=files | {str(output): marker},
        )
        refused = _ask(question)
    if refused:
        raise UserError(refused)


def no_room(free: Mapping[str, tuple[float, float]], nodes: int, gpus: int) -> str | None:
    """Returns the reason why the nodes have too few resources for the groups of workers; None if they suffice.

    verl reserves one group after another, each on one node, and waits forever if a group does not fit.

    Args:
        free: Unused GPUs and CPUs of each node.
        nodes: Number of groups.
        gpus: GPUs of one group.
    """
    needed = CPUS_PER_GPU * gpus
    room = sum(int(min(gpu // gpus, max(cpu - CPUS_FOR_OTHERS, 0) // needed)) for gpu, cpu in free.values())
    if room >= nodes:
        return None
    listed = [f"{name} has {gpu:g} and {cpu:g}" for name, (gpu, cpu) in sorted(free.items())]
    more = [f"{len(listed) - MOST_NODES} more"] if len(listed) > MOST_NODES else []
    return (
        f"train.nodes {nodes} × train.gpus_per_node {gpus}: the Ray cluster has room for {room} of these nodes, each "
        f"of which needs free GPUs and CPUs: {gpus} and {needed + CPUS_FOR_OTHERS}; "
        f"{', '.join([*listed[:MOST_NODES], *more])}; ask for fewer, or see with `ray status` what holds them"
    )


def facts(files: Mapping[str, str], folder: str) -> dict[str, str]:
    """Returns the state of each file (size, hash of its end) and package (version, path) on the calling node.

    Args:
        files: Path of each file by its name in messages.
        folder: Entry of `files` whose parent folder must be writable.
    """
    own = find_spec("selfplay_pipeline")
    found = {"the package selfplay_pipeline": (own and own.origin) or "missing"}
    for package in PACKAGES:
        try:
            found[f"the package {package}"] = version(package)
        except PackageNotFoundError:
            found[f"the package {package}"] = "missing"
    for name, path in files.items():
        try:
            with Path(path).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - END))
                found[name] = f"{size} bytes with hash {hashlib.sha256(file.read()).hexdigest()[:8]}"
        except OSError as error:
            found[name] = error.strerror or type(error).__name__
    if not os.access(Path(files[folder]).parent, os.W_OK):
        found[folder] += ", which cannot be written"
    return found


def _connect(address: str) -> None:
    """Raises UserError unless the address accepts connections; Ray itself would wait for minutes.

    Raises:
        UserError: No process listens at the address.
    """
    host, _, port = address.rpartition(":")
    if not host:
        return  # without a host, Ray looks for its cluster
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"train.ray_address {address}: nothing answers there ({error}); `ray start --head` prints the address"
        ) from None


@contextmanager
def _marker(output: Path) -> Iterator[str]:
    """Yields the path of a new file with random content, in `output` or in its nearest existing parent folder."""
    folder = next(path for path in (output.resolve(), *output.resolve().parents) if path.is_dir())
    try:
        with tempfile.NamedTemporaryFile(prefix=".seen-by-all-nodes-", dir=folder) as marker:
            marker.write(os.urandom(16))
            marker.flush()
            yield marker.name
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; give another --output") from None


def _ask(question: Question) -> str | None:
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command,
            input=question.model_dump_json(),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"train.ray_address {question.address}: no answer within {ASK_SECONDS:g} s"
    if done.returncode == 0:
        return None
    said = (done.stdout if done.returncode == 2 else done.stderr).strip().splitlines()
    return said[-1] if said else f"train.ray_address {question.address}: asking it ended with {done.returncode}"


def _refusal(question: Question) -> str | None:
    """Returns the reason why the cluster cannot run the training, None if it can."""
    import ray

    at = f"train.ray_address {question.address}"
    try:
        ray.init(address=question.address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises many kinds of errors
        return (
            f"{at}: cannot join a Ray cluster there ({first_line(error)}); give the command on one of its nodes, "
            "`ray status` says whether it runs"
        )
    try:
        until = time.monotonic() + PATIENCE
        needed = question.nodes, question.gpus_per_node
        while (refused := _held(at) or no_room(_free(), *needed)) is not None:
            if time.monotonic() > until or no_room(_whole(), *needed) is not None:  # waiting makes no node larger
                return refused
            time.sleep(0.5)
        return _unlike(question)
    finally:
        ray.shutdown()


def _held(at: str) -> str | None:
    """Returns a refusal if another training uses the cluster's one TransferQueue store, else None."""
    import ray

    names = ray.util.list_named_actors(all_namespaces=True)
    if any(actor["namespace"] == "transfer_queue" for actor in names):
        return f"{at}: another training of verl's runs in this Ray cluster; wait for its end, or use another cluster"
    return None


def _alive() -> dict[str, str]:
    """Returns the address of each live node by its id."""
    import ray

    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def _whole() -> dict[str, tuple[float, float]]:
    """Returns all GPUs and CPUs of each node."""
    import ray

    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return {node: (resources.get("GPU", 0.0), resources.get("CPU", 0.0)) for node, resources in nodes.items()}


def _free() -> dict[str, tuple[float, float]]:
    from ray._private.state import available_resources_per_node

    alive = _alive()
    return {
        f"{alive[node]} ({node[:6]})": (resources.get("GPU", 0.0), resources.get("CPU", 0.0))
        for node, resources in available_resources_per_node().items()
        if node in alive
    }


def _unlike(question: Question) -> str | None:
    """Returns a message on the first file or package that differs between a node and this machine, else None."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder = list(question.files)[-1]
    expected, looks = facts(question.files, folder), dict[str, Any]()
    for node, address in _alive().items():
        pinned = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        look = ray.remote(facts).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)
        looks[f"{address} ({node[:6]})"] = look.remote(question.files, folder)
    for where, look in looks.items():
        try:
            found: dict[str, str] = ray.get(look, timeout=LOOK_SECONDS)
        except Exception as error:  # Ray raises many kinds of errors
            return f"the node {where} of the Ray cluster cannot run a task: {first_line(error)}"
        for name, here in expected.items():
            if found[name] != here:
                return (
                    f"{name}: the node {where} of the Ray cluster sees there: {found[name]}; this machine: {here}; all "
                    "nodes need the same packages, and models, data and outputs in shared folders by the same paths"
                )
    return None


@patch(
    "ray==2.60.0",
    "ray.job_config:JobConfig._runtime_env_has_working_dir",
    "ray._private.worker:connect",
    public_way="Ray adds none where a job brings a working directory, but Ray would upload that.",
)
def keep_workers_paths() -> None:
    """Make Ray's workers use only their own module path; Ray would put this process's directory first."""
    from ray.job_config import JobConfig

    JobConfig._runtime_env_has_working_dir = lambda self: True


def main() -> int:
    """Answer the question on standard input; returns the exit code."""
    keep_workers_paths()
    refused = _refusal(Question.model_validate_json(sys.stdin.read()))
    if refused is None:
        return 0
    print(refused)
    return 2


if __name__ == "__main__":
    sys.exit(main())
