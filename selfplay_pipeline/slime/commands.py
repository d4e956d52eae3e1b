"""Commands of `selfplay slime`: the experiment with the shy partner, on slime and on our own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfplay_pipeline.command_parts.options import OfGames
from selfplay_pipeline.command_parts.shared import RUNS, output_file
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.reporting import announce
from selfplay_pipeline.core.shipped import built_in
from selfplay_pipeline.core.terminal.harmless import one_line

app = typer.Typer()
group = typer.Typer(
    help="The experiment with the shy partner on slime: its data, a check of slime, and the analysis of questions.",
    no_args_is_help=True,
)
app.add_typer(group, name="slime")


@group.command()
def data(
    num_states: Annotated[int, typer.Option(min=1, max=LARGEST, help="Game states, one row each.")] = 1000,
    output: Annotated[Path, output_file("JSONL file, for slime's --prompt-data or --eval-prompt-data.")] = Path(
        "data/games.jsonl"
    ),
    config: Annotated[str, typer.Option(help=f"YAML file, or built-in: {', '.join(built_in())}.")] = "default",
    seed: Annotated[int | None, typer.Option(min=0, help="Seeds the game states.")] = None,
    first_state: Annotated[int, typer.Option(min=0, max=LARGEST, help="Number of the first game state.")] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Turns of all seats, at most max_turns of matching_config.yaml for each [default: 40; of a YAML file, "
            "its game.max_length].",
        ),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="States of `selfplay evaluate`, none of them for training."),
    ] = False,
) -> None:
    """Write game states as prompt data for slime, without playing them.

    For evaluation during training, write a second file: selfplay slime data --held-out --num-states 100
    --output data/games_eval.jsonl
    """
    from selfplay_pipeline.config.load import load_config
    from selfplay_pipeline.core.terminal import result
    from selfplay_pipeline.slime.data import DataJob, write_data

    overrides = {"evaluate.state_seed" if held_out else "seed": seed, "game.max_length": max_length}
    if max_length is None and not (Path(config).suffix or Path(config).is_file()):
        overrides["game.max_length"] = 40
    settings = load_config(config, overrides, announce)
    job = DataJob(
        game=settings.game,
        num_states=num_states,
        seed=settings.evaluate.state_seed if held_out else settings.seed,
        first_state=first_state,
        held_out=held_out,
    )
    write_data(output, job)
    result(one_line(f"{output}: {num_states} rows; slime reads it with --input-key prompt --metadata-key metadata"))


@group.command()
def check(
    data: Annotated[
        list[Path] | None, typer.Option(help="Prompt data of `selfplay slime data` to read as well; may be repeated.")
    ] = None,
    custom_config: Annotated[
        Path | None, typer.Option(help="File for slime's --custom-config-path [default: the package's own].")
    ] = None,
    slime: Annotated[Path | None, typer.Option(help="slime's folder [default: where Python finds it].")] = None,
) -> None:
    """Check whether slime can run the experiment here; the exit code is 2 if a requirement is missing.

    The version of slime is shown. tests/unit/test_slime_contract.py checks whether an untested version fits.
    """
    from rich.table import Table

    from selfplay_pipeline.core.terminal import Terminal
    from selfplay_pipeline.slime.check import check_all

    found = check_all(slime, custom_config, data or [])
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for item in found:
        table.add_row("ok" if item.ok else "missing", item.what, item.found)
        if not item.ok:
            table.add_row("", "", f"→ {item.remedy}")
    Terminal().print(table)
    if not all(item.ok for item in found):
        raise typer.Exit(2)


@group.command(cls=OfGames)
def questions(
    path: Annotated[
        Path,
        typer.Argument(help="Run directory of `selfplay iterate`, or folder of slime's questions.jsonl."),
    ] = RUNS,
    output: Annotated[Path, typer.Option(help="Folder for plots, analysis.json and analysis.md.")] = Path("plots"),
    form: Annotated[str, typer.Option("--format", help="Plots as png, svg or pdf, joined by commas.")] = "png,svg",
) -> None:
    """Analyse the questions of a run: their trend over the steps and their relation to reward, with plots and tests.

    Every figure has a 95 % interval over game states. A trend alone is no evidence that the policy learned to ask,
    since chance produces trends too. The run may still be in progress.
    """
    from selfplay_pipeline.report.draw import formats_in

    formats = formats_in(form)
    from selfplay_pipeline.core.files import check_is_folder
    from selfplay_pipeline.core.reporting import waiting
    from selfplay_pipeline.slime.questions.analysis import analyse, read
    from selfplay_pipeline.slime.questions.output import write
    from selfplay_pipeline.slime.questions.table import show_analysis

    check_is_folder(output)
    found = read(path)
    with waiting(f"analysing {len(found.records):,} episodes"):
        analysis = analyse(found)
    show_analysis(analysis, write(analysis, formats, output))
