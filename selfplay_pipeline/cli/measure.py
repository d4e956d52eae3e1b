"""Commands that measure players: evaluate, crossplay and listen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfplay_pipeline.cli.failures import fail_if_lost
from selfplay_pipeline.command_parts.options import given, load, taking
from selfplay_pipeline.command_parts.shared import OTHERS, given_besides
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.core.stopping import run

if TYPE_CHECKING:
    from selfplay_pipeline.config.schema import Config
    from selfplay_pipeline.evaluate.states import StateSet

app = typer.Typer()
StatesFile = Annotated[Path | None, typer.Option("--states", help="Play these states instead, one JSON object a line.")]
NumStates = Annotated[
    int | None, typer.Option(min=2, max=LARGEST, help="Number of held-out states to play [default: 500].")
]


@app.command(cls=taking("engine.server_url", "evaluate.swap_messages"))
def evaluate(
    context: typer.Context,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            help="The evaluated player: a folder, a hub name, a scripted player, or chat.", show_default=False
        ),
    ] = None,
    partner: Annotated[str, typer.Option(help=f"Who holds the other seats: self, {OTHERS}.")] = "self",
    seat: Annotated[
        int | None,
        typer.Option(min=0, help="With --partner: hold this seat in all episodes, not each seat in turn."),
    ] = None,
    num_states: NumStates = None,
    states: StatesFile = None,
    episodes: Annotated[
        int, typer.Option(min=1, max=LARGEST, help="Sampled episodes of each state, and of each seat with --partner.")
    ] = 2,
    compare: Annotated[
        Path | None, typer.Option(help="Folder of an earlier evaluation on the same states: print the differences.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for episodes and evaluation.json [default: data/evaluations/…].")
    ] = None,
    people: Annotated[
        Path | None,
        typer.Option(
            help="File, or folder of a study, that `selfplay play --web` wrote: measure the people in its episodes by "
            "partner. It measures stored episodes and needs no server; scripted partners also play the same states "
            "with themselves. Give no player then, and no option that is about playing."
        ),
    ] = None,
) -> None:
    """Play fixed held-out states, sampled and greedily, and report every figure with a 95 % interval.

    Intervals are bootstrapped over game states. The states come from another seed space than those of training. With
    another player as partner, the evaluated player holds each seat in turn, and figures count its seats only. After an
    interruption, the same command continues.
    """
    if people is not None:
        if others := given_besides(context, {"people", "config", "game"}):
            raise UserError(f"--people: measures stored episodes; leave out {', '.join(others)}")
        from selfplay_pipeline.people.commands import show_figures

        show_figures(load(context), people)
        return
    if checkpoint is None:
        raise UserError("evaluate: name the evaluated player, or give --people FILE")
    settings = _load_for(context, checkpoint, partner)
    checkpoint, partner = shipped(checkpoint), shipped(partner)
    from selfplay_pipeline.cli.show.evaluation import show_differences, show_evaluation
    from selfplay_pipeline.evaluate.run import (
        check_comparable,
        compare_with,
        default_folder,
        job_of,
        run_evaluate,
    )
    from selfplay_pipeline.evaluate.states import NUM_STATES
    from selfplay_pipeline.games.registry import make_game

    job = job_of(
        settings,
        checkpoint,
        output or default_folder(checkpoint, partner, states, settings, seat=seat),
        partner=partner,
        states=_states(context, settings, states, num_states) if states else None,
        num_states=num_states or NUM_STATES,
        episodes=episodes,
        seat=seat,
    )
    if compare is not None:
        check_comparable(settings, job, compare)
    evaluation = run(run_evaluate(settings, job))
    show_evaluation(evaluation, job.output, make_game(settings.game))
    if compare is not None:
        show_differences(compare_with(settings, job, compare), compare, make_game(settings.game))
    fail_if_lost(sum(report.lost for report in evaluation.modes.values()))


@app.command(cls=taking("engine.kind", "generate.temperature", "evaluate.state_seed"))
def crossplay(
    context: typer.Context,
    players: Annotated[
        list[str],
        typer.Argument(
            metavar="[ARM=]PLAYER …",
            help="Two or more checkpoints, run folders of `iterate` (their newest checkpoints) and scripted players. "
            "Independent trainings of one kind get the same ARM.",
            show_default=False,
        ),
    ],
    num_states: NumStates = None,
    states: StatesFile = None,
    episodes: Annotated[int, typer.Option(min=1, max=LARGEST, help="Episodes of each state and pair.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder for episodes and crossplay.json.")] = Path("data/crossplay"),
) -> None:
    """Play each player in seat 0 with each player in all other seats, and print the matrix of mean rewards.

    Checkpoints that reach less with each other than in self-play may have invented a private code. For each arm, the
    cross-seed gap is the reward of its players with themselves minus their reward with each other, and the partner gap
    is the same with the players that have no arm. The best-response gap of a run of `iterate --partner CHECKPOINT` is
    the reward of its policy with this checkpoint minus the reward of the checkpoint with itself.
    """
    arms, given = zip(*(_arm_of(player) for player in players), strict=True)
    names = [_checkpoint_of(name) for name in given]
    settings = _load_for(context, *names)
    from selfplay_pipeline.cli.show.evaluation import show_crossplay
    from selfplay_pipeline.evaluate.crossplay import check_crossplay, run_crossplay

    check_crossplay(settings, names)  # before the states are sampled, which may be slow
    chosen = _states(context, settings, states, num_states)
    responders = {number: found for number, name in enumerate(given) if (found := _trained_with(name))}
    result = run(run_crossplay(settings, names, chosen, episodes, output, arms if any(arms) else (), responders))
    show_crossplay(result, output)
    fail_if_lost(result.lost)


@app.command(cls=taking("game.mute", "engine.kind", "engine.server_url", "evaluate.state_seed"))
def listen(
    context: typer.Context,
    player: Annotated[str, typer.Argument(help="The player: a folder, a hub name, or a scripted player.")],
    num_states: NumStates = None,
    states: StatesFile = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for episodes and listening.json [default: data/listening/…].")
    ] = None,
) -> None:
    """Alter messages to a player, and measure how often its decision changes to the new best one, with intervals.

    The player plays with itself, greedily. Each decision right after a message is repeated twice: with one score in the
    message changed, and with the scores of another state. After an interruption, the same command continues.
    """
    settings = _load_for(context, player)
    player = shipped(player)
    from selfplay_pipeline.cli.show.evaluation import show_listening
    from selfplay_pipeline.evaluate.listen import run_listen
    from selfplay_pipeline.evaluate.pairing import check_names
    from selfplay_pipeline.evaluate.run import EvaluationJob, default_folder

    check_names(settings, [player])  # before the states are sampled, which may be slow
    folder = output or Path("data/listening") / default_folder(player, "self", states, settings).name
    job = EvaluationJob(player, _states(context, settings, states, num_states), folder)
    listening = run(run_listen(settings, job))
    show_listening(listening, folder)
    fail_if_lost(listening.lost)


def _arm_of(player: str) -> tuple[str, str]:
    """Returns the arm, which may be empty, and the player of an argument `[ARM=]PLAYER`."""
    arm, separator, name = player.partition("=")
    return (arm, name) if separator and not Path(player).exists() else ("", player)


def _checkpoint_of(player: str) -> str:
    """Returns the newest checkpoint of a run folder; any other player as it is, with packaged models found."""
    if _is_run(player):
        from selfplay_pipeline.iterate.folder import newest_checkpoint

        return newest_checkpoint(Path(player))
    return shipped(player)


def _trained_with(player: str) -> tuple[str, int] | None:
    """Returns the hash and the seat of a run's training partner; None unless exactly one checkpoint was its partner."""
    from selfplay_pipeline.iterate.folder import trained_with

    return trained_with(Path(player)) if _is_run(player) else None


def _is_run(player: str) -> bool:
    return (Path(player) / "manifest.json").exists() and (Path(player) / "state.json").exists()


def _load_for(context: typer.Context, player: str, *others: str) -> Config:
    """Returns the configuration; without --config, a shipped model plays its own game."""
    from selfplay_pipeline.config.load import configuration_of

    settings = load(context, {"model": player if configuration_of(player) else None})
    if given(context, "config") is None:
        for name in dict.fromkeys((player, *others)):
            _warn_of_other_rules(name, settings)
    return settings


def _warn_of_other_rules(player: str, settings: Config) -> None:
    from selfplay_pipeline.config.identity import differences, flatten, in_words
    from selfplay_pipeline.iterate.folder import rules_of

    rules = rules_of(Path(player))
    found = differences(rules, flatten({"game": settings.game.model_dump(mode="json")})) if rules else {}
    found.pop("game.mute", None)
    if "game.name" in found:
        found = {"game.name": found["game.name"]}
    if found:
        logger.warning(
            f"{player} was trained with {in_words(found)}; give the --config of its training if it is to play that game"
        )


def _states(context: typer.Context, settings: Config, file: Path | None, count: int | None) -> StateSet:
    """Returns the states of a file, or else held-out states of the configuration.

    Raises:
        UserError: The file is unusable, or an option says which held-out states to draw beside the file.
    """
    from selfplay_pipeline.evaluate.states import NUM_STATES, read_states, sample_held_out
    from selfplay_pipeline.games.registry import make_game

    if file is not None:
        drawn = {"--num-states": count, "evaluate.state_seed": given(context, "evaluate.state_seed")}
        if others := [name for name, value in drawn.items() if value is not None]:
            raise UserError(f"--states: all states of {file} are played; leave out {' and '.join(others)}")
        return read_states(Path(shipped(str(file))), make_game(settings.game))
    return sample_held_out(settings, count or NUM_STATES)
