"""Closing lines of `iterate`: table, verdict, one dialogue before and after, and where to look."""

from __future__ import annotations

import shlex
from pathlib import Path

from selfplay_pipeline.core.command_line import program
from selfplay_pipeline.core.files import read_model
from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.games.registry import own_games
from selfplay_pipeline.iterate.conclusion import conclusion
from selfplay_pipeline.iterate.folder import RunDirectory, short
from selfplay_pipeline.iterate.history import history_of
from selfplay_pipeline.iterate.results import Best
from selfplay_pipeline.iterate.table import run_table
from selfplay_pipeline.report.before_after import before_and_after
from selfplay_pipeline.report.terminal import show_before_and_after


def show_run(run: RunDirectory) -> Path:
    """Print the end of a run; returns the checkpoint to measure next: the best one on held-out states, else the newest.

    Raises:
        UserError: A file of the run is damaged.
    """
    show = Terminal()
    Terminal(highlight=True).print(run_table(run))
    for sentence in conclusion(history_of(run.state)):
        show.print(sentence, soft_wrap=not show.is_terminal)
    if found := before_and_after(run.path):
        show.print()
        show_before_and_after(found, show)
        for file, record in found.episodes[-1:]:
            whole = _command("show", str(file.path), "--episode", record.episode_id)
            show.print(one_line(f"the last one in full: {whole}"), soft_wrap=True)
    show.print()
    trained = [number for number, stages in sorted(run.state.iterations.items()) if "train" in stages]
    chosen = newest = short(run.checkpoint(trained[-1]))
    show.print(one_line(f"newest checkpoint: {newest}"), soft_wrap=True)
    if (run.path / "best.json").exists():
        best = read_model(run.path / "best.json", Best, "selfplay iterate")
        where = short(run.checkpoint(best.iteration) if run.state.trained(best.iteration) else best.checkpoint)
        chosen = where if best.iteration else newest
        chose = "; these states chose it, `evaluate` plays others"
        show.print(one_line(f"best on held-out states: iteration {best.iteration}, {where}{chose}"), soft_wrap=True)
    show.print(one_line(f"to look at curves and episodes: {_command('report', str(run.path))}"), soft_wrap=True)
    return Path(chosen)


def _command(name: str, path: str, *options: str) -> str:
    """Returns a shell command for a path, with --game for games outside the package."""
    own = [word for game in own_games()[:1] for word in ("--game", game)]
    return f"{program()} {shlex.join([name, short(path), *options, *own])}"
