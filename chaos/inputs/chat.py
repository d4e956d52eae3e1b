"""Bad settings of the chat partner: addresses, keys, prices, and its cache of answers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random

from chaos.inputs.base import Input, Prepare
from chaos.inputs.damage import WHOLE_FILES
from chaos.inputs.good import Good

KIND = "chat partner"
COMMAND = (
    "generate", "--config", "own.yaml", "--player", "random", "--player", "chat", "--num-episodes", "8",
    "--output", "out/games.jsonl",
)  # fmt: skip
CLOSED = "http://127.0.0.1:9/v1"
"""Address without a listening process."""


def configured(**partner: object) -> Prepare:
    """Returns a function that writes a configuration file with the section `partner`."""

    def prepare(folder: Path, good: Good) -> None:
        lines = "".join(f"  {key}: {value}\n" for key, value in partner.items())
        (folder / "own.yaml").write_text(f"partner:\n{lines}")

    return prepare


def inputs(rng: Random) -> Iterator[Input]:
    """Yields addresses and keys, then the cache."""
    addresses = {
        "of another protocol": "ftp://localhost/v1", "of a file": "file:///etc/passwd", "without a host": "http:///v1",
        "without a protocol": "localhost:3000", "with a password": "http://me:secret@localhost/v1",
        "with a question": "http://localhost/v1?key=secret", "with port 99999": "http://localhost:99999/v1",
        "with port 0": "http://localhost:0/v1", "with a port of text": "http://localhost:text/v1",
        "with a line break": '"http://local\\nhost/v1"', "with an escape": '"http://\\e[31mlocalhost/v1"',
        "empty": "''", "with spaces": "'http://local host/v1'", "of half an IPv6": "'http://[::1/v1'",
    }  # fmt: skip
    for name, address in addresses.items():
        yield Input(KIND, f"address {name}", COMMAND, r"base_url", configured(base_url=address))
    for name, address in (
        ("of another protocol", "ftp://x"),
        ("of text", "nowhere"),
        ("with a password", "http://a:b@c"),
    ):
        env = {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "secret"}
        yield Input(KIND, f"OPENAI_BASE_URL {name}", COMMAND, r"OPENAI_BASE_URL", configured(model="m"), env)
    keys = {
        "missing": "",
        "of spaces": "   ",
        "with a line break": "a\nb",
        "beyond ASCII": "schlüssel",
        "with an escape": "\x1b[31m",
    }
    for name, key in keys.items():
        yield Input(KIND, f"key {name}", COMMAND, r"OPENAI_API_KEY", configured(model="m"), {"OPENAI_API_KEY": key})
    for iterate in (("iterate", "--dry-run", "--partner", "chat"), ("evaluate", "chat", "--num-states", "2")):
        yield Input(KIND, f"{iterate[0]}, key missing", iterate, r"OPENAI_API_KEY", env={"OPENAI_API_KEY": ""})
    yield from _caches()


def _caches() -> Iterator[Input]:
    def of_file(name: str) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            configured(base_url=CLOSED, max_retries=0, cache="answers.sqlite3")(folder, good)
            (folder / "answers.sqlite3").write_text("no database " * 500)
            if name != "text":
                WHOLE_FILES[name](folder / "answers.sqlite3")

        return prepare

    def other_tables(folder: Path, good: Good) -> None:
        configured(base_url=CLOSED, max_retries=0, cache="answers.sqlite3")(folder, good)
        with sqlite3.connect(folder / "answers.sqlite3") as database:
            database.execute("create table answers (colour text)")

    for name in ("text", "binary", "pipe", "device"):
        yield Input(KIND, f"cache is {name}", COMMAND, r"cache|answers", of_file(name), codes=(1, 2))
    yield Input(KIND, "cache has other tables", COMMAND, r"cache|answers", other_tables, codes=(1, 2))
    for name, value in (
        ("below a file", "own.yaml/answers"),
        ("below a device", "/dev/null/x"),
        ("too long", "x" * 300),
    ):
        prepare = configured(base_url=CLOSED, max_retries=0, cache=value)
        yield Input(KIND, f"cache {name}", COMMAND, r"cache|own\.yaml|/dev/null|xxx", prepare)
