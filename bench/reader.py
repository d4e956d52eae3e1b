"""Counts the turns that the reader of actions accepts, refuses, misreads, and accepts although they are hostile.

`python -m bench.reader` reads the turns of the tests, and people's words in DialOp's games as if they followed a tag.
`--games FOLDER` also reads dialogues of language models: JSON files as the repository tejas1995/dialop keeps them,
lists of games with a `dialog_history` of turns "PLAYER-1: …" on DialOp's board. A game that is in several files counts
once. Turns that the rule was developed on and other turns are counted separately.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from bench import command
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.matching.humans import human_episodes
from selfplay_pipeline.games.matching.proposals import Matching, format_proposal
from selfplay_pipeline.games.matching.text import parse_action
from selfplay_pipeline.games.tags import ActionKind

sys.path.append(str(Path(__file__).parents[1] / "tests" / "fast"))
from proposal_corpus import (
    BOARDS,
    HOSTILE,
    HOSTILE_SHARED,
    SHARED,
    TELLS_MORE,
    Board,
    denied_turns,
    full_proposals,
)

TESTS = Path(__file__).parents[1] / "tests" / "fast"
Turn = tuple[str, Board, str | None, Matching | None]
"""A text, its board, its action (None if it must be refused) and its proposal."""


def main(
    games: Annotated[Path | None, typer.Option(help="Also read the dialogues in this folder's JSON files.")] = None,
    show: Annotated[bool, typer.Option(help="List the turns that were not read right.")] = False,
) -> None:
    """Print the counts of each collection of turns as JSON lines."""
    collections = {"corpus": corpus(), "hostile turns of the corpus": hostile()}
    for half, name in enumerate(("seen", "held back")):
        collections[f"attacker's and polite turns, {name}"] = written_turns(half)
        collections[f"people's words behind a tag, {name}"] = peoples_words(half)
        if games:
            collections[f"{games.name}, {name}"] = models_turns(games, half)
    for name, turns in collections.items():
        print(json.dumps({"turns of": name} | counts(turns, show)))


def counts(turns: Iterable[Turn], show: bool) -> dict[str, int]:
    """Returns the numbers of turns by result."""
    found = Counter[str](dict.fromkeys(("accepted", "refused", "misread", "hostile_refused", "hostile_taken"), 0))
    for text, board, wanted, matching in turns:
        try:
            action = parse_action(text, board.papers, board.reviewers)
            kind, proposal, why = action.kind.value, action.proposal, ""
        except ParseError as error:
            kind, proposal, why = "refused", None, str(error)
        if wanted is None:
            result = "hostile_refused" if kind == "refused" else "hostile_taken"
        else:
            right = kind == wanted and (matching is None or proposal == matching)
            result = "accepted" if right else "refused" if kind == "refused" else "misread"
        found[result] += 1
        if show and result not in ("accepted", "hostile_refused"):
            print(f"  {result}: {text!r} {why}", file=sys.stderr)
    return dict(found)


def corpus() -> Iterator[Turn]:
    """Yields the constructed proposals; those that tell more than their pairs are hostile."""
    for case in full_proposals():
        hostile = case.style in TELLS_MORE
        yield case.text, case.board, None if hostile else ActionKind.PROPOSE, None if hostile else case.matching


def hostile() -> Iterator[Turn]:
    """Yields the corpus's turns that are no action, or another action than they seem."""
    yield from ((text, BOARDS["3"], wanted, None) for text, wanted in HOSTILE.values())
    yield from ((text, SHARED, None, None) for text in HOSTILE_SHARED.values())
    yield from ((text, BOARDS["3"], None, None) for text in denied_turns())


def written_turns(half: int) -> Iterator[Turn]:
    """Yields the turns that were written before the rule."""
    for turn in json.loads((TESTS / "reader_turns.json").read_text()):
        if half_of(turn["name"]) == half:
            matching = ((0, 0), (1, 1), (2, 2)) if turn["wanted"] == ActionKind.PROPOSE else None
            yield turn["text"], BOARDS["3"], None if turn["wanted"] == "refused" else turn["wanted"], matching


def peoples_words(half: int) -> Iterator[Turn]:
    """Yields each message of every other game, before and after the pairs of a proposal and after [accept]."""
    board = BOARDS["8"]
    proposal = format_proposal([(index, index) for index in range(8)], board.papers, board.reviewers)
    words = [said.text for index, episode in enumerate(human_episodes()) if index % 2 == half for said in episode.turns]
    for form, text in product((proposal.replace("Proposal:", "{}"), proposal + "\n{}", "[accept] {}"), words):
        yield form.format(text), board, None, None


def models_turns(folder: Path, half: int) -> Iterator[Turn]:
    """Yields the answers of language models, and their proposals that name everyone once."""
    files = sorted(folder.glob("*_optimization_*.json"))
    if not files:
        raise UserError(f"--games: {folder} holds no file *_optimization_*.json")
    histories = {tuple(game["dialog_history"]) for file in files for game in json.loads(file.read_text())}
    for line in (turn for history in sorted(histories) if half_of(str(history)) == half for turn in history):
        text, board = re.sub(r"^PLAYER-\d: ", "", line), BOARDS["8"]
        answer = re.match(r"\W*\[(accept|reject)\]", text)
        if answer or names_everyone(text, board):
            yield text, board, answer[1] if answer else "propose", None if answer else loose_matching(text, board)


def half_of(text: str) -> int:
    """Returns the half that a text belongs to, pseudo-random but constant."""
    return sha256(text.encode()).digest()[0] % 2


def names_everyone(text: str, board: Board) -> bool:
    """Whether a text contains each title and each full name."""
    return all(name.split(":")[0] in text for name in (*board.papers, *board.reviewers))


def loose_matching(text: str, board: Board) -> tuple[tuple[int, int], ...]:
    """Returns, as a second opinion, the pairs of each paper with the reviewer named next after its last mention."""
    pairs = []
    for paper, title in enumerate(board.papers):
        behind = text[text.rindex(title.split(":")[0]) :]
        places = {behind.find(name): index for index, name in enumerate(board.reviewers) if name in behind}
        pairs.append((places[min(places)] if places else -1, paper))
    return tuple(sorted(pairs))


if __name__ == "__main__":
    command.run(main)
