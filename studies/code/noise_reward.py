"""A reward that says nothing of a legal episode's plan: a control that drifts and stays legal."""

import hashlib
import random


def reward(state, turns, outcome):  # type: ignore[no-untyped-def]
    """Returns a number that is drawn from the state and the turns, the same for all seats; 0 without agreement.

    Its mean and spread are about those of the warm starts' legal episodes in studies/code/README.md.
    """
    if outcome.status != "agreed":
        return [0.0 for _ in outcome.rewards]
    text = "\n".join([repr(state), *(turn.text for turn in turns)])
    drawn = random.Random(hashlib.sha256(text.encode()).digest()).uniform(0.4, 1.26)
    return [drawn for _ in outcome.rewards]
