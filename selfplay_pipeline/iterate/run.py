"""The loop: play with the newest checkpoint, convert, train, play again."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from selfplay_pipeline.config import Config
from selfplay_pipeline.engines.open import open_engine, resolve_device
from selfplay_pipeline.engines.types import Engine
from selfplay_pipeline.files import locked
from selfplay_pipeline.iterate.manifest import STAGES, RunDirectory, StageRecord
from selfplay_pipeline.stages import convert_games, generate_games, num_groups, train_policy
from selfplay_pipeline.train.groups import NoSignalError
from selfplay_pipeline.ui import console, waiting


class PolicyServer:
    """One engine for the whole run, opened when first needed, always serving what was last asked for."""

    def __init__(self, config: Config, log_path: Path, runner: asyncio.Runner) -> None:
        self.config, self.log_path, self.runner = config, log_path, runner
        self.engine: Engine | None = None
        self.serving = ""
        self._context: AbstractAsyncContextManager[Engine] | None = None

    def serve(self, checkpoint: str) -> Engine:
        """The engine with this checkpoint's weights: started, reloaded or as it is."""
        if self.engine is None:
            with waiting(f"starting the {self.config.engine.kind} engine for {checkpoint}") as tell:
                self._context = open_engine(self.config.engine, checkpoint, self.log_path, tell)
                self.engine = self.runner.run(self._context.__aenter__())
        elif self.serving != checkpoint:
            self.runner.run(self.engine.reload(Path(checkpoint)))
        self.serving = checkpoint
        return self.engine

    def stop(self) -> None:
        """End the engine, if it was started."""
        if self._context is not None:
            context, self._context, self.engine = self._context, None, None
            self.runner.run(context.__aexit__(None, None, None))


def run_iterate(config: Config, run_dir: Path) -> RunDirectory:
    """Run what is missing of `config.iterate.num_iterations` iterations in `run_dir`.

    Killed anywhere, the same call continues at the stage that was cut: each stage resumes by itself, and is
    recorded as done only when its output is complete.

    Raises:
        UserError: the directory is in use or holds a run with another configuration; or bad input to a stage.
    """
    with locked(run_dir / ".lock", f"run directory {run_dir}"), asyncio.Runner() as runner:
        run = RunDirectory(run_dir)
        run.open(config)
        server = PolicyServer(config, run_dir / "server.log", runner)
        try:
            checkpoint = str(config.model)
            for number in range(1, config.iterate.num_iterations + 1):
                checkpoint = _iteration(config, run, server, runner, number, checkpoint)
        finally:
            server.stop()
        return run


def _iteration(
    config: Config, run: RunDirectory, server: PolicyServer, runner: asyncio.Runner, number: int, checkpoint: str
) -> str:
    """One round; returns the checkpoint for the next."""
    folder = run.iteration(number)
    games = folder / "selfplay_games.jsonl"
    for stage in STAGES:
        if run.state.get(number, stage) is not None:
            continue
        console.print(f"iteration {number}/{config.iterate.num_iterations}: {stage} with {checkpoint}", soft_wrap=True)
        started = time.monotonic()
        figures: dict[str, Any]
        if stage == "generate":
            engine = server.serve(checkpoint)
            first_state = (number - 1) * num_groups(config)
            job = generate_games(
                config, games, checkpoint=checkpoint, iteration=number, first_state=first_state, engine=engine
            )
            figures = runner.run(job).to_dict()
        elif stage == "convert":
            figures = convert_games(config, games, folder).to_dict()
        else:
            if not keep_server(config):
                server.stop()
            figures = _train(config, run, number, checkpoint)
        run.finish(number, stage, StageRecord(seconds=time.monotonic() - started, figures=figures))
    trained = run.state.get(number, "train")
    assert trained is not None
    return str(trained.figures["checkpoint"])


def keep_server(config: Config) -> bool:
    """Whether the server stays up while training: on a GPU both want the memory, unless told otherwise."""
    if config.iterate.keep_server is not None:
        return config.iterate.keep_server
    return bool(config.engine.server_url) or resolve_device(config.engine.device) == "cpu"


def _train(config: Config, run: RunDirectory, number: int, checkpoint: str) -> dict[str, Any]:
    folder = run.iteration(number)
    reference = str(config.model) if config.train.kl_reference == "initial" else checkpoint
    try:
        result = train_policy(
            config,
            folder / "train.parquet",
            folder,
            checkpoint=checkpoint,
            seed=config.seed + number,
            initial_trainer_state=_earlier_state(config, run, number),
            reference_model=reference,
        )
    except NoSignalError as reason:
        console.print(f"iteration {number}: not trained, the checkpoint is carried forward: {reason}", soft_wrap=True)
        return {"checkpoint": checkpoint, "carried": True, "steps": 0, "seconds_in_steps": 0.0}
    if config.iterate.keep_trainer_states == "last":
        for earlier in range(1, number):
            shutil.rmtree(run.iteration(earlier) / "trainer_state", ignore_errors=True)
    return {
        "checkpoint": str(result.checkpoint),
        "carried": False,
        "steps": result.steps,
        "groups": result.groups,
        "groups_without_signal": result.groups_without_signal,
        "seconds_in_steps": result.seconds_in_steps,
    }


def _earlier_state(config: Config, run: RunDirectory, number: int) -> Path | None:
    """The newest earlier trainer state, unless the optimizer is to start afresh."""
    if not config.train.keep_optimizer:
        return None
    for earlier in range(number - 1, 0, -1):
        state = run.iteration(earlier) / "trainer_state"
        if state.exists():
            return state
    return None
