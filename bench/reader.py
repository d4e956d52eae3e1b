"""How many written turns the reader of actions understands, refuses and gets wrong.

`python -m bench.reader` reads the constructed corpus of the tests. `--games FOLDER` also reads dialogues of language
models: JSON files as the repository tejas1995/dialop keeps them, lists of games with a `dialog_history` of turns
"PLAYER-1: …" on DialOp's board. A game that several files hold counts once.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.text import parse_action
from selfplay_pipeline.games.tags import ActionKind

sys.path.append(str(Path(__file__).parents[1] / "tests" / "fast"))
from proposal_corpus import BOARDS, HOSTILE, HOSTILE_SHARED, SHARED, Board, full_proposals


def main(
    games: Annotated[Path | None, typer.Option(help="Also read the dialogues in this folder's JSON files.")] = None,
    show: Annotated[bool, typer.Option(help="List the styles and turns that were not read right.")] = False,
) -> None:
    """Print accepted, refused and mis-read counts as JSON lines."""
    print(json.dumps({"corpus": "full proposals"} | read_corpus(show)))
    print(json.dumps({"corpus": "hostile turns"} | read_hostile(show)))
    if games:
        print(json.dumps({"corpus": games.name} | read_episodes(games, show)))


def outcome(text: str, board: Board) -> tuple[str, tuple[tuple[int, int], ...] | None]:
    """The action's name and proposal, or `refused` and the reason."""
    try:
        action = parse_action(text, board.papers, board.reviewers)
    except ParseError as error:
        return f"refused: {error}", None
    return action.kind.value, action.proposal


def read_corpus(show: bool) -> dict[str, Any]:
    """A full proposal is read right, refused, read as another matching, or taken for another action."""
    found: Counter[str] = Counter()
    failed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for case in full_proposals():
        kind, proposal = outcome(case.text, case.board)
        if kind == ActionKind.PROPOSE:
            result = "accepted" if proposal == case.matching else "misread"
        else:
            result = "refused" if kind.startswith("refused") else "another_action"
        found[result] += 1
        if result != "accepted":
            failed[case.style][result] += 1
    if show:
        for style, counts in failed.items():
            print(f"  {style}: {dict(counts)}", file=sys.stderr)
    names = ("accepted", "refused", "misread", "another_action")
    share = found["accepted"] / found.total()
    return {"turns": found.total(), "share_accepted": round(share, 3), **{name: found[name] for name in names}}


def read_hostile(show: bool) -> dict[str, Any]:
    """A turn that is no action, or another than it seems, is refused or taken for what it is."""
    turns = [(name, BOARDS["3"], text, wanted) for name, (text, wanted) in HOSTILE.items()]
    turns += [(name, SHARED, text, None) for name, text in HOSTILE_SHARED.items()]
    right = 0
    for name, board, text, wanted in turns:
        kind, _ = outcome(text, board)
        is_right = kind.startswith("refused") if wanted is None else kind == wanted
        right += is_right
        if show and not is_right:
            print(f"  {name}: {kind}", file=sys.stderr)
    return {"turns": len(turns), "right": right, "wrong": len(turns) - right}


def read_episodes(folder: Path, show: bool) -> dict[str, Any]:
    """Turns by action, and how many of those with every name in them as a proposal has are read as one."""
    board = Board(PAPERS[:8], REVIEWERS[:8])
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"--games: {folder} holds no .json file")
    histories = {tuple(game["dialog_history"]) for file in files for game in json.loads(file.read_text())}
    found: Counter[str] = Counter()
    for line in (turn for history in sorted(histories) for turn in history):
        text = re.sub(r"^PLAYER-\d: ", "", line)
        kind, proposal = outcome(text, board)
        found[kind.split(":")[0]] += 1
        if names_everyone(text, board):
            looser = loose_matching(text, board)
            found["full_matchings"] += 1
            found["full_matchings_accepted"] += kind == ActionKind.PROPOSE and proposal == looser
            found["full_matchings_misread"] += kind == ActionKind.PROPOSE and proposal != looser
            found["full_matchings_another_action"] += not kind.startswith(("refused", "propose"))
            if show and kind != ActionKind.PROPOSE:
                print(f"  {kind}\n    {text!r}", file=sys.stderr)
    return {"games": len(histories), "turns": sum(map(len, histories))} | dict(found)


def names_everyone(text: str, board: Board) -> bool:
    """Whether a text holds each title and each whole name."""
    return all(name.split(":")[0] in text for name in (*board.papers, *board.reviewers))


def loose_matching(text: str, board: Board) -> tuple[tuple[int, int], ...]:
    """The reviewer whose whole name comes next after the last mention of each paper: a second opinion."""
    pairs = []
    for paper, title in enumerate(board.papers):
        behind = text[text.rindex(title.split(":")[0]) :]
        places = {behind.find(name): index for index, name in enumerate(board.reviewers) if name in behind}
        pairs.append((places[min(places)] if places else -1, paper))
    return tuple(sorted(pairs))


if __name__ == "__main__":
    command.run(main)
