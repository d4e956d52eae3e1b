"""Content of the pages, as data for the templates in `page/`. A page of a running episode has one person's view alone.

All that a person may know before the end comes from the `PersonSeat`: its opening, its tables, and what it has read.
Full texts of other players, with their thoughts, and other players' tables are for the page of an ended episode.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from selfplay_pipeline.games.base import CUT, MESSAGE, Choice, Game, Part, State, Status
from selfplay_pipeline.games.drawing import HIDDEN, UNKNOWN, Table
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.people.person import PersonSeat

MOST_BUTTONS = 7
"""Largest number of options of a part that are shown as buttons; more options make a list."""
MOST_ROWS = 12
"""Largest number of rows of a table that is shown as a whole; a longer one is scrolled within the page."""
LONGEST_CELL = 40
"""Largest number of characters of a cell; a column with longer ones is shown on lines of its own."""
ENDINGS = {
    Status.TURN_LIMIT: "The episode reached its limit of turns.",
    Status.ERROR_LIMIT: "A player made too many illegal turns.",
    Status.CONTEXT_LENGTH: "The conversation became too long for the other player.",
    Status.ABANDONED: "Somebody left the episode.",
}


BRACKET = re.compile(r"[\[［【]")
OF_MODELS = (Status.ERROR_LIMIT, Status.CONTEXT_LENGTH)
"""Statuses that only models bring about, since a person's illegal turn is not sent."""


@dataclass(frozen=True)
class Draft:
    """Turn that was not sent, shown again in its form.

    Attributes:
        note: Reason why the turn was not sent.
        action: Action of the form.
        text: Written text.
        selected: Number of the selected option by part.
    """

    note: str
    action: str = ""
    text: str = ""
    selected: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Form:
    """Form of one action.

    Attributes:
        kind: `grid` (cells of a table), `rows` (rows of tables), `parts` (options, with words if it is a message),
            `button` (nothing to fill in) or `text`.
        text: Text that the form begins with.
        tables: Tables in which a person selects, with kind `grid` or `rows`; each with the numbers of its parts.
    """

    kind: str
    choice: Choice
    text: str = ""
    tables: Sequence[tuple[Table, Sequence[int]]] = ()

    @property
    def title(self) -> str:
        """Heading of the form."""
        return self.choice.action.replace("_", " ")


def forms_of(choices: Sequence[Choice], views: Sequence[Table]) -> list[Form]:
    """Returns the forms of the actions that a person may take now."""
    forms = []
    for choice in choices:
        if choice.parts:
            kind, tables = _tables_of(choice, views)
            forms.append(Form(kind, choice, tables=tables))
        elif choice.form == f"[{choice.action}]":
            forms.append(Form("button", choice))
        else:
            forms.append(Form("text", choice, "" if choice.action == MESSAGE else choice.form))
    return forms


def _tables_of(choice: Choice, views: Sequence[Table]) -> tuple[str, list[tuple[Table, list[int]]]]:
    """Returns the kind of a form with parts, and the tables in which the parts are selected, if any."""
    numbers = range(len(choice.parts))
    if (grid := next((view for view in views if _is_grid(choice, view)), None)) is not None:
        return "grid", [(grid, [*numbers])]
    parts_of = {view.title: [at for at in numbers if _are_rows(choice.parts[at], view)] for view in views}
    found = [(view, parts_of[view.title]) for view in views if parts_of[view.title]]
    return ("rows", found) if sorted(at for _, own in found for at in own) == [*numbers] else ("parts", [])


def long_columns(table: Table) -> list[str]:
    """Returns the columns with cells that are too long for a table row."""
    longest = [max(map(len, cells), default=0) for cells in zip(*table.cells, strict=True)]
    return [column for column, length in zip(table.columns, longest, strict=False) if length > LONGEST_CELL]


def _are_rows(part: Part, view: Table) -> bool:
    """Whether the options of a part are the rows of a table."""
    return bool(part.table) and part.table == view.title and len(part.options) == len(view.rows)


def _is_grid(choice: Choice, view: Table) -> bool:
    """Whether the parts of a choice are the columns of a table, and their options its rows."""
    return [part.label for part in choice.parts] == view.columns and all(
        [*part.options] == view.rows for part in choice.parts
    )


def turn_of(choice: Choice, text: str, selected: Sequence[int]) -> str:
    """Returns the text of a turn that a form makes."""
    if choice.parts:
        return choice.write(selected) + (text if choice.action == MESSAGE else "")
    if choice.form == f"[{choice.action}]":
        return choice.form
    return choice.form + text if choice.action == MESSAGE and choice.form else text


def of_turn(seat: PersonSeat, *, may_act: bool) -> dict[str, Any]:
    """Returns the content of a running episode for one person."""
    last = max((number for number, (own, _) in enumerate(seat.read, start=1) if own), default=0)
    forms = forms_of(seat.choices(), seat.views) if may_act else []
    return {
        "rules": seat.opening.system,
        "views": seat.views,
        "observation": seat.opening.observation,
        "before": [(own, plain(text)) for own, text in seat.read[:last]],
        "new": [plain(text) for _, text in seat.read[last:]],
        "forms": forms,
        "drawn": next((form for form in forms if form.tables), None),
    }


def of_end(game: Game, record: EpisodeRecord, seat: int, *, blind: bool = False) -> dict[str, Any]:
    """Returns the content of an ended episode for one person.

    Args:
        game: The game with the prompts for people.
        record: The episode.
        seat: Seat of the person.
        blind: Whether the conversation has only what the person could read, since all that the other player wrote would
            show who it is.
    """
    state, outcome = game.state_from_json(record.state), record.outcome
    drawn = game.draw_episode(state, record.turns, outcome.proposal)
    tables = game.draw_state(state)
    status = ENDINGS.get(Status(outcome.status)) if outcome.status in [*Status] else None
    if blind and outcome.status in (Status.TURN_LIMIT, *OF_MODELS):
        status = "The episode ended without agreement."
    return {
        "ending": status or f"The episode ended: {outcome.status}.",
        "agreed": outcome.status in game.goals,
        "reward": outcome.reward_of(seat),
        "score": outcome.score,
        "best": outcome.best,
        "decision": drawn.decision,
        "marks": drawn.marks,
        "views": [(f"seat {view.seat}{' (you)' * (view.seat == seat)}", view) for view in tables.views],
        "whole": tables.whole,
        "about_whole": drawn.about_whole,
        "results": drawn.results,
        "turns": [*_as_read(game, state, record, seat)]
        if blind
        else [
            (turn.seat == seat, f"seat {turn.seat}", turn.text if turn.seat != seat else plain(turn.text), turn.error)
            for turn in record.turns
        ],
    }


def _as_read(game: Game, state: State, record: EpisodeRecord, seat: int) -> Iterator[tuple[bool, str, str, None]]:
    """Yields all that a seat read and wrote, as the template shows turns."""
    session = game.start(state)
    for turn in record.turns:
        if turn.seat == seat:
            yield True, "", plain(turn.text), None
        observation = session.step(turn.seat, turn.text, cut=turn.error_kind == CUT).observations[seat]
        if observation:
            yield False, "", plain(observation), None


def plain(text: str) -> str:
    """Returns a text without the tag of a message, unless the message has brackets, which might look like a tag."""
    before, _tag, words = text.partition(f"[{MESSAGE}] ")
    return (text if BRACKET.search(words) else f"{before}{words}").strip()


class Pages:
    """The templates."""

    def __init__(self) -> None:
        """Load the templates."""
        self._environment = Environment(
            loader=PackageLoader("selfplay_pipeline.people.web", "page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        # Inline, since a page that waits leads on at once, and a browser would give up a style sheet that still loads.
        style = (resources.files("selfplay_pipeline.people.web") / "page" / "style.css").read_text("utf-8")
        self.style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        self._environment.globals |= {
            "HIDDEN": HIDDEN, "UNKNOWN": UNKNOWN, "MESSAGE": MESSAGE, "MOST_BUTTONS": MOST_BUTTONS, "style": style,
            "long_columns": long_columns, "MOST_ROWS": MOST_ROWS,
        }  # fmt: skip

    def render(self, name: str, **content: Any) -> str:
        """Returns a page as HTML."""
        return self._environment.get_template(f"{name}.html.j2").render(content)
