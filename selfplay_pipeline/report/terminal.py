"""Episodes in a terminal: one as `selfplay show` prints it, and two of one state as `iterate` ends with them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.small_files import check_regular
from selfplay_pipeline.core.terminal.harmless import harmless, one_line
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.drawing import BAD, GOOD, HIDDEN, UNKNOWN, Place, Table
from selfplay_pipeline.generate.read_records import open_lines
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.store import check_can_grow
from selfplay_pipeline.report.before_after import BeforeAfter
from selfplay_pipeline.report.reading import Decoder, Drawn, Reading, TrajectoryText, Turn, read_episode, read_state
from selfplay_pipeline.report.scan import episodes, parse

SEAT_STYLES = ("cyan", "yellow", "magenta", "green")
Pick = Literal["last", "best", "worst", "random"]
POLL_SECONDS = 0.5
SIGNS, BOTH = "*+", "="
"""Signs next to cells that an episode marks, in the order of its marks."""
TONES = {BAD: "red", GOOD: "green"}
SURE = -0.1
"""Log-prob of an unsurprising token; tokens with at least this log-prob are not coloured."""
LONGEST_TURN, MOST_TURNS = 240, 8
"""Limits on the characters of a turn in one line, and on the turns of an episode whose turns have a line each."""


def show_episode(
    record: EpisodeRecord, console: Console, decoder: Decoder | None = None, game: Game | None = None
) -> None:
    """Print each player's view, the dialogue, the outcome, and with a decoder the tokens.

    Args:
        record: The episode.
        console: The terminal.
        decoder: Tokenizer for the trajectories; None leaves the tokens out.
        game: The game with the rules under which it was played, if known.
    """
    state, episode = read_state(record), read_episode(record, decoder, game)
    views: list[RenderableType] = [_table(table, episode) for table in state.drawing.views]
    whole = [_table(table, episode) for table in (*state.drawing.whole, *episode.drawing.results)]
    about = Text(episode.drawing.about_whole, style="dim")
    talk = _dialogue(episode)
    parts = [
        _head(episode.id, state, episode),
        Columns(views, padding=(0, 4)),
        *_legend(state, episode),
        *talk,
        about,
        Columns(whole, padding=(0, 4)),
    ]
    console.print(Group(*parts))
    streams = [stream for stream in episode.streams if stream.runs]
    for stream in streams:
        console.print(_tokens(stream, _owner(stream, streams, episode.seats)))


def show_before_and_after(found: BeforeAfter, console: Console) -> None:
    """Print the rule, then both episodes with a line for each turn; on a terminal, also what each seat sees."""
    whole_lines = not console.is_terminal
    console.print(Text(found.choice.in_words()), soft_wrap=whole_lines)
    for number, (file, record) in enumerate(found.episodes):
        state, episode = read_state(record), read_episode(record, game=file.game_of(record))
        if console.is_terminal and not number:
            tables = state.drawing.views or state.drawing.whole
            unmarked = [_table(table.model_copy(update={"marked": False}), episode) for table in tables]
            console.print(Columns(unmarked, padding=(0, 4)), *_hidden(state))
        title = f"after iteration {file.iteration}" if file.iteration else "before training"
        for line in (_head(title, state, episode), *_lines(episode)):
            console.print(line, soft_wrap=whole_lines)


def choose(path: Path, pick: Pick, seed: int | None = None) -> EpisodeRecord:
    """Returns one episode of a file, which may still be growing.

    Raises:
        UserError: The file has no episode, or a line is bad.
    """
    rng, chosen = random.Random(seed), None
    takes: dict[Pick, Callable[[EpisodeRecord, EpisodeRecord, int], bool]] = {
        "last": lambda new, old, count: True,
        "best": lambda new, old, count: new.outcome.normalized_reward > old.outcome.normalized_reward,
        "worst": lambda new, old, count: new.outcome.normalized_reward < old.outcome.normalized_reward,
        "random": lambda new, old, count: rng.randrange(count) == 0,
    }
    _check_file(path)
    for count, (_, _, record) in enumerate(episodes(path), start=1):
        if chosen is None or takes[pick](record, chosen, count):
            chosen = record
    if chosen is None:
        raise UserError(f"{path}: no episodes in it yet; `selfplay generate` writes them, --follow waits for them")
    return chosen


def find_episode(path: Path, episode_id: str) -> EpisodeRecord:
    """Returns the episode with this id.

    Raises:
        UserError: The file has no such episode, or a line is bad.
    """
    _check_file(path)
    first = None
    for _, _, record in episodes(path):
        first = first or record.episode_id
        if record.episode_id == episode_id:
            return record
    raise UserError(f"{path}: no episode {episode_id!r}" + (f"; its first is {first}" if first else "; it is empty"))


def follow(path: Path) -> Iterator[tuple[EpisodeRecord, int]]:
    """Yields the newest episode and the number of new ones whenever episodes are added; waits for the file, never ends.

    Raises:
        UserError: The path is a folder, or a line is bad.
    """
    _check_file(path)
    offset = 0
    while True:
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            offset = 0  # the file was written anew
        lines = _whole_lines(path, offset) if size > offset else []
        offset += sum(map(len, lines))
        whole = [line for line in lines if line.strip()]
        if whole:
            yield parse(whole[-1], f"{path}, before byte {offset}"), len(whole)
        time.sleep(POLL_SECONDS)


def _check_file(path: Path) -> None:
    if path.is_dir():
        games = sorted(path.glob("*.jsonl")) + sorted(path.glob("*/selfplay_games.jsonl"))
        example = games[-1] if games else "iter_1/selfplay_games.jsonl"
        raise UserError(f"{path}: a folder; give a file of episodes, such as {example}")
    if path.exists():
        check_regular(path, "give a file of episodes")


def _whole_lines(path: Path, offset: int) -> list[bytes]:
    check_can_grow(path)
    with open_lines(path) as file:
        file.seek(file.tell() + offset)
        return [line for line in file if line.endswith(b"\n")]


def _head(title: str, state: Drawn, episode: Reading) -> Text:
    seats = "".join(f"  {episode.seats[seat]}: {reward:.3f}" for seat, reward in enumerate(episode.rewards))
    return Text.assemble(
        (harmless(title), "bold"),
        "  ",
        (episode.status, "green" if episode.finished else "red"),
        f"  reward {episode.reward:.3f} ({episode.score:g} of {state.best:g}){seats}  {episode.illegal} illegal "
        "actions",
    )


def _legend(state: Drawn, episode: Reading) -> list[Text]:
    """Returns the meaning of the marks next to cells, if there are any."""
    marks = [f"{sign} {name}" for sign, name in zip(SIGNS, episode.drawing.marks, strict=False)]
    both = [f"{BOTH} both"] if len(marks) == len(SIGNS) else []
    words = [*map(str, _hidden(state)), *marks, *both]
    return [Text("   ".join(words), style="dim")] if words else []


def _hidden(state: Drawn) -> list[Text]:
    """Returns the meaning of brackets around cells, if there are any."""
    hides = any(view.cells_that_are.get(HIDDEN) for view in state.drawing.views)
    return [Text("(…) hidden from that player", style="dim")] * hides


def _table(drawn: Table, episode: Reading) -> RichTable:
    """Returns one of a game's tables, with hidden cells in brackets and dimmed, and signs next to marked cells."""
    title, style = drawn.title, ""
    if drawn.seat is not None:
        title, style = f"{_player(episode, drawn.seat)} {drawn.title}", SEAT_STYLES[drawn.seat % len(SEAT_STYLES)]
    table = RichTable(title=Text(title, style=style), box=None, padding=(0, 1))
    table.add_column("")
    for column in drawn.columns:
        table.add_column(Text(harmless(column)), justify="right")
    for row, name in enumerate(drawn.rows):
        cells = [_cell(drawn, episode, (row, column)) for column in range(len(drawn.columns))]
        table.add_row(Text(harmless(name)), *cells)
    return table


def _player(episode: Reading, seat: int) -> str:
    return f"{episode.seats[seat]} ({harmless(Path(episode.players[seat]).name)})"


def _cell(drawn: Table, episode: Reading, place: Place) -> Text:
    text = harmless(drawn.cells[place[0]][place[1]])
    hidden = place in drawn.cells_that_are.get(HIDDEN, ())
    if drawn.seat is not None and hidden and text != UNKNOWN:
        text = f"({text})"
    marks = episode.drawing.marks.values() if drawn.marked else ()
    signs = [sign for sign, places in zip(SIGNS, marks, strict=False) if place in places]
    sign = BOTH if len(signs) == len(SIGNS) else "".join(signs)
    tone = next((style for kind, style in TONES.items() if place in drawn.cells_that_are.get(kind, ())), "")
    style = {BOTH: "bold green", SIGNS[0]: "bold magenta", SIGNS[1]: "bold"}.get(sign, tone)
    padded = f"{text}{sign or ' '}" if drawn.marked else text
    return Text(padded, style=f"{style} dim".strip() if hidden else style)


def _dialogue(episode: Reading) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for turn in episode.turns:
        speaker = episode.seats[turn.seat] + (", cut at the token limit" if turn.cut else "")
        body = Text(harmless(turn.text, lines=True))
        if turn.error:
            body.append(f"\nillegal: {harmless(turn.error)}", style="red")
        if turn.note:
            body.append(f"\n({turn.note})", style="dim")
        style = SEAT_STYLES[turn.seat % len(SEAT_STYLES)]
        lines.append(Panel(body, title=f"{speaker}", title_align="left", border_style=style, expand=False))
    return lines or [Text("Nobody said anything.", style="dim")]


def _lines(episode: Reading) -> Iterator[Text]:
    """Yields a line for each turn; of many turns only the first and the last."""
    turns, half = episode.turns, MOST_TURNS // 2
    if len(turns) <= MOST_TURNS:
        yield from (_line(turn, episode) for turn in turns)
        return
    yield from (_line(turn, episode) for turn in turns[:half])
    yield Text(f"  … {len(turns) - 2 * half} more turns", style="dim")
    yield from (_line(turn, episode) for turn in turns[-half:])


def _line(turn: Turn, episode: Reading) -> Text:
    """Returns a turn in one line, with slashes in place of line breaks."""
    said = " / ".join(filter(None, map(str.strip, turn.text.splitlines())))
    line = Text.assemble(
        (f"  {_player(episode, turn.seat)}: ", SEAT_STYLES[turn.seat % len(SEAT_STYLES)]), one_line(said, LONGEST_TURN)
    )
    if turn.error:
        line.append(f"  illegal: {one_line(turn.error, LONGEST_TURN)}", style="red")
    return line


def _owner(stream: TrajectoryText, streams: Sequence[TrajectoryText], seats: Sequence[str]) -> str:
    """Returns the name of a trajectory's seat, with the number of the turn if each turn has a trajectory."""
    name, own = seats[stream.seat], [one for one in streams if one.seat == stream.seat]
    number = next(at for at, one in enumerate(own, start=1) if one is stream)
    return name if len(own) == 1 else f"{name}, turn {number} of {len(own)}"


def _tokens(stream: TrajectoryText, seat: str) -> RenderableType:
    """Returns a trajectory with observed text dim, sampled tokens underlined, unlikely ones coloured with log-prob."""
    text = Text()
    for run in stream.runs:
        if not run.log_probs:
            text.append(harmless("".join(run.texts), lines=True), style="dim")
            continue
        for piece, log_prob in zip(run.texts, run.log_probs, strict=True):
            unlikely = log_prob < SURE
            text.append(harmless(piece, lines=True), style="underline bold red" if unlikely else "underline")
            if unlikely:
                text.append(f"({log_prob:.2f})", style="dim red")
    if stream.left_out:
        text.append(f" … {stream.left_out} more tokens", style="dim")
    title = f"tokens of {seat}: underlined = sampled, (log-prob) where below {SURE}"
    return Panel(text, title=title, title_align="left", border_style=SEAT_STYLES[stream.seat % len(SEAT_STYLES)])
