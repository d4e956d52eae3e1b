"""A seat whose turns are text from outside: from a script, a person, or a chat model behind an API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from selfplay_pipeline.games.base import Opening
from selfplay_pipeline.generate.control import after_thought, without_control
from selfplay_pipeline.generate.episode import Reply
from selfplay_pipeline.generate.players import Seat
from selfplay_pipeline.generate.records import CHAT, ChatMessage, PartnerUsage, SeatRecord

Message = dict[str, str]
"""`role` and `content`, as chat models read them."""


@dataclass
class SeatedChat:
    """A seat whose words come from outside.

    Its history is free of control strings, because a chat model's server puts it through a template of a model whose
    tokenizer is not known here. Thoughts are no part of what is said.

    Attributes:
        ask: called with the player's history; a bare text counts as a whole turn.
        usage: what the answers cost, where someone counts it. It is apart from `prompt_tokens` and `cached_tokens`,
            which are those of the policy's engine.
    """

    opening: Opening
    ask: Callable[[list[Message]], Awaitable[str | Reply]] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    messages: list[ChatMessage] = field(default_factory=list)
    usage: PartnerUsage | None = None

    def __post_init__(self) -> None:
        self.messages = [ChatMessage(role="system", content=self.opening.system)]
        self.observe(self.opening.observation)

    def observe(self, text: str) -> None:
        """Chat models want roles to alternate, so what is heard between two own turns is one message."""
        if not text:
            return
        if self.messages[-1].role == "user":
            text = f"{self.messages.pop().content}\n{text}"
        self.messages.append(ChatMessage(role="user", content=without_control(text)))

    def say(self, text: str) -> None:
        """Add the player's own turn to its history."""
        self.messages.append(ChatMessage(role="assistant", content=without_control(text)))

    async def act(self) -> Reply:
        """Ask whoever speaks for this seat."""
        if self.ask is None:
            raise RuntimeError("nobody was named who speaks for this seat; run the episode only until its turn")
        answer = await self.ask(as_dicts(self.messages))
        reply = Reply(answer, False, "stop") if isinstance(answer, str) else answer
        text, whole = after_thought(reply.text)
        self.say(text)
        return Reply(text, reply.cut or not whole, reply.finish_reason)

    def context(self) -> list[ChatMessage]:
        return list(self.messages)

    def finish(self) -> None:
        return None


@dataclass(frozen=True)
class ChatPlayer:
    """Words from outside: of `ask`, called with the player's history, or of whoever runs the episode until its turn."""

    name: str = CHAT
    ask: Callable[[list[Message]], Awaitable[str | Reply]] | None = None

    @property
    def record(self) -> SeatRecord:
        return SeatRecord(kind="chat", name=self.name)

    def sit(self, seat: Seat) -> SeatedChat:
        return SeatedChat(seat.opening, self.ask)


def as_dicts(messages: Sequence[ChatMessage]) -> list[Message]:
    """Messages as chat models and verl read them."""
    return [{"role": message.role, "content": message.content} for message in messages]
