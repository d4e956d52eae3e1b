"""Sampling of boards, and reading of stored ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS, normalise
from selfplay_pipeline.games.matching.rules import SCALE_MIN, VISIBLE, MatchingConfig, MatchingState, best_matching

MAX_TRIES = 100_000
"""Maximum number of draws for one state.

A configuration that admits no state is refused within two seconds; about one in 2,700 8×8 boards passes the filter.
"""
DRAWS = 100
"""Number of states drawn at a time."""


def sample_state(config: MatchingConfig, rng: np.random.Generator, tries: int = MAX_TRIES) -> MatchingState:
    """Returns the first drawn state that passes the hard filter, or the next one after `unfiltered_after` have failed.

    Raises:
        UserError: No state passed in `tries` draws, so the configuration leaves nothing to talk about.
    """
    shape = (config.size, config.size)
    mean = config.mean_score
    failed = 0
    for _ in range(tries // DRAWS):
        tables = draw_scores(config, (DRAWS, *shape), rng)
        masks = draw_masks(config, (DRAWS, 2, *shape), rng)
        scales = rng.uniform(SCALE_MIN, config.scale_max, (DRAWS, 2))
        tables = np.where(masks.any(axis=1), tables, round(mean))
        for table, mask, scale in zip(tables, masks, scales, strict=True):
            best, hard = _best(table, mask, mean, config.hard_factor)
            if hard or (best and failed >= config.unfiltered_after > 0):
                return MatchingState(  # copies, because a view would keep all that were drawn at once in memory
                    table=table.copy(),
                    masks=(mask[0].copy(), mask[1].copy()),
                    scales=(float(scale[0]), float(scale[1])),
                    best=best,
                    papers=PAPERS[: config.size],
                    reviewers=REVIEWERS[: config.size],
                )
            failed += 1
    raise UserError(
        f"game: no state passed the hard filter in {tries:,} draws "
        f"(size={config.size}, hard_factor={config.hard_factor}); lower game.hard_factor, or set game.unfiltered_after"
    )


def draw_scores(config: MatchingConfig, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Returns scores of cells, drawn from the configured distribution."""
    if config.score_power == 1:
        return rng.integers(0, config.max_score + 1, shape)
    return np.floor((config.max_score + 1) * rng.random(shape) ** config.score_power).astype(np.int64)


def draw_masks(config: MatchingConfig, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Returns random masks of the cells that each player sees, shape (states, 2, size, size)."""
    if config.visibility == "independent":
        return rng.random(shape) < VISIBLE
    if config.visibility == "one_sided":
        return np.broadcast_to(np.array([True, False])[:, None, None], shape)
    first = rng.random((shape[0], *shape[2:])) < 0.5
    return np.stack([first, ~first], axis=1)


def _best(table: NDArray[np.int64], masks: NDArray[np.bool_], mean: float, hard_factor: float) -> tuple[int, bool]:
    """Returns the value of the best matching, and whether the state passes the hard filter."""
    rows, columns = linear_sum_assignment(table, maximize=True)
    best = int(table[rows, columns].sum())
    for mask in masks:
        rows, columns = linear_sum_assignment(np.where(mask, table, mean), maximize=True)
        if table[rows, columns].sum() * hard_factor >= best:
            return best, False
    return best, True


def load_state(data: dict[str, Any]) -> MatchingState:
    """Returns the state in data with DialOp's field names, after checking shapes and the recorded best score.

    Raises:
        UserError: A field is missing, has the wrong shape or disagrees with the table.
    """
    try:
        table = _whole_numbers(data, "table", LARGEST)
        masks = (_whole_numbers(data, "mask1", 1).astype(bool), _whole_numbers(data, "mask2", 1).astype(bool))
        scales = (_positive(data, "scale1"), _positive(data, "scale2"))
        recorded = data["best_assignment_reward"]
    except KeyError as error:
        raise UserError(f"game state: field {error} is missing") from None
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.shape[0] < 2:
        raise UserError(f"game state: field 'table' has shape {table.shape}, expected a square of 2 or more")
    for name, mask in zip(("mask1", "mask2"), masks, strict=True):
        if mask.shape != table.shape:
            raise UserError(f"game state: field '{name}' has shape {mask.shape}, the table has {table.shape}")
    size = table.shape[0]
    if size > len(PAPERS) and ("papers" not in data or "reviewers" not in data):
        raise UserError(f"game state: a board of {size} needs fields 'papers' and 'reviewers'")
    named = (data.get("papers", PAPERS[:size]), data.get("reviewers", REVIEWERS[:size]))
    papers, reviewers = (tuple(names) if isinstance(names, list | tuple) else () for names in named)
    for field_name, names in (("papers", papers), ("reviewers", reviewers)):
        different = {normalise(name) for name in names if isinstance(name, str)}
        if not len(names) == len(different) == size:
            raise UserError(f"game state: field '{field_name}' needs {size} different names")
    _, best = best_matching(table)
    if best <= 0 or recorded != best:
        raise UserError(f"game state: best_assignment_reward is {recorded}, the table's best matching gives {best:g}")
    return MatchingState(table, masks, scales, int(best), papers, reviewers)


def check_fits(config: MatchingConfig, state: MatchingState) -> None:
    """Raises UserError unless the configuration could have drawn the state."""
    top = int(state.table.max())
    if state.size != config.size or top > config.max_score:
        raise UserError(
            f"a board of size {state.size} with scores up to {top}, but the configuration's has size {config.size} and "
            f"scores up to {config.max_score}; give the configuration of these states (--config default has DialOp's "
            "board)"
        )
    if config.visibility == "complementary" and (state.masks[0] == state.masks[1]).any():
        raise UserError(
            "fields 'mask1' and 'mask2': a cell is seen by both players or by none, but the configuration's "
            "game.visibility is complementary; give the configuration of these states"
        )
    if config.visibility == "one_sided" and not (state.masks[0].all() and not state.masks[1].any()):
        raise UserError(
            "fields 'mask1' and 'mask2': player 0 does not see every cell, or player 1 sees one, but the "
            "configuration's game.visibility is one_sided; give the configuration of these states"
        )
    for scale in state.scales:
        if not SCALE_MIN <= scale <= config.scale_max:
            raise UserError(f"scale {scale} is not in {SCALE_MIN:g}..{config.scale_max:g}")


def _whole_numbers(data: dict[str, Any], name: str, largest: int) -> NDArray[np.int64]:
    """Returns the field `name`, which must be rows of whole numbers from 0 to `largest`.

    Raises:
        UserError: The field has other content.
    """
    rows = data[name]
    try:
        numbers = np.array(rows)
    except (TypeError, ValueError, RecursionError):
        numbers = np.array(None)
    if numbers.dtype.kind not in "biu" or (numbers < 0).any() or (numbers > largest).any():
        raise UserError(f"game state: field '{name}' is not made of rows of whole numbers from 0 to {largest}")
    return numbers.astype(np.int64)


def _positive(data: dict[str, Any], name: str) -> float:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        raise UserError(f"game state: field '{name}' is {value!r}, not a number above 0")
    return float(value)
