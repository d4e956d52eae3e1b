"""Order of the episodes of a study: a fixed list for each person, balanced within a person and over people. Pure.

As many people as there are partners form a square. Within a square, everybody has the same states at the same places
of the list, and the partners are rotated (a Latin square), so that each partner plays each state and each place once.
Between squares the states, their order, the altered places and the seats change. The columns of the square are those of
Williams (Australian Journal of Scientific Research A 2, 1949), so that each partner follows each other one about
equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.base import STUDY

PARTNERS, DECK, STATES, ALTERED = range(4)


@dataclass(frozen=True)
class Trial:
    """One episode in a person's list.

    Attributes:
        state: Number of the state.
        partner: Number of the partner.
        seat: Seat of the person.
        altered: Whether the partner hears other messages than the person's.
    """

    state: int
    partner: int
    seat: int
    altered: bool


@dataclass(frozen=True)
class Order:
    """Lists of all people of a study.

    Attributes:
        states: Number of states, at least `episodes`.
        partners: Number of partners.
        seats: Seats that people hold.
        episodes: Number of episodes of each person.
        altered: Number of these in which the partner hears other messages; fewer than `episodes`.
    """

    seed: int
    states: int
    partners: int
    seats: Sequence[int]
    episodes: int
    altered: int = 0

    def trials(self, person: int) -> list[Trial]:
        """Returns the list of a person, who is numbered from 0.

        No state is repeated. Each partner is met equally often, up to one episode. The altered episodes are spread over
        the partners as equally as the first place, which is never altered, allows: altered messages come from earlier
        episodes.
        """
        square, row = divmod(person, self.partners)
        names = self._rng(PARTNERS).permutation(self.partners)
        columns, states, altered = self._columns(square), self._states(square), self._altered(square)
        found = []
        for place, state in enumerate(states):
            partner = int(names[(columns[place] + row) % self.partners])
            turn = place // self.partners + square + partner
            found.append(Trial(state, partner, self.seats[turn % len(self.seats)], place in altered))
        return found

    def _columns(self, square: int) -> list[int]:
        """Returns the offset of the partner at each place."""
        zigzag = [(at + 1) // 2 if at % 2 else -(at // 2) for at in range(self.partners)]
        if square % 2:  # the second half of the design for an odd number of partners
            zigzag.reverse()
        blocks = (divmod(place, self.partners) for place in range(self.episodes))
        return [(zigzag[column] + block) % self.partners for block, column in blocks]

    def _states(self, square: int) -> list[int]:
        """Returns the state of each place; consecutive squares take consecutive parts of one deck."""
        deck = self._rng(DECK).permutation(self.states)
        hand = [deck[(square * self.episodes + at) % self.states] for at in range(self.episodes)]
        return [int(state) for state in self._rng(STATES, square).permutation(hand)]

    def _altered(self, square: int) -> set[int]:
        """Returns the altered places, spread over the offsets of the partners."""
        columns, found, used = self._columns(square), set[int](), Counter[int]()
        left = [int(place) for place in self._rng(ALTERED, square).permutation(range(1, self.episodes))]
        for _ in range(self.altered):
            place = min((place for place in left if place not in found), key=lambda place: used[columns[place]])
            found.add(place)
            used[columns[place]] += 1
        return found

    def _rng(self, *use: int) -> np.random.Generator:
        return np.random.default_rng([STUDY, self.seed, *use])
