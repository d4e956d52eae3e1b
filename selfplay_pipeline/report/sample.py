"""Selects episodes for a page of limited size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from selfplay_pipeline.generate.read_records import open_lines
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.report.reading import Decoder, Drawn, Reading, read_episode, read_state
from selfplay_pipeline.report.scan import Scan, parse

RULE = (
    "whole groups, from every file in turn: first those with its best, worst and median episode and with the most "
    "illegal "
    "actions, then groups evenly spread over the file, until the page is full; a group that is too large is left out"
)


def embedded(data: Any) -> str:
    """Returns JSON that cannot close the HTML element around it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


MOST_REFUSED = 20
"""Number of groups that may fail to fit before the page counts as full."""


@dataclass(frozen=True)
class Sample:
    """Episodes to read; `states[state_of[i]]` is the state of `episodes[i]`."""

    states: list[Drawn]
    episodes: list[Reading]
    state_of: list[int]
    total: int
    """Number of all episodes."""

    @property
    def rule(self) -> str:
        """Displayed description of how the episodes were selected."""
        return "all episodes" if len(self.episodes) == self.total else RULE


def take_sample(scans: Sequence[Scan], decoder_of: Callable[[Scan], Decoder | None], max_bytes: int) -> Sample:
    """Returns the episodes chosen by `RULE`, in the order of the files, of at most `max_bytes` as JSON."""
    taken: dict[tuple[int, int], tuple[Drawn, list[Reading]]] = {}
    room, refused = max_bytes, 0
    for number, group in _in_turn([_order(scan) for scan in scans]):
        state, episodes, size = _read_group(scans[number], number, group, decoder_of(scans[number]), room)
        if size <= room:
            room -= size
            taken[number, group] = state, episodes
        elif (refused := refused + 1) == MOST_REFUSED:
            break
    groups = [taken[key] for key in sorted(taken)]
    return Sample(
        states=[state for state, _ in groups],
        episodes=[episode for _, episodes in groups for episode in episodes],
        state_of=[number for number, (_, episodes) in enumerate(groups) for _ in episodes],
        total=sum(len(scan.places) for scan in scans),
    )


def _order(scan: Scan) -> list[int]:
    """Returns a file's groups, the most informative ones first."""
    groups = list(scan.groups)
    if not scan.places:
        return groups
    by_reward = sorted(scan.places, key=lambda place: place.reward)
    illegal = max(scan.places, key=lambda place: place.illegal)
    telling = [by_reward[-1], by_reward[0], by_reward[len(by_reward) // 2], *([illegal] if illegal.illegal else [])]
    return list(dict.fromkeys([place.group for place in telling] + [groups[i] for i in _spread(len(groups))]))


def _spread(count: int) -> Iterator[int]:
    """Yields range(count) so that every prefix is evenly spread: the van der Corput sequence in base 2."""
    bits = max(1, (count - 1).bit_length())
    for number in range(1 << bits):
        place = int(f"{number:0{bits}b}"[::-1], 2)
        if place < count:
            yield place


def _in_turn(orders: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    for turn in range(max(map(len, orders), default=0)):
        for number, order in enumerate(orders):
            if turn < len(order):
                yield number, order[turn]


def _read_group(
    scan: Scan, number: int, group: int, decoder: Decoder | None, room: int
) -> tuple[Drawn, list[Reading], int]:
    """Returns a group's state, episodes and size; stops reading as soon as the group is too large."""
    records = list(_records(scan, group))
    state, episodes = read_state(records[0]), []
    size = len(embedded(state.model_dump()).encode())
    for record in records:
        episode = read_episode(record, decoder, scan.rules[record.game]).model_copy(update={"file": number})
        size += len(embedded(episode.model_dump()).encode())
        episodes.append(episode)
        if size > room:
            break
    return state, episodes, size


def _records(scan: Scan, group: int) -> Iterator[EpisodeRecord]:
    with open_lines(scan.file.path) as file:
        first = file.tell()
        for place in scan.groups[group]:
            file.seek(first + place.offset)
            yield parse(file.readline(), str(scan.file.path))
