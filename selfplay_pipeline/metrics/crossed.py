"""Means and differences with 95 % intervals over people and game states at once.

Each person plays several states, and each state is played by several people, so that neither the episodes of a person
nor those of a state are independent. The pigeonhole bootstrap (Owen, "The pigeonhole bootstrap", The Annals of Applied
Statistics 1, 2007) resamples people and states independently; an episode counts as often as its person was drawn, times
as often as its state was. It counts both spreads, whereas the larger one of an interval over people and one over states
leaves one of them out.

Few resampled people spread too little, so the deviations are scaled up as `bootstrap.widening` says, by the smaller one
of the numbers of people and of states: for a mean over n people this gives the width of their t-interval. With one
person or one state there is no interval, since the spread is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.figures import Measures
from selfplay_pipeline.metrics.bootstrap import CHUNK, RESAMPLES, Interval, collect, number_or_none, ratio, widening

PEOPLE, STATES = 0x9E0, 0x57A
"""Seeds of the random streams that resample people and states."""


@dataclass(frozen=True)
class Crossed:
    """A numerator and a denominator per person, state and figure; a figure is the ratio of their sums.

    Shapes are (people, states, figures).

    Attributes:
        episodes: Number of episodes, shape (people, states).
    """

    names: tuple[str, ...]
    above: NDArray[np.float64]
    below: NDArray[np.float64]
    episodes: NDArray[np.int64]

    @classmethod
    def of(cls, measured: Sequence[tuple[str, int, Measures]], people: Sequence[str], states: Sequence[int]) -> Crossed:
        """Returns the sums of episodes.

        Args:
            measured: Person, state and figures of each episode.
            people: All people, in the order of the first axis.
            states: All states, in the order of the second axis.
        """
        names = tuple(dict.fromkeys(name for _, _, figures in measured for name in figures))
        sums = np.zeros((2, len(people), len(states), len(names)))
        episodes = np.zeros((len(people), len(states)), dtype=np.int64)
        rows, columns = ({one: at for at, one in enumerate(every)} for every in (people, states))
        for person, state, figures in measured:
            at = rows[person], columns[state]
            episodes[at] += 1
            for number, name in enumerate(names):
                sums[(slice(None), *at, number)] += figures.get(name, (0, 0))
        return cls(names, sums[0], sums[1], episodes)

    def intervals(self) -> dict[str, Interval]:
        """Returns all figures with their intervals."""
        return crossed_contrast([(1, self)])


def crossed_contrast(terms: Sequence[tuple[float, Crossed]], resamples: int = RESAMPLES) -> dict[str, Interval]:
    """Returns a weighted sum of figures with their intervals; people and states are resampled together for all terms.

    Figures that some term lacks are left out, as are a figure's resamples with a denominator of 0. All terms have the
    same people and the same states.
    """
    names = [name for name in terms[0][1].names if all(name in term.names for _, term in terms)]
    people, states = terms[0][1].episodes.shape

    def value(of_people: NDArray[np.float64], of_states: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros((len(of_people), len(names)))
        for weight, term in terms:
            own = [term.names.index(name) for name in names]
            above, below = (
                np.einsum("rsf,rs->rf", np.tensordot(of_people, part[:, :, own], 1), of_states)
                for part in (term.above, term.below)
            )
            total += weight * ratio(above, below)
        return total

    found = value(np.ones((1, people)), np.ones((1, states)))[0]
    values = dict(zip(names, map(number_or_none, found), strict=True))
    least = min(int(term.episodes.any(axis=axis).sum()) for _, term in terms for axis in (0, 1))
    if least < 2:
        return {name: Interval(value=number, low=None, high=None) for name, number in values.items()}
    drawn = np.concatenate(
        [value(_draws(people, PEOPLE, chunk), _draws(states, STATES, chunk)) for chunk in range(-(-resamples // CHUNK))]
    )
    return collect(names, values, found + widening(least) * (drawn - found))


def _draws(count: int, stream: int, chunk: int) -> NDArray[np.float64]:
    """Returns the number of draws of each person or state, shape (CHUNK, count); always the same."""
    rng = np.random.default_rng([stream, count, chunk])
    return rng.multinomial(count, np.full(count, 1 / count), size=CHUNK).astype(np.float64)
