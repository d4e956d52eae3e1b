"""Measures what the speaker says, and how far the listener's plan follows a message, before a training and after it.

 python -m studies.listen.exam CHECKPOINT EVALUATION --output exam.json

The states are those of an evaluation that `selfplay evaluate` stored. Each exam writes one message for each state in a
way of its own, and computes the exact odds of the two plans of a 2×2 table after it, without sampling.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfplay_pipeline.games.matching.mentions import told_cells
from selfplay_pipeline.games.matching.proposals import short
from selfplay_pipeline.games.matching.speaking import TELLING, TOLD
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.metrics.bootstrap import Column, Interval, Totals

ROWS = 16
"""Number of prompts in one forward pass."""
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
HELD_OUT = (
    "Give {paper} to {reviewer}, that is worth {score}.", "{paper} fits {reviewer} with {score} points.",
    "My best number is {score}, for {reviewer} with {paper}.", "{score} is what {reviewer} would get from {paper}.",
)  # fmt: skip
"""Wordings that the scripted speaker never uses."""
PEOPLE = ("{reviewer} is a {score} at {paper}", "i have {reviewer} {paper} = {score}", "{paper}: {reviewer} ({score})")
"""Wordings in the way in which people write in DialOp's games."""
PROPOSAL = "[propose] Proposal:"
"""Beginning of a proposal in the form that the warm start learned."""
ENGLISH = Path("docs/what-talk-is-worth.md")
"""Ordinary English text, which no training here has."""
MESSAGE = "{message}"
STRANGERS = {"Ava": "Noah", "Daniel": "Sofia"}
"""Reviewers' names that training did not have."""
Cell = tuple[int, int]


class Table(NamedTuple):
    """One 2×2 state: scores by reviewer and paper, with the names that players say."""

    scores: list[list[int]]
    reviewers: list[str]
    papers: list[str]

    def ranked(self, rng: random.Random) -> list[Cell]:
        """Returns the cells, the largest first; equal scores are in random order."""
        cells = [(row, column) for row in (0, 1) for column in (0, 1)]
        return sorted(cells, key=lambda cell: (-self.scores[cell[0]][cell[1]], rng.random()))

    def worth(self, plan: int) -> int:
        """Returns the score of a plan."""
        return sum(self.scores[row][row if plan == 0 else 1 - row] for row in (0, 1))

    def say(self, cell: Cell, form: str, score: object | None = None) -> str:
        """Returns the words for one cell."""
        told = self.scores[cell[0]][cell[1]] if score is None else score
        return form.format(reviewer=self.reviewers[cell[0]], paper=self.papers[cell[1]], score=told)


class Told(NamedTuple):
    """A message, and the plan that it calls for: 0 if reviewer 0 has paper 0, else 1; None if it calls for neither."""

    text: str
    plan: int | None
    reviewers: list[str] | None = None
    """Names of the reviewers in the message, if they are not those of the table."""


def plan_of(cell: Cell) -> int:
    """Returns the plan that holds a cell."""
    return int(cell[0] != cell[1])


def usual(table: Table, cells: Sequence[Cell], rng: random.Random, score: object | None = None) -> str:
    """Returns a message about these cells in the speaker's own wordings, with their scores or another one."""
    return rng.choice(TELLING).format(", ".join(table.say(cell, rng.choice(TOLD), score) for cell in cells))


def largest(table: Table, rng: random.Random) -> Told:
    """The largest cell, as the scripted speaker says it."""
    cell = table.ranked(rng)[0]
    return Told(usual(table, [cell], rng), plan_of(cell))


def exchanged_names(table: Table, rng: random.Random) -> Told:
    """The largest cell, said of the other reviewer."""
    row, column = table.ranked(rng)[0]
    text = table.say((1 - row, column), rng.choice(TOLD), table.scores[row][column])
    return Told(rng.choice(TELLING).format(text), 1 - plan_of((row, column)))


def other_number(table: Table, rng: random.Random) -> Told:
    """The largest cell with another score; the plan stays."""
    cell = table.ranked(rng)[0]
    number = rng.choice([one for one in range(1, 10) if one != table.scores[cell[0]][cell[1]]])
    return Told(usual(table, [cell], rng, number), plan_of(cell))


def held_out(table: Table, rng: random.Random) -> Told:
    """The largest cell in wordings that the speaker does not have."""
    cell = table.ranked(rng)[0]
    return Told(table.say(cell, rng.choice(HELD_OUT)), plan_of(cell))


def as_people(table: Table, rng: random.Random) -> Told:
    """The largest cell as people write it."""
    cell = table.ranked(rng)[0]
    return Told(table.say(cell, rng.choice(PEOPLE)), plan_of(cell))


def in_words(table: Table, rng: random.Random) -> Told:
    """The largest cell with its score as a word."""
    cell = table.ranked(rng)[0]
    score = WORDS[table.scores[cell[0]][cell[1]]]
    return Told(usual(table, [cell], rng, score), plan_of(cell))


def false_cell(table: Table, rng: random.Random) -> Told:
    """The smallest cell, said to be 9."""
    cell = table.ranked(rng)[-1]
    return Told(usual(table, [cell], rng, 9), plan_of(cell))


def cells(number: int) -> Callable[[Table, random.Random], Told]:
    """Returns the exam in which the largest cells are told in random order."""

    def told(table: Table, rng: random.Random) -> Told:
        chosen = table.ranked(rng)[:number]
        rng.shuffle(chosen)
        worth = [sum(table.scores[row][column] for row, column in chosen if plan_of((row, column)) == plan)
                 for plan in (0, 1)]  # fmt: skip
        best = None if worth[0] == worth[1] else int(worth[1] > worth[0])
        return Told(usual(table, chosen, rng), best)

    return told


def strangers(table: Table, rng: random.Random) -> Told:
    """The largest cell of reviewers whose names training did not have."""
    named = table._replace(reviewers=[STRANGERS[name] for name in table.reviewers])
    return largest(named, rng)._replace(reviewers=named.reviewers)


EXAMS: dict[str, Callable[[Table, random.Random], Told]] = {
    "largest cell": largest,
    "names exchanged": exchanged_names,
    "another number": other_number,
    "held-out wordings": held_out,
    "people's wordings": as_people,
    "numbers as words": in_words,
    "a false cell": false_cell,
    "names never met": strangers,
    "two cells": cells(2),
    "three cells": cells(3),
    "all cells": cells(4),
}
"""Exams by name."""


class Listener:
    """A checkpoint in the seat that proposes."""

    def __init__(self, checkpoint: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()

    def odds(self, prompts: Sequence[str], tables: Sequence[Table]) -> np.ndarray:
        """Returns the probability of plan 1, of the two plans that give the first paper to one of both reviewers.

        Args:
            prompts: Rendered conversations up to the listener's turn.
            tables: The state of each prompt, with the names that its message uses.
        """
        found = list[float]()
        for begin in range(0, len(prompts), ROWS):
            own = tables[begin : begin + ROWS]
            named = zip(prompts[begin : begin + ROWS], own, strict=True)
            begun = [f"{prompt}{PROPOSAL} {table.papers[0]}:" for prompt, table in named]
            batch = self.tokenizer(begun, return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.inference_mode():
                logits = self.model(**batch, logits_to_keep=1).logits[:, -1].float()
            for row, table in zip(logits, own, strict=True):
                first = [self.tokenizer.encode(f" {name}", add_special_tokens=False)[0] for name in table.reviewers]
                found.append(float(torch.softmax(row[first], 0)[1]))
        return np.array(found)

    def loss(self, text: str) -> float:
        """Returns the mean negative log-probability of a text's tokens after the first, in nats.

        The text is read in pieces of 256 tokens.
        """
        pieces = torch.tensor(self.tokenizer.encode(text, add_special_tokens=False)).split(256)
        with torch.inference_mode():
            sums = [self.model(piece[None], labels=piece[None]).loss * (len(piece) - 1) for piece in pieces[:-1]]
        return float(sum(sums)) / sum(len(piece) - 1 for piece in pieces[:-1])


class Heard(NamedTuple):
    """One state of an evaluation, as its listener read it."""

    table: Table
    prompt: str
    """The rendered conversation, with MESSAGE in place of the message."""
    said: str
    """The message that its own speaker sampled."""


def table_of(state: Any) -> Table:
    """Returns the table of a stored state."""
    names = [name.split()[0] for name in state["reviewers"]]
    return Table(state["table"], names, [short(paper) for paper in state["papers"]])


def heard(evaluation: Path, tokenizer: Any) -> list[Heard]:
    """Returns the first sampled episode of each state of an evaluation in which both turns were legal."""
    found: dict[int, Heard] = {}
    for record in read_episodes(evaluation / "sampled.jsonl"):
        if record.outcome.status != "agreed" or record.group_index in found:
            continue
        said = record.turns[0].text
        prompt = tokenizer.decode(record.trajectories[1].prompt_ids)
        assert prompt.count(said) == 1
        found[record.group_index] = Heard(table_of(record.state), prompt.replace(said, MESSAGE), said)
    return list(found.values())


def entropy(odds: np.ndarray) -> np.ndarray:
    """Returns the entropy of two plans as a share of even odds, from 0 to 1."""
    parts = np.clip(np.stack([odds, 1 - odds]), 1e-12, 1)
    return np.asarray(-(parts * np.log2(parts)).sum(0))


def mean(values: Column) -> Interval:
    """Returns the mean of values, one for each state, with its 95 % interval."""
    return Totals.of({"mean": (values, np.ones(len(values)))}).intervals()["mean"]


def spoken(evaluation: Path) -> dict[str, Any]:
    """Returns what the first messages of an evaluation's sampled episodes tell; of several cells the first counts.

    A told cell belongs to the best plan in half of the states by chance; states whose plans are worth the same are left
    out.
    """
    found = defaultdict[str, list[float]](list)
    for record in read_episodes(evaluation / "sampled.jsonl"):
        if (said := spoken_in(record)) is None:
            continue
        found["tells one cell"].append(said.cells == 1)
        if said.cells:
            found["its score is true"].append(said.true)
            found["it is the largest"].append(said.largest)
            found["it belongs to the best plan"].append(said.best)
    return {name: mean(values).model_dump() for name, values in found.items()}


class Spoken(NamedTuple):
    """What the first message of an episode tells; of several cells the first counts.

    Attributes:
        cells: Number of cells that it tells; with none, there is no cell, and nothing is true of it.
        true: Whether the told score is the table's.
        largest: Whether the cell has the table's largest score.
        best: Whether the cell belongs to the best plan.
    """

    cells: int
    cell: Cell | None = None
    true: bool = False
    largest: bool = False
    best: bool = False


def spoken_in(record: EpisodeRecord) -> Spoken | None:
    """Returns what the first message of an episode tells; None where both plans are worth the same."""
    table = table_of(record.state)
    plans = [table.worth(plan) for plan in (0, 1)]
    if plans[0] == plans[1]:
        return None
    names: Any = record.state  # full ones, since speakers say those too
    told = list(told_cells(record.turns[0].text, names["papers"], names["reviewers"]).items())
    if not told:
        return Spoken(0)
    (row, column), score = told[0]
    own = table.scores[row][column]
    best = plans[plan_of((row, column))] > min(plans)
    return Spoken(len(told), (row, column), own == score, own == max(map(max, table.scores)), best)


def exam(listener: Listener, states: Sequence[Heard], give: Callable[[Table, random.Random], Told]) -> dict[str, Any]:
    """Returns how likely the listener follows the messages of one exam: even odds are 0.5, whatever the message."""
    rng = random.Random(0)
    given = [(one, give(one.table, rng)) for one in states]
    asked = [(one, told) for one, told in given if told.plan is not None]
    named = [one.table._replace(reviewers=told.reviewers or one.table.reviewers) for one, told in asked]
    prompts = [one.prompt.replace(MESSAGE, f"[message] {told.text}") for one, told in asked]
    odds = listener.odds(prompts, named)
    follows = np.array([plan if told.plan else 1 - plan for plan, (_, told) in zip(odds, asked, strict=True)])
    return {
        "states": len(asked),
        "follows": mean(follows).model_dump(),
        "follows greedily": mean((follows > 0.5).astype(float)).model_dump(),
        "example": asked[0][1].text,
    }


def gates(listener: Listener, states: Sequence[Heard], group: int = 4) -> dict[str, Any]:
    """Returns the entropy over plans after the model's own messages, and the share of groups with a signal."""
    odds = listener.odds([one.prompt.replace(MESSAGE, one.said) for one in states], [one.table for one in states])
    worth = [[one.table.worth(plan) for plan in (0, 1)] for one in states]
    differs = np.array([first != second for first, second in worth])
    mixed = 1 - odds**group - (1 - odds) ** group
    return {
        "entropy": mean(entropy(odds)).model_dump(),
        "groups with a signal": mean(mixed * differs).model_dump(),
    }


def main() -> None:
    """Give all exams to a checkpoint."""
    options = argparse.ArgumentParser(prog="python -m studies.listen.exam", description=__doc__)
    options.add_argument("checkpoint")
    options.add_argument(
        "evaluation",
        type=Path,
        nargs="?",
        help="folder that `selfplay evaluate` wrote; without it, only English is read",
    )
    options.add_argument("--output", type=Path, required=True)
    asked = options.parse_args()
    listener = Listener(asked.checkpoint)
    found: dict[str, Any] = {"nats a token of English": listener.loss(ENGLISH.read_text("utf-8"))}
    if asked.evaluation:
        states = heard(asked.evaluation, listener.tokenizer)
        found |= {"spoken": spoken(asked.evaluation), "gates": gates(listener, states)}
        found |= {name: exam(listener, states, give) for name, give in EXAMS.items()}
    asked.output.write_text(json.dumps(found, indent=1) + "\n")
    print(asked.output.read_text())


if __name__ == "__main__":
    main()
