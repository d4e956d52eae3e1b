"""Tables of a board and of a matching, for the terminal and the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from selfplay_pipeline.games.drawing import (
    BAD,
    GOOD,
    HIDDEN,
    UNKNOWN,
    EpisodeDrawing,
    Place,
    StateDrawing,
    Table,
    drawn_decision,
)
from selfplay_pipeline.games.matching.lost_reward import Losses, lost, notes
from selfplay_pipeline.games.matching.names import short_titles
from selfplay_pipeline.games.matching.proposals import Matching
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, best_matching

PROPOSED, OPTIMUM = "proposed", "optimum"


def draw_state(state: MatchingState) -> StateDrawing:
    """Returns tables of each player's view and of the true scores; a cell that neither player sees is `·`."""
    known = state.masks[0] | state.masks[1]
    return StateDrawing(
        views=[_view(state, seat, known) for seat in (0, 1)],
        whole=[_table(state, "true scores", None, state.table.astype(str).tolist(), ~known)],
    )


def draw_view(state: MatchingState, seat: int) -> Table:
    """Returns a table of the scores that one player sees; all other cells are `·`."""
    cells = [[UNKNOWN if score is None else str(score) for score in row] for row in state.view(seat)]
    short = short_titles(state.papers)
    full = dict(zip(short, state.papers, strict=True))
    return Table(title="your scores", seat=seat, columns=short, rows=list(state.reviewers), cells=cells, full=full)


def draw_episode(state: MatchingState, turns: Sequence[Any], decision: Any, config: MatchingConfig) -> EpisodeDrawing:
    """Returns tables of the last proposal, of the nearest optimum, and of the losses of reward.

    The nearest optimum is the best matching with the most pairs in common with the proposal.
    """
    final = drawn_decision(turns, decision)
    best = {paper: reviewer for reviewer, paper in nearest_optimum(state, final or ())}
    marks: dict[str, list[Place]] = {OPTIMUM: [(best[paper], paper) for paper in sorted(best)]}
    losses = lost(state, turns, config, agreed=decision is not None)
    where_lost = [_lost(state, losses)] if losses else []
    about_turns = notes(state, turns, config)
    if not final:
        about = "The whole table (nothing was proposed)"
        return EpisodeDrawing(marks=marks, about_whole=about, results=where_lost, notes=about_turns)
    chosen = {paper: reviewer for reviewer, paper in final}
    papers = short_titles(state.papers)
    return EpisodeDrawing(
        decision=", ".join(f"{papers[paper]} → {state.reviewers[chosen[paper]]}" for paper in sorted(chosen)),
        marks={PROPOSED: [(chosen[paper], paper) for paper in sorted(chosen)], **marks},
        about_whole="The proposal beside an optimum",
        results=[_gains(state, chosen, best, agreed=decision is not None), *where_lost],
        notes=about_turns,
    )


def nearest_optimum(state: MatchingState, proposal: Sequence[Place]) -> Matching:
    """Returns the best matching that has the most cells in common with the proposal; common cells only break ties."""
    weights = state.table * (state.size + 1)
    for pair in proposal:
        weights[pair[0], pair[1]] += 1
    return best_matching(weights)[0]


def _view(state: MatchingState, seat: int, known: Any) -> Table:
    """Returns a player's view; hidden cells hold the number that the player would see."""
    scale = state.scales[seat]
    cells = [
        [str(int(value * scale)) if any_saw else UNKNOWN for value, any_saw in zip(row, seen, strict=True)]
        for row, seen in zip(state.table.tolist(), known.tolist(), strict=True)
    ]
    title = "sees" + (f", scores × {scale:.2f}" if scale != 1 else "")
    return _table(state, title, seat, cells, ~state.masks[seat])


def _table(state: MatchingState, title: str, seat: int | None, cells: list[list[str]], hidden: Any) -> Table:
    short = short_titles(state.papers)
    return Table(
        title=title,
        seat=seat,
        columns=short,
        rows=list(state.reviewers),
        cells=cells,
        cells_that_are={HIDDEN: [(int(row), int(column)) for row, column in zip(*hidden.nonzero(), strict=True)]},
        full=dict(zip(short, state.papers, strict=True)),
        marked=True,
    )


def _gains(state: MatchingState, chosen: dict[int, int], best: dict[int, int], *, agreed: bool) -> Table:
    """Returns each paper's difference to the optimum; the last row is the proposal's score minus the best."""
    papers, table = sorted(chosen), state.table.tolist()
    scores = [(table[chosen[paper]][paper], table[best[paper]][paper]) for paper in papers]
    scores.append((sum(mine for mine, _ in scores), sum(most for _, most in scores)))
    names = [(state.reviewers[chosen[paper]], state.reviewers[best[paper]]) for paper in papers] + [("", "")]
    short = short_titles(state.papers)
    return Table(
        title="agreed" if agreed else "last proposal, not agreed",
        columns=[PROPOSED, OPTIMUM, "gain"],
        rows=[*(short[paper] for paper in papers), "together"],
        cells=[
            [f"{mine_by} {mine}".strip(), f"{most_by} {most}".strip(), f"{mine - most:+d}" if mine != most else "="]
            for (mine, most), (mine_by, most_by) in zip(scores, names, strict=True)
        ],
        cells_that_are={
            GOOD: [(row, 2) for row, (mine, most) in enumerate(scores) if mine > most],
            BAD: [(row, 2) for row, (mine, most) in enumerate(scores) if mine < most],
        },
        full=dict(zip(short, state.papers, strict=True)),
    )


def _lost(state: MatchingState, losses: Losses) -> Table:
    """Returns the losses to telling, planning and agreement; the last row is the best minus the score."""
    shares = asdict(losses)
    rows = {f"to {part}": share for part, share in shares.items()} | {"together": sum(shares.values())}
    return Table(
        title="where reward was lost",
        columns=["score", "of the best"],
        rows=list(rows),
        cells=[[f"{share * state.best:.0f}", f"{share:.3f}"] for share in rows.values()],
    )
