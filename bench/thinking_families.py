"""Models of six families that think, from their first thought to a training: who sees a thought?

The shipped tiny model gets the special tokens and the chat template of a family. It is taught to play as a random
script plays, which thinks before each turn a thought that begins with "secretly". It then plays with itself on SGLang
with both kinds of history, and verl trains on the rows. Counted are the thoughts in what the partner reads and in the
turns, those in the model's own later prompts, and the gap between the log-probs of SGLang and verl in float32.

    OMP_NUM_THREADS=1 python -m bench.thinking_families --output data/thinking
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import command
from bench.chat_templates import FAMILY_OF, template_named, tokenizer_for
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config, History
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.parquet_check import check_parquet
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.engines.types import Completion, FinishReason, SamplingParams
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.control_tokens import open_thought
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.players import policy_player
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord, Trajectory
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.generate.stage import generate_episodes, policy_record
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.train.offline import run_train
from selfplay_pipeline.train.process import Trainer

TEMPLATES = ["qwen3", "deepseek_r1_distill", "glm4moe", "nemotron_3_nano", "gemma4", "lfm2_2_5"]
MARK = "secretly"
"""Word of each thought, which no game has."""
TALK = 0.8
"""Share of turns that say something where no proposal waits for an answer."""
LESSON, STEPS, ROWS = 400, 300, 32
"""Episodes of the lesson, and its steps of so many rows each."""


class Thinker:
    """An engine that thinks a random number, and then says another one or plays as the random script."""

    def __init__(self, game: Any, chat: ChatTokenizer, seed: int) -> None:
        self.game, self.chat, self.rng = game, chat, np.random.default_rng(seed)
        self.episode: Episode | None = None
        assert chat.thought is not None
        begin = "" if open_thought(chat.header) else chat.thought.begin
        self.around = (begin, chat.thought.end)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        assert self.episode is not None
        playing: Any = self.episode.session
        talks = playing.pending is None and self.rng.random() < TALK
        view = self.game.view(playing, playing.seats[0])
        text = f"[message] {self.rng.integers(10)}" if talks else self.game.players["random"].act(view, self.rng)
        thought = f"{MARK} {self.rng.integers(10)}".join(self.around)
        ids = [*self.chat.tokenizer.encode(f"{thought}\n{text}", add_special_tokens=False), self.chat.end_of_turn]
        return Completion(ids, [0.0] * len(ids), FinishReason.STOP, prompt_tokens=0, cached_tokens=0)


def lesson(config: Config, chat: ChatTokenizer) -> list[Trajectory]:
    """Returns the trajectories of episodes of two thinkers, of both kinds of history in turn."""
    game, found = make_game(config.game), list[Trajectory]()
    for number in range(LESSON):
        history: History = "rendered" if number % 2 else "appended"
        policy = policy_record(config, "none", "").model_copy(update={"history": history})
        engine, state = Thinker(game, chat, number), game.sample_state(state_rng(1, number))
        players = [policy_player(engine, chat, policy, 10**6)] * len(game.roles)
        engine.episode = Episode(game, state, players, f"lesson-{number}", (1, number, 0))
        engine.episode.play_out()
        found += engine.episode.record(policy).trajectories
    return [one for one in found if one.response_ids]


def chat_on(template: str, game: Any) -> ChatTokenizer:
    """Returns the tiny model's tokenizer with a family's template and special tokens, which lets the model think."""
    words = game.lessons["self-play"].words or ()
    return ChatTokenizer(tokenizer_for(FAMILY_OF[template], template_named(template), words), thinking=True)


def model_for(base: str, chat: ChatTokenizer) -> Any:
    """Returns a model with the base's weights, and new ones for the tokens that only the tokenizer has."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.resize_token_embeddings(len(chat.tokenizer))
    model.config.eos_token_id = model.generation_config.eos_token_id = chat.end_of_turn
    return model


def teach(base: str, chat: ChatTokenizer, rows: Sequence[Trajectory], output: Path) -> None:
    """Trains a model with the base's weights on what the rows' players sampled, and writes it with its tokenizer."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    model = model_for(base, chat)
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0), np.random.default_rng(0)
    for step in range(STEPS):
        chosen = [rows[at] for at in rng.integers(len(rows), size=ROWS)]
        ids = pad_sequence([torch.tensor(one.prompt_ids + one.response_ids) for one in chosen], batch_first=True)
        own = [torch.tensor([0] * len(one.prompt_ids) + list(one.response_mask)) for one in chosen]
        labels = ids.masked_fill(pad_sequence(own, batch_first=True) == 0, -100)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == STEPS - 1:
            say(f"  lesson {step + 1}/{STEPS}: loss {loss.item():.3f}")
    model.save_pretrained(output)
    chat.tokenizer.save_pretrained(output)


def seen(chat: ChatTokenizer, records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Returns how many turns had a thought, and how many thoughts stand where none may.

    Between two of its turns a seat reads only what its partner said. With rendered history, a later prompt also shows
    the seat's own earlier turns, so its thoughts are counted apart.
    """
    thought = leaked = own = longest = turns = 0
    for record in records:
        turns += len(record.turns)
        leaked += sum(MARK in turn.text for turn in record.turns)
        for one in record.trajectories:
            longest = max(longest, len(one.prompt_ids) + len(one.response_ids))
            masks = np.array(one.response_mask, bool)
            response = np.array(one.response_ids)
            thought += chat.tokenizer.decode(response[masks].tolist()).count(MARK)
            leaked += chat.tokenizer.decode(response[~masks].tolist()).count(MARK)
            own += chat.tokenizer.decode(one.prompt_ids).count(MARK)
            leaked += sum(MARK in message.content for message in one.messages if message.role == "user")
    return {"turns": turns, "thoughts": thought, "leaked": leaked, "in own later prompts": own, "longest": longest}


async def of_family(template: str, folder: Path, trainer: Trainer, episodes: int) -> list[dict[str, Any]]:
    """Returns the figures of one family, one line for each kind of history."""
    plain = load_config("tiny", {"generate.thinking": True, "generate.num_episodes": episodes, "seed": 1})
    chat = chat_on(template, make_game(plain.game))
    teach(str(plain.model), chat, lesson(plain, chat), folder / "model")
    config = plain.model_copy(update={"model": str(folder / "model")})
    found = []
    async with Servers(Backends.of(config), folder) as servers:
        for history in ("appended", "rendered"):
            form = config.generate.model_copy(update={"history": history})
            output = folder / history
            games, played = output / "games.jsonl", config.model_copy(update={"generate": form})
            await generate_episodes(played, games, servers=servers)
            run_convert(games, output)
            check_parquet(output / "train.parquet", str(config.model))
            training = TrainConfig(
                model=str(config.model), data=output / "train.parquet", output=output / "training", device="cpu",
                train_batch_size=10**6, micro_batch_size=32, dtype="float32",
            )  # fmt: skip
            result = await run_train(training, trainer)
            step = json.loads(result.metrics_path.read_text().splitlines()[0])
            figures = seen(chat, [*read_episodes(games)])
            gap = {"gap, mean": step["selfplay/log_prob_gap/mean"], "gap, max": step["selfplay/log_prob_gap/max"]}
            rows = {"rows": result.rows, "tokens trained": step["selfplay/own_tokens"]}
            found.append(
                {"family": FAMILY_OF[template].name, "template": template, "history": history} | figures | rows | gap
            )
            say(json.dumps(found[-1]))
    return found


def main(
    output: Annotated[Path, typer.Option(help="Gets models, episodes and results.json.")] = Path("data/thinking"),
    template: Annotated[list[str], typer.Option(help=f"Templates: {', '.join(TEMPLATES)}.")] = TEMPLATES,
    episodes: Annotated[int, typer.Option(min=8, help="Episodes of each family and kind of history.")] = 200,
) -> None:
    """Teach models of six families to think, let them play with themselves and train, and look for their thoughts."""

    async def run() -> list[dict[str, Any]]:
        with Trainer() as trainer:
            return [line for name in template for line in await of_family(name, output / name, trainer, episodes)]

    lines = asyncio.run(run())
    (output / "results.json").write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    command.run(main)
