"""What both kinds of history cost a model that thinks: longest context, tokens, seconds of play and of training.

A script plays both seats of episodes of the tiny game: in each turn it thinks, and says a number. The recorded requests
are sent to SGLang again, which samples as many tokens as the script said, and verl trains on the rows. Only amounts
count, so the tiny model serves although it never learned to think. Rounds alternate.

    OMP_NUM_THREADS=1 python -m bench.history_cost --output data/history
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import command
from bench.architectures import REWARD
from bench.serving import Recorded, RecordingEngine, flush, repeat
from bench.thinking_families import chat_on, model_for
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.reward import own_reward
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.engines.pool import open_engine
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import Completion, FinishReason, SamplingParams
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.train.offline import run_train
from selfplay_pipeline.train.process import Trainer

TEMPLATE = "qwen3"
LONGEST = 8192
"""Positions of the model, so that appended thoughts fit."""


class Script:
    """An engine that thinks a number of tokens and says one to three digits, so that rewards of length differ."""

    def __init__(self, chat: ChatTokenizer, thought: int) -> None:
        self.chat, self.thought, self.rng = chat, thought, np.random.default_rng(0)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        assert self.chat.thought is not None
        digits = "".join(map(str, self.rng.integers(10, size=self.thought)))
        number = self.rng.integers(10 ** self.rng.integers(1, 4))
        text = f"{digits.join(self.chat.thought)}\n[message] {number}"
        ids = [*self.chat.tokenizer.encode(text, add_special_tokens=False), self.chat.end_of_turn]
        return Completion(ids, [0.0] * len(ids), FinishReason.STOP, prompt_tokens=0, cached_tokens=0)


async def measure(output: Path, episodes: int, turns: int, thought: int, rounds: int) -> list[dict[str, Any]]:
    """Returns the figures of each kind of history in each round."""
    plain = load_config("tiny", {})
    chat, folder = chat_on(TEMPLATE, make_game(plain.game)), output / "model"
    model = model_for(str(plain.model), chat)
    model.config.max_position_embeddings = LONGEST
    model.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)
    (output / "reward.py").write_text(REWARD)
    settings = {
        "model": str(folder), "game.max_length": turns, "generate.thinking": True,
        "generate.num_episodes": episodes, "generate.max_new_tokens": thought + 64,
        "reward.path": str(output / "reward.py"),
    }  # fmt: skip
    found, script = [], Script(chat, thought)
    configs = [load_config("tiny", settings | {"generate.history": name}) for name in ("appended", "rendered")]
    with Trainer() as trainer:
        async with open_engine(plain.engine, "cpu", str(folder), output / "server.log") as engine:
            assert isinstance(engine, SGLangEngine)
            for number, config in product(range(rounds), configs):
                run = output / f"{config.generate.history}_{number}"
                found.append(await measure_once(config, run, script, engine, trainer))
                say(json.dumps(found[-1]))
    return found


async def measure_once(
    config: Config, folder: Path, script: Script, engine: SGLangEngine, trainer: Trainer
) -> dict[str, Any]:
    """Returns the figures of one kind of history."""
    recorder, history = RecordingEngine(script), config.generate.history
    await generate_episodes(config, folder / "games.jsonl", servers=Recorded(config, folder, recorder))
    # A rendered prompt is asked for whole: its earlier turns are not the tokens that were sampled.
    calls = [
        [(f"{player}{at if history == 'rendered' else ''}", call) for at, (player, call) in enumerate(episode)]
        for episode in recorder.episodes.values()
    ]
    await flush(engine)
    seconds = await repeat(config, engine.clients[0].server, calls)
    run_convert(folder / "games.jsonl", folder, reward=own_reward(config.reward))
    training = TrainConfig(
        model=str(config.model), data=folder / "train.parquet", output=folder / "training", device="cpu",
        train_batch_size=10**6, max_tokens_per_pass=8192, dtype="float32", any_model=True,
    )  # fmt: skip
    result = await run_train(training, trainer)
    step = json.loads(result.metrics_path.read_text().splitlines()[0])
    ends = [call.end for episode in calls for _, call in episode]
    rows = [end for episode in calls for end in {name: call.end for name, call in episode}.values()]
    return {
        "history": history, "turns": len(ends) / len(calls), "longest": max(ends), "rows": result.rows,
        "tokens of rows": sum(rows) / len(calls), "own tokens": step["selfplay/own_tokens"],
        "play": round(seconds, 1), "training step": round(step["timing_s/step"], 1),
    }  # fmt: skip


def main(
    output: Annotated[Path, typer.Option(help="Gets episodes, rows and results.json.")] = Path("data/history"),
    episodes: Annotated[int, typer.Option(min=4, help="Episodes of each round and kind of history.")] = 64,
    turns: Annotated[int, typer.Option(min=1, help="Turns of an episode, both seats together.")] = 12,
    thought: Annotated[int, typer.Option(min=1, help="Tokens of a thought.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, which alternate the kinds of history.")] = 2,
) -> None:
    """Measure what appended and rendered history cost."""
    lines = asyncio.run(measure(output, episodes, turns, thought, rounds))
    (output / "results.json").write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    command.run(main)
