"""Runs verl in one process: its one worker and its data store, without Ray.

Ray's services and the actors that verl creates are twelve processes. They take 2 GB and half a minute of CPU time to
start, and each step sends its data from one to the other. One worker on a CPU gains nothing from them. A thread plays
the episodes of online training, and their server is a child of this process.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
from collections.abc import Callable
from importlib import resources
from typing import Any
from uuid import uuid4

import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import interface
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage.simple_storage import SimpleStorageUnit
from verl.checkpoint_engine import CheckpointEngineManager
from verl.experimental.reward_loop import RewardLoopManager
from verl.single_controller.ray import RayWorkerGroup, ResourcePoolManager
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import ray_utils
from verl.workers.rollout.llm_server import LLMServerManager

from selfplay_pipeline.core.loopback import ADDRESS, held_port


def is_enough(config: Any) -> bool:
    """Whether one process can do all that this configuration asks for."""
    trainer = config.trainer
    here = config.ray_kwargs.ray_init.address == "local"
    return bool(here and trainer.device == "cpu" and trainer.n_gpus_per_node * trainer.nnodes == 1)


class OneWorker(RayWorkerGroup):  # type: ignore[misc]
    """A group of one worker, which is an object of this process."""

    def _init_with_resource_pool(self, resource_pool: Any, ray_cls_with_init: Any, **options: Any) -> None:
        os.environ |= {
            "WORLD_SIZE": "1",
            "RANK": "0",
            "WG_BACKEND": "ray",
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(held_port()),
        }
        self.resource_pool, self._world_size = resource_pool, 1
        self._workers = [plain(ray_cls_with_init.cls)()]

    def _bind_worker_method(self, worker: type, generator: Callable[..., Any]) -> Any:
        """Bind a method that is called without a wait: it returns the result itself, not one of Ray's references."""

        def at_once(*arguments: Any, **options: Any) -> Any:
            return generator(*arguments, **options | {"blocking": False})

        return super()._bind_worker_method(worker, at_once)

    def _execute_remote_single_worker(self, worker: Any, method: str, *arguments: Any, **options: Any) -> Any:
        result = getattr(worker, method)(*arguments, **options)
        return asyncio.run(result) if inspect.iscoroutine(result) else result


class OnePool(ResourcePoolManager):  # type: ignore[misc]
    """Resource pool that counts the worker and reserves nothing."""

    def _check_resource_available(self) -> None:
        """Check nothing, since nothing is reserved."""


class NoRewards(RewardLoopManager):  # type: ignore[misc]
    """Reward loop without workers, since rewards come with the episodes."""

    def _init_reward_loop_workers(self) -> None:
        self.reward_loop_workers: list[Any] = []


class OneServer(LLMServerManager):  # type: ignore[misc]
    """Server manager for at most one server, which episodes query directly; none if nothing is generated."""

    async def _init_global_load_balancer(self) -> None:
        """Start no load balancer, since there is at most one server."""

    def get_client(self, *arguments: Any, **options: Any) -> Any:
        return self.server_handles[0]


class OneReceiver(CheckpointEngineManager):  # type: ignore[misc]
    """Checkpoint engine for a worker that sends its weights to the server itself."""

    def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        self.actor_wg.update_weights(global_steps=global_steps, mode=self.backend)
        return {}


def use_one_process() -> None:
    """Let verl's trainers of this process work without Ray from now on."""
    trainer_base.RayWorkerGroup = OneWorker
    trainer_base.ResourcePoolManager = OnePool
    trainer_base.RewardLoopManager = NoRewards
    trainer_base.LLMServerManager = OneServer
    trainer_base.CheckpointEngineManager = OneReceiver
    ray_utils.parallel_put = _copied
    tq.init, tq.close = _init_queue, _leave_queue


def _init_queue(config: Any = None) -> None:
    """Start TransferQueue as its `init` does, with controller and store as threads of this process.

    Args:
        config: The section `transfer_queue`; None if a worker only wants the queue to exist.
    """
    if config is None:
        return
    whole = OmegaConf.merge(
        OmegaConf.create({}, flags={"allow_objects": True}),
        OmegaConf.load(str(resources.files("transfer_queue") / "config.yaml")),
        config,
    )
    backend = whole.backend.SimpleStorage
    controller = plain(TransferQueueController)(polling_mode=whole.controller.polling_mode)
    store = plain(SimpleStorageUnit)(config={**backend, "_run_id": uuid4().hex})
    whole.controller.zmq_info = controller.get_zmq_server_info()
    backend.zmq_info = {"TransferQueueStorageUnit#0": store.get_zmq_server_info()}
    controller.store_config(whole)
    interface._TQ_STORAGE, interface._TQ_CONTROLLER = store, controller  # else they would be garbage-collected
    interface._maybe_create_tq_client(whole)


def _leave_queue() -> None:
    """Replace TransferQueue's `close`: the queue's threads end with this process."""


def _copied(data: list[Any], max_workers: int | None = None) -> list[Any]:
    """Returns copies, in place of verl's `parallel_put`, so that a worker has its own arguments."""
    return copy.deepcopy(data)


def plain(remote: Any) -> Any:
    """Returns the plain class behind a Ray actor class."""
    return remote.__ray_actor_class__
