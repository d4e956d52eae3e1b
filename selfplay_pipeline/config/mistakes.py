"""Explanations of mistakes in a configuration, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from selfplay_pipeline.config.fields import keys, listed
from selfplay_pipeline.core.sections import Section
from selfplay_pipeline.games.registry import FIRST_GAME, known

SHOWN = 40
"""Largest number of characters of a text in a message."""
WHOLE, NUMBER, TRUTH = "a whole number", "a number", "true or false"
KINDS = {
    "int_type": WHOLE, "int_parsing": WHOLE, "int_parsing_size": WHOLE, "int_from_float": WHOLE,
    "float_type": NUMBER, "float_parsing": NUMBER, "bool_type": TRUTH, "bool_parsing": TRUTH,
    "string_type": "a text", "path_type": "a path", "list_type": "a list", "model_type": "keys and values",
    "greater_than_equal": "at least {ge:g}", "greater_than": "a number above {gt:g}",
    "less_than_equal": "at most {le:g}", "less_than": "a number below {lt:g}", "literal_error": "{expected}",
}  # fmt: skip
"""Expected value, by pydantic's name of the mistake."""


def explain(error: ValidationError, section: type[Section], given: Mapping[str, Any]) -> tuple[list[str], str]:
    """Returns the position (sections and key) and the explanation of the first mistake.

    Args:
        section: Class of the section that could not be read.
        given: Values that it was read from.
    """
    first = error.errors()[0]
    path = [part for part in first["loc"] if isinstance(part, str)]
    kind, context = first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        return path, f"there is no such key; {_meant(path, section, given)}`selfplay config` prints all keys"
    if kind not in KINDS:
        return path, str(first["msg"]).removeprefix("Value error, ")
    expected, found = KINDS[kind].format(**context).replace("'", ""), first["input"]
    remedy = "; write it in brackets" if kind == "list_type" and isinstance(found, str | int | float) else ""
    shown = str(found) if kind.startswith(("greater", "less")) else _described(found)
    return path, f"expected {expected}, found {shown}{remedy}"


def _meant(path: list[str], section: type[Section], given: Mapping[str, Any]) -> str:
    """Returns a hint at the intended key: a similar name in the same section, or the same name elsewhere; else ""."""
    above = "".join(f"{part}." for part in path[:-1])
    everything = [key.name for key in keys(section)]
    if path[0] == "game":  # the game defines the keys of this section
        everything += [key.name for key in keys(known(given["game"].get("name", FIRST_GAME)).settings, above)]
    beside = {name.removeprefix(above).split(".")[0] for name in everything if name.startswith(above)}
    near = get_close_matches(path[-1], sorted(beside), n=1)
    elsewhere = [name for name in everything if name.rpartition(".")[2] == path[-1]]
    meant = listed([f"`{name}`" for name in near or elsewhere])
    return f"did you mean {meant}? " if meant else ""


def _described(value: Any) -> str:
    """Returns a description of a value for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {value if len(value) <= SHOWN else value[:SHOWN] + '…'!r}"
    return "a list" if isinstance(value, list) else "keys and values" if isinstance(value, dict) else str(value)
