"""Exchange of names: the same state with other names for its reviewers and papers, and texts in these names.

Scores are drawn alike for all cells, so a state with exchanged rows and columns is as likely as the state itself, and
its plans have the same values. All names keep their places in the prompt; what they stand for changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.matching.proposals import format_proposal, parse_action, short
from selfplay_pipeline.games.matching.rules import MatchingState
from selfplay_pipeline.games.tags import folded

ROWS, COLUMNS = "reviewers", "papers"
Exchange = Mapping[str, Sequence[int]]
"""For `reviewers` and `papers`, the index of each one's new name."""


def draw_names(state: MatchingState, rng: np.random.Generator) -> dict[str, list[int]]:
    """Returns an exchange of names, drawn from all with equal probability."""
    return {of: rng.permutation(state.size).tolist() for of in (ROWS, COLUMNS)}


def renamed(state: MatchingState, names: Exchange) -> MatchingState:
    """Returns the state in which reviewer and paper i have the names of `names[…][i]`.

    Raises:
        ValueError: The exchange is not one of this state's names.
    """
    back = inverse(names, state.size)
    places = np.ix_(back[ROWS], back[COLUMNS])
    one, other = (mask[places] for mask in state.masks)
    return replace(state, table=state.table[places], masks=(one, other))


def inverse(names: Exchange, size: int) -> dict[str, list[int]]:
    """Returns the exchange that undoes another one.

    Raises:
        ValueError: The exchange is not one of `size` reviewers and papers.
    """
    if names.keys() != {ROWS, COLUMNS} or any(sorted(names[of]) != [*range(size)] for of in names):
        raise ValueError(f"{dict(names)} does not give each of {size} {ROWS} and {COLUMNS} a name")
    return {of: np.argsort(names[of]).tolist() for of in names}


def retold(state: MatchingState, names: Exchange, text: str, *, back: bool = False) -> str:
    """Returns a turn with all names exchanged, as `renamed` exchanges them; with `back`, as its inverse does.

    Every spelling that a proposal may have is exchanged for the same spelling of the other name. A name in capitals or
    in small letters stays so. The turn's action and the meaning of a proposal stay the same.
    """
    names = inverse(names, state.size) if back else names
    pattern, spelled = _spellings(state.papers, state.reviewers)
    told = pattern.sub(lambda found: _like(found.group(), *spelled[_folded(found.group())], names, state), text)
    try:
        proposal = parse_action(text, state.papers, state.reviewers).proposal
    except ParseError:
        return told
    if proposal is None:
        return told
    wanted = tuple(sorted((names[ROWS][reviewer], names[COLUMNS][paper]) for reviewer, paper in proposal))
    try:
        exact = parse_action(told, state.papers, state.reviewers).proposal == wanted
    except ParseError:
        exact = False
    return told if exact else format_proposal(wanted, state.papers, state.reviewers)


def _like(found: str, of: str, index: int, kind: int, names: Exchange, state: MatchingState) -> str:
    """Returns the other name in the spelling of the found one."""
    known = _kinds(of, (state.reviewers if of == ROWS else state.papers)[index])
    other = _kinds(of, (state.reviewers if of == ROWS else state.papers)[names[of][index]])
    name = other[min(kind, len(other) - 1)]
    if found == known[kind]:
        return name
    return name.lower() if found.islower() else name.upper() if found.isupper() else name


def _kinds(of: str, name: str) -> list[str]:
    """Returns all spellings of a name, always in the same order."""
    if of == COLUMNS:
        return [name, short(name)]
    first, *others = name.split()
    last = others[-1] if others else first
    return [name, first, last, f"{last}, {first}", f"{first[0]}. {last}", f"{first} {last[0]}."]


@lru_cache
def _spellings(
    papers: tuple[str, ...], reviewers: tuple[str, ...]
) -> tuple[re.Pattern[str], dict[str, tuple[str, int, int]]]:
    """Returns a pattern of every spelling, and for each spelling its kind of thing, its index and its kind."""
    spelled: dict[str, tuple[str, int, int]] = {}
    for of, all_names in ((COLUMNS, papers), (ROWS, reviewers)):
        for index, name in enumerate(all_names):
            for kind, spelling in enumerate(_kinds(of, name)):
                spelled.setdefault(_folded(spelling), (of, index, kind))
    either = "|".join(re.escape(each).replace(r"\ ", r"\s+") for each in sorted(spelled, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.IGNORECASE), spelled


def _folded(name: str) -> str:
    return " ".join(folded(name).split())
