"""Bad inputs of the commands for slime: prompt data, the rollout's configuration, logged episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from chaos.inputs.base import Input, Prepare
from chaos.inputs.configuration import BOMB, written
from chaos.inputs.damage import WHOLE_FILES, changed, dotted, without, wrong_type, zipped
from chaos.inputs.good import Good, copy, rows, write_rows

KIND = "slime"
DATA = ("slime", "check", "--data", "bad.jsonl")
RULES = ("slime", "check", "--custom-config", "bad.yaml")
ANALYZE = ("questions", "log", "--output", "out")
LINE = 2


def inputs(rng: Random) -> Iterator[Input]:
    """Yields damaged rows, configurations and logged episodes."""
    yield from _data(rng)
    yield from _configurations()
    yield from _asked(rng)


def _data(rng: Random) -> Iterator[Input]:
    def line_changed(change: Callable[[Any], Any]) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            found: list[Any] = rows(good.slime_data)
            found[LINE - 1] = change(found[LINE - 1])
            write_rows(folder / "bad.jsonl", found)

        return prepare

    def case(what: str, change: Callable[[Any], Any]) -> Input:
        return Input(KIND, what, DATA, rf"bad\.jsonl:{LINE}", line_changed(change), printed=True)

    for path in (
        ("prompt",), ("metadata",), ("metadata", "state_id"), ("metadata", "game_state"), ("metadata", "ground_truth"),
        ("metadata", "optimal_score"), ("metadata", "game_state", "table"), ("metadata", "rules", "size"),
    ):  # fmt: skip
        wrong = wrong_type(1, rng)
        if path != ("metadata", "rules", "size"):
            yield case(f"data, {dotted(path)} missing", partial(without, path=path))
        yield case(f"data, {dotted(path)} of another type", partial(changed, path=path, value=wrong))
    yield case("data, a line torn", lambda row: json.dumps(row)[:200])
    yield case("data, a line deep", lambda row: "[" * 50_000 + "]" * 50_000)
    yield case("data, an id with an escape twice", lambda row: changed(row, ("prompt",), "\x1b[31m"))
    yield case("data, an unknown rule", lambda row: changed(row, ("metadata", "rules", "colour"), "red"))
    yield case("data, an infinite rule", lambda row: changed(row, ("metadata", "rules", "hard_factor"), float("inf")))
    for name, damage in (WHOLE_FILES | {"zipped": zipped}).items():
        if name == "truncated":
            continue

        def prepare(folder: Path, good: Good, damage: Callable[[Path], None] = damage) -> None:
            copy(good.slime_data, folder / "bad.jsonl")
            damage(folder / "bad.jsonl")

        yield Input(KIND, f"data is {name}", DATA, r"bad\.jsonl", prepare, printed=True)


def _configurations() -> Iterator[Input]:
    texts = {
        "bomb": BOMB, "unknown key": "colour: red\n", "unknown key in a section": "selfplay: {colour: red}\n",
        "duplicate key": "max_turns: 3\nmax_turns: 4\n", "turns of text": "max_turns: many\n",
        "turns not a number": "max_turns: .nan\n", "no turns": "max_turns: 0\n", "list": "- 1\n", "tab": "a:\n\tb: 1\n",
        "partner unknown": "selfplay: {partner: nobody}\n", "partner a list": "selfplay: {partner: [shy]}\n",
        "python": "max_turns: !!python/name:os.system\n", "itself": "&a [*a]\n",
        "key with an escape": '"\\e[31mmax": 1\n', "infinite timeout": "selfplay: {chat: {timeout: .inf}}\n",
        "deep": "max_turns: " + "[" * 20_000 + "]" * 20_000,
    }  # fmt: skip
    for name, text in texts.items():
        yield Input(
            KIND, f"configuration, {name}", RULES, r"bad\.yaml|selfplay\.partner",
            written(text), printed=True,
        )  # fmt: skip
    for name in ("binary", "folder", "pipe", "device"):

        def prepare(folder: Path, good: Good, name: str = name) -> None:
            (folder / "bad.yaml").write_text("max_turns: 3\n")
            WHOLE_FILES[name](folder / "bad.yaml")

        yield Input(KIND, f"configuration is {name}", RULES, r"bad\.yaml", prepare, printed=True)
    for name, place in (("missing", "none"), ("a file", "data/tiny_model/config.json"), ("too long", "x" * 300)):
        yield Input(KIND, f"slime's folder {name}", ("slime", "check", "--slime", place), r"slime", printed=True)


def _asked(rng: Random) -> Iterator[Input]:
    def logged(change: Callable[[Any], Any]) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            found: list[Any] = rows(good.asked)
            found[LINE - 1] = change(found[LINE - 1])
            (folder / "log").mkdir()
            write_rows(folder / "log" / "questions.jsonl", found)

        return prepare

    fields = (
        "step", "episode_id", "group", "reward", "status", "turns", "messages", "questions", "specific", "facts",
        "repeated", "learned", "partner_messages", "leaks",
    )  # fmt: skip

    def case(what: str, change: Callable[[Any], Any]) -> Input:
        return Input(KIND, f"logged episodes, {what}", ANALYZE, rf"questions\.jsonl:{LINE}", logged(change))

    for field in rng.sample(fields, 8):
        wrong = wrong_type("text" if field in ("episode_id", "status") else 1, rng)
        yield case(f"{field} of another type", partial(changed, path=(field,), value=wrong))
    for field in rng.sample(fields, 4):
        yield case(f"{field} missing", partial(without, path=(field,)))
    for field, what, value in (
        ("reward", "not a number", float("nan")), ("reward", "above 1", 2.0), ("step", "negative", -1),
        ("questions", "more than messages", 10**6), ("group", "beyond 64 bits", 2**70),
        ("step", "beyond 64 bits", 2**70),
    ):  # fmt: skip
        yield case(f"{field} {what}", partial(changed, path=(field,), value=value))
    yield case("a line torn", lambda row: json.dumps(row)[:40])
    yield case("a line deep", lambda row: "[" * 50_000 + "]" * 50_000)
    for name in ("empty", "binary", "folder", "pipe", "device", "loop"):

        def prepare(folder: Path, good: Good, name: str = name) -> None:
            logged(lambda row: row)(folder, good)
            WHOLE_FILES[name](folder / "log" / "questions.jsonl")

        yield Input(KIND, f"logged episodes, {name}", ANALYZE, r"log", prepare)
