"""A TRL user's program for a game behind an OpenEnv server: `GRPOTrainer` trains one seat beside a scripted player.

Run it where TRL and `integrations/openenv` are installed, while `python -m selfplay_openenv` serves:

    PYTHONPATH=. python integrations/openenv/train_with_trl.py http://127.0.0.1:8000 data/tiny_model OUTPUT
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import torch
from datasets import Dataset
from openenv.core.generic_client import GenericEnvClient
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

from bench.race.peer import Seat, sample
from selfplay_pipeline.games.base import Opening

STATES, GROUP, STEPS = 8, 8, 2


class Rollouts:
    """The `rollout_func`: one session of the server for each episode; all episodes take their turns together."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Play one episode of each state; `prompts` are the numbers of the states, each repeated for its group."""
        with unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, generation_kwargs=trainer.generation_kwargs
        ) as model:
            rows = asyncio.run(self._play([int(number) for number in prompts], model, trainer))
        return {name: [row[name] for row in rows] for name in rows[0]} | {"logprobs": None}

    async def _play(self, numbers: list[int], model: Any, trainer: GRPOTrainer) -> list[dict[str, Any]]:
        tokenizer = trainer.processing_class
        async with AsyncExitStack() as stack:
            envs = [await stack.enter_async_context(GenericEnvClient(base_url=self._url)) for _ in numbers]
            results = [await env.reset(seed=number) for env, number in zip(envs, numbers, strict=True)]
            seats = [Seat(tokenizer, _opening(result.observation)) for result in results]
            while live := [place for place, result in enumerate(results) if not result.done]:
                turns = sample(model, [seats[place].read() for place in live], trainer)
                for place, turn in zip(live, turns, strict=True):
                    seats[place].say(turn)
                    text, cut = tokenizer.decode(turn, skip_special_tokens=True), turn[-1] != tokenizer.eos_token_id
                    results[place] = await envs[place].step({"text": text, "cut": cut})
                    heard = results[place].observation["text"]
                    seats[place].heard += [heard] if heard else []
        return [seat.row(result.reward) for seat, result in zip(seats, results, strict=True)]


def _opening(observation: dict[str, Any]) -> Opening:
    system, user = (message["content"] for message in observation["messages"])
    return Opening(system=system, observation=user)


def main(url: str, model: str, output: str) -> None:
    """Train `STEPS` steps, and print the figures of each."""
    options = GRPOConfig(
        output_dir=output, use_cpu=True, bf16=False, gradient_checkpointing=False, num_generations=GROUP,
        per_device_train_batch_size=STATES * GROUP, max_steps=STEPS, shuffle_dataset=False, temperature=1.0, top_p=1.0,
        top_k=0, max_completion_length=64, learning_rate=1e-4, logging_steps=1, disable_tqdm=True, report_to="none",
        save_strategy="no",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=lambda game_reward, **_: game_reward,
        args=options,
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(STATES * STEPS)]}),
        rollout_func=Rollouts(url),
    )
    trainer.train()
    trainer.save_model(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
