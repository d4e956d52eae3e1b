"""The KL term's reference model, which need not be the model that is trained."""

from __future__ import annotations

import copy
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker


class ReferenceWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """verl's worker, with `actor_rollout_ref.reference_model` in place of the policy's path."""

    def __init__(self, config: Any, role: str, **kwargs: Any) -> None:
        own = copy.deepcopy(config)  # the policy's worker shares this process, and the object
        own.model.path = own.reference_model
        super().__init__(own, role, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> Any:
        return super().init_model()
