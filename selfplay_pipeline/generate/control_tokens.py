"""Removal of control tokens, which could forge turns, and of thoughts, which other players must not read."""

from __future__ import annotations

import re
from typing import NamedTuple

CONTROL = re.compile(
    r"""
      <[|｜][^<>\s]+>                          # <|im_start|>, <|eot_id|>, <｜User｜>
    | <[^<>\s]+[|｜]>
    | \[[|][^\[\]\s]+[|]\]                     # [|user|]
    | </?[a-z]+(?:_[a-z0-9]+)+>                # <start_of_turn>, <tool_call>, <extra_id_0>
    | </?(?:s|bos|eos|pad|unk|mask|cls|sep|sop|eop|tools?|unused\d+|0x[0-9A-F]{2})>
    | </?(?:[a-z]+:)?(?:think|thinking|thought|reasoning)> | ◁/?think▷      # <think>, <seed:think>
    | <</?SYS>>
    | <(?:reponame|filename|image|audio|2mass)>
    | \[(?:@[A-Z]+@|control_\d+|multimodal)\]
    | \[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|MODEL_SETTINGS
            |g?MASK|BOS|EOS|PAD|UNK|CLS|SEP|IMG|IMG_BREAK|IMG_END|PREFIX|SUFFIX|MIDDLE|REF|AUDIO|BEGIN_AUDIO)\]
    """,
    re.VERBOSE,
)
"""Pattern of the control tokens of known model families."""


class Thought(NamedTuple):
    """Texts around a thought in the replies of a model family; `end` alone also ends a thought."""

    begin: str
    end: str


THOUGHTS = (
    Thought("<think>", "</think>"),  # Qwen, DeepSeek, GLM, Nemotron, LFM2.5, SmolLM3
    Thought("<|channel>", "<channel|>"),  # Gemma 4
    Thought("[THINK]", "[/THINK]"),  # Magistral
    Thought("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    Thought("<|channel|>analysis", "<|channel|>final<|message|>"),  # gpt-oss
    Thought("<|channel|>commentary", "<|channel|>final<|message|>"),
    Thought(" to=self<|message|>", " to=user<|message|>"),  # Muse Glimmer
    Thought("<seed:think>", "</seed:think>"),  # Seed-OSS
    Thought("<mm:think>", "</mm:think>"),  # MiniMax M3
    Thought("◁think▷", "◁/think▷"),  # Kimi-VL
    Thought("<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # Kimi K3
    Thought("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    Thought("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    Thought("<thought>", "</thought>"),  # EXAONE Deep
    Thought("<thinking>", "</thinking>"),
    Thought("<reasoning>", "</reasoning>"),  # Reka Flash 3
)
"""Thoughts of known model families.

Sources: the chat templates in trl 1.16.0, `sglang/srt/parser/reasoning_parser.py` in SGLang 0.5.12, and the folder
`vllm/reasoning` of vLLM 0.22; the rest stand in public programs that read the named models' replies.
"""
UNMARKED = ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "Here is my response:")
"""Texts of prompts that ask for thoughts in plain words, without control tokens around them (Apriel, Granite 3.2)."""
SWITCH_WORDS = re.compile(r"(?<![<◁:])/(?:no_?)?think(?:ing)?\b(?![>▷])")
"""Words in a message by which some templates switch thoughts on and off (Nemotron Nano v2, SmolLM3)."""
_BEGUN = {thought.begin: thought for thought in THOUGHTS}
_MARK = re.compile("|".join(map(re.escape, sorted({mark for thought in THOUGHTS for mark in thought}, reverse=True))))
_ANSWER = re.compile(r"\s*<(answer|response)>\s*(.*?)\s*</\1>\s*", re.DOTALL)
"""Tags that Hunyuan and ERNIE write around all that they say after a thought."""
_BEGUN_ANSWER = re.compile(r"<(answer|response)>\s*$")
_ENDED_ANSWER = re.compile(r"\s*</(answer|response)>\s*$")

DEEPEST = 100
"""Number of control tokens within each other that are removed one by one; each takes a pass over the whole text."""
BRACKETS = str.maketrans("", "", "<>[]")


def without_control(text: str) -> str:
    """Returns the text without control tokens, including those that a removal creates.

    A text with more of them within each other than `DEEPEST` also loses all its brackets.
    """
    for _ in range(DEEPEST):
        shorter = CONTROL.sub("", text)
        if shorter == text:
            return text
        text = shorter
    return text.translate(BRACKETS)


def after_thought(text: str, *, begun: Thought | None = None, tagged: bool = False) -> tuple[str, bool]:
    """Returns the text after a reply's last thought, and whether every thought has ended.

    The text is empty if a thought is unfinished. The thoughts of all known families are cut from every reply, because
    a fine-tuned model may think although its chat template knows no thoughts.

    Args:
        text: The reply.
        begun: Thought that the prompt has begun.
        tagged: Whether a reply without a thought may also stand in tags of an answer.
    """
    after = 0
    while True:
        if begun:
            if (end := text.find(begun.end, after)) < 0:
                return "", False
            after, begun = end + len(begun.end), None
        elif mark := _MARK.search(text, after):
            after, begun = mark.end(), _BEGUN.get(mark.group())
        else:
            break
    if not after and not tagged:
        return text, True
    said = text[after:].lstrip() if after else text
    answer = _ANSWER.fullmatch(said)
    return (answer[2] if answer else said), True


def thought_in(text: str, said: str) -> str:
    """Returns the thoughts of a reply without their marks, given what it says; "" if it holds none."""
    text = _ENDED_ANSWER.sub("", text)
    before = text[: text.rfind(said)] if said else text
    return without_control(_MARK.sub("", _BEGUN_ANSWER.sub("", before))).strip() if _MARK.search(text) else ""


def open_thought(prompt: str) -> Thought | None:
    """Returns the thought that a prompt begins and does not end."""
    *_, last = [None, *_MARK.finditer(prompt)]
    return _BEGUN.get(last.group()) if last else None


def without_thoughts(text: str) -> str:
    """Returns a text of a chat template without its thoughts, also without one that does not end."""
    for begin, end in THOUGHTS:
        text = re.sub(f"{re.escape(begin)}.*?({re.escape(end)}|$)", "", text, flags=re.DOTALL)
    return text
