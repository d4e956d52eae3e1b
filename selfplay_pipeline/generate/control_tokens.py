"""Removal of control tokens, which could forge turns, and of thoughts, which other players must not read."""

from __future__ import annotations

import re

CONTROL = re.compile(
    r"""
      <[|｜][^<>\s]+>                          # <|im_start|>, <|eot_id|>, <｜User｜>
    | <[^<>\s]+[|｜]>
    | \[[|][^\[\]\s]+[|]\]                     # [|user|]
    | </?[a-z]+(?:_[a-z0-9]+)+>                # <start_of_turn>, <tool_call>, <extra_id_0>
    | </?(?:s|bos|eos|pad|unk|mask|cls|sep|sop|eop|think|thought|tools?|unused\d+|0x[0-9A-F]{2})>
    | <</?SYS>>
    | <(?:reponame|filename|image|audio|2mass)>
    | \[(?:@[A-Z]+@|control_\d+|multimodal)\]
    | \[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|MODEL_SETTINGS
            |g?MASK|BOS|EOS|PAD|UNK|CLS|SEP|IMG|IMG_BREAK|IMG_END|PREFIX|SUFFIX|MIDDLE|REF|AUDIO|BEGIN_AUDIO)\]
    """,
    re.VERBOSE,
)
"""Pattern of the control tokens of known model families."""

THOUGHT, THOUGHT_END = "<think>", "</think>"


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


def after_thought(text: str, *, begun: bool = False) -> tuple[str, bool]:
    """Returns the text after a reply's last thought, and whether every thought has ended.

    The text is empty if a thought is unfinished.

    Args:
        text: The reply.
        begun: Whether the prompt ends inside a thought.
    """
    _, end, said = text.rpartition(THOUGHT_END)
    if THOUGHT in said or (begun and not end):
        return "", False
    return (said.lstrip() if end else said), True
