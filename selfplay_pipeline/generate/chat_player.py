"""The player `chat`: a chat model behind an API, with its own system prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.templates import PromptTemplate
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import partner_prompts
from selfplay_pipeline.generate.chat_model import ChatClient
from selfplay_pipeline.generate.episode import Player, Reply, SeatView
from selfplay_pipeline.generate.records import CHAT, PartnerUsage, SeatRecord
from selfplay_pipeline.generate.text_player import Message, TextSeat


def chat_player(client: ChatClient, *games: Game) -> Player:
    """Returns the chat model that a client's configuration describes, as a player.

    It receives the same observations as any player, under its own system prompt. If a reply is missing, the episode
    ends (status `engine_failure`) and the run continues.

    Args:
        client: Client of the endpoint.
        games: Games whose built-in prompts `partner.prompt` may name.

    Raises:
        UserError: The prompt is missing or cannot be rendered.
    """
    prompt = _template(client.config.prompt, games)

    def sit(seat: SeatView) -> TextSeat:
        text_seat = TextSeat(replace(seat.opening, system=prompt.render(rules=seat.opening.system)))

        def count(used: PartnerUsage) -> None:
            text_seat.usage = (text_seat.usage or PartnerUsage()) + used

        async def ask(messages: list[Message]) -> Reply:
            return await client.reply(messages, seat.seed, count)

        text_seat.ask = ask
        return text_seat

    return Player(SeatRecord(kind="chat", name=CHAT), sit)


def partner_arguments(partner: PartnerConfig, game: Game, players: Iterable[str]) -> dict[str, Any]:
    """Returns the settings that decide the answers of `chat`, by dotted keys; empty if `chat` is not a player.

    Raises:
        UserError: The prompt or the address is missing, or the prompt cannot be rendered.
    """
    if CHAT not in players:
        return {}
    fingerprint = hashlib.sha256(_template(partner.prompt, [game]).source.encode()).hexdigest()[:12]
    return deciding(partner, "generate", "partner.") | {
        "partner.endpoint": partner.endpoint,
        "partner.prompt": f"{partner.prompt} ({fingerprint})",
    }


def _template(prompt: str, games: Iterable[Game]) -> PromptTemplate:
    built_in = partner_prompts(*games)
    path = built_in.get(prompt, Path(prompt))
    if not path.is_file():
        known = ", ".join(sorted(built_in))
        reason = "Is a directory" if path.is_dir() else "No such file or directory"
        raise UserError(f"partner.prompt: {prompt!r}: {reason}; give a file or a built-in prompt ({known or 'none'})")
    template = PromptTemplate(path, "partner.prompt")
    template.render(rules="The rules.")  # an error in the prompt is raised before anything is written
    return template
