"""Bad files of game states for `evaluate --states` and `crossplay --states`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from chaos.inputs.base import Input, Prepare
from chaos.inputs.damage import WHOLE_FILES, changed, sixteen_bits, without, wrong_type, zipped
from chaos.inputs.good import Good, copy, rows, write_rows

KIND = "states files"
FILE = "bad.jsonl"
COMMANDS = {
    "evaluate": ("evaluate", "own-view", "--states", FILE, "--output", "out"),
    "crossplay": ("crossplay", "random", "quiet", "--states", FILE, "--output", "out"),
}
LINE = 2


def inputs(rng: Random) -> Iterator[Input]:
    """Yields damage to fields, impossible values, and damaged files."""

    def line_changed(change: Callable[[Any], Any]) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            states: list[Any] = rows(good.states)
            states[LINE - 1] = change(states[LINE - 1])
            write_rows(folder / FILE, states)

        return prepare

    def case(what: str, change: Callable[[Any], Any]) -> Input:
        return Input(KIND, what, COMMANDS[rng.choice(sorted(COMMANDS))], rf"bad\.jsonl:{LINE}", line_changed(change))

    for field in ("table", "mask1", "mask2", "scale1", "scale2", "best_assignment_reward"):
        wrong = wrong_type(1, rng)
        yield case(f"{field} missing", partial(without, path=(field,)))
        yield case(f"{field} of another type", partial(changed, path=(field,), value=rng.choice([wrong, None])))
    nan, inf = float("nan"), float("inf")
    impossible: list[tuple[tuple[Any, ...], str, Any]] = [
        (("table",), "empty", []),
        (("table",), "ragged", [[1, 2], [3]]),
        (("table",), "of 40 rows", [[1] * 40] * 40),
        (("table",), "all zero", [[0] * 3] * 3),
        (("table", 0, 0), "negative", -5),
        (("table", 0, 0), "beyond 64 bits", 2**70),
        (("table", 0, 0), "beyond the game's scores", 5_000),
        (("table", 0, 0), "not a number", nan),
        (("table", 0, 0), "half a point", 0.5),
        (("mask1", 0, 0), "of 7", 7),
        (("mask1", 0, 0), "of text", "yes"),
        (("mask2",), "of another shape", [[1]]),
        (("scale1",), "not a number", nan),
        (("scale1",), "infinite", inf),
        (("scale2",), "negative", -1.0),
        (("scale2",), "zero", 0),
        (("best_assignment_reward",), "another", 1),
        (("best_assignment_reward",), "not a number", nan),
        (("papers",), "of one name", ["BLEU"] * 3),
        (("papers",), "of two names", ["BLEU", "GloVe"]),
        (("papers",), "of numbers", [1, 2, 3]),
        (("papers",), "a text", "abc"),
        (("reviewers",), "nothing", None),
        (("reviewers",), "with escapes", ["\x1b[31mAva", "\x1b[31mAva", "B"]),
        (("proposal_reward",), "not a number", nan),
        (("proposal_reward",), "infinite", inf),
        (("proposal_reward",), "of text", "much"),
        (("proposal_reward",), "above the best", 10_000),
        (("proposal_reward",), "negative", -3),
    ]
    for path, what, value in impossible:
        yield case(f"{path[0]} {what}", partial(changed, path=path, value=value))
    yield case("a line torn", lambda state: json.dumps(state)[:60])
    yield case("a line that is a list", lambda state: [state])
    yield case("a line that is deep", lambda state: "[" * 50_000 + "]" * 50_000)
    yield case("a line that is not UTF-8", lambda state: b'{"table": "\xff\xfe"}')
    whole = WHOLE_FILES | {"utf-16": sixteen_bits, "zipped": zipped}
    for name, damage in whole.items():

        def prepare(folder: Path, good: Good, damage: Callable[[Path], None] = damage) -> None:
            copy(good.states, folder / FILE)
            damage(folder / FILE)

        yield Input(KIND, f"the file is {name}", COMMANDS["evaluate"], r"bad\.jsonl", prepare)
