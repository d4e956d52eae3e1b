"""verl's agent-loop worker, which also stores the seats of an episode apart where they have rewards of their own."""

from __future__ import annotations

import asyncio
import threading
from itertools import groupby
from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from selfplay_pipeline.metrics.signal import Scored, comparison_key
from selfplay_pipeline.online.agent_loop import game_of
from selfplay_pipeline.online.verl_ext.sampler import uid_of


class SeatWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """Differs from verl's in the uid of rows whose seats have rewards of their own: {uid}_{seat}.

    verl gives all outputs of an episode the reward and the advantage of the last one, and compares all rows of a uid.
    Stored one at a time and under a uid for each seat, a seat keeps its reward and is compared with the same seat of
    the other episodes, as `train/groups.py` has it offline. verl's replay buffer takes what stands before the first
    underscore for the state's uid, which stays as it is.
    """

    async def _agent_loop_postprocess(
        self, output: list[AgentLoopOutput], validate: bool, *, uid: str, **row: Any
    ) -> None:
        if validate:  # verl averages the last output's reward, which is to be that of the episode
            for one in output:
                one.reward_score = one.extra_fields["reward"]
        by_seat = not (validate or game_of(row["extra_info"]["rules"]).shared_reward)

        def group(one: AgentLoopOutput) -> str:
            scored = Scored(uid, row["session_id"], one.extra_fields["seat"], one.reward_score, by_seat)
            return uid_of(comparison_key(scored), by_seat=by_seat)

        for group_uid, rows in groupby(output, group):
            await super()._agent_loop_postprocess([*rows], validate, uid=group_uid, **row)


class SeatManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """verl's manager of these workers."""

    _loop: asyncio.AbstractEventLoop | None = None
    """Runs in a thread where one process does all; the worker is an object there, and no actor of Ray."""

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
        """Begin to play; the episodes go to TransferQueue as they end."""
        if self._loop is None:
            super().generate_sequences(prompts)
        else:  # a copy, because the worker takes columns away
            asyncio.run_coroutine_threadsafe(self._worker.generate_sequences(prompts.copy()), self._loop).result()
