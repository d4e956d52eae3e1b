"""Texts of the game: times, flights, the agent's rooms and proposals, and what users tell of their flights. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from selfplay_pipeline.games import tagged_session, tags
from selfplay_pipeline.games.base import MESSAGE, ParseError
from selfplay_pipeline.games.mediation.rules import DAY, MediationState, Pair, Times

DAYS = ("Wed", "Thu", "Fri", "Sat")
ROOM = re.compile(r"^\W*(?:to\s+)?(?:user\s*)?([01])\s*[:,]\s*", re.IGNORECASE)
PROPOSAL = re.compile(
    r"^\W*(?:user\s*)?0\s*:\s*(?:id|flight)?\s*#?(\d{1,4})\s*[,;\n]?\s*(?:and\s+)?(?:user\s*)?1\s*:\s*(?:id|flight)?\s*#?"
    r"(\d{1,4})\W*$",
    re.IGNORECASE,
)
TOLD = re.compile(r"flight\s*#?(\d{1,3})\b[^.,;?]*?\b(\d{1,3})\b", re.IGNORECASE)
"""Pattern of a flight and of the points that its meetings cost, in English."""
PAIRS = re.compile(r"^\s*\d{1,4}(?:\s+\d{1,4})*\s*$")
"""Pattern of flights and points in the form that small models learn. A longer number would be none of the game."""
OFFERED = re.compile(r"price (-?\d{1,9}),? arrival (-?\d{1,9})(?!\d)")
"""Pattern of what a user tells about its points for the last proposal."""


class ErrorKind(StrEnum):
    """Kinds of illegal actions, for counting."""

    NO_TAG = tags.NO_TAG
    SEVERAL_ACTIONS = tags.SEVERAL_ACTIONS
    MALFORMED = tags.MALFORMED
    EMPTY_MESSAGE = tagged_session.EMPTY_MESSAGE
    NOT_NOW = tagged_session.NOT_NOW
    NOT_YOURS = "not_yours"
    """An action of another role."""
    NO_ROOM = "no_room"
    """A message of the agent that names no user."""
    NO_FLIGHT = "no_flight"
    """A proposal of a flight that does not exist."""


def clock(minute: int) -> str:
    return f"{minute % DAY // 60:02}:{minute % 60:02}"


def span(time: Times) -> str:
    """Returns a time in words, such as `Wed 17:30-21:30` or `Wed 20:54-Thu 04:55`."""
    first, last = DAYS[time.start // DAY], DAYS[time.end // DAY]
    return f"{first} {clock(time.start)}-{'' if first == last else f'{last} '}{clock(time.end)}"


def split_room(body: str) -> tuple[int, str]:
    """Returns the user whom a message of the agent names, and the message without the name.

    Raises:
        ParseError: The message names no user, or says nothing.
    """
    found = ROOM.match(body)
    if found is None:
        raise ParseError(ErrorKind.NO_ROOM, "begin the message with the user to whom you speak: [message] user 0: ...")
    words = body[found.end() :].strip()
    if not words:
        raise ParseError(ErrorKind.EMPTY_MESSAGE, "the message is empty")
    return int(found[1]), words


def parse_proposal(body: str, state: MediationState) -> Pair:
    """Returns the flight of each user in a proposal.

    Raises:
        ParseError: The text is no proposal, or names a flight that does not exist.
    """
    found = PROPOSAL.match(body)
    if found is None:
        raise ParseError(ErrorKind.MALFORMED, "write the proposal as: [propose] user 0: 3, user 1: 5")
    pair = int(found[1]), int(found[2])
    for user, flight in enumerate(pair):
        last = len(state.users[user].flights) - 1
        if flight > last:
            raise ParseError(ErrorKind.NO_FLIGHT, f"user {user} has no flight {flight}; its flights are 0 to {last}")
    return pair


def format_proposal(pair: Pair) -> str:
    return f"[propose] user 0: {pair[0]}, user 1: {pair[1]}"


def told_costs(text: str) -> dict[int, int]:
    """Returns the points for meetings that a message tells of flights, by flight."""
    body = tags.untagged(text)
    if PAIRS.match(body):
        numbers = [int(number) for number in body.split()]
        return dict(zip(numbers[::2], numbers[1::2], strict=False))
    return {int(flight): int(points) for flight, points in TOLD.findall(body)}


def retold(text: str, costs: Mapping[int, int]) -> str:
    """Returns a message with other points for meetings of the flights that it names."""
    if told := told_costs(text):
        if PAIRS.match(tags.untagged(text)):
            return format_costs({**told, **costs})
        return TOLD.sub(lambda found: _with_points(found, costs), text)
    return text


def _with_points(found: re.Match[str], costs: Mapping[int, int]) -> str:
    points = str(costs.get(int(found[1]), found[2]))
    return found[0][: found.start(2) - found.start()] + points


def format_costs(costs: Mapping[int, int]) -> str:
    """Returns the message that tells points for meetings by flight, in the form that small models learn."""
    return f"[{MESSAGE}] " + " ".join(f"{flight} {points}" for flight, points in costs.items())


def told_offer(text: str) -> tuple[int, int] | None:
    """Returns the points for price and arrival that a message tells of the last proposal; None if it tells none."""
    found = OFFERED.search(text)
    return None if found is None else (int(found[1]), int(found[2]))
