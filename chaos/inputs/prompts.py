"""Bad prompt templates in a shared folder: broken, endless, and with access to Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from chaos.inputs.base import Input, Prepare
from chaos.inputs.configuration import written
from chaos.inputs.damage import WHOLE_FILES, Damage
from chaos.inputs.good import Good, copy_folder

KIND = "prompts"
SETS = Path(__file__).parents[2] / "selfplay_pipeline" / "games" / "matching" / "prompts"
FOLDER = "bad_prompts"
GAME = ("games", "--config", "own.yaml", "--num-train", "2", "--num-test", "2", "--output", "out")
PLAY = (
    "generate", "--config", "own.yaml", "--player", "random", "--player", "random", "--num-episodes", "8",
    "--output", "out/games.jsonl",
)  # fmt: skip
CHAT = (*PLAY[:6], "chat", *PLAY[7:])
FILES = ("system", "opening", "partner", "error", "rejected")

HOSTILE = {
    "with an error of syntax": "{% for x in %}",
    "with an open tag": "{{ size",
    "with an unknown name": "{{ nobody }}",
    "with an unknown filter": "{{ size | explode }}",
    "that divides by zero": "{{ 1 // 0 }}",
    "that adds text and numbers": "{{ 'a' + 1 }}",
    "that goes on and on": "{% for a in range(99999999999) %}{% endfor %}",
    "that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "that reaches for Python": "{{ cycler.__init__.__globals__.os.system('touch pwned') }}",
    "that reaches for classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "that formats its way to Python": "{{ '{0.__class__.__init__.__globals__}'.format(namespace) }}",
    "that changes what it was given": "{% do 1 %}",
    "that includes a file outside": "{% include '../data/tiny_model/config.json' %}",
    "that includes itself": "{% include 'system.j2' %}",
    "of 50 MB": "x" * 50_000_000,
}


def _write(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)


def _remove(name: str, folder: Path) -> None:
    (folder / name).unlink()


def _damage(name: str, damage: Damage, folder: Path) -> None:
    damage(folder / name)


def inputs(rng: Random) -> Iterator[Input]:
    """Yields damage to the game's prompt sets, then to the chat partner's prompt."""

    def of_set(change: Callable[[Path], None]) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            copy_folder(SETS / "compact", folder / FOLDER)
            change(folder / FOLDER)
            (folder / "own.yaml").write_text(f"game: {{prompts: {FOLDER}}}\n")

        return prepare

    for name, text in HOSTILE.items():
        yield Input(
            KIND, f"system {name}", GAME, r"bad_prompts|system\.j2",
            of_set(partial(_write, "system.j2", text)),
        )  # fmt: skip
    for name in FILES:
        yield Input(
            KIND, f"{name} missing", GAME, rf"{name}\.j2",
            of_set(partial(_remove, f"{name}.j2")),
        )  # fmt: skip
    for name, damage in WHOLE_FILES.items():
        if name not in ("truncated", "empty"):
            yield Input(
                KIND, f"opening is {name}", GAME, r"opening\.j2|bad_prompts",
                of_set(partial(_damage, "opening.j2", damage)),
            )  # fmt: skip
    for place in ("none", "own.yaml", "data", "/dev/zero", "\\x1b[31m", "../../../../etc"):
        yield Input(
            KIND, f"the set is {place}", GAME, r"prompts",
            written(f'game: {{prompts: "{place}"}}\n', "own.yaml"),
        )  # fmt: skip
    yield from _of_partner()


def _of_partner() -> Iterator[Input]:
    def of_chat(text: str | None) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            if text is not None:
                (folder / "bad.j2").write_text(text)
            address = "{base_url: 'http://127.0.0.1:9/v1', max_retries: 0, prompt: bad.j2}"
            (folder / "own.yaml").write_text(f"partner: {address}\n")

        return prepare

    names = (
        "with an error of syntax", "with an unknown name", "that goes on and on",
        "that reaches for Python", "that divides by zero",
    )  # fmt: skip
    for name in names:
        yield Input(KIND, f"the partner's {name}", CHAT, r"partner\.prompt|bad\.j2", of_chat(HOSTILE[name]))
    yield Input(KIND, "the partner's missing", CHAT, r"partner\.prompt|bad\.j2", of_chat(None))
    for name in ("binary", "folder", "pipe", "device"):

        def prepare(folder: Path, good: Good, name: str = name) -> None:
            of_chat("x")(folder, good)
            WHOLE_FILES[name](folder / "bad.j2")

        yield Input(KIND, f"the partner's is {name}", CHAT, r"partner\.prompt|bad\.j2", prepare)
