"""verl's workers, which can be rebuilt for another training in the same process."""

from __future__ import annotations

import copy
import gc
import logging
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_torch_device
from verl.utils.memory_utils import aggressive_empty_cache
from verl.workers.engine_workers import ActorRolloutRefWorker

from selfplay_pipeline.train.verl.loss import imitation_loss, one_update_loss

log = logging.getLogger(__name__)


def begin_above_zero(schedule: LambdaLR) -> None:
    """Shift a warm-up by one update, since verl's first update has the learning rate 0.

    Each update of a warm-up gets the rate of verl's next update. Rates after the warm-up are unchanged.
    """

    def shifted(share: Any) -> Any:
        return lambda step: max(share(step), share(step + 1))

    schedule.lr_lambdas = [shifted(share) for share in schedule.lr_lambdas]


class PolicyWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """Worker that holds the policy, its optimizer and its loss."""

    actor: Any

    def __init__(self, config: Any, role: str, **kwargs: Any) -> None:
        self._placed: set[str] = set()
        super().__init__(self._own(config), role, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        if self.config.threads:
            torch.set_num_threads(self.config.threads)
        super().init_model()
        if self.actor is not None:
            imitates = self.config.imitates
            self.actor.set_loss_fn(imitation_loss if imitates else partial(one_update_loss, self.loss_fn))
            begin_above_zero(self.actor.engine.lr_scheduler)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def rebuild(self, config: Any) -> None:
        """Load the model's original weights with other settings and a new optimizer.

        Args:
            config: The section `actor_rollout_ref`.
        """
        self.actor = self.ref = None
        gc.collect()  # before the next model takes as much memory
        self.config = self._own(config)
        self.init_model()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def set_learning_rate(self, rate: float) -> None:
        """Continue the schedule at its current step with another base rate; a loaded optimizer has its old one."""
        engine = self.actor.engine
        schedule = engine.lr_scheduler
        schedule.base_lrs = [rate] * len(schedule.base_lrs)
        for group, share in zip(engine.optimizer.param_groups, schedule.lr_lambdas, strict=True):
            group["lr"] = rate * share(schedule.last_epoch)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_state(self, state: bool) -> None:
        """Make the next saves hold the trainer's state, or only the weights for the checkpoint."""
        parts = self.config.actor.checkpoint.save_contents
        self.actor.engine.checkpoint_manager.checkpoint_save_contents = [
            part for part in parts if state or part == "hf_model"
        ]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def leave_device(self) -> None:
        """Keep weights and optimizer in host memory until `enter_device`; verl keeps a reference model there anyway."""
        self._move("cpu")
        aggressive_empty_cache()
        held = get_torch_device().memory_reserved() / 1e6
        log.warning("left the device; it still holds %.0f MB", held)  # verl shows nothing below a warning

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def enter_device(self) -> None:
        """Undo `leave_device`."""
        self._move("device")

    def _move(self, device: str) -> None:
        """Move the tensors that verl and FSDP do not move themselves in each pass to `cpu` or `device`."""
        engine = self.actor.engine
        if not getattr(engine, "_uses_fsdp2_cpu_offload_policy", False):
            weights, optimizer = not engine.is_param_offload_enabled, not engine.is_optimizer_offload_enabled
            self.actor.to(device, model=weights, optimizer=optimizer, grad=weights)

    def set_dispatch_collect(self, mesh_name: str, **ranks: Any) -> None:
        """Register the rank once; verl rejects a second call, and a rebuilt worker keeps its rank."""
        if mesh_name not in self._placed:
            super().set_dispatch_collect(mesh_name, **ranks)
        self._placed.add(mesh_name)

    def _own(self, config: Any) -> Any:
        return copy.deepcopy(config)


class ReferenceWorker(PolicyWorker):
    """Worker that holds the KL term's reference model, from `actor_rollout_ref.reference_model`."""

    def _own(self, config: Any) -> Any:
        own = copy.deepcopy(config)  # the policy's worker shares this process and this object
        own.model.path = own.reference_model
        return own
