"""Figures of where reward is lost, for games in which one seat plans with all that it was told. Pure.

The best reward minus the reward of a good plan on what the planner knew is the first part. The reward of this plan
minus the own one is the second; without an agreement, all is the third. The three add up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from selfplay_pipeline.games.base import CUT
from selfplay_pipeline.games.figures import Figure, Formula
from selfplay_pipeline.games.measured import Measured, heard_of
from selfplay_pipeline.games.tags import ActionKind


def lost_to(label: str, lost: Formula, known: Formula | None = None) -> Figure:
    """Returns the figure of one part of the lost reward.

    Args:
        label: Label such as `lost to telling`, which also names the figure.
        lost: Returns the lost reward of an episode.
        known: Returns whether the part is known of an episode; None if it always is.
    """
    return Figure(label.replace(" ", "_"), label, lost, known, better="lower", part_of="Where reward is lost")


def loss_figures(plan: Callable[[Any], Any], labels: tuple[str, str, str]) -> tuple[Figure, ...]:
    """Returns the three figures.

    Args:
        plan: Returns the decision that a good planner makes with what it knows in a running session.
        labels: Labels of the three parts.
    """

    @lru_cache(maxsize=1)
    def planned(episode: Measured) -> float | None:
        """Returns the reward of this plan at the last proposal; computed once for the figures.

        It is None if the episode does not follow the game's rules, because those that it was played with are unknown,
        or if others heard swapped messages, since it would be the plan of what they did not hear.
        """
        if any(heard_of(turn) for turn in episode.record.turns):
            return None
        session: Any = episode.game.start(episode.state)
        last = max(at for at, turn in enumerate(episode.record.turns) if turn.action == ActionKind.PROPOSE)
        for turn in episode.record.turns[:last]:
            if session.status is not None or turn.seat not in session.next:
                return None
            session.step(turn.seat, turn.text, cut=turn.error_kind == CUT)
        return float(episode.game.rewards(episode.state, plan(session))[0])

    def known(episode: Measured) -> bool:
        return not episode.agreed or planned(episode) is not None

    def lost(better: Callable[[Measured, float], float]) -> Formula:
        def formula(episode: Measured) -> float:
            plans = planned(episode) if episode.agreed else None
            return 0.0 if plans is None else better(episode, plans)

        return formula

    first, second, third = labels
    return (
        lost_to(first, lost(lambda _, plans: 1 - plans), known),
        lost_to(second, lost(lambda e, plans: plans - e.reward), known),
        lost_to(third, lambda e: not e.agreed, known),
    )
