"""DialOp's games between three people, which are in data/dialop with their licence.

People wrote at any time, in both rooms at once. The rules here take turns, so an episode is put in their order:
messages that one person wrote in a row are one turn, and what a room says does not change for the other room. Between
two proposals a room must be: the user, then any number of pairs of agent and user. What does not fit is left out, with
its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from selfplay_pipeline.games.base import MESSAGE, HumanEpisode, Said
from selfplay_pipeline.games.mediation.rules import (
    AGENT,
    USERS,
    Event,
    Flight,
    MediationState,
    Pair,
    User,
)
from selfplay_pipeline.games.mediation.text import format_proposal
from selfplay_pipeline.games.recorded import RecordedGame, episodes_of, read_games

GAMES = Path(__file__).parent / "data" / "dialop" / "mediation_human.jsonl.gz"
ABOUT = "games between three humans, two users and an agent (data/dialop), each looked at from all three seats"
FIRST_DAY = datetime(2023, 5, 31)

JOINED = "a message that is joined to the one before it, of the same person in the same room"
UNASKED = "a message of the agent before the user of the room had spoken, or again after a proposal had failed"
UNANSWERED = "a message of the agent to which the user did not answer before the next proposal"
WAITING = "a message while a proposal waited for its answers"
REPLACED = "a proposal, or an answer to it, that the agent replaced before both users had answered"
AGAIN = "a proposal that failed, or an answer to it, with a user who said nothing before the next one"
LATE = "an answer to no proposal, or a second one"
NOT_ALL = "a game in which a user said nothing before the end, so that our rules cannot play it"

Entry = dict[str, Any]
"""One action in DialOp's log."""


@dataclass
class Part:
    """Messages before a proposal, and the proposal with its answers.

    Attributes:
        said: Messages as (number in the log, room, seat, text).
        pair: Flights of the proposal.
        answers: Whether each user accepted.
        actions: Number of recorded actions of the proposal and its answers.
    """

    said: list[tuple[int, int, int, str]] = field(default_factory=list)
    pair: Pair = (0, 0)
    answers: dict[int, bool] = field(default_factory=dict)

    @property
    def both_spoke(self) -> bool:
        """Whether each user said something."""
        return {seat for _, _, seat, _ in self.said} >= {*USERS}

    @property
    def actions(self) -> int:
        return 1 + len(self.answers)


def recorded() -> Iterator[RecordedGame]:
    """Yields the recorded games; none if the file is missing."""
    return read_games(GAMES)


def human_episodes() -> Iterator[HumanEpisode]:
    """Yields the human games of DialOp that the rules can play; none if the file is missing."""
    return episodes_of(recorded(), state_of, legal_turns)


def state_of(game: dict[str, Any]) -> MediationState:
    """Returns the state of a recorded game."""
    users = []
    for each in game["player_data"]:
        shared = {(event["start"], event["end"]) for event in each["shared_calendar"]}
        events = [
            Event(
                start=minute(event["start"]),
                end=minute(event["end"]),
                importance=event["importance"],
                shared=(event["start"], event["end"]) in shared,
            )
            for event in each["calendar"]
        ]
        flights = [
            Flight(carrier=one["carrier"], price=one["price"], start=minute(one["start"]), end=minute(one["end"]))
            for one in each["flights"]
        ]
        users.append(User(flights=flights, events=events, **{key: each[key] for key in ("mean_price", "price_pref")}))
    return MediationState(users=users, arrival_pref=game["player_data"][0]["arrival_time_pref"])


def minute(time: str) -> int:
    """Returns the minute of a recorded time."""
    return int((datetime.fromisoformat(time) - FIRST_DAY).total_seconds()) // 60


def legal_turns(game: dict[str, Any], left_out: Counter[str]) -> list[Said]:
    """Returns the turns of a game that the rules allow, in an order that they allow; empty if they cannot play it.

    Args:
        left_out: Counts of actions that are left out by reason, to which this function adds.
    """
    parts = _merged(_parts(game, left_out), left_out)
    if not all(part.both_spoke for part in parts):
        left_out.clear()
        left_out[NOT_ALL] = len(game["action_log"])
        return []
    turns = []
    for part in parts:
        turns += _messages(part, left_out)
        turns.append(Said(AGENT, format_proposal(part.pair), "propose"))
        for user in USERS:
            answer = "accept" if part.answers[user] else "reject"
            turns.append(Said(user, f"[{answer}]", answer))
    return turns


def _parts(game: dict[str, Any], left_out: Counter[str]) -> list[Part]:
    parts, waiting = [Part()], False
    for number, entry in enumerate(game["action_log"]):
        part = parts[-1]
        if entry["type"] == "message":
            room, seat = entry["vroom"], entry["player"]
            if waiting:
                left_out[WAITING] += 1
            else:
                part.said.append((number, room, seat, entry["message"]["data"]))
        elif entry["type"] == "proposal":
            left_out[REPLACED] += part.actions if waiting else 0
            flights = [user["flights"] for user in game["player_data"]]
            one, other = (flights[user].index(entry["proposals"][user]["proposal_data"]) for user in USERS)
            part.pair, part.answers, waiting = (one, other), {}, True
        elif not waiting or entry["player"] in part.answers:
            left_out[LATE] += 1
        else:
            part.answers[entry["player"]] = entry["response"]["accept"]
            if len(part.answers) == len(USERS):
                parts.append(Part())
                waiting = False
    return parts[:-1]


def _merged(parts: Sequence[Part], left_out: Counter[str]) -> list[Part]:
    """Returns the parts in which both users speak; a proposal without words of a user before the next one goes."""
    kept: list[Part] = []
    for part in parts:
        if kept and not (part.both_spoke and kept[-1].both_spoke):
            left_out[AGAIN] += kept[-1].actions
            kept[-1] = Part(kept[-1].said + part.said, part.pair, part.answers)
        else:
            kept.append(part)
    return kept


def _messages(part: Part, left_out: Counter[str]) -> list[Said]:
    """Returns the messages of a part in an order that the rules allow."""
    first, pairs = [], []
    for room in USERS:
        said = [entry for entry in part.said if entry[1] == room]
        runs = [[*run] for _, run in groupby(said, key=lambda entry: entry[2])]
        left_out[JOINED] += sum(len(run) - 1 for run in runs)
        if runs and runs[0][0][2] == AGENT:
            left_out[UNASKED] += 1
            del runs[0]
        if runs and runs[-1][0][2] == AGENT:
            left_out[UNANSWERED] += 1
            del runs[-1]
        first.append(_joined(runs[0], room))
        pairs += [
            (one[0][0], _joined(one, room), _joined(two, room)) for one, two in zip(runs[1::2], runs[2::2], strict=True)
        ]
    return first + [turn for _, *both in sorted(pairs, key=lambda pair: pair[0]) for turn in both]


def _joined(run: list[tuple[int, int, int, str]], room: int) -> Said:
    seat = run[0][2]
    text = " / ".join(entry[3] for entry in run)
    return Said(seat, f"[{MESSAGE}] {f'user {room}: ' if seat == AGENT else ''}{text}")
