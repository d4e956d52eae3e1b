"""Resampling of everything on a board that is hidden from one player, for the states of swapped messages.

States are drawn from the rules given the player's view until one passes the hard filter, so the distribution is exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.matching.mentions import retold
from selfplay_pipeline.games.matching.rules import SCALE_MIN, VISIBLE, MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.silence import Readings, passes_filter
from selfplay_pipeline.games.matching.states import draw_scores

AT_ONCE = 1 << 10
"""Largest number of states drawn at a time; the number starts at 1 and doubles with each draw."""
TRIES = 10_000
"""Maximum number of draws; far fewer suffice if the original state passes the filter."""


def redraw(state: MatchingState, seat: int, config: MatchingConfig, rng: np.random.Generator) -> MatchingState:
    """Returns a state drawn from the rules given the view of one player: its mask and the numbers that it sees.

    Hidden scores, the partner's mask and both scales are resampled. The true scores of visible cells are drawn from the
    scores that the player's scaled numbers can represent.

    Raises:
        UserError: The configuration keeps some states that fail the filter, or it cannot have drawn the state.
    """
    if config.hard_factor and config.unfiltered_after:
        raise UserError("game.unfiltered_after: messages cannot be swapped if some states are kept unfiltered; set 0")
    own, shown, count = state.masks[seat], state.view(seat), 1
    readings = Readings.of(state, seat, config)
    for _ in range(TRIES if len(readings.chances) else 0):
        shape = (count, *own.shape)
        partners = np.broadcast_to(~own, shape)
        if config.visibility == "independent":
            partners = rng.random(shape) < VISIBLE
        tables = np.where(partners, draw_scores(config, shape, rng), round(config.mean_score))
        chosen, scores = readings.draws(count, rng)
        tables[:, own] = scores
        best, passed = passes_filter(tables, (np.broadcast_to(own, shape), partners), config)
        for found in np.flatnonzero(passed)[:1]:
            scales = [float(rng.uniform(SCALE_MIN, config.scale_max)) for _ in state.scales]
            scales[seat] = float(rng.uniform(*readings.scales[chosen[found]]))
            masks = (own, partners[found]) if seat == 0 else (partners[found], own)
            drawn = replace(
                state, table=tables[found], masks=masks, scales=(scales[0], scales[1]), best=int(best[found])
            )
            if drawn.view(seat) == shown:  # a scale at the very end of its range may round otherwise
                return drawn
        count = min(2 * count, AT_ONCE)
    raise UserError(f"no state of this configuration looks to player {seat} as this one does; is it from another one?")


def keep_named(state: MatchingState, seat: int, text: str) -> str:
    """Returns a message about the same cells, with their scores in another state on the author's scale there."""
    shown = (state.table * state.scales[seat]).astype(int).tolist()
    cells = {(row, column): score for row, scores in enumerate(shown) for column, score in enumerate(scores)}
    return retold(text, state.papers, state.reviewers, cells)
