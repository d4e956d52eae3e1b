"""DialOp's games between two people, which are in data/dialop with their licence.

People took turns by messages, and the agent could propose at any time. Here a turn is one action, so an episode is put
in this order: messages that one person wrote in a row are one turn, and a proposal is a turn of the agent after a
message of the user. What does not fit is left out, with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfplay_pipeline.games.base import MESSAGE, HumanEpisode, Said
from selfplay_pipeline.games.planning.catalogue import value_of
from selfplay_pipeline.games.planning.rules import (
    AGENT,
    STOPS,
    USER,
    AnyPreference,
    Budget,
    Itinerary,
    Liking,
    OfCategory,
    Place,
    PlanningState,
    Visit,
)
from selfplay_pipeline.games.planning.text import format_proposal
from selfplay_pipeline.games.recorded import RecordedGame, episodes_of, read_games

GAMES = Path(__file__).parent / "data" / "dialop" / "planning_human.jsonl.gz"
ABOUT = "games between two humans, a user and an agent (data/dialop), each looked at from both seats"

JOINED = "a message that is joined to the one before it, of the same person"
UNASKED = "a message of the agent before the user had spoken, or again after a rejection"
BESIDE = "a message of the agent that it wrote beside a proposal"
WAITING = "a message while a proposal waited for its answer"
PARTIAL = "a proposal of fewer than three places, or an answer to it"
REPLACED = "a proposal that the agent replaced before it was answered"
AGAIN = "a rejected proposal, or its rejection, after which the user said nothing before the next one"
NOT_ALL = "a game in which the user said nothing before the end, so that our rules cannot play it"


def recorded() -> Iterator[RecordedGame]:
    """Yields the recorded games; none if the file is missing."""
    return read_games(GAMES)


def human_episodes() -> Iterator[HumanEpisode]:
    """Yields the human games of DialOp; none if the file is missing."""
    return episodes_of(recorded(), state_of, legal_turns)


def state_of(game: dict[str, Any]) -> PlanningState:
    """Returns the state of a recorded game."""
    *preferences, (_, _, _, travel) = game["preferences"]
    places = [
        Place(
            name=event["name"],
            category=event["etype"],
            price=event["est_price"],
            location=tuple(event["loc"]),
            features={kind: value_of(value) for kind, value in event["features"].items()},
        )
        for event in game["events"]
    ]
    return PlanningState(
        places=tuple(places),
        preferences=tuple(preference_of(kind, about) for _, _, kind, about in preferences),
        travel=-travel["weight"],
    )


def preference_of(kind: str, about: dict[str, Any]) -> AnyPreference:
    """Returns a recorded preference."""
    weight = abs(about["weight"])
    match kind:
        case "PriceBudgetPreference":
            return Budget(weight=weight, dollars=about["budget"])
        case "WantToGo":
            return Visit(weight=weight, names=tuple(about["event_set"]), penalize=about["penalize"])
        case "AtLeastOneEventType":
            return OfCategory(weight=weight, category=about["etype"], penalize=about["penalize"])
        case _:
            bad, good = (tuple(map(value_of, values)) for values in about["value_sets"])
            return Liking(weight=weight, feature=about["name"], bad=bad, good=good)


def places_of(entry: dict[str, Any]) -> Itinerary | None:
    """Returns the places of a recorded proposal; None if it has fewer than three."""
    names = [one["name"] for one in entry["proposal"][::2] if one is not None]
    return (names[0], names[1], names[2]) if len(names) == STOPS else None


def legal_turns(game: dict[str, Any], left_out: Counter[str]) -> list[Said]:
    """Returns the turns of a game that the rules allow; empty if they cannot play it.

    Args:
        left_out: Counts of actions that are left out by reason, to which this function adds.
    """
    turns: list[Said] = []
    offered: Itinerary | None = None
    for entry in game["action_log"]:
        if entry["type"] == "message":
            if offered is not None:
                left_out[WAITING] += 1
            else:
                _say(turns, entry["player"], entry["message"]["data"], left_out)
        elif entry["type"] == "proposal":
            left_out[REPLACED] += offered is not None
            offered = places_of(entry)
            left_out[PARTIAL] += offered is None
        elif offered is None:
            left_out[PARTIAL] += 1
        else:
            _propose(turns, offered, entry["response"]["accept"], left_out)
            offered = None
    if not turns or turns[-1].action != "accept":
        left_out.clear()
        left_out[NOT_ALL] = len(game["action_log"])
        return []
    return turns


def _say(turns: list[Said], seat: int, text: str, left_out: Counter[str]) -> None:
    last = turns[-1] if turns else None
    if last is not None and last.action == MESSAGE and last.seat == seat:
        left_out[JOINED] += 1
        turns[-1] = Said(seat, f"{last.text} / {text}")
    elif seat == AGENT and (last is None or last.action != MESSAGE):
        left_out[UNASKED] += 1
    else:
        turns.append(Said(seat, f"[{MESSAGE}] {text}"))


def _propose(turns: list[Said], places: Itinerary, accepted: bool, left_out: Counter[str]) -> None:
    if turns and turns[-1].action == MESSAGE and turns[-1].seat == AGENT:
        left_out[BESIDE] += 1
        turns.pop()
    if turns and turns[-1].action == "reject":
        left_out[AGAIN] += 2
        del turns[-2:]
    if not turns:
        return
    answer = "accept" if accepted else "reject"
    turns.append(Said(AGENT, format_proposal(places), "propose"))
    turns.append(Said(USER, f"[{answer}]", answer))
