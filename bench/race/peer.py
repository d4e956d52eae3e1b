"""The peer: a TRL user's program for the same games, `GRPOTrainer` with a `rollout_func`, in one process.

It runs in an environment of its own (requirements/race.txt), as `python -m bench.race.peer SETTINGS OUTPUT`. Rules,
prompts and states are this project's; SETTINGS is a complete configuration of this project as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

from selfplay_pipeline.games.base import TRAIN, Opening, Session, state_rng
from selfplay_pipeline.games.registry import make_game, parse_game_config

Settings = dict[str, Any]


class Seat:
    """Tokens of one seat. Sampled tokens are kept as they are, never tokenised twice."""

    def __init__(self, tokenizer: Any, opening: Opening) -> None:
        self._tokenizer, self._system = tokenizer, opening.system
        self.heard = [opening.observation]
        self.prompt: list[int] = []
        self.completion: list[int] = []
        self.own: list[int] = []
        """1 for each sampled token of the completion, else 0."""

    def read(self) -> list[int]:
        """Returns all tokens before the seat's next turn."""
        text, self.heard = "\n".join(self.heard), []
        if not self.prompt:
            chat = [{"role": "system", "content": self._system}, {"role": "user", "content": text}]
            self.prompt = self._encode(
                self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            )
        elif text:
            # A turn that was cut at the token limit lacks its end token.
            end = "" if self.completion[-1] == self._tokenizer.eos_token_id else "<|im_end|>"
            self._add(self._encode(f"{end}\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"), own=0)
        return self.prompt + self.completion

    def say(self, tokens: list[int]) -> None:
        self._add(tokens, own=1)

    def row(self, reward: float) -> dict[str, Any]:
        """Returns the row to train on: the stream up to the last sampled token."""
        if not any(self.own):  # TRL also needs a row for a seat that never spoke; this row trains nothing
            self.read()
            return _row(self.prompt, [self._tokenizer.eos_token_id], [0], None)
        end = len(self.own) - self.own[::-1].index(1)
        return _row(self.prompt, self.completion[:end], self.own[:end], reward)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _add(self, tokens: list[int], own: int) -> None:
        self.completion += tokens
        self.own += [own] * len(tokens)


def _row(prompt: list[int], completion: list[int], own: list[int], reward: float | None) -> dict[str, Any]:
    return {"prompt_ids": prompt, "completion_ids": completion, "env_mask": own, "game_reward": reward}


class SelfPlay:
    """The `rollout_func`: one policy holds all seats of all episodes, which are played in one batch.

    Attributes:
        seconds: Seconds of play so far.
        episodes: Number of episodes so far.
    """

    def __init__(self, settings: Settings) -> None:
        self._game, self._seed = make_game(parse_game_config(settings["game"])), int(settings["seed"])
        self.seconds, self.episodes = 0.0, 0

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Play one episode of each state.

        Args:
            prompts: Numbers of states, each repeated for every row, thus once per seat of each of its episodes.
            trainer: TRL's trainer.
        """
        began = time.monotonic()
        tokenizer = trainer.processing_class
        episodes = [self._start(int(number), tokenizer) for number in prompts[:: len(self._game.roles)]]
        with unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, generation_kwargs=trainer.generation_kwargs
        ) as model:
            while live := [(session, seats, session.seats[0]) for session, seats in episodes if session.seats]:
                turns = sample(model, [seats[actor].read() for _, seats, actor in live], trainer)
                for (session, seats, actor), turn in zip(live, turns, strict=True):
                    seats[actor].say(turn)
                    text = tokenizer.decode(turn, skip_special_tokens=True)
                    step = session.step(actor, text, cut=turn[-1] != tokenizer.eos_token_id)
                    for seat, heard in zip(seats, step.observations, strict=True):
                        seat.heard += [heard] if heard else []
        rows = [
            seat.row(reward)
            for session, seats in episodes
            for seat, reward in zip(seats, session.outcome().rewards, strict=True)
        ]
        self.seconds += time.monotonic() - began
        self.episodes += len(episodes)
        return {name: [row[name] for row in rows] for name in rows[0]} | {"logprobs": None}

    def _start(self, number: int, tokenizer: Any) -> tuple[Session, list[Seat]]:
        session = self._game.start(self._game.sample_state(state_rng(self._seed, number, TRAIN)))
        return session, [Seat(tokenizer, session.opening(seat)) for seat in range(len(self._game.roles))]


def sample(model: Any, prompts: Sequence[list[int]], trainer: GRPOTrainer) -> list[list[int]]:
    """Returns a sampled turn for each prompt, up to and including its first end token."""
    pad, end = trainer.processing_class.pad_token_id, trainer.processing_class.eos_token_id
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    sampled = model.generate(input_ids=ids, attention_mask=mask, generation_config=trainer.generation_config)
    turns = sampled[:, width:].tolist()
    return [turn[: turn.index(end) + 1] if end in turn else turn for turn in turns]


def _options(settings: Settings, output: str, seats: int) -> tuple[GRPOConfig, int]:
    """Returns TRL's options for the same training, and the total number of states that it plays."""
    generate, train = settings["generate"], settings["train"]
    iterations, group = settings["iterate"]["num_iterations"], seats * generate["episodes_per_state"]
    states = -(-generate["num_episodes"] // generate["episodes_per_state"])
    rows = states * group
    batch = min(rows, train["train_batch_size"] // train["mini_batches"])
    options = GRPOConfig(
        output_dir=output, seed=settings["seed"], use_cpu=True, bf16=False, gradient_checkpointing=False,
        num_generations=group, generation_batch_size=rows, per_device_train_batch_size=batch,
        max_steps=iterations * rows // batch, num_iterations=1, shuffle_dataset=False,
        temperature=generate["temperature"], top_p=1.0, top_k=0, max_completion_length=generate["max_new_tokens"],
        learning_rate=train["learning_rate"], lr_scheduler_type="constant", weight_decay=0.0,
        max_grad_norm=1.0, beta=train["kl_coef"], epsilon=0.2, epsilon_high=0.2,
        loss_type="dapo", scale_rewards="group", use_bias_correction_kl=False,
        logging_steps=1, disable_tqdm=True, report_to="none", save_strategy="no",
    )  # fmt: skip
    return options, iterations * states


def _adapter(train: Settings) -> LoraConfig | None:
    """Returns peft's options for the same adapter; None if all weights are trained."""
    if not train["lora_rank"]:
        return None
    return LoraConfig(r=train["lora_rank"], lora_alpha=train["lora_rank"], target_modules="all-linear")


def main(settings: Settings, output: Path) -> None:
    """Train, save the checkpoint, and write the report that `bench.race` reads."""
    game = make_game(parse_game_config(settings["game"]))
    play = SelfPlay(settings)
    options, states = _options(settings, str(output), len(game.roles))
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        reward_funcs=lambda game_reward, **_: game_reward,
        args=options,
        peft_config=_adapter(settings["train"]),
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(states)]}),
        rollout_func=play,
    )
    began = time.monotonic()
    trainer.train()
    in_loop = time.monotonic() - began
    model = trainer.model.merge_and_unload() if settings["train"]["lora_rank"] else trainer.model
    model.save_pretrained(output / "checkpoint")
    trainer.processing_class.save_pretrained(output / "checkpoint")
    report = {
        "playing": play.seconds,
        "in_steps": in_loop - play.seconds,
        "episodes": play.episodes,
        "rows": trainer.state.global_step * options.per_device_train_batch_size,
        "steps": trainer.state.global_step,
        "checkpoint": str(output / "checkpoint"),
        "packages": {name: version(name) for name in ("trl", "transformers", "torch", "peft")},
    }
    (output / "report.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
