"""DialOp's games between pairs of people, which are in data/dialop with their licence."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from selfplay_pipeline.games.base import HumanEpisode, Said
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.proposals import format_proposal, short
from selfplay_pipeline.games.matching.states import load_state
from selfplay_pipeline.games.tags import ActionKind

GAMES = Path(__file__).parent / "data" / "dialop" / "optimization_human.jsonl"
ABOUT = (
    "games between two humans on 8×8 boards (data/dialop), each looked at from both seats, counted by the rules of "
    "games/matching/questions.py like the policy's episodes; neither human was shy"
)
SHOWN = re.compile(r"- (\w+): ([^<]+)")
"""Pattern of a paper and its reviewer in a proposal, as DialOp displayed it to people."""

BESIDE = "a message beside a proposal of the same seat, with no turn of the partner between"
WAITING = "a message while a proposal waited for its answer"
REPLACED = "a proposal that its author replaced before it was answered"
AGAIN = "a proposal or its rejection, after which its author proposed again at once"

Entry = dict[str, Any]
"""One action in DialOp's log."""


def human_episodes(path: Path = GAMES) -> Iterator[HumanEpisode]:
    """Yields the human games of DialOp; none if the file is missing. Seat 0 is the player with the first turn."""
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        game = json.loads(line)
        log = game["action_log"]
        turns, left_out = turns_of(log)
        first = turns[0][0]["player"]
        state = load_state(_seated(game, first))

        def written(entry: Entry, state: Any = state) -> str:
            if entry["type"] == "message":
                return f"[{ActionKind.MESSAGE}] {entry['message']['data']}"
            if entry["type"] == "proposal":
                return format_proposal(entry["proposal_ids"], state.papers, state.reviewers)
            return f"[{ActionKind.ACCEPT if entry['response']['accept'] else ActionKind.REJECT}]"

        yield HumanEpisode(
            state=state,
            turns=[Said(each["player"] ^ first, each["message"]["data"]) for each in log if each["type"] == "message"],
            reward=game["proposal_reward"] / state.best,
            num_turns=len(log),
            legal=[Said(entry["player"] ^ first, written(entry)) for turn in turns for entry in turn],
            left_out=left_out,
        )


def turns_of(log: Sequence[Entry]) -> tuple[list[list[Entry]], Counter[str]]:
    """Returns the actions that fit the rules of turns, and the number of other actions by the reason for skipping them.

    People wrote at any time, but the rules require a turn of the other seat after a message, or after a proposal with
    its answer. So among consecutive actions of one seat, only the last proposal is kept, or the last message if there
    is no proposal.

    Returns:
        Each message, or proposal with its answer; the last of them ends with the agreement.
    """
    left_out: Counter[str] = Counter()
    kept = []
    for _, run in groupby(_answered(log, left_out), key=lambda turn: turn[0]["player"]):
        turns = list(run)
        proposed = [turn for turn in turns if len(turn) > 1]
        kept.append((proposed or turns)[-1])
        left_out[BESIDE] += len(turns) - max(1, len(proposed))
        left_out[AGAIN] += 2 * len(proposed[:-1])
    return kept, +left_out


def _answered(log: Sequence[Entry], left_out: Counter[str]) -> Iterator[list[Entry]]:
    """Yields, in order, each message by itself and each proposal together with its answer."""
    waiting: Entry | None = None
    for entry in log:
        if entry["type"] == "proposal_response" and waiting is not None:
            yield [waiting, entry]
            waiting = None
        elif entry["type"] == "proposal":
            left_out[REPLACED] += waiting is not None
            waiting = entry
        elif waiting is not None:
            left_out[WAITING] += 1
        else:
            yield [entry]


def _seated(game: dict[str, Any], first: int) -> dict[str, Any]:
    """Returns the state of a game for `load_state`, with player `first` in seat 0, and with the names of reviewers that
    the players saw."""
    proposal = next(entry for entry in game["action_log"] if entry["type"] == "proposal")
    shown = dict(SHOWN.findall(proposal["proposal"]))
    names = {reviewer: shown[short(PAPERS[paper])] for reviewer, paper in proposal["proposal_ids"]}
    one, two = (1, 2) if first == 0 else (2, 1)
    return {
        **{key: game[key] for key in ("table", "best_assignment_reward")},
        **{"mask1": game[f"mask{one}"], "mask2": game[f"mask{two}"]},
        **{"scale1": game[f"scale{one}"], "scale2": game[f"scale{two}"]},
        "reviewers": [names.get(reviewer, known) for reviewer, known in enumerate(REVIEWERS[: len(game["table"])])],
    }
