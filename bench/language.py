"""Makes the warm start of `bench/language.yaml` from SmolLM2-135M-Instruct, which tells and plans, but does not listen.

Seat 0 imitates messages of `speaking-teacher`. Seat 1 imitates the best plan by its own view when messages are muted.
After a message it imitates this plan in 60 % of the rows, and a random one in the others: so it plans by its own view
mostly, whatever it hears, and explores. `selfplay imitate` does the same on smaller files; this loop needs seconds on a
GPU where that needs minutes.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench import command
from bench.planner import IGNORED, risen_and_fallen
from selfplay_pipeline.config.identity import check_same
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.imitation import TRAIN, Source, make_rows
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import filling, replacing, write_json
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.generate.trajectory import ChatTokenizer

CONFIG = "bench/language.yaml"
ADAPTER = "bench/smollm2_tells_adapter"
"""The adapter that this command made on an H200."""
WARM_UP = 0.05
"""Share of the training over which the learning rate rises."""
KEPT = ("prompt_ids", "response_ids", "response_mask")


class Part(NamedTuple):
    """Episodes of scripted players, and the seats that are imitated.

    Attributes:
        share: Share of all states.
        seats: Imitated seats, each with the number of states of which one is imitated.
    """

    share: float
    player: str
    mute: bool
    seats: dict[int, int]


PARTS = {
    "muted": Part(0.5, "own-view", True, {1: 1}),
    "own": Part(0.3, "own-view", False, {0: 4, 1: 1}),
    "random": Part(0.2, "random", False, {1: 1}),
}
"""Imitated parts: `player` holds seat 1, and `speaking-teacher` seat 0."""


def main(
    model: Annotated[Path, typer.Argument(help="Folder of SmolLM2, from `selfplay model smollm2`.")],
    output: Annotated[Path, typer.Argument(help="Folder of the new model; its adapter is in adapter/.")],
    work: Annotated[Path, typer.Option(help="Gets episodes and rows, and keeps them.")] = Path("data/language_lesson"),
    states: Annotated[int, typer.Option(min=20, help="Game states of the scripted episodes.")] = 48_000,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 128,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the rows.")] = 3,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="The schedule ends after these minutes if the passes take longer.")
    ] = 6_000,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the LoRA adapter.")] = 16,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak of AdamW's learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seeds states, weights and the order of rows.")] = 1,
    prepare: Annotated[bool, typer.Option("--prepare", help="Make the rows, and stop.")] = False,
    adapter: Annotated[
        Path | None, typer.Option(help=f"Adapter to merge, such as {ADAPTER}, in place of a training.")
    ] = None,
) -> None:
    """Imitate scripted players, on a GPU if there is one, and write the model with its adapter merged in."""
    check_folder(output, "model")
    if adapter is not None and prepare:
        raise UserError("--adapter: it needs no rows; leave out --prepare")
    if adapter is not None:
        write_merged(with_adapter(model, adapter), model, output, {"adapter": str(adapter)})
        return
    lesson = Lesson.read(write_rows(model, work, states, seed))
    if prepare:
        return
    if rows > (most := len(lesson.learned())):
        raise UserError(f"--rows {rows}: the lesson has {most} rows to train on; give fewer, or more --states")
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    plan = Schedule(rows, epochs, minutes, learning_rate)
    policy = with_adapter(model, rank)
    record = {"states": states, "rank": rank, "seed": seed} | vars(plan) | train(policy, lesson, plan, seed)
    write_merged(policy, model, output, record)


def write_rows(model: Path, work: Path, states: int, seed: int) -> Path:
    """Play the episodes, convert them to rows, and return their file; an existing file is kept.

    Raises:
        UserError: The file is of other states, another seed or another model.
    """
    file, record = work / TRAIN, work / "rows.json"
    decided = {"states": states, "seed": seed, "weights": content_hash(str(model))}
    if file.exists():
        check_same(work, read_object(record, "python -m bench.language"), decided)
        return file
    chat, first, tables = ChatTokenizer.load(str(model)), 0, list[pa.Table]()
    for name, part in PARTS.items():
        count = round(part.share * states)
        changes = {"game.mute": part.mute, "generate.num_episodes": count, "generate.episodes_per_state": 1}
        config = load_config(CONFIG, {"model": str(model), "seed": seed, "imitate.held_out": 0.0} | changes)
        episodes, game = work / f"{name}.jsonl", make_game(config.game)
        players = ["speaking-teacher", part.player]
        asyncio.run(generate_episodes(config, episodes, first_state=first, seats=players))
        first += count
        for seat, every in part.seats.items():
            choice = config.imitate.model_copy(update={"seats": [seat]})
            made = make_rows([Source(episodes)], game, chat, choice, context_length=2048, seed=seed)
            kept = [{key: row[key] for key in KEPT} | {"part": f"{name}, seat {seat}"} for row in made.parts[TRAIN]]
            tables.append(pa.Table.from_pylist(kept[::every]))
    write_json(record, decided)
    with replacing(file) as new:
        pq.write_table(pa.concat_tables(tables, promote_options="permissive"), new)
    return file


@dataclass(frozen=True)
class Lesson:
    """Rows to imitate on the device that trains; every hundredth is held out.

    Attributes:
        tokens: Shape (rows, longest).
        labels: Tokens to learn, IGNORED elsewhere, in the same shape.
        parts: Name of each row's part.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    parts: list[str]

    @classmethod
    def read(cls, file: Path) -> Lesson:
        """Returns the rows of a file, in the order of the file."""
        table = pq.read_table(file).to_pydict()
        every = list(zip(*(table[key] for key in KEPT), strict=True))
        longest = max(len(prompt) + len(response) for prompt, response, _ in every)
        tokens, labels = torch.zeros(len(every), longest, dtype=torch.long), torch.full((len(every), longest), IGNORED)
        for row, (prompt, response, mask) in enumerate(every):
            ids, own = torch.tensor([*prompt, *response]), torch.tensor([*[0] * len(prompt), *mask]).bool()
            tokens[row, : len(ids)] = ids
            labels[row, : len(ids)] = torch.where(own, ids, IGNORED)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(tokens.to(device), labels.to(device), table["part"])

    def batches(self, rows: int, epochs: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields the tokens and labels of each step, without the columns that only padding would fill."""
        numbers, rng = self.learned(), random.Random(seed)
        for _ in range(epochs):
            rng.shuffle(numbers)
            for begin in range(0, len(numbers) - rows + 1, rows):
                yield self.of(numbers[begin : begin + rows])

    def of(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the tokens and labels of these rows."""
        chosen = torch.tensor(numbers, device=self.tokens.device)
        tokens, labels = self.tokens[chosen], self.labels[chosen]
        used = int((tokens != 0).any(0).nonzero().max()) + 1
        return tokens[:, :used], labels[:, :used]

    def learned(self) -> list[int]:
        """Returns the numbers of the rows that are not held out."""
        return [row for row in range(len(self.parts)) if row % 100]

    def held_out(self) -> dict[str, list[int]]:
        """Returns the numbers of the held-out rows of each part."""
        found: dict[str, list[int]] = {}
        for row in range(0, len(self.parts), 100):
            found.setdefault(self.parts[row], []).append(row)
        return found


@dataclass(frozen=True)
class Schedule:
    """Options of the training, as the command has them."""

    rows: int
    epochs: int
    minutes: float
    rate: float

    def rate_at(self, done: float) -> float:
        """Returns the learning rate after a share of the training: it rises linearly, and falls along a cosine."""
        return self.rate * risen_and_fallen(done, WARM_UP)


def write_merged(policy: Any, model: Path, output: Path, record: dict[str, Any]) -> None:
    """Write the adapter, the model with the adapter merged in, and how it was made; all weights in bfloat16."""
    policy.to(torch.bfloat16)
    with filling(output) as new:
        policy.save_pretrained(new / "adapter")
        policy.merge_and_unload().to("cpu").save_pretrained(new)
        AutoTokenizer.from_pretrained(model).save_pretrained(new)
        (new / "warm_start.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def with_adapter(model: Path, adapter: int | Path) -> Any:
    """Returns the model with an adapter from a folder, or a new one of this rank, on a GPU if there is one.

    A new adapter is on each linear layer but the head.
    """
    from peft import LoraConfig, PeftModel, get_peft_model

    cuda = torch.cuda.is_available()
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16 if cuda else torch.float32)
    if isinstance(adapter, Path):
        return PeftModel.from_pretrained(base, str(adapter)).to("cuda" if cuda else "cpu")
    new = LoraConfig(r=adapter, lora_alpha=2 * adapter, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(base, new)
    for weight in policy.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return policy.to("cuda" if cuda else "cpu")


def train(policy: Any, lesson: Lesson, plan: Schedule, seed: int) -> dict[str, Any]:
    """Train the adapter, and return the number of steps and the loss of the held-out rows of each part."""
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.0)
    steps = plan.epochs * (len(lesson.learned()) // plan.rows)
    began, step, done = time.monotonic(), 0, 0.0
    for tokens, labels in lesson.batches(plan.rows, plan.epochs, seed):
        done = max((step + 1) / steps, (time.monotonic() - began) / 60 / plan.minutes)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(done)
        loss = loss_of(policy, tokens, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            say(f"step {step} of {steps} after {time.monotonic() - began:.0f} s, loss {loss.item():.4f}")
        if done >= 1:
            break
    policy.eval()
    with torch.no_grad():
        found = {name: loss_of(policy, *lesson.of(rows)).item() for name, rows in lesson.held_out().items()}
    say(f"{step} steps, held-out loss {json.dumps({name: round(loss, 4) for name, loss in found.items()})}")
    return {"steps": step, "seconds": round(time.monotonic() - began, 1), "held_out": found}


def loss_of(policy: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of the tokens to learn; logits are computed at these alone."""
    places = labels[:, 1:] != IGNORED
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        hidden = policy.base_model.model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = policy.base_model.model.lm_head(hidden[:, :-1][places])
    return torch.nn.functional.cross_entropy(logits.float(), labels[:, 1:][places])


if __name__ == "__main__":
    command.run(main)
