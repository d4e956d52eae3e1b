"""The talk score: the reward above silence, as a share of the possible gain. Pure."""

from __future__ import annotations


def talk_score(reward: float, silence: float) -> float:
    """Returns (reward - silence) / (1 - silence): 0 at the silence line, 1 at the optimum.

    It is measured only if no play without words can exceed the silence line, so that a score above 0 is due to words. A
    reward below the silence line gives a negative score. The score is linear in the reward, so the ends of a reward's
    interval give the ends of the score's. They ignore the error of the stored silence line. If the silence line is the
    optimum, nothing can be gained by talk, and the score is 0.
    """
    return (reward - silence) / (1 - silence) if silence < 1 else 0.0
