"""Closing tables of `evaluate`, `listen` and `crossplay`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from rich.table import Table

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.evaluate.crossplay import CrossPlay
from selfplay_pipeline.evaluate.listen import LISTENING_FILE, Listening
from selfplay_pipeline.evaluate.run import Evaluation, Mode
from selfplay_pipeline.evaluate.states import references_in_words
from selfplay_pipeline.evaluate.verdict import verdict
from selfplay_pipeline.evaluate.worth_of_words import OTHER_STATES, rows_of_words
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.silence import SILENCE, LineName
from selfplay_pipeline.metrics.bootstrap import FEW_STATES, Interval
from selfplay_pipeline.metrics.figures import rows_of

HOW_TO_KNOW = (
    "not known for this configuration; `selfplay game silence` with the same --config and --game computes what can be "
    "computed"
)


TOO_NARROW = f"intervals over fewer than {FEW_STATES} states are too narrow; give more --num-states"


def show_evaluation(evaluation: Evaluation, folder: Path, game: Game) -> None:
    """Print every figure with its interval, one column per mode, the reference lines, and what the figures show.

    Args:
        evaluation: The evaluation.
        folder: Folder of the evaluation.
        game: The played game.
    """
    with_whom = "itself" if evaluation.partner == "self" else evaluation.partner
    muted = ", messages muted" if evaluation.mute else ""
    title = f"{evaluation.player} with {with_whom} on {evaluation.states}{muted}"
    table = _figures_table(one_line(title), {mode: report.figures for mode, report in evaluation.modes.items()}, game)
    words = [report.words for report in evaluation.modes.values()]
    for label, texts in rows_of_words(words):
        table.add_row(label, *texts)
    for label, cells in {
        "episodes": [str(report.episodes) for report in evaluation.modes.values()],
        "statuses": [", ".join(f"{k} {v}" for k, v in sorted(r.statuses.items())) for r in evaluation.modes.values()],
    }.items():
        table.add_row(label, *cells)
    console = Terminal()
    console.print(table)
    about = f"({game.about_lines})\n" if game.about_lines else ""
    lines = [SILENCE] if game.silence_is_bound else get_args(LineName)
    unknown = ", ".join(name for name in lines if name not in game.wordless)
    about += f"{unknown}: {HOW_TO_KNOW}\n" if unknown and game.has("wordless_rewards") else ""
    about += f"({OTHER_STATES})\n" if any(one is not None and not one.redrawn for one in words) else ""
    about += f"({TOO_NARROW})\n" if evaluation.num_states < FEW_STATES else ""
    written = one_line(f"written to {folder / 'evaluation.json'}")
    lines_known = f"{references_in_words(evaluation.references)}\n" if evaluation.references else ""
    console.print(f"{lines_known}{about}", end="", soft_wrap=True)
    for sentence in verdict(evaluation):
        console.print(sentence, soft_wrap=not console.is_terminal)
    console.print(written, soft_wrap=True)


def show_differences(differences: Mapping[Mode, Mapping[str, Interval]], earlier: Path, game: Game) -> None:
    """Print the differences between this evaluation and an earlier one."""
    Terminal().print(_figures_table(one_line(f"difference to {earlier}, paired by game state"), differences, game))


CELL_WIDTH = len("0.883 [0.811, 0.933]  ")
"""Characters of a cell of the matrix of cross-play."""
UNTESTED = (
    "not tested: states without a decision right after a message, and those whose message cannot be altered so that "
    "another decision is best (a question, for example, tells nothing)"
)
"""Reasons for which `listen` leaves out a state."""


def show_listening(listening: Listening, folder: Path) -> None:
    """Print, for each kind of altered message, the share of decisions that followed it and the share that changed."""
    muted = ", messages muted" if listening.mute else ""
    title = one_line(f"decisions of {listening.player} after altered messages, {listening.states}{muted}")
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for name in ("share [95 % interval]", *listening.kinds):
        table.add_column(name, no_wrap=True)
    found = listening.kinds.values()
    table.add_row("follows what it hears", *(str(heard.follows) for heard in found))
    table.add_row("becomes another one", *(str(heard.moves) for heard in found))
    table.add_row("states tested", *(str(heard.tested) for heard in found))
    console = Terminal()
    console.print(table)
    if any(heard.tested < listening.num_states for heard in found):
        console.print(UNTESTED, soft_wrap=True)
    console.print(one_line(f"written to {folder / LISTENING_FILE}"), soft_wrap=True)


def show_crossplay(result: CrossPlay, folder: Path) -> None:
    """Print the matrix of mean rewards with their intervals; if it is too wide, a line for each pair."""
    console = Terminal()
    title = one_line(f"mean rewards [95 % intervals over states] on {result.states}; rows hold seat 0")
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    if CELL_WIDTH * (len(result.players) + 1) <= console.width:
        table.add_column("")
        for column in range(len(result.players)):
            table.add_column(str(column), no_wrap=True)
        for number, row in enumerate(result.rewards):
            table.add_row(str(number), *map(str, row))
    else:
        table.add_column("seat 0, others")
        table.add_column("reward", no_wrap=True)
        for number, row in enumerate(result.rewards):
            for column, cell in enumerate(row):
                table.add_row(f"{number}, {column}", str(cell))
    console.print(table)
    for number, name in enumerate(result.players):
        arm = result.arms[number] if result.arms else ""
        console.print(one_line(f"{number}: {name}{f' ({arm})' if arm else ''}"), soft_wrap=True)
    for arm, gaps in result.gaps.items():
        console.print(
            one_line(f"{arm}, {gaps.seeds} player{'s' * (gaps.seeds > 1)}: {gaps.in_words()}"), soft_wrap=True
        )
    for found in result.best_responses:
        console.print(f"best-response gap of {found.responder} to {found.partner}: {found.gap:+}")
    console.print(one_line(f"written to {folder / 'crossplay.json'}"), soft_wrap=True)


def _figures_table(title: str, columns: Mapping[Mode, Mapping[str, Interval]], game: Game) -> Table:
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    table.add_column("mean [95 % interval]")
    for mode in columns:
        table.add_column(mode, no_wrap=True)
    for label, cells in rows_of(list(columns.values()), game):
        table.add_row(label, *("–" if interval is None else str(interval) for interval in cells))
    return table
