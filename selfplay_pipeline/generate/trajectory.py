"""Token-exact trajectories: text is tokenised once, and sampled tokens are never re-tokenised."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from selfplay_pipeline.config.schema import DATE, SWITCHES, History
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.hub import look_for
from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason
from selfplay_pipeline.generate.control_tokens import (
    CONTROL,
    SWITCH_WORDS,
    THOUGHTS,
    UNMARKED,
    after_thought,
    open_thought,
    thought_in,
    without_control,
    without_thoughts,
)
from selfplay_pipeline.generate.records import ChatMessage, Trajectory
from selfplay_pipeline.generate.template_arguments import arguments_of

REPLY, HEARD, RULES, HIDDEN = "\x02reply\x03", "\x02heard\x03", "\x02rules\x03", "\x02hidden\x03"
"""Placeholders for a reply, an observation, a system message and a thought, to find the template's text around them."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of an assistant message in which chat templates look for its thought."""
NOTHING_SAID = "…"
"""What a template that refuses empty replies is given for a turn that was cut within its thought."""
KEPT = 256
"""Maximum number of harmless reference texts whose control tokens are cached, one per system message."""


class MessageForm(NamedTuple):
    """Form of the messages that a chat template takes.

    Attributes:
        parts: Whether content is a list of parts (templates of vision models) and not a text.
        folded: Whether the system text stands in the first user message, because there is no system role.
    """

    parts: bool = False
    folded: bool = False

    def apply(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
        """Returns messages in this form."""
        dicts: list[dict[str, Any]] = [dict(message) for message in messages]
        if self.folded and [message["role"] for message in dicts[:2]] == ["system", "user"]:
            system = dicts.pop(0)
            dicts[0]["content"] = f"{system['content']}\n\n{dicts[0]['content']}"
        if self.parts:
            for message in dicts:
                message["content"] = [{"type": "text", "text": message["content"]}]
        return dicts


class ChatTokenizer:
    """A tokenizer and its chat template, applied incrementally.

    The text that the template puts around a reply is extracted once, and only this text is tokenised. This requires a
    template that ends a reply with one special token, such as ChatML's `<|im_end|>`. The template never receives an
    earlier reply, so a template that rewrites history (Qwen3's `<think>`) cannot change it, unless `rendered_prompt`
    asks it to.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        thinking: bool = False,
        template_args: Mapping[str, Any] = {},
        date: str = DATE,
    ) -> None:
        """Read the chat template of a tokenizer.

        Args:
            tokenizer: Tokenizer of transformers.
            thinking: Value of `enable_thinking` and `thinking`, the switches of chat templates.
            template_args: Further arguments of the template.
            date: Date of the template's clock, so that the same messages have the same tokens on another day.

        Raises:
            UserError: The tokenizer has no chat template, the template cannot render the players' messages, or the
                thoughts of its models cannot be told from what they say.
        """
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(f"{tokenizer.name_or_path}: the tokenizer has no chat template; use an instruct model")
        template = str(tokenizer.get_chat_template())
        added = tokenizer.added_tokens_decoder
        # The token of unknown characters is not a control token.
        self._control = {token for token, about in added.items() if _controls(about, template)}
        self._control -= set(self._encode("\U0010fffd"))
        self._harmless: dict[tuple[Any, ...], list[int]] = {}
        given = dict.fromkeys(SWITCHES, thinking) | dict(template_args)
        self.arguments = arguments_of(tokenizer, template)
        """Arguments that the chat template reads, without those that every template gets."""
        self._given = {name: value for name, value in given.items() if name in self.arguments}
        if "strftime_now" in template:
            self._given["strftime_now"] = _clock(date)
        self.template = {"thinking": thinking, "template_args": dict(template_args), "date": date}
        """What the chat template is given beside messages, as in `PolicyRecord.template`."""
        self.thought = next((thought for thought in THOUGHTS if thought.end in template), None)
        """Thoughts of the template's models; None if the template has none."""
        words = sorted(set(SWITCH_WORDS.findall(template)), reverse=True)  # a longer word before its beginning
        self._switches = re.compile("|".join(map(re.escape, words)) or "(?!)")
        marks = "\n".join(mark for thought in THOUGHTS for mark in thought)
        self._silent = {token for token, about in added.items() if about.special and about.content not in marks}
        self._find_form()
        self.is_dated = "strftime_now" in self._given and (
            self.render(_OPENING) != self.render(_OPENING, strftime_now=_clock("2000-01-01"))
        )
        """Whether the template writes the date into the first prompt."""
        parts = _AROUND_REPLY.fullmatch(self.render(_PROBE))
        if parts is None:
            raise self._refused(NO_END)
        opening, before, self.header = parts.groups()
        """Text between an observation and the next reply: the end of the observation and the header of the reply."""
        self._begun = open_thought(self.header)
        ended = any(thought.end in self.header for thought in THOUGHTS)
        self._tagged = ended and re.search("<(answer|response)>", template) is not None
        self._thought_fields: list[str] = []  # those of `THOUGHT_FIELDS` that the template takes
        self._check_thoughts(opening, thinking=thinking)
        self._nothing_said = "" if self._takes_empty_replies() else NOTHING_SAID
        self._before, self.end_of_turn = self._end_of_reply(before)
        """Text between a reply and the next observation, from the control token that ends the reply, and its id."""
        self.stops = tuple(sorted({self.end_of_turn, self.tokenizer.eos_token_id} - {None}))
        """Ids of the tokens that end a reply: `end_of_turn` and the end-of-text token."""
        self._silent |= {*self.stops}
        # GLM-4's <|user|> is no end, but begins the next message, and stands there after any other end.
        closed = self.render(_PROBE[:2], prompt=False).partition(REPLY)[2]
        self._closing = self.stops if self.end_of_turn in self._encode(closed) else (self.end_of_turn,)

    @classmethod
    def load(cls, model: str, **template: Any) -> ChatTokenizer:
        """Returns the chat tokenizer of a local folder or a hub model.

        Args:
            model: The folder or the name.
            template: What the chat template is given beside messages, as in `PolicyRecord.template`.

        Raises:
            UserError: The model has no usable tokenizer.
        """
        if not Path(model).exists():
            look_for(model)
        elif not any((Path(model) / name).exists() for name in _TOKENIZER_FILES):
            raise UserError(f"{model}: no tokenizer found there; expected one of {', '.join(_TOKENIZER_FILES)}")
        from transformers import AutoTokenizer

        try:
            # Some tokenizer files ask to remove spaces before punctuation from texts, although the model sampled them.
            tokenizer = AutoTokenizer.from_pretrained(model, clean_up_tokenization_spaces=False)
            tokenizer.model_max_length = sys.maxsize  # else transformers warns about texts whose length we check
            return cls(tokenizer, **template)
        except (OSError, ValueError, KeyError, TypeError) as error:  # the last two where a file lacks a key
            raise UserError(
                f"model {model}: its tokenizer cannot be loaded ({first_line(error)}); give a folder or a hub name"
            ) from None

    def check_belongs_to(self, model: str) -> None:
        """Raises UserError if the checkpoint contains the tokenizer of another model."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model).get_text_config()
        # Control tokens that no prompt has may lie beyond the vocabulary, as gemma-3-1b's token of images.
        unused = self._control - {*self.stops, *self._encode(self.render(_PROBE))}
        size, largest = int(config.vocab_size), max(set(self.tokenizer.get_vocab().values()) - unused)
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        if largest >= size:
            raise UserError(
                f"{model}: the tokenizer belongs to another model: it has token ids up to {largest}, the model only "
                f"{size} tokens; copy the model's own files there"
            )
        if ends != [None] and not {self.end_of_turn, self.tokenizer.eos_token_id} & set(ends):
            end = self.tokenizer.convert_ids_to_tokens(self.end_of_turn)
            raise UserError(
                f"{model}: a turn ends with token {self.end_of_turn} ({end}), but eos_token_id of config.json is "
                f"{config.eos_token_id}, as is common after fine-tuning of a base model; set it to {self.end_of_turn}, "
                "or copy the model's own tokenizer there, if this is another model's"
            )

    def rendered_prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the token ids of the conversation so far, as the template renders it, and the header of the reply.

        The template is given what an earlier reply said and what it thought, and decides what it shows of both.

        Raises:
            EngineError: A message would be tokenised as a control token.
            UserError: The system message changes how a reply begins.
        """
        parts = [self._parts(message) for message in messages]
        harmless = tuple(
            (role, "x" if role != "system" and content.strip() else content, "x" * bool(thought))
            for role, content, thought in parts
        )
        rendered = self.render([self._with_thought(*part) for part in parts])
        if not rendered.endswith(self.header):
            raise self._refused(
                f"begins a reply with {rendered[-40:]!r} here, and with {self.header!r} elsewhere",
                "leave words that switch thoughts, such as /no_think, out of the game's rules",
            )
        return self._safely(rendered, harmless, lambda: self.render([self._with_thought(*part) for part in harmless]))

    def _parts(self, message: ChatMessage) -> tuple[str, str, str]:
        """Returns the role of a message, what it says, and what it thinks."""
        if message.role != "assistant":
            return message.role, message.content, ""
        said, _ = self.said(message.content)
        said, thought = self.neutralise(said), self.neutralise(thought_in(message.content, said))
        return message.role, said or self._nothing_said, thought

    def _with_thought(self, role: str, content: str, thought: str) -> dict[str, str]:
        """Returns a message with its thought in all fields in which the template may look for it."""
        return _message(role, content) | (dict.fromkeys(self._thought_fields, thought) if thought else {})

    def next_prompt(self, observation: str, reply: Sequence[int]) -> list[int]:
        """Returns the token ids after a sampled reply: the rest of its ending, the observation, the next header.

        Raises:
            EngineError: The observation would be tokenised as a control token.
        """
        ids = self._safely(self._before + observation + self.header, (), lambda: self._before + "x" + self.header)
        return ids[1:] if reply and reply[-1] in self._closing else ids

    def decode_reply(self, reply: Sequence[int]) -> str:
        """Returns the text of a sampled reply with its thoughts, but without special tokens."""
        return str(self.tokenizer.decode([token for token in reply if token not in self._silent]))

    def said(self, text: str) -> tuple[str, bool]:
        """Returns the text of a reply without its thoughts, and whether all thoughts have ended."""
        return after_thought(text, begun=self._begun, tagged=self._tagged)

    def supplied_turn(self, text: str) -> list[int]:
        """Returns the token ids of a turn that was not sampled, after the end of a thought that the header begins."""
        end = f"{self._begun.end}\n\n" if self._begun else ""
        return self._encode(end + self.neutralise(text))

    def neutralise(self, text: str) -> str:
        """Returns the text without control tokens, so that no player can forge a turn of the conversation.

        Words with which the template switches thoughts go too. The tokenizer identifies the characters to remove, since
        its normaliser may create control tokens from others.
        """
        while (shorter := self._without_own_control(self._switches.sub("", without_control(text)))) != text:
            text = shorter
        return text

    def _without_own_control(self, text: str) -> str:
        if self._control.isdisjoint(self._encode(text)):
            return text
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        control = {
            at
            for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True)
            if token in self._control
            for at in range(start, end)
        }
        return "".join(character for at, character in enumerate(text) if at not in control)

    def _end_of_reply(self, before: str) -> tuple[str, int]:
        """Returns the text between a reply and the next observation from its end token on, and this token.

        An ordinary token would end a turn wherever the model samples it. Llama-2's template writes a space
        before the end-of-text token. It is left out, since the sampled reply stands directly before its end.

        Raises:
            UserError: The reply does not end with a control token.
        """
        first = self._encode(before)[0]
        if first in self._control:
            return before, first
        stripped = before.lstrip()
        if stripped and (end := self._encode(stripped)[0]) in self._control and end == self.tokenizer.eos_token_id:
            return stripped, end
        token = self.tokenizer.convert_ids_to_tokens(first)
        raise self._refused(
            f"ends a reply with {before!r}, which begins with the ordinary token {token!r}",
            "let it end a reply with one special token of the tokenizer, or take another model",
        )

    def _safely(self, text: str, name: tuple[Any, ...], harmless: Callable[[], str]) -> list[int]:
        """Returns the token ids of a text, after checking that it adds no control token to those of a reference text.

        Args:
            text: The text to tokenise.
            name: Cache key of the reference text, which serves for many texts.
            harmless: Returns the reference text, which contains nothing that a player wrote.

        Raises:
            EngineError: The text has other control tokens. The episode ends, since no forged turn may be trained on.
        """
        ids = self._encode(text)
        if name not in self._harmless:
            if len(self._harmless) >= KEPT:
                self._harmless.clear()
            self._harmless[name] = [i for i in self._encode(harmless()) if i in self._control]
        if [i for i in ids if i in self._control] != self._harmless[name]:
            raise EngineError(f"{self.tokenizer.name_or_path}: a player's text became a control token: {text!r}")
        return ids

    def render(self, messages: Sequence[Mapping[str, str]], *, prompt: bool = True, **other: Any) -> str:
        """Returns the template's text of messages, by default with the header of the next reply.

        Args:
            messages: The messages.
            prompt: Whether the header of the next reply follows.
            other: Arguments of the template in place of the tokenizer's.

        Raises:
            UserError: The template cannot render the messages.
        """
        try:
            rendered = self.tokenizer.apply_chat_template(
                self.form.apply(messages), add_generation_prompt=prompt, tokenize=False, **self._given | other
            )
        except Exception as error:  # a template may raise anything
            reason = str(error) or type(error).__name__
            raise self._refused(f"cannot render a system and a user message: {reason}") from None
        return str(rendered)

    def _find_form(self) -> None:
        """Sets the first form of messages that the template shows completely.

        Raises:
            UserError: The template shows none completely; the message is about texts with a system role.
        """
        refused = None
        for folded, parts in product((False, True), repeat=2):
            self.form: MessageForm = MessageForm(parts=parts, folded=folded)
            try:
                shown = self.render(_OPENING)
                if RULES in shown and HEARD in shown and REPLY in self.render(_PROBE):
                    return
            except UserError as error:
                refused = refused or error
        raise refused or self._refused(NO_END)

    def _takes_empty_replies(self) -> bool:
        """Whether the template shows an earlier reply that said nothing; Mistral's newer templates refuse it."""
        heard, reply, _ = _PROBE
        try:
            self.render([heard, {**reply, "content": ""}, heard])
        except UserError:
            return False
        return True

    def _check_thoughts(self, opening: str, *, thinking: bool) -> None:
        """Raises UserError unless thoughts are known and can be cut from what the model says.

        Args:
            opening: The template's text between an observation and an earlier reply.
            thinking: Whether the model shall think.
        """
        if not thinking and self._begun:
            raise self._refused(
                f"begins each reply with a thought ({self._begun.begin}), also where a model shall not think",
                "set generate.thinking: true and a larger generate.max_new_tokens, or take another model (always so "
                "for imitation: recorded episodes hold no thoughts)",
            )
        if asked := next((mark for mark in UNMARKED if mark in self.render(_OPENING)), None):
            raise self._refused(
                f"asks for thoughts in plain words ({asked!r}), so that they cannot be cut safely", "take another model"
            )
        shown, header = without_thoughts(opening), without_thoughts(self.header).rstrip()
        if self._begun:
            shown = shown.replace(self._begun.end, "")  # DeepSeek V3.1 shows only the end of an earlier thought
        chosen = shown.removeprefix(header) if shown.startswith(header) else ""
        if chosen.strip():
            raise self._refused(
                f"lets a model begin a reply with {chosen.strip()!r} or something else, such as another channel or "
                "recipient, so that thoughts cannot be cut safely",
                "take another model",
            )
        heard, reply, _ = _PROBE
        for name in THOUGHT_FIELDS:
            try:
                shown = self.render([heard, {**reply, name: HIDDEN}], prompt=False).rpartition(HEARD)[2]
            except UserError:
                continue  # a template may refuse a field
            self._thought_fields.append(name)
            if HIDDEN in without_thoughts(shown):
                raise self._refused(
                    f"shows a thought as {shown!r}, between marks that are not known, so that it cannot be cut safely",
                    "take another model",
                )

    def _refused(self, problem: str, remedy: str = "change its chat_template, or take another model") -> UserError:
        return UserError(f"{self.tokenizer.name_or_path}: the chat template {problem}; {remedy}")

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _clock(date: str) -> Callable[[str], str]:
    """Returns the clock of a chat template, stopped at the beginning of a date."""
    return datetime.fromisoformat(date).strftime


def _controls(token: Any, template: str) -> bool:
    """Whether an added token is a control token: special, of a known family, or a tag in the template.

    Other added tokens are runs of spaces or whole words.
    """
    tag = re.fullmatch(r"[<\[].*[>\]]", token.content) is not None and token.content in template
    return bool(token.special) or CONTROL.fullmatch(token.content.strip()) is not None or tag


NO_END = "does not show a reply, its end and what is said after it"
# Without a system message, which Mistral's templates repeat in the last user message.
_PROBE = (_message("user", HEARD), _message("assistant", REPLY), _message("user", HEARD))
_OPENING = (_message("system", RULES), _message("user", HEARD))
_AROUND_REPLY = re.compile(f".*?{HEARD}(.*?){REPLY}(.+?){HEARD}(.*)", re.DOTALL)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass
class TrajectoryBuilder:
    """Growing trajectory of one seat. It is append-only, so each prompt is a prefix of the next."""

    chat: ChatTokenizer
    seat: int
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
    asked: bool = False
    """Whether the stream ends with the header of the next reply."""

    def observe(self, text: str) -> None:
        """Add an observation; it is tokenised at the player's next turn."""
        if text:
            self.heard.append(text)

    def prompt(self) -> list[int]:
        """Append the new observations, and return all token ids up to and with the generation prompt."""
        if self.last is None:
            if not self.prompt_ids:
                self.messages.append(ChatMessage(role="system", content=self.system))
                self._hear()
                self.num_prompt_messages = len(self.messages)
                self.prompt_ids = self.chat.rendered_prompt(self.messages)
        elif self.heard or not self.asked:  # a seat that has read nothing new gets an empty observation
            self._append(self.chat.next_prompt(self._hear(), self.last.token_ids))
        self.asked = True
        return self.prompt_ids + self.response_ids

    def reply(self, completion: Completion) -> str:
        """Append a completion and return its text with thoughts."""
        text = self.chat.decode_reply(completion.token_ids)
        self.messages.append(ChatMessage(role="assistant", content=text))
        self._add(completion, own=1)
        return text

    def say(self, text: str, *, cut: bool = False, learned: bool = True) -> None:
        """Append a turn that the model did not sample, as the tokens of its text with log-probs 0.

        Args:
            text: The turn.
            cut: Whether the turn was cut, so that it has no end-of-turn token.
            learned: Whether the tokens have mask 1; otherwise, they have mask 0 like an observation.

        Raises:
            EngineError: An earlier observation would be tokenised as a control token.
        """
        ids = self.chat.supplied_turn(text) + ([] if cut else [self.chat.end_of_turn])
        completion = Completion(ids, [0.0] * len(ids), FinishReason.STOP, prompt_tokens=0, cached_tokens=0)
        self.prompt()
        self.messages.append(ChatMessage(role="assistant", content=self.chat.decode_reply(ids)))
        self._add(completion, own=1 if learned else 0)

    def context(self) -> list[ChatMessage]:
        """Returns all messages that the player has read and written so far."""
        messages = list(self.messages) or [ChatMessage(role="system", content=self.system)]
        return [*messages, self._observation()] if self.heard else messages

    def finish(self) -> Trajectory:
        """Returns the trajectory up to the last token that the player sampled."""
        messages = self.context() if self.last is not None else list(self.messages)
        end = max((i + 1 for i, own in enumerate(self.response_mask) if own), default=0)
        return Trajectory(
            seat=self.seat,
            prompt_ids=self.prompt_ids,
            response_ids=self.response_ids[:end],
            response_mask=self.response_mask[:end],
            response_logprobs=self.response_logprobs[:end],
            messages=messages,
            num_prompt_messages=self.num_prompt_messages,
        )

    def trajectories(self) -> list[Trajectory]:
        """Returns the one trajectory of the seat."""
        return [self.finish()]

    def _add(self, completion: Completion, own: Literal[0, 1]) -> None:
        self.response_ids += completion.token_ids
        self.response_mask += [own] * len(completion.token_ids)
        self.response_logprobs += completion.logprobs
        self.last, self.asked = completion, False

    def _hear(self) -> str:
        self.messages.append(self._observation())
        self.heard = []
        return self.messages[-1].content

    def _observation(self) -> ChatMessage:
        return ChatMessage(role="user", content=self.chat.neutralise("\n".join(self.heard)))

    def _append(self, ids: Sequence[int]) -> None:
        self.response_ids += ids
        self.response_mask += [0] * len(ids)
        self.response_logprobs += [0.0] * len(ids)


@dataclass
class RenderedBuilder(TrajectoryBuilder):
    """Growing trajectories of one seat, one for each turn, whose prompt the chat template renders anew.

    The template decides what it shows of earlier turns. Most drop thoughts, so a prompt may be no prefix of the next.
    """

    turns: list[Trajectory] = field(default_factory=list)

    def prompt(self) -> list[int]:
        """Add the new observations, and return the token ids of the rendered conversation and the generation prompt."""
        if not self.messages:
            self.messages.append(ChatMessage(role="system", content=self.system))
        if not self.asked:  # a seat that has read nothing new gets an empty observation
            self._hear()
        self.asked = True
        self.prompt_ids = self.chat.rendered_prompt(self.messages)
        return self.prompt_ids

    def _add(self, completion: Completion, own: Literal[0, 1]) -> None:
        self.response_ids, self.response_mask, self.response_logprobs = [], [], []
        self.num_prompt_messages = len(self.messages) - 1
        super()._add(completion, own)
        if own and completion.token_ids:
            self.turns.append(self.finish())

    def trajectories(self) -> list[Trajectory]:
        """Returns the trajectory of each turn that is trained on."""
        return [*self.turns[:-1], *(turn.model_copy(update={"messages": self.context()}) for turn in self.turns[-1:])]


BUILDERS: dict[History, type[TrajectoryBuilder]] = {"appended": TrajectoryBuilder, "rendered": RenderedBuilder}
"""Class that builds a seat's trajectories for each value of `generate.history`."""
