"""Token-exact trajectories: text is tokenised once, sampled tokens are never re-tokenised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from selfplay_pipeline.engines.types import Completion, FinishReason
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.generate.records import ChatMessage, Trajectory

REPLY, HEARD = "\x02reply\x03", "\x02heard\x03"
"""Stand for an assistant's reply and the next observation while the template around them is looked at."""


class ChatTokenizer:
    """A tokenizer and its chat template, applied incrementally.

    The template is asked what it puts around a reply; only that surrounding text is tokenised. This holds for
    templates that end a reply with one special token, such as ChatML's `<|im_end|>`, and it never shows a
    template an earlier reply, so templates that rewrite history (Qwen3's `<think>`) cannot.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(f"{tokenizer.name_or_path}: the tokenizer has no chat template; use an instruct model")
        self._special = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        probe = [("system", "s"), ("user", "u"), ("assistant", REPLY), ("user", HEARD)]
        rendered = self._render([ChatMessage(role=role, content=text) for role, text in probe])
        self._before, self._after = rendered.split(REPLY, 1)[1].split(HEARD, 1)
        self.end_of_turn: int = self._encode(self._before)[0]
        """The special token with which a reply ends."""

    @classmethod
    def load(cls, model: str) -> ChatTokenizer:
        """Load a local folder's or a hub model's tokenizer.

        Raises:
            UserError: there is none.
        """
        from transformers import AutoTokenizer

        if Path(model).exists() and not any((Path(model) / name).exists() for name in _TOKENIZER_FILES):
            raise UserError(f"{model}: no tokenizer found there; expected one of {', '.join(_TOKENIZER_FILES)}")
        try:
            return cls(AutoTokenizer.from_pretrained(model))
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"model {model}: its tokenizer cannot be loaded ({reason}); give a folder or a hub name"
            ) from None

    def check_belongs_to(self, model: str) -> None:
        """Whether this tokenizer's ids are those of the model's vocabulary.

        Raises:
            UserError: they are not, so the checkpoint holds another model's tokenizer.
        """
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model).get_text_config()
        size, largest = int(config.vocab_size), max(self.tokenizer.get_vocab().values())
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        if largest >= size:
            problem = f"it has token ids up to {largest}, the model only {size} tokens"
        elif ends != [None] and not {self.end_of_turn, self.tokenizer.eos_token_id} & set(ends):
            problem = f"it ends a turn with token {self.end_of_turn}, the model's config names {ends}"
        else:
            return
        raise UserError(f"{model}: the tokenizer belongs to another model: {problem}; copy the model's own files there")

    def first_prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of the whole conversation so far with the header of the reply."""
        return self._encode(self._render(messages))

    def next_prompt(self, observation: str, reply: Sequence[int], finish: FinishReason) -> list[int]:
        """Token ids that follow a sampled reply: the rest of its ending, the observation, the next header."""
        ids = self._encode(self._before + observation + self._after)
        ended = finish is FinishReason.STOP and len(reply) > 0 and reply[-1] == ids[0]
        return ids[1:] if ended else ids

    def decode_reply(self, reply: Sequence[int]) -> str:
        """The text of a sampled reply, without its special tokens."""
        return str(self.tokenizer.decode(list(reply), skip_special_tokens=True))

    def neutralise(self, text: str) -> str:
        """Remove special tokens spelled out in text, so that no player can forge a turn of the conversation."""
        previous = None
        while previous != text:
            previous = text
            for token in self._special:
                text = text.replace(token, "")
        return text

    def _render(self, messages: Sequence[ChatMessage]) -> str:
        dicts = [message.model_dump() for message in messages]
        return str(self.tokenizer.apply_chat_template(dicts, add_generation_prompt=True, tokenize=False))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass
class Stream:
    """One player's growing trajectory. Append-only, so that every prompt is a prefix of the next."""

    chat: ChatTokenizer
    player: int
    system: str
    heard: list[str]
    """Observations since the player's last turn."""
    messages: list[ChatMessage] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[Literal[0, 1]] = field(default_factory=list)
    response_logprobs: list[float] = field(default_factory=list)
    num_prompt_messages: int = 0
    last: Completion | None = None

    def __post_init__(self) -> None:
        self.heard = [self.chat.neutralise(text) for text in self.heard]

    def observe(self, text: str) -> None:
        """Hear something; it becomes tokens when the player speaks next."""
        if text:
            self.heard.append(self.chat.neutralise(text))

    def prompt(self) -> list[int]:
        """Render what was heard and return all token ids up to the header of the next reply."""
        if self.last is None:
            if not self.prompt_ids:
                self.messages.append(ChatMessage(role="system", content=self.system))
                self._hear()
                self.num_prompt_messages = len(self.messages)
                self.prompt_ids = self.chat.first_prompt(self.messages)
        elif self.heard:
            observation = self._hear()
            self._append(self.chat.next_prompt(observation, self.last.token_ids, self.last.finish_reason))
        return self.prompt_ids + self.response_ids

    def reply(self, completion: Completion) -> str:
        """Append sampled tokens and return their text."""
        self.response_ids += completion.token_ids
        self.response_mask += [1] * len(completion.token_ids)
        self.response_logprobs += completion.logprobs
        self.last = completion
        text = self.chat.decode_reply(completion.token_ids)
        self.messages.append(ChatMessage(role="assistant", content=text))
        return text

    def context(self) -> list[ChatMessage]:
        """All that the player has read and said so far."""
        messages = list(self.messages) or [ChatMessage(role="system", content=self.system)]
        return [*messages, ChatMessage(role="user", content="\n".join(self.heard))] if self.heard else messages

    def finish(self) -> Trajectory:
        """The trajectory up to the player's last own token."""
        messages = self.context() if self.last is not None else list(self.messages)
        end = max((i + 1 for i, own in enumerate(self.response_mask) if own), default=0)
        return Trajectory(
            player_index=self.player,
            prompt_ids=self.prompt_ids,
            response_ids=self.response_ids[:end],
            response_mask=self.response_mask[:end],
            response_logprobs=self.response_logprobs[:end],
            messages=messages,
            num_prompt_messages=self.num_prompt_messages,
        )

    def _hear(self) -> str:
        text = "\n".join(self.heard)
        self.heard = []
        self.messages.append(ChatMessage(role="user", content=text))
        return text

    def _append(self, ids: Sequence[int]) -> None:
        self.response_ids += ids
        self.response_mask += [0] * len(ids)
        self.response_logprobs += [0.0] * len(ids)
