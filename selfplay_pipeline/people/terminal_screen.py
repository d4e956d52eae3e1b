"""Screen of `selfplay play`: people read and write at one terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.columns import Columns
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import harmless, one_line
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.drawing import Table
from selfplay_pipeline.generate.episode import PersonLeft
from selfplay_pipeline.generate.records import PERSON, EpisodeRecord
from selfplay_pipeline.people.person import PersonSeat
from selfplay_pipeline.people.prompt import Checked, Prompt, ask_line, is_interactive, wipe
from selfplay_pipeline.report.terminal import SEAT_STYLES, show_episode


def check_terminal() -> None:
    """Raises UserError unless a person can type here."""
    if not is_interactive():
        raise UserError("play: needs a terminal for input and output; `selfplay generate` plays without people")


class TerminalScreen:
    """One terminal for all people of an episode; between two of them the screen is cleared."""

    def __init__(self) -> None:
        self.console = Terminal()
        self.prompts: dict[int, Prompt] = {}
        self.people = 1
        self.seat: int | None = None
        self.shown = 0

    async def begin(self, game: Game, players: Sequence[str], number: int) -> None:
        """Announce the episode."""
        self.prompts, self.seat, self.shown = {}, None, 0
        self.people = sum(name == PERSON for name in players)
        who = ", ".join(f"seat {seat}: {name}" for seat, name in enumerate(players))
        self.console.print(Text(one_line(f"state {number} of {game.name}, {game.describe()}; {who}"), style="bold"))

    async def turn(self, seat: PersonSeat) -> str:
        """Show the person what is new, and return the text of the person's turn."""
        try:
            if self.seat != seat.number:
                await self._hand_over(seat)
            self._show_new(seat)
            choices = seat.choices()
            forms = [choice.form for choice in choices if choice.form]
            self.console.print(Text(f"your turn: {', '.join(choice.action for choice in choices)}", style="bold"))
            prompt = self.prompts.setdefault(seat.number, Prompt())
            text = await prompt.ask(partial(_checked, seat), forms, partial(self._help, seat))
        except EOFError:
            raise PersonLeft from None
        self._show_text(seat, own=True, text=text)
        self.shown = len(seat.read) + 1
        return text

    def end(self, record: EpisodeRecord, game: Game) -> None:
        """Show the whole episode, with the result beside the optimum."""
        self.console.rule("the episode")
        show_episode(record, self.console, game=game)

    async def goes_on(self) -> bool:
        """Whether another episode is played."""
        try:
            return (await ask_line("Enter plays another episode, q ends: ")).lower() not in ("q", "quit")
        except EOFError:
            return False

    async def _hand_over(self, seat: PersonSeat) -> None:
        if self.people > 1:
            wipe(self.console)
            await ask_line(f"seat {seat.number} plays now; the others look away. Enter shows its view: ")
        self.seat, self.shown = seat.number, 0
        self._show_view(seat)

    def _show_view(self, seat: PersonSeat) -> None:
        self.console.print(Panel(_text(seat.opening.system), title="the rules", title_align="left"))
        if seat.views:
            self.console.print(Columns([_table(view) for view in seat.views], padding=(0, 4)))
        else:
            self.console.print(Panel(_text(seat.opening.observation), title="what you see", title_align="left"))

    def _show_new(self, seat: PersonSeat) -> None:
        for own, text in seat.read[self.shown :]:
            self._show_text(seat, own=own, text=text)
        self.shown = len(seat.read)

    def _show_text(self, seat: PersonSeat, *, own: bool, text: str) -> None:
        style = SEAT_STYLES[seat.number % len(SEAT_STYLES)] if own else ""
        title = "you" if own else "new"
        self.console.print(Panel(_text(text), title=title, title_align="left", border_style=style, expand=False))

    def _help(self, seat: PersonSeat) -> None:
        self._show_view(seat)
        self.shown = 0
        self._show_new(seat)
        for choice in seat.choices():
            self.console.print(Text(f"{choice.action}:", style="bold"), _text(choice.form or "see the rules"))


def _checked(seat: PersonSeat, text: str) -> Checked:
    turn, step = seat.read_turn(text)
    if step.error is not None:
        return Checked(None, f"not sent: {step.error}")
    return Checked(turn, f"This is a legal turn ({step.action}). Enter sends it.")


def _table(drawn: Table) -> RichTable:
    table = RichTable(title=Text(harmless(drawn.title)), box=None, padding=(0, 1))
    table.add_column("")
    for column in drawn.columns:
        table.add_column(Text(harmless(column)), justify="right")
    for name, cells in zip(drawn.rows, drawn.cells, strict=True):
        table.add_row(Text(harmless(name)), *(Text(harmless(cell)) for cell in cells))
    return table


def _text(text: str) -> Text:
    return Text(harmless(text, lines=True).strip())
