"""The talk score: the reward above silence, as a share of the possible gain. Pure."""

from __future__ import annotations


def talk_score(reward: float, silence: float) -> float:
    """Returns (reward - silence) / (1 - silence): 0 at the silence line, 1 at the optimum.

    It is measured only where no play without words exceeds silence, so that what lies above 0 is due to words. Less
    reward than silence gives a score below 0. The score is linear in the reward, so the ends of a reward's interval
    give the ends of the score's. They do not include the error of a stored silence line. If silence reaches the
    optimum, nothing is left to gain by talk, and the score is 0.
    """
    return (reward - silence) / (1 - silence) if silence < 1 else 0.0
