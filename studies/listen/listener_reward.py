"""The game's reward for the listener alone: the rows of the speaker's seat carry no signal and are left out."""


def reward(state, turns, outcome):  # type: ignore[no-untyped-def]
    """Returns 0 for seat 0, which speaks, and the game's reward for seat 1, which proposes."""
    return [0.0, outcome.rewards[1]]
