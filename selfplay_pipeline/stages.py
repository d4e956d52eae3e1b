"""The stages as the command line and the iteration driver call them: configuration in, files out."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from selfplay_pipeline.config import Config
from selfplay_pipeline.convert.run import ConvertReport, run_convert
from selfplay_pipeline.engines.open import model_context_length, open_engine
from selfplay_pipeline.engines.types import Engine
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import PolicyRecord
from selfplay_pipeline.generate.run import GenerateJob, run_generate
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.train.config import TrainConfig
from selfplay_pipeline.train.run import Progress, TrainResult, run_train
from selfplay_pipeline.ui import figures_of, progress, waiting


def make_job(config: Config, output: Path, checkpoint: str, iteration: int, first_state: int) -> GenerateJob:
    """What to play, and all that decides it."""
    policy = PolicyRecord(
        checkpoint=checkpoint,
        iteration=iteration,
        engine=config.engine.kind,
        temperature=config.generate.temperature,
        max_new_tokens=config.generate.max_new_tokens,
    )
    context_length = model_context_length(checkpoint, config.engine.context_length)
    arguments = {
        "seed": config.seed,
        "first_state": first_state,
        "num_groups": num_groups(config),
        "plays_per_state": config.generate.plays_per_state,
        "context_length": context_length,
        **{f"policy.{key}": value for key, value in policy.model_dump().items()},
        **{f"game.{key}": value for key, value in config.game.model_dump().items()},
    }
    return GenerateJob(
        output=output,
        seed=config.seed,
        first_state=first_state,
        num_groups=num_groups(config),
        plays_per_state=config.generate.plays_per_state,
        max_concurrency=config.generate.max_concurrency,
        max_failures=config.generate.max_failures,
        context_length=context_length,
        policy=policy,
        arguments=arguments,
    )


def plan_generate(config: Config, output: Path) -> str:
    """What `generate` would do, in one line."""
    groups = num_groups(config)
    plays = groups * config.generate.plays_per_state
    return (
        f"{config.model} plays {plays} games ({groups} states × {config.generate.plays_per_state} plays, board "
        f"{config.game.size}×{config.game.size}) with {config.engine.kind} to {output}: {2 * plays} rows at most"
    )


async def generate_games(
    config: Config,
    output: Path,
    *,
    checkpoint: str | None = None,
    iteration: int = 0,
    first_state: int = 0,
    engine: Engine | None = None,
) -> Summary:
    """Play what is missing from `output`.

    Args:
        engine: one that already serves `checkpoint`; without it one is opened and closed.
    """
    checkpoint = checkpoint or str(config.model)
    job = make_job(config, output, checkpoint, iteration, first_state)
    chat = ChatTokenizer.load(checkpoint)
    game = make_game(config.game)
    async with AsyncExitStack() as stack:
        if engine is None:
            with waiting(f"starting the {config.engine.kind} engine for {checkpoint}") as tell:
                opened = open_engine(config.engine, checkpoint, output.parent / "server.log", tell)
                engine = await stack.enter_async_context(opened)
        with progress(f"playing {output.name}") as report:
            return await run_generate(
                job,
                game,
                engine,
                chat,
                lambda summary: report(summary.plays, job.num_plays, lambda: figures_of(summary)),
            )


def num_groups(config: Config) -> int:
    """Game states that `num_games` dialogues are spread over, rounded up."""
    return -(-config.generate.num_games // config.generate.plays_per_state)


def convert_games(config: Config, games: Path, out_dir: Path, *, skip_bad: bool = False) -> ConvertReport:
    """Write train.parquet and val.parquet for a games file."""
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
    with progress(f"training on {data.name}") as report:

        def on_progress(step: Progress) -> None:
            loss, norm = step.metrics.get("actor/pg_loss", 0.0), step.metrics.get("actor/grad_norm", 0.0)
            report(step.step, step.planned_steps, lambda: f"steps, loss {loss:+.4f}, gradient norm {norm:.3f}")

        return run_train(job, on_progress)
