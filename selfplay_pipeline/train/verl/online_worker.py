"""verl's agent-loop worker, which stores the seats of an episode separately if each has its own reward."""

from __future__ import annotations

import asyncio
import threading
from itertools import groupby
from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from selfplay_pipeline.metrics.signal import Scored, comparison_key
from selfplay_pipeline.train.verl.agent_loop import game_of
from selfplay_pipeline.train.verl.online_sampler import uid_of


class SeatWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """verl's worker, with the uid {uid}_{seat} for rows of seats that have their own rewards.

    verl gives all outputs of an episode the reward and the advantage of the last one, and compares all rows of a uid.
    This worker stores each seat separately under its own uid. So the seat keeps its reward and is compared with the
    same seat of other episodes, as in offline training (`train/groups.py`). verl's replay buffer still finds the
    state's uid, which it reads before the first underscore.
    """

    async def _agent_loop_postprocess(
        self, output: list[AgentLoopOutput], validate: bool, *, uid: str, **row: Any
    ) -> None:
        if validate:  # verl averages the last output's reward, which must be the episode's
            for one in output:
                one.reward_score = one.extra_fields["reward"]
        by_seat = not (validate or game_of(row["extra_info"]["rules"]).shared_reward)

        def group(one: AgentLoopOutput) -> str:
            scored = Scored(uid, row["session_id"], one.extra_fields["seat"], one.reward_score, by_seat)
            return uid_of(comparison_key(scored), by_seat=by_seat)

        for group_uid, rows in groupby(output, group):
            await super()._agent_loop_postprocess([*rows], validate, uid=group_uid, **row)


class SeatManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """verl's manager of agent-loop workers, for `SeatWorker`."""

    _loop: asyncio.AbstractEventLoop | None = None
    """Event loop, in a thread of this process, that runs the worker if Ray is not used; else None."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(SeatWorker)

    async def _init_agent_loop_workers(self) -> None:
        if ray.is_initialized():
            await super()._init_agent_loop_workers()
            return
        self._worker = SeatWorker(self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def generate_sequences(self, prompts: Any) -> None:
        """Start to play a batch of prompts; episodes go to TransferQueue as they end."""
        if self._loop is None:
            super().generate_sequences(prompts)
        else:  # a copy, because the worker removes columns
            asyncio.run_coroutine_threadsafe(self._worker.generate_sequences(prompts.copy()), self._loop).result()
