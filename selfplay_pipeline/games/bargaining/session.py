"""Episode of Deal or No Deal: the players' prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.bargaining.rules import ITEMS, BargainingConfig, BargainingState, Split, rest
from selfplay_pipeline.games.bargaining.text import format_items, format_proposal, parse_share
from selfplay_pipeline.games.base import Part
from selfplay_pipeline.games.tagged_session import Action, TaggedSession, parse_tagged


class BargainingSession(TaggedSession[Split]):
    """One episode. In a player's texts and prompts, the numbers of a proposal are always the player's own share."""

    state: BargainingState
    config: BargainingConfig

    def shown(self, seat: int) -> dict[str, Any]:
        return {
            "player": seat,
            "items": [
                {"name": name, "count": count, "value": value}
                for name, count, value in zip(ITEMS, self.state.counts, self.state.values[seat], strict=True)
            ],
            "total": self.state.total,
            "reward": self.config.reward,
            "semi_lambda": self.config.semi_lambda,
            "max_length": self.config.max_length,
            "example": format_items(self._half()),
        }

    def parse(self, text: str) -> Action[Split]:
        return parse_tagged(text, self._split)

    def _split(self, body: str) -> Split:
        own = parse_share(body, self.state.counts)
        partners = rest(self.state.counts, own)
        return (own, partners) if self.seat == 0 else (partners, own)

    def written(self, proposal: Split) -> str:
        return format_proposal(proposal[1 - self.seat])

    def about(self, proposal: Split | None) -> dict[str, Any]:
        if proposal is None:
            return {"yours": "", "theirs": ""}
        return {"yours": format_items(proposal[1 - self.seat]), "theirs": format_items(proposal[self.seat])}

    def example(self) -> dict[str, Any]:
        return {"example": format_items(self._half())}

    def _half(self) -> tuple[int, int, int]:
        book, hat, ball = (count // 2 for count in self.state.counts)
        return book, hat, ball

    def form(self) -> str:
        return format_proposal(self._half())

    def parts(self) -> list[Part]:
        return [
            Part(f"{item} for you", tuple(map(str, range(count + 1))))
            for item, count in zip(ITEMS, self.state.counts, strict=True)
        ]

    def selected(self, numbers: Sequence[int]) -> str:
        book, hat, ball = numbers
        return format_proposal((book, hat, ball))
