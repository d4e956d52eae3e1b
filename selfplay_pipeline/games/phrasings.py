"""English phrasings that the scripted players of all games share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ACCEPTING = ("[accept]", "[accept] Great, I agree.", "[accept] Good plan!", "[accept] That works for me.")
REJECTING = ("[reject]", "[reject] We can do better.", "[reject] Let me explain.", "[reject] Sorry.")


def choose(phrasings: Sequence[str], rng: np.random.Generator) -> str:
    """Returns one of several phrasings, all equally likely."""
    return phrasings[int(rng.integers(len(phrasings)))]
