"""What a person sees while `iterate` runs: one table in place on a terminal, plain lines in a log."""

import asyncio
import io
import re

from factories import FINISHED, by_name
from rich.console import Console

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core import reporting, terminal
from selfplay_pipeline.core.terminal.progress import in_place, shown
from selfplay_pipeline.games.registry import game_named
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.iterate.held_out import Evaluated
from selfplay_pipeline.iterate.history import Iteration, in_words
from selfplay_pipeline.iterate.loop import Loop, run_iterate
from selfplay_pipeline.iterate.results import Trained
from selfplay_pipeline.iterate.table import live_table, run_table

PLAY, HELD_OUT = FINISHED["generate"], FINISHED["evaluate"]["figures"]


class OneStage(Loop):
    """Plays nothing, with a bar, as the real stages do."""

    async def run_all(self) -> None:
        reporting.status("iteration 1/1: generate")
        with reporting.progress("playing") as report:
            report(1, 2, lambda: "half")
            report(2, 2, lambda: "all")
        self.run.finish(1, "generate", StageRecord(seconds=3, figures=PLAY))
        reporting.status("iteration 1/1: done")


def figures_with(more: dict) -> dict:
    """The result of an evaluation with these figures beside its rewards."""
    return {"checkpoint": "c", "figures": HELD_OUT | by_name(more)}


def run(tmp_path, monkeypatch, *, drawn: bool) -> str:
    console = terminal.Terminal(file=io.StringIO(), force_terminal=drawn, width=110)
    monkeypatch.setattr(terminal, "console", console)
    with shown(), in_place(lambda: live_table(tmp_path)):
        asyncio.run(run_iterate(load_config("tiny", {}), tmp_path, OneStage))
    return console.file.getvalue()


def screen(text: str) -> list[str]:
    """The lines that stay, once cursor movements have been followed."""
    lines, row = [""], 0
    for part in text.replace("\x1b[", "\x00").replace("\n", "\x00n").replace("\r", "\x00r").split("\x00"):
        if part.startswith("n"):
            row, part = row + 1, part[1:]
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("r"):
            part = part[1:]
        elif part.startswith("1A"):
            row, part = row - 1, part[2:]
        elif part.startswith("2K"):
            lines[row], part = "", part[2:]
        elif part[:1].isdigit() or part.startswith("?"):
            part = part.lstrip("?0123456789;")[1:]
        lines[row] += part
    return lines


def test_on_a_terminal_nothing_stays_but_the_closing_table_and_a_log_has_plain_lines(tmp_path, monkeypatch):
    text = run(tmp_path / ":red_heart:drawn", monkeypatch, drawn=True)
    assert "self-play in" in text and "playing" in text
    assert ":red_heart:drawn" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\s", "", text), "a folder's name is no markup"
    assert "".join(screen(text)).strip() == ""
    text = run(tmp_path / "logged", monkeypatch, drawn=False)
    assert text.splitlines()[0] == "iteration 1/1: generate"
    assert "\x1b" not in text and "self-play in" not in text


def test_the_table_shows_what_is_done_and_only_the_newest_iterations(tmp_path):
    directory = RunDirectory(tmp_path)
    score = {"held_out_talk_score": {"value": 0.5, "low": 0.4, "high": 0.6}}
    directory.finish(0, "evaluate", StageRecord(seconds=1, figures=figures_with(score)))
    for number in range(1, 4):
        directory.finish(number, "generate", StageRecord(seconds=3, figures=PLAY))
    directory.finish(1, "train", StageRecord(seconds=9, figures=FINISHED["train"]))
    console = Console(file=io.StringIO(), width=110)
    console.print(run_table(directory))
    assert [line.split() for line in console.file.getvalue().splitlines() if line[:1].isdigit()] == [
        ["0", "0.900", "0.900", "0.500"],
        ["1", "0.800", "100.0%", "0.000", "1.50", "2/8", "7", "3", "9"],
        ["2", "0.800", "100.0%", "0.000", "1.50", "2/8", "3"],
        ["3", "0.800", "100.0%", "0.000", "1.50", "2/8", "3"],
    ]
    assert run_table(directory, newest=2).row_count == 2


def test_in_free_play_the_table_gives_the_lines_of_play_without_words_and_no_talk_score(tmp_path):
    directory, console = RunDirectory(tmp_path), Console(file=io.StringIO(), width=110)
    line = {"value": 0.92, "low": 0.91, "high": 0.93}
    lines = {"wordless": {"silence": line | {"value": 0.84}, "pass": line, "counter": line | {"value": 0.97}}}
    directory.finish(0, "evaluate", StageRecord(seconds=1, figures=figures_with(lines)))
    console.print(run_table(directory))
    text = console.file.getvalue()
    assert "reward of play without words: silence 0.840, pass 0.920, counter 0.970" in text and "talk" not in text
    said = in_words(Iteration(0, evaluated=Evaluated(**figures_with(lines))))
    assert said.endswith(", without words silence 0.840, pass 0.920, counter 0.970")


def test_an_iteration_in_words():
    done = Iteration(1, Played(**PLAY), Trained(**FINISHED["train"]), Evaluated(**figures_with({})))
    assert in_words(done) == (
        "reward 0.800 ± 0.010, agreed 100.0%, illegal 0.000, 7 steps, "
        "held out 0.900 [0.800, 1.000], greedy 0.900 [0.800, 1.000]"
    )
    parts = {"lost_to_telling": {"value": 0.1, "low": 0.0, "high": 0.2}}
    said = in_words(
        Iteration(0, evaluated=Evaluated(**figures_with({"held_out_parts": parts}))), game_named("matching")
    )
    assert said.endswith(", lost to telling 0.100 [0.000, 0.200]") and in_words(Iteration(0)) == ""
