"""`selfplay slime …`: the same game on slime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from selfplay_pipeline.errors import UserError

slime_app = typer.Typer(help="A shy partner and training on slime.", no_args_is_help=True, rich_markup_mode=None)


@slime_app.command()
def analyze(
    log_dir: Annotated[
        Path,
        typer.Option(help="Where slime's log hook wrote dialogues.jsonl, or a run directory of `selfplay iterate`."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for plots, analysis.json and analysis.md.")] = Path("plots"),
    form: Annotated[str, typer.Option("--format", help="Of plots: png, svg, pdf, joined by commas.")] = "png,svg",
) -> None:
    """Say whether the policy came to ask more, and whether asking pays: plots, a table, and a verdict by a test.

    Every figure has a 95 % interval over game states. The run may still be going.
    """
    formats: list[Any] = list(dict.fromkeys(part.strip().lower() for part in form.split(",")))
    if not set(formats) <= {"png", "svg", "pdf"}:
        raise UserError(f"--format {form}: give any of png, svg, pdf joined by commas")
    from selfplay_pipeline.asking.analysis import analyse
    from selfplay_pipeline.asking.output import write
    from selfplay_pipeline.asking.show import show_analysis
    from selfplay_pipeline.asking.sources import read
    from selfplay_pipeline.ui import waiting

    found = read(log_dir)
    with waiting(f"analysing {len(found.records):,} dialogues"):
        analysis = analyse(found)
    show_analysis(analysis, write(analysis, formats, out))
