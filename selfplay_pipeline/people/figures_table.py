"""Closing table of `evaluate --people`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.evaluate.states import references_in_words
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.people.people_figures import SHOWN, PeopleReport

ABOUT = (
    "intervals count the spreads over people and over states; worth of words: reward minus reward with altered "
    "messages, without each person's first episode"
)


def show_people(report: PeopleReport, file: Path) -> None:
    """Print the figures of people, one column for each partner, and the reference lines."""
    title = f"{report.people} people on {report.states} states of {report.game}, by partner"
    table = Table(title=one_line(title), box=None, padding=(0, 2, 0, 0))
    table.add_column("mean [95 % interval]")
    for name in report.partners:
        table.add_column(one_line(name), no_wrap=True)
    columns = [*report.partners.values()]
    for name, shown in SHOWN.items():
        cells = [column.figures.get(name) for column in columns]
        if any(cell is not None and cell.value is not None for cell in cells):
            label = shown.label if isinstance(shown, Figure) else shown
            table.add_row(label, *("–" if cell is None else str(cell) for cell in cells))
    altered = [column.altered for column in columns]
    if any(altered):
        table.add_row("reward, messages altered", *("" if one is None else str(one.reward) for one in altered))
        table.add_row("worth of words", *("" if one is None else format(one.worth, "+") for one in altered))
        table.add_row(
            "altered messages (without content)",
            *("" if one is None else f"{one.heard} ({one.empty})" for one in altered),
        )
        table.add_row("episodes with altered messages", *("" if one is None else str(one.episodes) for one in altered))
    if any(column.self_play for column in columns):
        table.add_row("reward of the partner with itself", *(str(column.self_play or "") for column in columns))
    table.add_row("people, states", *(f"{column.people}, {column.states}" for column in columns))
    table.add_row("episodes", *(str(column.episodes) for column in columns))
    statuses = (", ".join(f"{k} {v}" for k, v in sorted(column.statuses.items())) for column in columns)
    table.add_row("statuses", *statuses)
    console = Terminal()
    console.print(table)
    lines = [f"({ABOUT})"]
    lines += [f"{report.absent} further people took no turn, and are left out"] * bool(report.absent)
    lines += [
        f"{name}: {one.partly_altered} further episodes count for nothing: a message in them could not be altered"
        for name, one in report.partners.items()
        if one.partly_altered
    ]
    lines += [f"{name} with itself: on {one.self_play_on}" for name, one in report.partners.items() if one.self_play]
    lines += [
        f"{name} with itself: not known; `selfplay evaluate {one.player}` stores it"
        for name, one in report.partners.items()
        if one.player and one.self_play is None
    ]
    if report.references:
        lines.append(references_in_words(report.references))
    if report.pairs is not None:
        lines.append(f"pairs of people who come with the game: {report.pairs} in {report.num_pairs} episodes")
    lines.append(f"written to {file}")
    console.print("\n".join(map(one_line, lines)), soft_wrap=True)
