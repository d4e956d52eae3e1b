"""`selfplay show`: one play in a terminal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.generate.records import PlayRecord
from selfplay_pipeline.harmless import harmless
from selfplay_pipeline.report.reading import Board, Decoder, Reading, Stream, gains, read_board, read_play
from selfplay_pipeline.report.scan import parse, plays
from selfplay_pipeline.small_files import check_regular

SEAT_STYLES = ("cyan", "yellow")
Pick = Literal["last", "best", "worst", "random"]
POLL_SECONDS = 0.5
SURE = -0.1
"""Log-prob from which on a token is shown as expected."""


def show_play(record: PlayRecord, console: Console, decoder: Decoder | None = None) -> None:
    """Both tables, the dialogue, the proposal beside an optimum, and with a decoder the tokens."""
    board, play = read_board(record), read_play(record, decoder)
    tables: list[RenderableType] = [_table(board, play, seat) for seat in (0, 1)]
    legend = Text("(n) hidden from that player   · seen by nobody   * proposed   + optimum   = both", style="dim")
    talk = _dialogue(play)
    console.print(Group(_head(board, play), Columns(tables, padding=(0, 4)), legend, *talk, _gains(board, play)))
    for stream in play.streams:
        console.print(_tokens(stream))


def short_titles(papers: Sequence[str]) -> list[str]:
    """Titles up to the colon, where these tell the papers apart."""
    short = [paper.split(":")[0] for paper in papers]
    return short if len(set(short)) == len(short) else list(papers)


def choose(path: Path, pick: Pick, seed: int | None = None) -> PlayRecord:
    """One play of a file, which may still be growing.

    Raises:
        UserError: there is none, or a line is bad.
    """
    rng, chosen = random.Random(seed), None
    takes: dict[Pick, Callable[[PlayRecord, PlayRecord, int], bool]] = {
        "last": lambda new, old, count: True,
        "best": lambda new, old, count: new.outcome.normalized_reward > old.outcome.normalized_reward,
        "worst": lambda new, old, count: new.outcome.normalized_reward < old.outcome.normalized_reward,
        "random": lambda new, old, count: rng.randrange(count) == 0,
    }
    _check_file(path)
    records = (record for _, _, record in plays(path))
    if pick != "last":  # a play that the engine lost is neither good nor bad
        records = (record for record in records if record.outcome.status is not Status.ENGINE_FAILURE)
    for count, record in enumerate(records, start=1):
        if chosen is None or takes[pick](record, chosen, count):
            chosen = record
    if chosen is None:
        raise UserError(f"{path}: no games in it (yet); `selfplay generate` writes it, --follow waits for it")
    return chosen


def find_game(path: Path, game: str) -> PlayRecord:
    """The play of that id.

    Raises:
        UserError: there is none, or a line is bad.
    """
    _check_file(path)
    first = None
    for _, _, record in plays(path):
        first = first or record.game_id
        if record.game_id == game:
            return record
    raise UserError(f"{path}: no game {game!r}" + (f"; its first is {first}" if first else "; it is empty"))


def follow(path: Path) -> Iterator[tuple[PlayRecord, int]]:
    """The newest play, and how many came with it, whenever plays are added; waits for the file, never ends.

    Raises:
        UserError: it is a folder, or a line is bad.
    """
    _check_file(path)
    offset = 0
    while True:
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            offset = 0  # it was written anew
        lines = _whole_lines(path, offset) if size > offset else []
        offset += sum(map(len, lines))
        games = [line for line in lines if line.strip()]
        if games:
            yield parse(games[-1], f"{path}, before byte {offset}"), len(games)
        time.sleep(POLL_SECONDS)


def _check_file(path: Path) -> None:
    if path.is_dir():
        games = sorted(path.glob("*.jsonl")) + sorted(path.glob("*/selfplay_games.jsonl"))
        example = games[-1] if games else "iter_1/selfplay_games.jsonl"
        raise UserError(f"{path}: a folder; give a file of games, such as {example}")
    if path.exists():
        check_regular(path, "give a file of games")


def _whole_lines(path: Path, offset: int) -> list[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        return [line for line in file if line.endswith(b"\n")]


def _head(board: Board, play: Reading) -> Text:
    good = "green" if play.status == "agreed" else "red"
    return Text.assemble(
        (harmless(play.id), "bold"),
        "  ",
        (play.status, good),
        f"  reward {play.reward:.3f} ({play.score:g} of {board.best})  {play.illegal} illegal actions",
    )


def _table(board: Board, play: Reading, seat: int | None) -> Table:
    """A player's table, hidden cells dimmed; without a seat the true scores."""
    if seat is None:
        title, scale = "true scores", 1.0
    else:
        scale = board.scales[seat]
        title = f"player {seat} ({harmless(Path(play.players[seat]).name)}) sees" + (
            f", × {scale:.2f}" if scale != 1 else ""
        )
    table = Table(title=Text(title, style=SEAT_STYLES[seat] if seat is not None else ""), box=None, padding=(0, 1))
    table.add_column("")
    for paper in short_titles(board.papers):
        table.add_column(Text(harmless(paper)), justify="right")
    for reviewer, name in enumerate(board.reviewers):
        cells = [_cell(board, play, seat, scale, reviewer, paper) for paper in range(len(board.papers))]
        table.add_row(Text(harmless(name)), *cells)
    return table


def _cell(board: Board, play: Reading, seat: int | None, scale: float, reviewer: int, paper: int) -> Text:
    known = any(view[reviewer][paper] is not None for view in board.views)
    seen = known if seat is None else board.views[seat][reviewer][paper] is not None
    number = str(int(board.table[reviewer][paper] * scale)) if known or seat is None else "·"
    number = number if seen or not known else f"({number})"
    proposed = play.proposal is not None and play.proposal[paper] == reviewer
    mark = {(True, True): "=", (True, False): "*", (False, True): "+"}.get(
        (proposed, play.optimum[paper] == reviewer), " "
    )
    style = {"=": "bold green", "*": "bold magenta", "+": "bold"}.get(mark, "")
    return Text(number + mark, style=style if seen else f"{style} dim".strip())


def _dialogue(play: Reading) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for turn in play.turns:
        speaker = f"player {turn.player}" + (", cut at the token limit" if turn.cut else "")
        body = Text(harmless(turn.text, lines=True))
        if turn.error:
            body.append(f"\nillegal: {harmless(turn.error)}", style="red")
        style = SEAT_STYLES[turn.player % 2]
        lines.append(Panel(body, title=f"{speaker}", title_align="left", border_style=style, expand=False))
    return lines or [Text("Nobody said anything.", style="dim")]


def _gains(board: Board, play: Reading) -> RenderableType:
    """The proposal on the table, and what each paper gains or loses to the optimum."""
    cells = gains(board, play)
    if not cells:
        return Columns([_table(board, play, None), Text("\n  nothing was proposed; + an optimum", style="dim")])
    table = Table(title="agreed" if play.agreed else "last proposal, not agreed", box=None, padding=(0, 1))
    for name in ("paper", "* proposed", "+ optimum", "gain"):
        table.add_column(name, justify="left" if name == "paper" else "right")
    for cell in cells:
        table.add_row(
            Text(harmless(short_titles(board.papers)[cell.paper])),
            Text(f"{harmless(board.reviewers[cell.proposed])} {cell.proposed_score}"),
            Text(f"{harmless(board.reviewers[cell.best])} {cell.best_score}"),
            Text(f"{cell.gain:+d}" if cell.gain else "=", style="red" if cell.gain < 0 else "green"),
        )
    table.add_row(
        "together", str(sum(c.proposed_score for c in cells)), str(board.best), f"{sum(c.gain for c in cells):+d}"
    )
    return Columns([_table(board, play, None), table], padding=(0, 4))


def _tokens(stream: Stream) -> RenderableType:
    """A trajectory: observed text dim, sampled tokens underlined, unlikely ones coloured and with their log-prob."""
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
    title = f"player {stream.player}'s tokens: underlined = sampled, (log-prob) where below {SURE}"
    return Panel(text, title=title, title_align="left", border_style=SEAT_STYLES[stream.player % 2])
