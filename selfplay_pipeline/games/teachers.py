"""Parts that scripted players of several games share: English phrasings, and a user who rejects first proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

ACCEPTING = ("[accept]", "[accept] Great, I agree.", "[accept] Good plan!", "[accept] That works for me.")
REJECTING = ("[reject]", "[reject] We can do better.", "[reject] Let me explain.", "[reject] Sorry.")


def choose(phrasings: Sequence[str], rng: np.random.Generator) -> str:
    """Returns one of several phrasings, all equally likely."""
    return phrasings[int(rng.integers(len(phrasings)))]


class _Offered(Protocol):
    """View of a user who has read its points for proposals."""

    @property
    def offers(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class RejectsFirst:
    """User that now and then rejects a first proposal, so that a model also meets rejections."""

    rejecting: float = 0.1
    """Chance that a user rejects a first proposal, whatever its value."""

    def agrees(self, view: _Offered, rng: np.random.Generator) -> bool:
        """Whether a user accepts the proposal that waits for its answer."""
        return len(view.offers) > 1 or rng.random() >= self.rejecting
