"""A seat whose replies are supplied as text by a function, a person, or a chat model behind an API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from selfplay_pipeline.games.base import Opening
from selfplay_pipeline.generate.control_tokens import after_thought, without_control
from selfplay_pipeline.generate.episode import Player, Reply, bounded, storable
from selfplay_pipeline.generate.records import CHAT, ChatMessage, PartnerUsage, SeatRecord, Trajectory

Message = dict[str, str]
"""Message with the keys `role` and `content`, the format of chat APIs."""


@dataclass
class TextSeat:
    """A seat whose replies are supplied as text.

    Control strings are removed from its history, because the server of a chat model renders the history with a chat
    template that is unknown here. Thoughts are removed from its replies.

    Attributes:
        ask: Returns the reply to the player's history; a plain string counts as a finished turn.
        usage: Requests, tokens and price of the replies; None if they are not counted. They are not part of
            `prompt_tokens` and `cached_tokens`, which count tokens of the policy's engine.
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
        """Add an observation. Chat APIs expect alternating roles, so those between two turns form one message."""
        if not text:
            return
        if self.messages[-1].role == "user":
            text = f"{self.messages.pop().content}\n{text}"
        self.messages.append(ChatMessage(role="user", content=without_control(text)))

    def say(self, text: str) -> None:
        """Add the player's own turn to its history."""
        self.messages.append(ChatMessage(role="assistant", content=without_control(storable(text))))

    async def act(self) -> Reply:
        """Returns the reply of `ask`."""
        if self.ask is None:
            raise RuntimeError("nobody was named who speaks for this seat; run the episode only until its turn")
        answer = await self.ask(as_dicts(self.messages))
        reply = Reply(answer, False, "stop") if isinstance(answer, str) else answer
        text, whole = after_thought(reply.text)
        said = bounded(Reply(text, reply.cut or not whole, reply.finish_reason))
        self.say(said.text)
        return said

    def context(self) -> list[ChatMessage]:
        return list(self.messages)

    def finish(self) -> list[Trajectory]:
        return []


def text_player(name: str = CHAT, ask: Callable[[list[Message]], Awaitable[str | Reply]] | None = None) -> Player:
    """Returns a player whose replies come from `ask`; if that is None, the caller of `Episode.run(until=...)` supplies
    them.
    """
    return Player(SeatRecord(kind="chat", name=name), lambda seat: TextSeat(seat.opening, ask))


def as_dicts(messages: Sequence[ChatMessage]) -> list[Message]:
    """Returns messages in the format of chat APIs and verl."""
    return [{"role": message.role, "content": message.content} for message in messages]
