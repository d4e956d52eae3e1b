"""The player `chat`: a chat model with a system prompt of its own in one of the seats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.templates import PromptTemplate
from selfplay_pipeline.games.registry import partner_prompts
from selfplay_pipeline.generate.chat import Message, SeatedChat
from selfplay_pipeline.generate.episode import Reply
from selfplay_pipeline.generate.players import Seat
from selfplay_pipeline.generate.records import CHAT, PartnerUsage, SeatRecord
from selfplay_pipeline.identity import deciding
from selfplay_pipeline.partners.client import ChatClient
from selfplay_pipeline.partners.config import PartnerConfig


@dataclass(frozen=True)
class ChatPartner:
    """A chat model as a player. It sees what any player sees, under its own system prompt.

    A reply that does not come costs the episode (status `engine_failure`), never the run.
    """

    client: ChatClient
    prompt: PromptTemplate

    @property
    def record(self) -> SeatRecord:
        return SeatRecord(kind="chat", name=CHAT)

    @classmethod
    def of(cls, client: ChatClient) -> ChatPartner:
        """The partner that the client's configuration describes.

        Raises:
            UserError: the prompt is missing or cannot be rendered.
        """
        return cls(client, _template(client.config.prompt))

    def sit(self, seat: Seat) -> SeatedChat:
        system = self.prompt.render(rules=seat.opening.system)
        seated = SeatedChat(replace(seat.opening, system=system))

        def count(used: PartnerUsage) -> None:
            seated.usage = (seated.usage or PartnerUsage()) + used

        async def ask(messages: list[Message]) -> Reply:
            return await self.client.reply(messages, seat.seed, count)

        seated.ask = ask
        return seated


def partner_arguments(config: PartnerConfig, players: Iterable[str]) -> dict[str, Any]:
    """Returns the settings that decide the words of `chat`, by dotted keys; empty if it is not among the players.

    Raises:
        UserError: the prompt or the address is missing, or the prompt cannot be rendered.
    """
    if CHAT not in players:
        return {}
    fingerprint = hashlib.sha256(_template(config.prompt).source.encode()).hexdigest()[:12]
    return deciding(config, "generate", "partner.") | {
        "partner.endpoint": config.endpoint,
        "partner.prompt": f"{config.prompt} ({fingerprint})",
    }


def _template(prompt: str) -> PromptTemplate:
    built_in = partner_prompts()
    path = built_in.get(prompt, Path(prompt))
    if not path.is_file():
        known = ", ".join(sorted(built_in))
        reason = "Is a directory" if path.is_dir() else "No such file or directory"
        raise UserError(f"partner.prompt: {prompt!r}: {reason}; give a file or a built-in prompt ({known})")
    template = PromptTemplate(path, "partner.prompt")
    template.render(rules="The rules.")  # what it cannot do is said before anything is written
    return template
