"""Resampling of everything on a board that is hidden from one player, for the states of swapped messages.

States are drawn from the rules given the player's view until one passes the hard filter, so the distribution is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.matching.mentions import retold
from selfplay_pipeline.games.matching.rules import SCALE_MIN, VISIBLE, MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.states import draw_scores
from selfplay_pipeline.games.matching.wordless import Readings, passes_filter

AT_ONCE = 1 << 10
"""Largest number of states drawn at a time; the number starts at 1 and doubles with each draw."""
NO_BOARD = "no state of this configuration looks to player {seat} as this one does; is it from another one?"
TRIES = 10_000
"""Maximum number of draws; far fewer suffice if the original state passes the filter."""


class Board(NamedTuple):
    """A drawn board that passes the hard filter.

    Attributes:
        number: Its place among the boards that were drawn at the same time.
        table: Its scores.
        masks: The visible cells of both players.
        best: Its best score.
    """

    number: int
    table: NDArray[np.int64]
    masks: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    best: int


def redraw(state: MatchingState, seat: int, config: MatchingConfig, rng: np.random.Generator) -> MatchingState:
    """Returns a state drawn from the rules given the view of one player: its mask and the numbers that it sees.

    Hidden scores, the partner's mask and both scales are resampled. The true scores of visible cells are drawn from the
    scores that the player's scaled numbers can represent.

    Raises:
        UserError: The configuration keeps some states that fail the filter, or it cannot have drawn the state.
    """
    shown, readings, chosen = state.view(seat), Readings.of(state, seat, config), np.zeros(0, np.int64)

    def draws(count: int) -> NDArray[np.int64]:
        nonlocal chosen
        chosen, scores = readings.draws(count, rng)
        return scores

    for board in boards(state, seat, config, rng, draws) if len(readings.chances) else ():
        scales = [float(rng.uniform(SCALE_MIN, config.scale_max)) for _ in state.scales]
        scales[seat] = float(rng.uniform(*readings.scales[chosen[board.number]]))
        drawn = replace(state, table=board.table, masks=board.masks, scales=(scales[0], scales[1]), best=board.best)
        if drawn.view(seat) == shown:  # a scale at the very end of its range may round otherwise
            return drawn
    raise UserError(NO_BOARD.format(seat=seat))


def boards(
    state: MatchingState,
    seat: int,
    config: MatchingConfig,
    rng: np.random.Generator,
    draws: Callable[[int], NDArray[np.int64]],
) -> Iterator[Board]:
    """Yields boards that are drawn from the rules given what a player sees, at most one of each draw.

    Args:
        state: The state that the player sees.
        seat: The player.
        config: The rules.
        rng: The generator.
        draws: Returns as many draws as asked for of the scores that the player sees, shape (draws, visible cells).

    Raises:
        UserError: The configuration keeps some states that fail the filter.
    """
    if config.hard_factor and config.unfiltered_after:
        raise UserError("game.unfiltered_after: messages cannot be swapped if some states are kept unfiltered; set 0")
    own, count = state.masks[seat], 1
    for _ in range(TRIES):
        shape = (count, *own.shape)
        partners = np.broadcast_to(~own, shape)
        if config.visibility == "independent":
            partners = rng.random(shape) < VISIBLE
        tables = np.where(partners, draw_scores(config, shape, rng), round(config.mean_score))
        tables[:, own] = draws(count)
        best, passed = passes_filter(tables, (np.broadcast_to(own, shape), partners), config)
        for found in np.flatnonzero(passed)[:1]:
            masks = (own, partners[found]) if seat == 0 else (partners[found], own)
            yield Board(int(found), tables[found], masks, int(best[found]))
        count = min(2 * count, AT_ONCE)


def keep_named(state: MatchingState, seat: int, text: str) -> str:
    """Returns a message about the same cells, with their scores in another state on the author's scale there."""
    shown = (state.table * state.scales[seat]).astype(int).tolist()
    cells = {(row, column): score for row, scores in enumerate(shown) for column, score in enumerate(scores)}
    return retold(text, state.papers, state.reviewers, cells)
