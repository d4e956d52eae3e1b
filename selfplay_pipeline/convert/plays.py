"""Whether a play can have been, by its game's rules and its model's vocabulary; the record has checked the rest."""

from __future__ import annotations

import json
from functools import lru_cache

from selfplay_pipeline.checkpoints import vocabulary_of
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.games.matching.rules import MatchingGame, MatchingState
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.generate.records import SAME_REWARD, PlayRecord


def check_play(record: PlayRecord) -> str:
    """Whether the tokens are the model's, and the outcome is what the state gives. Returns the state as JSON.

    Raises:
        ValueError: it cannot have been; the message names the field.
    """
    _check_ids(record, _vocabulary(record.policy.checkpoint))
    if record.game != MatchingGame.name:
        raise ValueError(f"field 'game': {record.game!r}, but the only game is {MatchingGame.name!r}")
    if len(record.players) != MatchingGame.num_players:
        raise ValueError(f"field 'players': has {len(record.players)}, but the game has {MatchingGame.num_players}")
    try:
        written = json.dumps(record.state, sort_keys=True, allow_nan=False)
        state = _load(written)
    except (UserError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"field 'state': {error}") from None
    _check_outcome(record, state)
    return written


@lru_cache(maxsize=64)
def _vocabulary(checkpoint: str) -> int | None:
    return vocabulary_of(checkpoint)


@lru_cache(maxsize=64)
def _load(state: str) -> MatchingState:
    return MatchingGame().load_state(json.loads(state))


def _check_ids(record: PlayRecord, vocabulary: int | None) -> None:
    for number, seat in enumerate(record.trajectories):
        if vocabulary and max(map(max, filter(None, (seat.prompt_ids, seat.response_ids))), default=0) >= vocabulary:
            fault = seat.fault(vocabulary)
            assert fault is not None
            raise ValueError(f"field 'trajectories.{number}.{fault.field}': {fault.what} ({record.policy.checkpoint})")


def _check_outcome(record: PlayRecord, state: MatchingState) -> None:
    outcome, places = record.outcome, list(range(state.size))
    if abs(outcome.best - state.best) > SAME_REWARD:
        raise ValueError(f"field 'outcome.best': {outcome.best:g}, but the state's best score is {state.best}")
    if outcome.status is not Status.AGREED:
        return
    proposal = outcome.proposal or []
    if any(sorted(side) != places for side in zip(*proposal, strict=True)) or len(proposal) != state.size:
        raise ValueError(f"field 'outcome.proposal': {proposal} is no matching of {state.size} and {state.size}")
    if abs(outcome.score - state.score(tuple(proposal))) > SAME_REWARD:
        raise ValueError(
            f"field 'outcome.score': {outcome.score:g}, but the proposal scores {state.score(tuple(proposal))}"
        )
