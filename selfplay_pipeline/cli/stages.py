"""Commands that make training rows of episodes and train on them: convert, train and imitate."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfplay_pipeline.command_parts.options import chosen_game, given, load, shared_with, taking
from selfplay_pipeline.command_parts.shared import (
    DATA,
    DryRun,
    given_besides,
    path_and_overrides,
    planned,
    suggest,
    warn,
)
from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import announce
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.core.stopping import run
from selfplay_pipeline.core.terminal.harmless import one_line

if TYPE_CHECKING:
    from selfplay_pipeline.config.schema import Config

app = typer.Typer()
GETS = "Gets checkpoint/, trainer_state/, metrics.jsonl"
"""Beginning of the help for the output folder of a training."""


@app.command(cls=taking("model", "seed", "convert.val_fraction", "convert.placebo", "reward.path"))
def convert(
    context: typer.Context,
    games: Annotated[
        Path, typer.Argument(metavar="[EPISODES]", help="JSONL file of episodes that `selfplay generate` wrote.")
    ] = DATA / "selfplay_games.jsonl",
    output: Annotated[
        Path | None, typer.Option(help="Folder for the parquet files [default: beside EPISODES].")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines out, and report each.")] = False,
    check: Annotated[Path | None, typer.Option(help="Only verify this parquet file with verl's own dataset.")] = None,
) -> None:
    """Convert episodes to train.parquet: one row per policy seat per episode, with one group index per state.

    With --val-fraction, some groups go to val.parquet instead; no other command reads that file.

    With --check FILE, nothing is converted: the file is loaded with verl's RLHFDataset and the tokenizer of --model, by
    default of the model that sampled its rows, and all passed checks are printed and written next to the file.
    """
    if check and (others := given_besides(context, {"check", "model", "config", "game"}, "EPISODES")):
        raise UserError(f"convert: --check only verifies a file; leave out {', '.join(others)}")
    settings = load(context)
    if check is not None:
        _check(context, settings, check)
        return
    from selfplay_pipeline.convert.stage import convert_episodes

    report = convert_episodes(settings, games, output or games.parent, skip_bad=skip_bad)
    terminal.result(report.to_text().rstrip("\n"))
    folder = output or games.parent
    options = shared_with(context, "train") | {"model": None}  # the rows name the model
    suggest("train", folder / "train.parquet", options)


def _check(context: typer.Context, settings: Config, check: Path) -> None:
    """Verify a parquet file with the tokenizer of a chosen model, else of the one that sampled its rows."""
    from selfplay_pipeline.config.load import own_settings
    from selfplay_pipeline.convert.parquet import check_there, sampler_of
    from selfplay_pipeline.convert.parquet_check import check_parquet

    check_there(check)
    chosen = given(context, "model") or own_settings(given(context, "config")).get("model")
    sampler = None if chosen else sampler_of(check)
    model = sampler.checkpoint if sampler else str(settings.model)
    terminal.result(check_parquet(check, model).to_text().rstrip("\n"))


@app.command(
    cls=taking(
        "model", "seed", "train.epochs", "train.train_batch_size", "train.micro_batch_size", "train.learning_rate",
        "train.lora_rank",
    )
)  # fmt: skip
def train(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="data",
            help="train.parquet that `selfplay convert` wrote "
            f"[default: {DATA / 'train.parquet'}]. After `--` verl's own keys, as Hydra overrides: -- KEY=VALUE …",
            show_default=False,
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    output: Annotated[Path | None, typer.Option(help=f"{GETS} [default: training/ beside DATA].")] = None,
    any_model: Annotated[
        bool,
        typer.Option("--any-model", help="Train a model that did not sample the rows and their log-probs."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Train the policy on converted episodes with verl; ends with a Hugging Face checkpoint.

    Training uses GRPO, or, with --set train.method=filtered-bc, imitation of the best episodes of each group.

    By default, the model is the one that sampled the rows, as recorded in the file. --model gives its new path if it
    has moved; another model is rejected unless --any-model is given.

    After an interruption, the same command continues at the last saved step. An example with a key of verl:
    selfplay train data/train.parquet -- actor_rollout_ref.actor.clip_ratio_c=5
    """
    data, overrides = path_and_overrides("train", arguments, "--data", data)
    data = data or DATA / "train.parquet"
    if data.name.endswith((".jsonl", ".jsonl.gz")):
        made_by = f"`selfplay convert {shlex.quote(str(data))}`"
        raise UserError(f"train: {data}: training reads parquet; {made_by} makes it from episodes")
    from selfplay_pipeline.convert.parquet import check_there
    from selfplay_pipeline.core.folders import check_folder

    output = output or data.parent / "training"
    check_folder(output, "train")
    check_there(data)  # before the imports and the configuration, which take long
    from selfplay_pipeline.config.load import own_settings
    from selfplay_pipeline.train.offline import plan_train
    from selfplay_pipeline.train.offline_stage import model_of, train_policy, training_of

    in_file = own_settings(given(context, "config")).get("model")
    chosen = given(context, "model") or (in_file if any_model else None)
    sampler = None if chosen else model_of(data)
    settings = load(context, {"train.overrides": overrides or None} | ({"model": sampler} if sampler else {}))
    if sampler:
        instead = f", in place of {in_file}" if in_file and shipped(in_file) != sampler else ""
        announce(one_line(f"model: {sampler}, which sampled the rows{instead}"))
    from selfplay_pipeline.cli.show.training import show_training

    job = training_of(settings, data, output, any_model=any_model)
    if dry_run:
        planned(plan_train(job))
    show_training(run(train_policy(job)))
    # Without --config, a shipped model selected the game; its new checkpoint does not.
    game = chosen_game(context, str(settings.model))
    suggest("evaluate", output / "checkpoint", game | shared_with(context, "evaluate"))


@app.command(
    cls=taking(
        "model", "seed", "imitate.seats", "imitate.min_reward", "imitate.held_out", "imitate.learning_rate",
        "train.epochs", "train.lora_rank",
    )
)  # fmt: skip
def imitate(
    context: typer.Context,
    games: Annotated[
        list[str],
        typer.Argument(
            metavar="EPISODES…",
            help="JSONL files of episodes, or folders of `export`. FILE=2 counts its tokens twice as much as those of "
            "other files.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help=f"{GETS} [default: imitation/ beside the first of EPISODES].")
    ] = None,
) -> None:
    """Train a model on the turns of recorded episodes, whoever played them; ends with a Hugging Face checkpoint.

    Scripted players, people and other models may have played. The text of their turns is tokenised for --model and
    learned by supervised training with verl. Illegal turns are context only and are not learned.
    After an interruption, the same command continues at the last saved step.
    """
    settings = load(context)
    from selfplay_pipeline.cli.show.training import barely_fell, show_imitation
    from selfplay_pipeline.convert.imitation import Source
    from selfplay_pipeline.train.imitation import imitate_episodes

    sources = [Source.of(name) for name in games]
    output = output or sources[0].path.parent / "imitation"
    result = run(imitate_episodes(settings, sources, output))
    show_imitation(result)
    warn(barely_fell(result))
    suggest("evaluate", output / "checkpoint", chosen_game(context) | shared_with(context, "evaluate"))
