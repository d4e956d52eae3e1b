"""verl's task runner, kept alive to run its trainer again on other data."""

from __future__ import annotations

import os
from pprint import pprint
from typing import Any

import transfer_queue as tq
from omegaconf import OmegaConf
from verl.utils.import_utils import load_class_from_fqn
from verl.utils.logging_utils import configure_verl_logging

from selfplay_pipeline.train.verl.imitation import ImitationTrainer
from selfplay_pipeline.train.verl.trainer import OfflineTrainer


class Runner:
    """Task runner like `verl/trainer/main_ppo.py: TaskRunnerV1` that creates the trainer only once.

    It is a Ray actor, or an object of verl's main process if that process does all the work (`patches.py`).
    """

    def __init__(self) -> None:
        self._trainer: OfflineTrainer | None = None

    def run(self, config: Any) -> None:
        """Create the trainer unless it exists, then train if the configuration names data.

        If a server shares the GPU, the trainer is on the GPU only while it trains.

        Raises:
            Exception: The trainer's error; the trainer is unusable after it.
        """
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        options = config.selfplay
        if self._trainer is None:
            configure_verl_logging()
            pprint(OmegaConf.to_container(config))
            tq.init(config.transfer_queue)
            if options.metrics_path is None and options.shares_gpu:
                return
            self._trainer = (ImitationTrainer if options.imitates else OfflineTrainer)(config)
            self._trainer.init()
        if options.metrics_path is None:
            return
        os.environ.update(options.environment)
        if options.shares_gpu:
            self._trainer.actor_rollout_wg.enter_device()
        self._trainer.take(config)
        manager = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
        try:
            self._trainer.fit(manager.create(config))
        except BaseException:
            self._trainer.finish(1)
            raise
        self._trainer.finish(0)
        if options.shares_gpu:
            self._trainer.actor_rollout_wg.leave_device()
