"""One place prints, and nothing that it prints steers the terminal."""

import ast
import io
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import selfplay
from factories import make_episode, make_episodes, write_episodes
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import selfplay_pipeline
from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import LONGEST_LINE, harmless, one_line

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\u202edrow\u2066\u200f\x9b31m\nselfplay: all is well :smile: [red]x[/red]"
PACKAGE = Path(selfplay_pipeline.__file__).parent


def steering(text: str) -> list[str]:
    """Characters that act on a terminal; line breaks apart."""
    marks = ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI")
    return [
        c
        for c in text
        if (unicodedata.category(c) in ("Cc", "Cs") and c != "\n")
        or unicodedata.bidirectional(c) in marks
        or c in "\u200e\u200f\u061c"
    ]


def print_calls(tree: ast.AST) -> Iterator[int]:
    """Yields lines that print past a `Terminal`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr"):
            if getattr(node.value, "id", "") == "sys":
                yield node.lineno
        elif isinstance(node, ast.Call):
            owner = getattr(node.func, "value", None)
            ours = getattr(getattr(owner, "func", None), "id", getattr(owner, "id", getattr(owner, "attr", ""))) in (
                "Terminal",
                "console",
                "show",
            )
            names = {getattr(node.func, "id", None), getattr(node.func, "attr", None)}
            if names & {"print", "echo", "secho", "Console", "print_exc"} and not ours:
                yield node.lineno


@pytest.mark.long
def test_nothing_prints_but_the_one_module():
    apart = {PACKAGE / "core/terminal/__init__.py", PACKAGE / "train/cluster.py"}  # whose child is read by its parent
    apart |= {PACKAGE / "people/prompt.py"}  # prompt_toolkit draws on the stream itself
    apart |= {PACKAGE / "train/loggers.py"}  # which sends what clients print to standard error
    paths = [path for path in PACKAGE.rglob("*.py") if path not in apart]
    assert not [f"{path}:{line}" for path in paths for line in print_calls(ast.parse(path.read_text()))]


@pytest.mark.parametrize(
    "shown", [HOSTILE, Text(HOSTILE, style="bold"), Panel(Text(HOSTILE)), Text.assemble((HOSTILE, "red"), HOSTILE)]
)
@pytest.mark.parametrize("colours", [True, False])
def test_only_styles_of_ones_own_reach_the_terminal(shown, colours):
    screen = io.StringIO()
    Terminal(file=screen, force_terminal=colours, color_system="standard" if colours else None, width=200).print(shown)
    text = re.sub(r"\x1b\[(0|1|31)m", "", screen.getvalue())
    assert not steering(text) and "␛]0;owned" in text and ":smile: [red]x[/red]" in text


def test_hostile_cells_titles_and_names_leave_a_table_straight():
    screen, table = io.StringIO(), Table(title=one_line(HOSTILE))
    table.add_column(one_line(HOSTILE))
    table.add_row("a\x1b[2Jb")
    Terminal(file=screen, width=200).print(table)
    lines = [line for line in screen.getvalue().splitlines() if "│" in line or "━" in line]
    assert len({len(line) for line in lines}) == 1 and not steering(screen.getvalue())


def test_what_libraries_write_is_cleaned_and_what_is_printed_here_keeps_its_styles(monkeypatch):
    beneath = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", beneath)
    terminal.guard()
    sys.stderr.write(f"{HOSTILE}\rbar\n")
    Terminal(stderr=True, force_terminal=True, color_system="standard").print(Text("styled", style="red"))
    beneath.flush()
    library, styled = beneath.buffer.getvalue().decode().rsplit("bar\n", 1)
    assert steering(library) == ["\r", "\r"] and "␛]0;owned␇" in library
    assert styled == "\x1b[31mstyled\x1b[0m\n"


@pytest.mark.parametrize("lines", [True, False])
def test_of_all_characters_those_that_steer_a_terminal_are_replaced_and_no_others(lines):
    """By Unicode's own tables: controls, halves of characters, line separators, and what turns text around."""

    def acts(character: str) -> bool:
        return bool(steering(character)) or unicodedata.category(character) in ("Cc", "Zl", "Zp")

    every = [chr(code) for code in range(0x10000)]
    kept = [character for character in every if acts(character) and harmless(character, lines=lines) == character]
    assert kept == (["\t", "\n"] if lines else [])
    assert not [character for character in every if acts(character) != (harmless(character) != character)]


def test_a_line_is_one_line_of_bounded_length_and_keeps_its_end():
    line = one_line("x" * 1_000_000 + "\nwhat to do")
    assert len(line) < LONGEST_LINE + 10 and line.endswith("\\nwhat to do")


def test_the_log_below_a_failure_cannot_be_taken_for_a_line_of_ours(capsys):
    terminal.say_failure(f"the server ended; log {HOSTILE}\nlast line {HOSTILE}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("selfplay: the server ended")
    assert len(lines) > 1 and all(line.startswith("  | ") for line in lines[1:])


PATH = f"./{HOSTILE}/x"


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "--model", PATH), ("generate", "--player", HOSTILE), ("game", "states", "--config", PATH),
        ("show", PATH),
        ("report", "--format", HOSTILE), ("model", "tiny", "--lesson", HOSTILE), (HOSTILE,), ("slime", HOSTILE),
        ("generate", f"--{HOSTILE}"), ("generate", "--seed", HOSTILE), ("show", "--seed", "9" * 100_000),
    ],
)  # fmt: skip
def test_no_word_that_is_given_to_a_command_reaches_the_terminal_as_it_is(command):
    done = selfplay(*command)
    assert done.returncode == 2 and not steering(done.stdout + done.stderr)
    error = done.stderr.splitlines()[-1]
    assert error.startswith(("Error: ", "selfplay: ")) and len(error) <= LONGEST_LINE + 20


def test_hostile_games_in_a_hostile_folder_are_shown_converted_and_reported(tmp_path):
    games, record = tmp_path / HOSTILE.replace("/", "") / "games.jsonl", make_episode(9)
    own = [one for one in record.trajectories if one.seat == 0]
    record = record.model_copy(update={"episode_id": HOSTILE, "players": ["policy", HOSTILE], "trajectories": own})
    write_episodes(games, [*make_episodes(1, 2), record])
    for command in ("show", "convert", "report"):
        done = selfplay(command, str(games))
        assert done.returncode == 0, done.stderr
        assert not steering(done.stdout + done.stderr)
        assert not [line for line in done.stdout.splitlines() if line.startswith("selfplay: all is well")]


def child(code: str, **environment: str) -> subprocess.Popen[bytes]:
    """A process of its own, with real streams."""
    code = f"from selfplay_pipeline.core import terminal\nterminal.guard()\n{code}\nterminal.finish()"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_who_stops_reading_ends_the_command_without_a_traceback():
    process = child("while True: terminal.result('line ' * 1000)")
    assert process.stdout.readline().startswith(b"line")
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(300) == 1


def test_an_output_that_knows_only_ascii_gets_question_marks():
    out, err = child(
        "terminal.result('0.5 \\xb1 0.1 \\u2026'); terminal.say('\\udcff \\xb1'); print('na\\xefve \\x1b[2J')",
        PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0",
    ).communicate()  # fmt: skip
    assert out.decode("ascii").splitlines() == ["0.5 ? 0.1 ?", "na?ve ?[2J"]
    assert err == b"? ?\n"
