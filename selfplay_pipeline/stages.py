"""The stages as the command line and the iteration driver call them: configuration in, files out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from selfplay_pipeline.checkpoints import check_checkpoint
from selfplay_pipeline.config import Config
from selfplay_pipeline.convert.run import ConvertReport, run_convert
from selfplay_pipeline.engines.open import model_context_length
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.evaluate.states import StateSet, held_out_states
from selfplay_pipeline.files import check_is_folder
from selfplay_pipeline.folders import check_folder
from selfplay_pipeline.games.base import HELD_OUT, TRAIN, Game, State, state_rng
from selfplay_pipeline.games.registry import SCRIPTED, make_game
from selfplay_pipeline.generate.players import Player, PolicyPlayer, Scripted
from selfplay_pipeline.generate.records import CHAT, POLICY, PolicyRecord
from selfplay_pipeline.generate.run import GenerateJob, run_generate
from selfplay_pipeline.generate.show import figures_of
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.online.config import OnlineConfig
from selfplay_pipeline.online.games import write_games
from selfplay_pipeline.online.run import OnlineResult, check_sizes, run_online
from selfplay_pipeline.partners.seat import ChatPartner, partner_arguments
from selfplay_pipeline.preflight import check_online, check_play
from selfplay_pipeline.servers import PolicyServer, Servers
from selfplay_pipeline.terminal import say
from selfplay_pipeline.terminal.progress import progress
from selfplay_pipeline.train.config import TrainConfig
from selfplay_pipeline.train.run import Progress, TrainResult, run_train

OPTIONS = {
    "seed": "--seed", "first_state": "--first-state", "num_groups": "--num-games",
    "plays_per_state": "--plays-per-state", "player0": "--player", "player1": "--player",
    "policy.checkpoint": "--model", "policy.engine": "--engine", "policy.temperature": "--temperature",
    "policy.max_new_tokens": "--max-new-tokens", "policy.thinking": "--thinking", "game.max_length": "--max-length",
}  # fmt: skip
"""What gives arguments of a job on the command line."""


def make_job(
    config: Config, output: Path, checkpoint: str, iteration: int, first_state: int, seats: Sequence[str] = ()
) -> GenerateJob:
    """What to play for training, and all that decides it; without seats the policy holds all."""
    seats = seats or self_play(config)
    policy = policy_record(config, checkpoint, config.generate.temperature, iteration)
    arguments = {
        "seed": config.seed,
        "first_state": first_state,
        "num_groups": num_groups(config),
        "plays_per_state": config.generate.plays_per_state,
        **{f"player{seat}": name for seat, name in enumerate(seats)},
        **rules_and_sampling(config, policy, seats),
    }
    return GenerateJob(
        output=output,
        seed=config.seed,
        first_state=first_state,
        num_groups=num_groups(config),
        plays_per_state=config.generate.plays_per_state,
        max_concurrency=config.generate.max_concurrency,
        max_failures=config.generate.max_failures,
        policy=policy,
        arguments=arguments,
        options=OPTIONS,
    )


def rules_and_sampling(config: Config, policy: PolicyRecord, players: Iterable[str]) -> dict[str, Any]:
    """What decides any job's plays beside its states and who plays, by dotted keys."""
    return {
        "context_length": config.engine.context_length,
        **{f"policy.{key}": value for key, value in policy.model_dump().items()},
        **{f"game.{key}": value for key, value in config.game.model_dump().items()},
        **partner_arguments(config.partner, players),
    }


def policy_record(config: Config, checkpoint: str, temperature: float, iteration: int = 0) -> PolicyRecord:
    """Who plays, and how it samples."""
    return PolicyRecord(
        checkpoint=checkpoint,
        iteration=iteration,
        engine=config.engine.kind,
        temperature=temperature,
        max_new_tokens=config.generate.max_new_tokens,
        thinking=config.generate.thinking,
    )


def self_play(config: Config) -> tuple[str, ...]:
    """The policy in every seat of the configuration's game."""
    return (POLICY,) * make_game(config.game).num_players


def opposite(config: Config, first: str, others: str) -> tuple[str, ...]:
    """One player in seat 0, and another in every further seat."""
    return (first, *(others for _ in self_play(config)[1:]))


def plan_generate(config: Config, output: Path, seats: Sequence[str]) -> str:
    """What `generate` would do, in one line."""
    groups = num_groups(config)
    plays = groups * config.generate.plays_per_state
    alone = set(seats) == {POLICY}
    who = f"{config.model} plays" if alone else f"{config.model}: {' and '.join(seats)} play"
    partner = f"; {CHAT} is {config.partner.model} at {config.partner.endpoint}" if CHAT in seats else ""
    return (
        f"{who} {plays} games ({groups} states × {config.generate.plays_per_state} plays, "
        f"{make_game(config.game).describe()}) with {config.engine.kind} to {output}: "
        f"{seats.count(POLICY) * plays} rows at most{partner}"
    )


def is_checkpoint(name: str) -> bool:
    """Whether a player's name is neither `policy`, nor `chat`, nor a scripted partner's."""
    return name not in (POLICY, CHAT, *SCRIPTED)


def check_players(config: Config, names: Iterable[str]) -> None:
    """Whether each name is one of a player.

    Raises:
        UserError: it names neither a partner nor what could be a checkpoint.
    """
    own = make_game(config.game).players
    listed = f"scripted players of the game {config.game.name}: {', '.join(sorted(own))}"
    for name in names:
        if name in SCRIPTED - own.keys():
            raise UserError(f"{name!r} plays another game; {listed}")
        if not is_checkpoint(name):
            continue
        if "/" not in name and not Path(name).exists():
            raise UserError(
                f"no scripted player or checkpoint {name!r}; {listed}; {CHAT!r} is the chat model of the section "
                "`partner`"
            )
        check_checkpoint(name)


def check_seats(config: Config, checkpoint: str, seats: Iterable[str]) -> None:
    """Whether these players are there and can play the configured game on this machine.

    Args:
        checkpoint: of `policy`.

    Raises:
        UserError: somebody cannot.
    """
    check_players(config, seats)
    models = [checkpoint if name == POLICY else name for name in seats if name == POLICY or is_checkpoint(name)]
    for model in models:
        check_checkpoint(model)
    check_play(config, models)


async def seat_players(
    config: Config, names: Iterable[str], policy: PolicyRecord, servers: Servers
) -> dict[str, Player]:
    """The players of these names, with their engines running and serving them.

    Args:
        names: `policy`, a scripted partner, `chat`, or another checkpoint; there are servers for two checkpoints.
        policy: the checkpoint of `policy`; another checkpoint samples in the same way.
    """
    names, players = set(names), dict[str, Player]()
    if CHAT in names:  # before a server is started, which takes long, a missing key can be noticed
        players[CHAT] = ChatPartner.of(servers.chat(config.partner))
    free = [servers.policy, servers.opponent]
    for name in sorted(names - {CHAT}, key=lambda name: name != POLICY):
        if name in SCRIPTED:
            players[name] = Scripted(name)
            continue
        record = policy if name == POLICY else policy.model_copy(update={"checkpoint": name})
        players[name] = await _policy_player(config, record, free.pop(0), name)
    return players


async def _policy_player(config: Config, policy: PolicyRecord, server: PolicyServer, name: str) -> PolicyPlayer:
    context_length = model_context_length(policy.checkpoint, config.engine.context_length)
    chat = ChatTokenizer.load(policy.checkpoint, thinking=policy.thinking)
    chat.check_belongs_to(policy.checkpoint)
    return PolicyPlayer(await server.serve(policy.checkpoint), chat, policy, context_length, name)


def check_generate(config: Config, output: Path, first_state: int, seats: Sequence[str]) -> None:
    """Whether `generate` can do what it is told; writes nothing.

    Raises:
        UserError: it cannot.
    """
    check_folder(output.parent, "generate")
    make_job(config, output, str(config.model), 0, first_state, seats).store.check()
    check_seats(config, str(config.model), seats)


def check_trainable(config: Config) -> None:
    """Whether what is played can be trained on.

    Raises:
        UserError: it cannot.
    """
    if config.generate.plays_per_state < 2:
        raise UserError(
            "generate.plays_per_state (--plays-per-state): all players of a play share its reward, so a group of one "
            "play has no spread and GRPO learns nothing; play each state at least twice"
        )
    if config.generate.temperature == 0:
        raise UserError(
            "generate.temperature (--temperature): greedy games cannot be trained on; sample with a temperature above 0"
        )


async def generate_games(
    config: Config,
    output: Path,
    *,
    checkpoint: str | None = None,
    iteration: int = 0,
    first_state: int = 0,
    seats: Sequence[str] = (),
    servers: Servers | None = None,
) -> Summary:
    """Play what is missing from `output`.

    Args:
        seats: who holds each seat: `policy`, a scripted partner, `chat`, or another checkpoint; by default the policy
            holds all.
        servers: running ones; without them they are opened and closed.
    """
    checkpoint, seats = checkpoint or str(config.model), seats or self_play(config)
    check_folder(output.parent, "generate")
    if servers is None:
        check_seats(config, checkpoint, seats)
        two = len({name for name in seats if name == POLICY or is_checkpoint(name)}) == 2
        async with Servers(config.engine, output.parent, two=two) as own:
            return await generate_games(
                config, output, checkpoint=checkpoint, iteration=iteration, first_state=first_state, seats=seats,
                servers=own,
            )  # fmt: skip
    job = make_job(config, output, checkpoint, iteration, first_state, seats)
    job.store.check()  # before a server is started, which takes long
    game = make_game(config.game)
    by_name = await seat_players(config, seats, job.policy, servers)
    players = [by_name[name] for name in seats]

    def state(number: int) -> State:
        return game.sample_state(state_rng(config.seed, number, TRAIN))

    return await play(job, game, state, lambda number: players)


async def play(
    job: GenerateJob, game: Game, states: Callable[[int], State], players: Callable[[int], Sequence[Player]]
) -> Summary:
    """Play a job with a progress bar."""
    with progress(f"playing {job.output.name}") as report:
        summary = await run_generate(
            job,
            game,
            states,
            players,
            lambda summary: report(summary.plays, job.num_plays, lambda: figures_of(summary)),
        )
    if summary.failures:
        say(
            f"playing {job.output.name}: {summary.failures} of {job.num_plays} plays were lost twice to the engine or "
            f"the partner, at most {job.max_failures} may be (generate.max_failures)"
        )
    return summary


def num_groups(config: Config) -> int:
    """Game states that `num_games` dialogues are spread over, rounded up."""
    return -(-config.generate.num_games // config.generate.plays_per_state)


def convert_games(config: Config, games: Path, out_dir: Path, *, skip_bad: bool = False) -> ConvertReport:
    """Write train.parquet, and val.parquet if a share is set aside, for a games file."""
    check_folder(out_dir, "convert")
    with progress(f"converting {games.name}") as report:
        return run_convert(
            games,
            out_dir,
            val_fraction=config.convert.val_fraction,
            seed=config.seed,
            skip_bad=skip_bad,
            on_progress=lambda done, total: report(done, total, lambda: "bytes"),
        )


def train_policy(
    config: Config,
    data: Path,
    output: Path,
    *,
    checkpoint: str,
    seed: int,
    initial_trainer_state: Path | None = None,
    reference_model: str | None = None,
) -> TrainResult:
    """Train `checkpoint` on one parquet file, or continue a training that was cut."""
    check_folder(output, "train")
    options = config.train.model_dump()
    job = TrainConfig(
        **options,
        model=checkpoint,
        data=data,
        output=output,
        seed=seed,
        initial_trainer_state=initial_trainer_state,
        reference_model=reference_model,
    )
    with progress(f"training on {data.name}", "verl is starting") as report:

        def on_progress(step: Progress) -> None:
            loss, norm = step.metrics.get("actor/pg_loss", 0.0), step.metrics.get("actor/grad_norm", 0.0)
            report(step.step, step.planned_steps, lambda: f"steps, loss {loss:+.4f}, gradient norm {norm:.3f}")

        return run_train(job, on_progress)


def online_games(config: Config, out: Path, num_train: int, num_test: int, *, per_player: bool = False) -> None:
    """Write train.parquet and test.parquet (monitor states) of game initialisations for online training."""
    check_folder(out, "games")
    with progress("sampling game states", brief=True) as report:
        write_games(
            out,
            config.game,
            num_train=num_train,
            num_test=num_test,
            seed=config.seed,
            test_seed=config.evaluate.state_seed,
            per_player=per_player,
            on_progress=lambda done, total: report(done, total, str),
        )


def sample_held_out(config: Config, count: int, space: int = HELD_OUT) -> StateSet:
    """Held-out states of the configuration's game, with a progress bar: those of large games take long to find."""
    with progress("sampling held-out states", brief=True) as report:
        return held_out_states(
            make_game(config.game),
            count,
            config.evaluate.state_seed,
            space,
            lambda done, total: report(done, total, str),
        )


def train_online(config: Config, output: Path, games: Path | None = None) -> OnlineResult:
    """Train on games that the policy plays meanwhile, or continue a training that was cut.

    Args:
        games: folder of initialisations; without it new ones are written to `output`, one state for each time that a
            step takes one.
    """
    model = str(config.model)
    if games is not None:
        check_is_folder(games)
    check_folder(output, "train-online")
    check_checkpoint(model)
    check_trainable(config)
    if not make_game(config.game).shared_reward:
        raise UserError("train-online: the seats of this game have rewards of their own; train with `selfplay iterate`")
    if config.engine.server_url:
        raise UserError("engine.server_url: verl starts the servers of online training itself; leave it out")
    check_online(config)
    job = OnlineConfig(
        **config.train.model_dump(),
        model=model,
        output=output,
        seed=config.seed,
        online=config.online,
        game=config.game,
        games=games or output / "games",
        plays_per_state=config.generate.plays_per_state,
        temperature=config.generate.temperature,
        max_new_tokens=config.generate.max_new_tokens,
        thinking=config.generate.thinking,
        context_length=model_context_length(model, config.engine.context_length),
        tensor_parallel=config.engine.tensor_parallel,
    )
    if games is None and not (output / "trainer_state" / "training.json").exists():
        check_sizes(job, make_game(config.game).num_players)
        num_train = config.online.steps * config.online.states_per_step
        online_games(config, job.games, num_train, config.online.held_out_states)
    with progress("training online", "verl is starting") as report:

        def on_progress(step: Progress) -> None:
            played, held_out = (step.metrics.get(f"{place}/reward") for place in ("selfplay", "held_out"))
            figures = [f"reward {played:.3f}"] if played is not None else []
            figures += [f"held out {held_out:.3f}"] if held_out is not None else []
            report(step.step, step.planned_steps, lambda: "steps, " + ", ".join(figures))

        return run_online(job, on_progress)
