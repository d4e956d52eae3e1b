"""Makes a tiny model that tells what it sees, plans about as well as silence, and was taught to ignore what it hears.

It is a warm start for honest states of matching in the fixed protocol. `selfplay imitate` would need hours for this
many rows; here they are drawn on the device that trains, and each is used once. Tests compare them with the rows of
`selfplay imitate`.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, permutations
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import filling
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.shipped import shipped, where_from
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.games.matching.mentions import written
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.teacher import WORDS
from selfplay_pipeline.games.matching.wordless import ENUMERATED
from selfplay_pipeline.warm_start.tiny_model import build_tokenizer, new_model

PLANNER = "data/tiny_planner4x4_model"
"""Model that this command made for 4×4 boards; `make data/tiny_planner4x4_model` takes it out of git."""
DRAWS = 256
"""Number of draws of the scores that a player does not see, for the values of its plans."""
SOFTEST = 0.04
"""Difference in expected reward that makes a plan e times as likely at the beginning."""
TALKERS = 0.25
"""Share of the rows in which seat 0 tells its cells; in the others seat 1 proposes."""
WARM_UP = 0.06
"""Share of the training over which the learning rate rises."""
CODE = [name.split()[-1] for name in REVIEWERS]
"""Words for scores in messages with `--code`: last names, which no view has."""
LOW = 3
"""Number of low scores, from 0, that share a word in an exam with two words."""
EXAMS = 12
"""Number of comparisons with the silence line in a training."""
IGNORED = -100
"""Label of a token that is not learned."""


def main(
    output: Annotated[Path, typer.Argument(help="Folder of the new model.")],
    config: Annotated[
        str, typer.Option(help="Built-in name or YAML file of an honest board.")
    ] = "studies/planner/4x4.yaml",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 3_000,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="The schedule ends after these minutes if the steps take longer.")
    ] = 6_000,
    rows: Annotated[int, typer.Option(min=4, help="Rows of a step.")] = 1024,
    whole: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the proposals in which seat 1 sees more cells than usual."),
    ] = 0,
    softness: Annotated[
        float,
        typer.Option(min=1e-4, help="Difference in expected reward that makes a plan e times as likely at the end."),
    ] = 0.01,
    model: Annotated[
        str | None, typer.Option(help="Model of this command to begin with, in place of an untrained one.")
    ] = None,
    code: Annotated[
        int | None,
        typer.Option(help="Messages tell scores by words that no view has, in the code of this number."),
    ] = None,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak of AdamW's learning rate.")] = 2e-3,
    states: Annotated[int, typer.Option(min=1, help="Held-out states for the comparisons with silence.")] = 2_000,
    seed: Annotated[int, typer.Option(help="Seeds weights and rows.")] = 0,
) -> None:
    """Train the model, on a GPU if there is one, and say how its greedy plans compare with the silence line."""
    check_folder(output, "model")
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = build_tokenizer(WORDS)
    board = Board.of(load_config(config, {}).game, tokenizer, device, code=code)
    policy = (AutoModelForCausalLM.from_pretrained(model_at(model)) if model else new_model(tokenizer)).to(device)
    plan = Schedule(steps, minutes, rows, whole, softness, learning_rate)
    record: dict[str, Any] = {"config": config, "model": model, "code": code, "seed": seed} | asdict(plan)
    record |= train(policy, board, plan, Exam.of(board, states)) | {"device": device.type}
    with filling(output) as new:
        tokenizer.save_pretrained(new)
        policy.to("cpu").save_pretrained(new)
        (new / "warm_start.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def model_at(model: str) -> str:
    """Returns the path of a model.

    Raises:
        UserError: The model is not there; the message says how to get it.
    """
    if model.startswith("data/") and not Path(shipped(model)).exists():
        studied = (
            f"`make {model}` takes it out of git" if model == PLANNER else "its study's README has the command for it"
        )
        raise UserError(f"{model}: no such model; {where_from(model) or studied}")
    return shipped(model)


def risen_and_fallen(done: float, warm_up: float) -> float:
    """Returns a learning rate as a share of its peak: it rises linearly over `warm_up`, and falls along a cosine.

    Args:
        done: Share of the training that is done.
        warm_up: Share of the training over which the rate rises.
    """
    return min(1.0, done / warm_up) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


@dataclass(frozen=True)
class Schedule:
    """Options of the training, as the command has them."""

    steps: int
    minutes: float
    rows: int
    whole: float
    softness: float
    rate: float

    def softness_at(self, done: float) -> float:
        """Returns the softness of the plans after a share of the training; the last fifth has the sharpest ones."""
        return float(SOFTEST * (self.softness / SOFTEST) ** min(1.0, 1.25 * done))

    def rate_at(self, done: float) -> float:
        """Returns the learning rate after a share of the training: it rises linearly, and falls along a cosine."""
        return self.rate * risen_and_fallen(done, WARM_UP)


@dataclass(frozen=True)
class Board:
    """The rules and the dialect of a board, as tensors.

    Attributes:
        scores: Chance of each score.
        plans: The paper of each reviewer in each plan, shape (plans, size).
        cells: Tokens of a cell in a view, shape (size², scores, 3).
        told: Tokens of a cell in a message, in the same shape.
        reviewers: Token of each reviewer in a proposal.
        pieces: Tokens of the fixed parts of rows, by name; `proposal` is that of the first reviewer for all papers.
        padding: Token after the end of a row.
    """

    size: int
    scores: torch.Tensor
    plans: torch.Tensor
    cells: torch.Tensor
    told: torch.Tensor
    reviewers: torch.Tensor
    pieces: dict[str, torch.Tensor]
    padding: int

    @classmethod
    def of(
        cls, config: Any, tokenizer: Any, device: torch.device, *, code: int | None = None, in_words: bool = False
    ) -> Board:
        """Returns the board of a configuration.

        Messages tell scores in digits; with `in_words` as number words; with a `code` by words of `CODE` that it draws.

        Raises:
            UserError: The game is not matching with honest states, the fixed protocol and compact prompts, or the board
                is too large to list its plans.
        """
        if not isinstance(config, MatchingConfig) or (
            config.visibility != "complementary"
            or config.hard_factor
            or config.scale_max != 1
            or config.protocol != "fixed"
            or config.prompts != "compact"
            or config.messages != 1
            or config.max_score >= len(CODE)
            or config.size > ENUMERATED
        ):
            raise UserError("the model learns honest matching in the fixed protocol only; give --config tiny_honest")

        def ids(text: str) -> torch.Tensor:
            return torch.tensor(tokenizer.encode(text, add_special_tokens=False), device=device)

        papers = [title.split(":")[0] for title in PAPERS[: config.size]]
        names = [name.split()[0] for name in REVIEWERS[: config.size]]
        top = config.max_score + 1
        edges = (torch.arange(top + 1, device=device) / top) ** (1 / config.score_power)

        def cells(words: Sequence[str]) -> torch.Tensor:
            told = [[ids(f" {name} {paper} {word}") for word in words] for name in names for paper in papers]
            return torch.stack([torch.stack(row) for row in told])

        digits, told = ([written(score, in_words=way) for score in range(top)] for way in (False, in_words))
        proposal = "\n".join(f"{paper}: {names[0]}" for paper in papers)
        return cls(
            size=config.size,
            scores=edges.diff(),
            plans=torch.tensor([*permutations(range(config.size))], device=device),
            cells=cells(digits),
            told=cells(told if code is None else code_of(code, top)),
            reviewers=torch.cat([ids(f" {name}") for name in names]),
            pieces={
                "opening": ids("<|im_start|>system\nmatch<|im_end|>\n<|im_start|>user\nsee"),
                "heard": ids("\n[message]"),
                "reply": ids("<|im_end|>\n<|im_start|>assistant\n"),
                "message": ids("[message]"),
                "none": ids(" none"),
                "proposal": ids(f"[propose] Proposal: {proposal}<|im_end|>"),
                "end": ids("<|im_end|>"),
            },
            padding=tokenizer.pad_token_id,
        )

    @property
    def coded(self) -> bool:
        """Whether messages tell scores by other words than views."""
        return not torch.equal(self.told, self.cells)

    def exchanges(self) -> list[Board]:
        """Returns boards of the same dialect, but that messages tell each score by the word of another one."""
        return [replace(self, told=self.told.roll(turn, 1)) for turn in range(1, self.told.shape[1])]

    def two_words(self) -> Board:
        """Returns the board of the same dialect, but that messages tell scores by the words of 0 and of 6 alone."""
        high = torch.arange(self.told.shape[1], device=self.told.device) >= LOW
        return replace(self, told=self.told[:, torch.where(high, 2 * LOW, 0)])

    def draw(self, count: int) -> torch.Tensor:
        """Returns true scores, shape (count, size²)."""
        drawn = torch.multinomial(self.scores, count * self.size**2, replacement=True)
        return drawn.view(count, self.size**2)

    def totals(self, tables: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the cells of each plan, shape (…, plans)."""
        places = torch.arange(self.size, device=tables.device) * self.size + self.plans
        return tables[..., places].sum(-1)

    def shares(self, tables: torch.Tensor) -> torch.Tensor:
        """Returns the reward of each plan on each state, shape (states, plans)."""
        totals = self.totals(tables.float())
        return totals / totals.amax(1, keepdim=True)

    def values(self, tables: torch.Tensor, seen: torch.Tensor, draws: int = DRAWS) -> torch.Tensor:
        """Returns the expected reward of each plan for players who see some cells, shape (rows, plans).

        It is the posterior mean of table / best, as in `games/matching/wordless.py`. A draw whose scores are all 0
        counts as 0, which changes no order of plans.
        """
        hidden = self.draw(len(tables) * draws).view(len(tables), draws, -1)
        likely = torch.where(seen[:, None], tables[:, None], hidden).float()
        best = self.totals(likely).amax(-1, keepdim=True).clamp(min=1)
        return self.totals((likely / best).mean(1))


def code_of(number: int, scores: int = 10) -> list[str]:
    """Returns the word of each score in a code."""
    return random.Random(number).sample(CODE, scores)


def draw_states(board: Board, count: int, share: torch.Tensor | float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns true scores and the cells that seat 1 sees, both of shape (count, size²); seat 0 sees all others.

    A score is above 0: the few other tables get a 1.

    Args:
        board: The board.
        count: Number of states.
        share: Chance that seat 1 sees a cell, shape (count, 1) or one number; honest states have 0.5.
    """
    tables = board.draw(count)
    seen = torch.rand(tables.shape, device=tables.device) < share
    rows = torch.arange(count, device=tables.device)
    cell = torch.randint(board.size**2, (count,), device=tables.device)
    tables[rows, cell] = torch.where(tables.any(1), tables[rows, cell], 1)
    return tables, seen


def tokens_of(
    board: Board,
    tables: torch.Tensor,
    seen: torch.Tensor,
    *,
    plans: torch.Tensor,
    muted: torch.Tensor,
    tells: torch.Tensor,
    marked: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the tokens and the labels of rows, both of shape (rows, longest).

    Args:
        board: The board.
        tables: True scores, shape (rows, size²).
        seen: Cells that seat 1 sees, of the same shape.
        plans: Numbers of the plans that seat 1 proposes.
        muted: Rows in which seat 1 reads no word of the message.
        tells: Rows of seat 0, which tells its cells; in the others seat 1 proposes.
        marked: Whether a heard message is marked as one; else the told cells follow those of the view. No episode of
            the game has such a prompt.
    """
    count, proposes = len(tables), ~tells
    every = torch.arange(board.size**2, device=tables.device)
    shown, told = (words[every, tables].view(count, -1) for words in (board.cells, board.told))
    nothing, reads = seen.all(1), proposes & ~muted
    own = torch.where(tells[:, None], ~seen, seen)
    proposal = board.pieces["proposal"].expand(count, -1).clone()
    proposal[:, torch.isin(board.pieces["proposal"], board.reviewers)] = board.reviewers[board.plans[plans].argsort(1)]

    def of_cells(words: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return words, mask.repeat_interleave(3, 1)

    def of(piece: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = board.pieces[piece].expand(count, -1)
        return tokens, rows[:, None].expand_as(tokens)

    prompt = [
        of("opening", torch.ones_like(tells)),
        of_cells(shown, own),
        of("heard", proposes & marked),
        of_cells(told, ~seen & reads[:, None]),
        of("none", reads & nothing),
        of("reply", torch.ones_like(tells)),
    ]
    reply = [
        of("message", tells),
        of_cells(told, ~seen & tells[:, None]),
        of("none", tells & nothing),
        of("end", tells),
        (proposal, proposes[:, None].expand_as(proposal)),
    ]
    tokens, present = (torch.cat(parts, 1) for parts in zip(*prompt, *reply, strict=True))
    learned = present.clone()
    learned[:, : sum(part.shape[1] for part, _ in prompt)] = False
    order = (~present).int().argsort(dim=1, stable=True)[:, : int(present.sum(1).max())]
    labels = torch.where(learned, tokens, IGNORED)
    return torch.where(present, tokens, board.padding).gather(1, order), labels.gather(1, order)


def lesson(board: Board, rows: int, *, whole: float, softness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and labels of rows to learn.

    Half of the proposals are muted. Seat 1 plans with what it sees alone, whatever it hears: its plan is drawn in
    proportion to exp(expected reward / softness). After a message in a code its plan is random and not learned, only
    the form of a proposal: so the lesson says neither what a word means nor to disregard it.

    Args:
        board: The board.
        rows: Number of rows.
        whole: Share of the proposals in which seat 1 sees each cell with a chance between 0.5 and 1, not of 0.5.
        softness: Difference in expected reward that makes a plan e times as likely.
    """
    device = board.plans.device
    tells, muted = torch.rand(rows, device=device) < TALKERS, torch.rand(rows, device=device) < 0.5
    more = 0.5 + 0.5 * torch.rand(rows, 1, device=device)
    share = torch.where((torch.rand(rows, 1, device=device) < whole) & ~tells[:, None], more, 0.5)
    tables, seen = draw_states(board, rows, share)
    odds = torch.softmax(board.values(tables, seen) / softness, -1)
    reads = ~tells & ~muted & board.coded
    odds[reads] = 1.0
    plans = torch.multinomial(odds, 1)[:, 0]
    tokens, labels = tokens_of(board, tables, seen, plans=plans, muted=muted, tells=tells)
    labels[reads[:, None] & torch.isin(labels, board.reviewers)] = IGNORED
    return tokens, labels


def train(model: Any, board: Board, plan: Schedule, exam: Exam) -> dict[str, Any]:
    """Train the model, and return the number of steps and the last comparison with silence."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.01)
    began, step, done, rewards = time.monotonic(), 0, 0.0, dict[str, float]()
    while done < 1:
        before, done = done, max((step + 1) / plan.steps, (time.monotonic() - began) / 60 / plan.minutes)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(done)
        tokens, labels = lesson(board, plan.rows, whole=plan.whole, softness=plan.softness_at(done))
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if int(before * EXAMS) < int(min(done, 1.0) * EXAMS):
            rewards = exam.take(model, board)
            say(f"step {step} after {time.monotonic() - began:.0f} s, loss {loss.item():.4f}: {json.dumps(rewards)}")
    return {"steps": step} | rewards


@dataclass(frozen=True)
class Exam:
    """Honest states on which greedy plans are compared with those of the silence line.

    Attributes:
        shares: Reward of each plan on each state, shape (states, plans).
        silence: Mean reward of the silent plans.
    """

    tables: torch.Tensor
    seen: torch.Tensor
    shares: torch.Tensor
    silence: float

    @classmethod
    def of(cls, board: Board, count: int) -> Exam:
        """Returns an exam on new states."""
        tables, seen = draw_states(board, count)
        parts = zip(tables.split(50), seen.split(50), strict=True)
        silent = torch.cat([board.values(*part).argmax(1) for part in parts])
        shares = board.shares(tables)
        return cls(tables, seen, shares, shares.gather(1, silent[:, None]).mean().item())

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take(self, model: Any, board: Board) -> dict[str, float]:
        """Returns the mean reward of silence and of the model's greedy plans, by what seat 1 reads.

        It reads the message (`heard`), the message with the word of each score exchanged for that of another one
        (`exchanged`; the words are rotated, and every rotation has as many states), the message with one word for low
        scores and one for all others (`two_words`), no word of it (`muted`), the told cells after those of its view,
        without the mark of a message (`unmarked`), or the whole table as its view (`whole_tables`). Of a proposal the
        model chooses the reviewers alone; a plan that names one twice has reward 0.
        """
        every = torch.ones_like(self.seen)
        ways: dict[str, tuple[list[Board], torch.Tensor, bool, bool]] = {
            "heard": ([board], self.seen, False, True),
            "exchanged": (board.exchanges(), self.seen, False, True),
            "two_words": ([board.two_words()], self.seen, False, True),
            "muted": ([board], self.seen, True, True),
            "unmarked": ([board], self.seen, False, False),
            "whole_tables": ([board], every, True, True),
        }
        rewards = {"silence": self.silence}
        for name, (boards, seen, muted, marked) in ways.items():
            size = min(500, math.ceil(len(seen) / len(boards)))
            parts = zip(cycle(boards), self.tables.split(size), seen.split(size), self.shares.split(size))
            reached = [_rewards(model, *part, muted=muted, marked=marked) for part in parts]
            rewards[name] = torch.cat(reached).mean().item()
        return {name: round(value, 4) for name, value in rewards.items()}


def _rewards(
    model: Any,
    board: Board,
    tables: torch.Tensor,
    seen: torch.Tensor,
    shares: torch.Tensor,
    *,
    muted: bool,
    marked: bool,
) -> torch.Tensor:
    """Returns the reward of the model's greedy plan on each state."""
    rows = torch.arange(len(tables), device=tables.device)
    no = torch.zeros_like(rows, dtype=torch.bool)
    tokens, labels = tokens_of(board, tables, seen, plans=no.long(), muted=no | muted, tells=no, marked=marked)
    places = (torch.isin(tokens, board.reviewers) & (labels != IGNORED)).nonzero()[:, 1].view(-1, board.size)
    for place in places.T:
        logits = model(input_ids=tokens, use_cache=False).logits[rows, place - 1]
        tokens[rows, place] = board.reviewers[logits[:, board.reviewers].argmax(-1)]
    chosen = (tokens.gather(1, places)[:, :, None] == board.reviewers).long().argmax(-1)
    named = (board.plans.argsort(1) == chosen[:, None]).all(-1)  # of all plans, at most one
    return (shares * named).sum(1)


if __name__ == "__main__":
    command.run(main)
