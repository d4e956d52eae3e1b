"""Bad files of games: every field missing, of another type or impossible, and files of other formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from chaos.inputs.base import Input, Prepare
from chaos.inputs.damage import (
    WHOLE_FILES,
    as_text,
    changed,
    deep,
    dotted,
    latin,
    leaves,
    sixteen_bits,
    without,
    wrong_type,
    zipped,
)  # fmt: skip
from chaos.inputs.good import Good, copy, copy_folder, rows, write_rows

KIND = "games files"
ROWS = "impossible rows"
FILE = "bad.jsonl"
LINE = 3
"""Number of the damaged line, from 1; it is in the second group."""
READERS = {
    "convert": ("convert", FILE, "--output", "out"),
    "report": ("report", FILE, "--output", "out.html"),
    "show": ("show", FILE, "--worst"),
}
Row = dict[str, Any]

TEMPLATE: Row = {
    "schema_version": 2, "episode_id": "s0", "group_index": 0, "episode": 0, "seed": 0, "game": "matching",
    "state": {"table": [[1]], "mask1": [[1]], "mask2": [[1]], "scale1": 1.0, "scale2": 1.0,
              "best_assignment_reward": 1, "papers": ["p"], "reviewers": ["r"]},
    "players": ["policy"],
    "turns": [{"seat": 0, "text": "t", "action": "message", "finish_reason": "stop"}],
    "trajectories": [{"seat": 0, "prompt_ids": [1], "response_ids": [1], "response_mask": [1],
                      "response_logprobs": [0.0], "messages": [{"role": "user", "content": "c"}],
                      "num_prompt_messages": 1}],
    "outcome": {"status": "agreed", "score": 1.0, "best": 1.0, "normalized_reward": 1.0, "proposal": [[0, 0]],
                "num_turns": 1, "num_messages": 1, "num_proposals": 1, "num_illegal": 0},
    "policy": {"checkpoint": "c", "weights": "w", "iteration": 0, "engine": "sglang", "temperature": 1.0,
               "max_new_tokens": 1},
}  # fmt: skip
"""Structure of a record; its values come from a real one."""
OPTIONAL = {("schema_version",), ("state", "papers"), ("state", "reviewers")}
"""Fields that may be missing."""


def ordered(good: Good) -> list[Row]:
    """Returns good games, with those of a group together."""
    return sorted(rows(good.games), key=lambda row: (row["group_index"], row["episode"]))


def line_changed(change: Callable[[Row], Row | str | bytes]) -> Prepare:
    """Returns a function that writes good games with one line damaged."""

    def prepare(folder: Path, good: Good) -> None:
        games: list[Any] = ordered(good)
        games[LINE - 1] = change(games[LINE - 1])
        write_rows(folder / FILE, games)

    return prepare


def inputs(rng: Random) -> Iterator[Input]:
    """Yields damage to fields, then hand-written files."""
    yield from _fields(rng)
    yield from _ranges()
    yield from _files()
    yield from _impossible()
    yield from _continued()


def _fields(rng: Random) -> Iterator[Input]:
    """Yields each field once, missing or of another type. `show` reads bad states, since `convert` reads none."""
    for path, value in leaves(TEMPLATE):
        command = READERS["show" if path[0] == "state" else rng.choice(["convert", "convert", "report"])]
        field = path[: 1 + max(at for at, part in enumerate(path) if part != 0)]
        change: Callable[[Row], Row]
        if field not in OPTIONAL and rng.random() < 0.5:
            name, change = f"{dotted(field)} missing", partial(without, path=field)
        else:
            name, change = f"{dotted(path)} of another type", partial(changed, path=path, value=wrong_type(value, rng))
        yield Input(KIND, name, command, rf"bad\.jsonl:{LINE}", line_changed(change))


def _ranges() -> Iterator[Input]:
    """Yields numbers of the right type that are impossible."""
    nan, inf = float("nan"), float("inf")
    impossible: list[tuple[tuple[Any, ...], str, Any]] = [
        (("schema_version",), "of the future", 3),
        (("game",), "unknown", "chess"),
        (("group_index",), "negative", -1),
        (("group_index",), "beyond 64 bits", 2**70),
        (("episode",), "negative", -1),
        (("episode",), "beyond 64 bits", 2**70),
        (("turns", 0, "seat"), "negative", -1),
        (("turns", 0, "seat"), "a third", 2),
        (("turns", 0, "action"), "unknown", "sing"),
        (("outcome", "status"), "unknown", "won"),
        (("outcome", "score"), "not a number", nan),
        (("outcome", "score"), "infinite", inf),
        (("outcome", "best"), "not a number", nan),
        (("outcome", "best"), "negative", -3.0),
        (("outcome", "normalized_reward"), "not a number", nan),
        (("outcome", "normalized_reward"), "above 1", 1.5),
        (("outcome", "normalized_reward"), "negative", -0.5),
        (("outcome", "num_turns"), "negative", -1),
        (("policy", "temperature"), "not a number", nan),
        (("policy", "temperature"), "infinite", inf),
        (("policy", "temperature"), "negative", -1.0),
        (("policy", "temperature"), "zero", 0.0),
        (("policy", "temperature"), "another than before", 0.123),
        (("policy", "top_p"), "below 1", 0.9),
        (("policy", "top_k"), "set", 5),
        (("policy", "repetition_penalty"), "set", 1.1),
        (("policy", "max_new_tokens"), "negative", -1),
        (("players",), "of three", ["policy", "policy", "policy"]),
        (("players",), "of nobody", []),
        (("colour",), "unknown", "red"),
        (("trajectories", 0, "colour"), "unknown", "red"),
        (("colour\u001b[31m",), "unknown with an escape", "red"),
    ]
    for path, what, value in impossible:
        yield Input(
            KIND, f"{dotted(path)} {what}".replace("\u001b[31m", ""), READERS["convert"], rf"bad\.jsonl:{LINE}",
            line_changed(partial(changed, path=path, value=value)),
        )  # fmt: skip


def _files() -> Iterator[Input]:
    lines: dict[str, Callable[[Row], str | bytes]] = {
        "torn in the middle": lambda row: json.dumps(row)[:300],
        "two on a line": lambda row: json.dumps(row) * 2,
        "a list": lambda row: json.dumps([row]),
        "a number": lambda row: "7",
        "nothing": lambda row: "null",
        "no JSON": lambda row: "not JSON \x1b[31m",
        "not UTF-8": lambda row: json.dumps(row).encode().replace(b'"episode_id": "', b'"episode_id": "\xff\xfe'),
        "a surrogate": lambda row: json.dumps({**row, "episode_id": "\ud800"}),
        "with a byte-order mark": lambda row: b"\xef\xbb\xbf" + json.dumps(row).encode(),
        "deep": lambda row: json.dumps(row)[:-1] + ', "state": ' + "[" * 50_000 + "]" * 50_000 + "}",
        "NUL bytes": lambda row: b"\x00" * 500,
    }
    for number, (name, change) in enumerate(lines.items()):
        reader = list(READERS)[number % 3]
        yield Input(KIND, f"a line is {name}", READERS[reader], rf"bad\.jsonl:{LINE}", line_changed(change))
    whole = WHOLE_FILES | {"latin-1": latin, "utf-16": sixteen_bits, "zipped": zipped, "deep": deep}
    whole |= {"blank lines": as_text("\n\n\n"), "parquet": as_text("PAR1\n"), "html": as_text("<html></html>\n")}
    for number, (name, damage) in enumerate(whole.items()):
        if name in ("truncated", "empty"):  # the last line may be incomplete, and a run may not have started to play
            continue

        def prepare(folder: Path, good: Good, damage: Callable[[Path], None] = damage) -> None:
            copy(good.games, folder / FILE)
            damage(folder / FILE)

        reader = list(READERS)[number % 3]
        yield Input(KIND, f"the file is {name}, {reader}", READERS[reader], r"bad\.jsonl", prepare)


def _impossible() -> Iterator[Input]:
    """Yields rows of the right form that no model can have sampled."""
    nan, inf, seat = float("nan"), float("inf"), ("trajectories", 0)

    def first(row: Row, field: str, value: Any) -> Row:
        found: Row = changed(row, (*seat, field, 0), value)
        return found

    def emptied(row: Row) -> Row:
        lengths = {"response_ids": [], "response_mask": [1], "response_logprobs": []}
        return {**row, "trajectories": [{**row["trajectories"][0], **lengths}, row["trajectories"][1]]}

    def masked(row: Row) -> Row:
        length = len(row["trajectories"][0]["response_ids"])
        none = {"response_mask": [0] * length, "response_logprobs": [0.0] * length}
        return {**row, "trajectories": [{**row["trajectories"][0], **none}, row["trajectories"][1]]}

    kinds: dict[str, Callable[[Row], Row]] = {
        "log-prob not a number": lambda row: first(row, "response_logprobs", nan),
        "log-prob infinite": lambda row: first(row, "response_logprobs", inf),
        "log-prob minus infinite": lambda row: first(row, "response_logprobs", -inf),
        "log-prob positive": lambda row: first(row, "response_logprobs", 0.5),
        "log-prob beyond floats of 32 bits": lambda row: first(row, "response_logprobs", -1e39),
        "prompt id negative": lambda row: first(row, "prompt_ids", -1),
        "prompt id beyond the vocabulary": lambda row: first(row, "prompt_ids", 999_999),
        "prompt id of 2^31": lambda row: first(row, "prompt_ids", 2**31),
        "sampled id negative": lambda row: first(row, "response_ids", -1),
        "sampled id beyond the vocabulary": lambda row: first(row, "response_ids", 999_999),
        "sampled id of 2^31": lambda row: first(row, "response_ids", 2**31),
        "sampled id of 2^64": lambda row: first(row, "response_ids", 2**64),
        "empty prompt": lambda row: changed(row, (*seat, "prompt_ids"), []),
        "no message of the prompt": lambda row: changed(row, (*seat, "num_prompt_messages"), 0),
        "more messages of the prompt than there are": lambda row: changed(row, (*seat, "num_prompt_messages"), 99),
        "negative messages of the prompt": lambda row: changed(row, (*seat, "num_prompt_messages"), -1),
        "seat negative": lambda row: changed(row, (*seat, "seat"), -1),
        "seat of a third": lambda row: changed(row, (*seat, "seat"), 2),
        "one seat twice": lambda row: changed(row, (*seat, "seat"), 1),
        "trajectory twice": lambda row: {**row, "trajectories": [row["trajectories"][0]] * 2},
        "trajectory of a seat that was not the policy's": lambda row: {**row, "players": ["policy", "random"]},
        "mask without a token of one's own": masked,
        "mask of 2": lambda row: first(row, "response_mask", 2),
        "mask longer than the tokens": emptied,
        "log-probs shorter than the tokens": lambda row: changed(
            row, (*seat, "response_logprobs"), row["trajectories"][0]["response_logprobs"][:-1]
        ),
        "role unknown": lambda row: changed(row, (*seat, "messages", 0, "role"), "tool"),
    }
    for name, change in kinds.items():
        yield Input(ROWS, f"convert, {name}", READERS["convert"], rf"bad\.jsonl:{LINE}", line_changed(change))

    def repeated(folder: Path, good: Good) -> None:
        games = ordered(good)
        write_rows(folder / FILE, [*games, games[2]])

    def of_two_states(folder: Path, good: Good) -> None:
        games = ordered(good)
        games[LINE - 1]["state"] = games[0]["state"]
        write_rows(folder / FILE, games)

    def singles(folder: Path, good: Good) -> None:
        write_rows(folder / FILE, ordered(good)[::2])

    yield Input(ROWS, "convert, an episode twice", READERS["convert"], r"bad\.jsonl", repeated)
    yield Input(
        ROWS, "convert, a group of two states", READERS["convert"], rf"bad\.jsonl:[{LINE}{LINE + 1}]", of_two_states
    )
    yield Input(ROWS, "convert, groups of one episode", READERS["convert"], r"bad\.jsonl.*one episode", singles)


def _continued() -> Iterator[Input]:
    """Yields a damaged file of games that the same command is to continue."""

    def continued(change: Callable[[Path], None]) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            copy_folder(good.scripted.parent, folder / "out")
            change(folder / "out" / "games.jsonl")

        return prepare

    def middle(path: Path) -> None:
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:2], lines[2][:100], *lines[3:]]) + "\n")

    def doubled(path: Path) -> None:
        path.write_text(path.read_text() * 2)

    def beyond(path: Path) -> None:
        path.write_text(path.read_text().replace('"group_index":1', '"group_index":77'))

    command = (
        "generate",
        "--player",
        "random",
        "--player",
        "random",
        "--num-episodes",
        "24",
        "--output",
        "out/games.jsonl",
    )
    again = (*command[:-3], "16", *command[-2:])
    changes: dict[str, Callable[[Path], None]] = {
        "torn in the middle": middle,
        "binary": WHOLE_FILES["binary"],
        "zipped": zipped,
        "a folder": WHOLE_FILES["folder"],
        "a pipe": WHOLE_FILES["pipe"],
        "every episode twice": doubled,
        "of states beyond the job": beyond,
    }
    for name, change in changes.items():
        yield Input(KIND, f"continued, {name}", again, r"games\.jsonl", continued(change))
    yield Input(KIND, "continued with another number", command, r"games\.jsonl", continued(lambda path: None))
