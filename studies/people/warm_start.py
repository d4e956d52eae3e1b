"""Makes a small model that plays DialOp's boards: it tells what it sees, plans by its own view, and ignores messages.

It is a warm start for 8×8 boards with secret scales, of which players see digits (`studies.people.rounded`); two CPU
cores make it in less than an hour. Two things make it quick: it begins as a model that plans on 4×4 boards, and it
learns the chances of all reviewers of a paper at once, not of a drawn one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench import command
from selfplay_pipeline.core.files import filling
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.games.matching.humans import human_episodes
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.rules import MatchingState, own_view_matching
from studies.common.planner import PLANNER, model_at, risen_and_fallen
from studies.people.rounded import RoundedState
from studies.people.rows import FULL, RULES, Dialect, Episode, Row, draw_state

RECORD = "warm_start.json"
"""File with the choices of the training, and those of the model that was trained further."""
SMALLEST, MET = 3, 4
"""Sizes of the smallest boards, and of those that the model to begin with has met."""
NAMES = (
    [f" {name.split()[0]}" for name in REVIEWERS[:FULL]],
    [f" {title.split(':')[0]}" for title in PAPERS[:FULL]],
    [title.split(":")[0] for title in PAPERS[:FULL]],
)
"""Tokens of reviewers, of papers after a space, and of papers at the beginning of a line."""
FIRST_BOARDS = 0.15
"""Share of the training in which boards grow to their full size; later a tenth of the boards is smaller."""
SOFTEST, SHARPEST = 0.03, 0.008
"""Difference in reward that makes a choice e times as likely, at the beginning and in the last fifth."""
WARM_UP = 0.02
"""Share of the training over which the learning rate rises."""
EXAMS, EXAMINED, EXAM_SEED = 12, 40, 99
"""Number of comparisons with the own view, and number of states and seed of each."""
REST = 0.5
"""Weight of the loss of all tokens that name no reviewer in a proposal."""


def main(
    output: Annotated[Path, typer.Argument(help="Folder of the new model.")],
    model: Annotated[
        str, typer.Option(help="Model whose layers it begins with, or a model of this command to train further.")
    ] = PLANNER,
    steps: Annotated[int, typer.Option(min=12, help="Optimizer steps.")] = 1200,
    rows: Annotated[int, typer.Option(min=2, help="Rows of a step.")] = 48,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak of AdamW's learning rate.")] = 2e-3,
    talks: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the steps in which seats talk; in the others seat 0 proposes.")
    ] = 0.5,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="All episodes are of the fixed protocol: one message, one proposal.")
    ] = False,
    muted: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the episodes in which messages are heard without their words.")
    ] = 0.3,
    seed: Annotated[int, typer.Option(help="Seeds weights and rows.")] = 0,
) -> None:
    """Train the model, and say how its greedy plans by its own view compare with the best ones by that view."""
    check_folder(output, "model")
    torch.manual_seed(seed)
    source = Path(model_at(model))
    tokenizer = AutoTokenizer.from_pretrained(source)
    begun: Any = json.loads((source / RECORD).read_text("utf-8")) if (source / RECORD).exists() else {}
    if "talks" in begun:
        policy = AutoModelForCausalLM.from_pretrained(source)
    else:
        begun, policy = model, grown(source)
    lessons = Lessons(Dialect.of(tokenizer), steps, rows, talks, muted, seed, fixed=fixed)
    record = {
        "model": begun,
        "steps": steps,
        "rows": rows,
        "learning_rate": learning_rate,
        "talks": talks,
        "muted": muted,
        "fixed": fixed,
        "seed": seed,
    }
    record |= train(policy, lessons, learning_rate)
    with filling(output) as new:
        tokenizer.save_pretrained(new)
        policy.save_pretrained(new)
        (new / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def grown(folder: Path) -> Any:
    """Returns a model that plans on small boards, with weights for the names of large ones.

    A name that it never met gets random weights about those of the names that it did meet.
    """
    model, vocabulary = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder).get_vocab()
    with torch.no_grad():
        for part in (model.get_input_embeddings(), model.get_output_embeddings()):
            for spelt in NAMES:
                met = torch.stack([part.weight[vocabulary[name]] for name in spelt[:MET]])
                for name in spelt[MET:]:
                    noise = (met - met.mean(0)).std() * torch.randn(met.shape[1])
                    part.weight[vocabulary[name]] = met.mean(0) + noise
    return model


@dataclass(frozen=True)
class Batch:
    """Padded rows of one step.

    Attributes:
        tokens: Shape (rows, longest).
        plain: Tokens that are learned as they are, in the same shape.
        soft: Row and place of each name in a proposal, shape (names, 2).
        names: Tokens of all reviewers at these places, shape (names, reviewers); a smaller board repeats one.
        chances: Their chances, in the same shape.
    """

    tokens: torch.Tensor
    plain: torch.Tensor
    soft: torch.Tensor
    names: torch.Tensor
    chances: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Batch:
        shape = len(rows), max(len(row.tokens) for row in rows)
        tokens, plain = np.zeros(shape, np.int64), np.zeros(shape, bool)
        soft, names, chances = list[tuple[int, int]](), list[list[int]](), list[NDArray[np.float64]]()
        for number, row in enumerate(rows):
            tokens[number, : len(row.tokens)] = row.tokens
            plain[number, : len(row.tokens)] = row.learned
            for proposal in row.soft:
                plain[number, proposal.places] = False
                lacks = FULL - len(proposal.names)
                soft += [(number, place) for place in proposal.places]
                names += [proposal.names + proposal.names[:1] * lacks] * len(proposal.places)
                chances += [np.pad(one, (0, lacks)) for one in proposal.chances]
        arrays = tokens, plain, np.array(soft), np.array(names), np.array(chances, np.float32)
        return cls(*map(torch.from_numpy, arrays))


class Lessons(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The batches of a training, each of boards of one size."""

    def __init__(
        self, dialect: Dialect, steps: int, rows: int, talks: float, muted: float, seed: int, *, fixed: bool
    ) -> None:
        self.dialect, self.steps, self.rows, self.talks, self.muted = dialect, steps, rows, talks, muted
        self.seed, self.fixed = seed, fixed

    def __iter__(self) -> Iterator[Batch]:
        rng = np.random.default_rng(self.seed)
        for done in np.arange(self.steps) / self.steps:
            softness = SOFTEST * (SHARPEST / SOFTEST) ** min(1.0, 1.25 * done)
            is_full = rng.random() < min(0.9, done / FIRST_BOARDS)
            size = FULL if is_full else int(rng.integers(SMALLEST, FULL + 1))
            talks = bool(self.fixed or rng.random() < self.talks)
            rows = list[Row]()
            while len(rows) < (self.rows // 2 if talks else self.rows if size == FULL else 2 * self.rows):
                mute = bool(rng.random() < self.muted)
                episode = Episode(self.dialect, draw_state(size, rng), rng, mute=mute, fixed=self.fixed)
                rows += episode.play(softness, talks=talks)
            yield Batch.of(rows)


def losses(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the divergence of the model's names in proposals from their chances, and the loss of all other tokens."""
    states = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    rows, places = batch.soft.T
    found = torch.log_softmax(model.lm_head(states[rows, places - 1]), -1).gather(1, batch.names)
    plan = torch.special.xlogy(batch.chances, batch.chances).sum(1) - (batch.chances * found).sum(1)
    rows, places = batch.plain.nonzero().T
    rest = torch.nn.functional.cross_entropy(model.lm_head(states[rows, places - 1]), batch.tokens[rows, places])
    return plan.mean(), rest


def train(model: Any, lessons: Lessons, rate: float) -> dict[str, Any]:
    """Train the model, and return the number of rows and the last comparison with plans by the own view."""
    batches, steps = torch.utils.data.DataLoader(lessons, batch_size=None, num_workers=1), lessons.steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    exams, seen, began = exams_of(lessons.dialect), 0, time.monotonic()
    for step, batch in enumerate(batches, start=1):
        for group in optimizer.param_groups:
            group["lr"] = rate * risen_and_fallen(step / steps, WARM_UP)
        plan, rest = losses(model, batch)
        optimizer.zero_grad(set_to_none=True)
        (plan + REST * rest).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += len(batch.tokens)
        if step * EXAMS // steps > (step - 1) * EXAMS // steps:
            found = {name: exam.take(model) for name, exam in exams.items()}
            passed = f"step {step}, {seen} rows, {(time.monotonic() - began) / 60:.1f} minutes"
            say(f"{passed}: loss {plan.item():.3f} and {rest.item():.3f}, {json.dumps(found)}")
    return {"rows_seen": seen} | found


@dataclass(frozen=True)
class Exam:
    """Views of states on which greedy plans are compared with the best ones by the own view."""

    views: list[tuple[MatchingState, int]]
    tokens: torch.Tensor
    places: torch.Tensor
    """Places of the names in each row's proposal, shape (views, papers)."""
    names: torch.Tensor

    @classmethod
    def of(cls, dialect: Dialect, states: Sequence[MatchingState]) -> Exam:
        views, rows, places = (
            [(state, seat) for state in states for seat in (0, 1)],
            list[list[int]](),
            list[list[int]](),
        )
        for state, seat in views:
            opening = dialect.pieces["opening"] + dialect.cells(state, seat) + dialect.pieces["reply"]
            proposal, at = dialect.proposal(state, range(FULL))
            rows.append(opening + proposal)
            places.append([len(opening) + place for place in at])
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return cls(views, tokens, torch.tensor(places), torch.tensor([*dialect.reviewers.values()]))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take(self, model: Any) -> dict[str, float]:
        """Returns the mean rewards of the model's greedy plans and of the best ones by the own view.

        Of a proposal the model chooses the names alone; a plan that names one twice has reward 0.
        """
        tokens, rows, chosen = self.tokens.clone(), torch.arange(len(self.tokens)), list[torch.Tensor]()
        for place in self.places.T:
            states = model.model(input_ids=tokens[:, : int(place.max())], use_cache=False).last_hidden_state
            chosen.append(model.lm_head(states[rows, place - 1])[:, self.names].argmax(1))
            tokens[rows, place] = self.names[chosen[-1]]
        rewards, own = list[float](), list[float]()
        for (state, seat), plan in zip(self.views, torch.stack(chosen, 1).tolist(), strict=True):
            legal = len({*plan}) == FULL
            rewards.append(
                state.score(tuple((one, paper) for paper, one in enumerate(plan))) / state.best if legal else 0.0
            )
            own.append(state.score(own_view_matching(state, seat, RULES.mean_score)) / state.best)
        return {"reward": round(float(np.mean(rewards)), 4), "own_view": round(float(np.mean(own)), 4)}


def exams_of(dialect: Dialect) -> dict[str, Exam]:
    """Returns exams on states that people played, on the same where each seat sees all cells of both, and on new ones.

    The second exam says how well the model plans with what it could be told.
    """
    known = [RoundedState.of(one.state) for one in human_episodes()]
    played = [state for state in known if {*state.reviewers} == {*dialect.reviewers}][:EXAMINED]
    both = [replace(one.plain, masks=(one.masks[0] | one.masks[1],) * 2) for one in played]
    rng = np.random.default_rng(EXAM_SEED)
    return {
        "people": Exam.of(dialect, played),
        "people, both views": Exam.of(dialect, [*map(RoundedState.of, both)]),
        "new": Exam.of(dialect, [draw_state(FULL, rng) for _ in range(EXAMINED)]),
    }


if __name__ == "__main__":
    command.run(main)
