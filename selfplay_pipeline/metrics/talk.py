"""The talk score: how much of what silence cannot reach was reached. Pure."""

from __future__ import annotations


def talk_score(reward: float, silence: float) -> float:
    """(reward - silence) / (1 - silence): 0 for the best play without messages, 1 for the optimum, below 0 for less.

    It is linear in the reward, so the ends of a reward's interval give those of the score's. The error of a stored
    silence line is not in them. Where silence reaches the optimum nothing is left to talk for, and the score is 0.
    """
    return (reward - silence) / (1 - silence) if silence < 1 else 0.0
