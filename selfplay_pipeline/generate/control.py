"""Control strings of chat templates, which no player may type, and thoughts, which no partner may read."""

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
"""What looks like a control token of a known family of models."""

THOUGHT, THOUGHT_END = "<think>", "</think>"


def without_control(text: str) -> str:
    """Remove what looks like a control token, also where only a removal makes it one."""
    while (shorter := CONTROL.sub("", text)) != text:
        text = shorter
    return text


def after_thought(text: str, *, begun: bool = False) -> tuple[str, bool]:
    """What a reply says after its last thought, and whether every thought ended. An unfinished thought says nothing.

    Args:
        begun: the prompt ends within a thought.
    """
    _, end, said = text.rpartition(THOUGHT_END)
    if THOUGHT in said or (begun and not end):
        return "", False
    return (said.lstrip() if end else said), True
