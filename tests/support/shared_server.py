"""One SGLang server and one trainer for the whole test run, and one run of the loop with both."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from recording_proxy import RecordingProxy

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import WRITES_ROWS
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.loop import Loop, run_iterate
from selfplay_pipeline.train.process import StartSettings, Trainer

TINY = Path("data/tiny_model")
PREFERRED = '--preferred-sampling-params={"top_p": 0.1, "top_k": 2, "min_p": 0.5}'
"""What a server would do to requests that do not say otherwise; every test that samples shows that ours do."""

TAKEN_WITH_A_TRAINING = ("actor_rollout_ref.actor.", "actor_rollout_ref.model.", "algorithm.")
"""Beginnings of the names of settings that verl's process takes anew with each training."""


@dataclass
class Server:
    """A running server. It serves `data/tiny_model` at the start of each test that asks for it."""

    url: str
    log: Path

    def restore(self) -> None:
        async def reload() -> None:
            async with SGLangEngine([self.url]) as engine:
                await engine.reload(TINY)

        asyncio.run(reload())


@contextmanager
def started(log: Path, model: str = str(TINY), **options: Any) -> Iterator[SGLangServer]:
    """A server on the CPU that asks for no key, so that tests attach to it; it is stopped at the end."""
    server = SGLangServer(ServerSpec(model=model, device="cpu", log_path=log, **options))
    server.key = ""
    asyncio.run(server.start())
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def _session_server(tmp_path_factory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    with started(log, str(TINY.resolve()), extra_args=(PREFERRED,)) as server:
        yield Server(server.url, log)


class StayingTrainer(Trainer):
    """A trainer whose process stays for a training with other overrides of the update, which it takes with each."""

    def _fits(self, start: StartSettings) -> bool:
        return super()._fits(self._process.start if self._process and alike(self._process.start, start) else start)


def alike(one: StartSettings, other: StartSettings) -> bool:
    first, second = (
        {key for key in start.settings if not key.startswith(TAKEN_WITH_A_TRAINING)} for start in (one, other)
    )
    return first == second and one.env == other.env


def loop_with(trainer: Trainer) -> type[Loop]:
    """A loop whose trainer stays for the next one."""

    class LoopWithTrainer(Loop):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self.trainer = trainer

    return LoopWithTrainer


@pytest.fixture(scope="session")
def trainer_with_kl() -> Iterator[Trainer]:
    """Of all trainings of whole models with a KL term that need no process of their own."""
    with StayingTrainer() as trainer:
        yield trainer


@pytest.fixture(scope="session")
def trainer_without_kl() -> Iterator[Trainer]:
    """As `trainer_with_kl`; verl's process has either a reference model or none."""
    with StayingTrainer() as trainer:
        yield trainer


@pytest.fixture(scope="session")
def session_trainer(trainer_with_kl: Trainer) -> Trainer:
    """The trainer of the files that use the session's server."""
    return trainer_with_kl


@pytest.fixture(scope="session")
def loop_with_trainer(session_trainer: Trainer) -> type[Loop]:
    """`test_kill.py` lets each loop have a trainer of its own."""
    return loop_with(session_trainer)


@dataclass
class Run:
    """Two iterations of the loop, with all that went over the wire."""

    path: Path
    config: Config
    directory: RunDirectory
    proxy: RecordingProxy

    def rows(self, iteration: int) -> list[dict]:
        folder = self.path / f"iter_{iteration}"
        return [row for name in ("train", "val") for row in pq.read_table(folder / f"{name}.parquet").to_pylist()]

    def games(self, iteration: int) -> list[EpisodeRecord]:
        return list(read_episodes(self.path / f"iter_{iteration}" / "selfplay_games.jsonl"))


@pytest.fixture(scope="session")
def run(_session_server, loop_with_trainer, tmp_path_factory) -> Run:
    _session_server.restore()
    path = tmp_path_factory.mktemp("run")
    with RecordingProxy(_session_server.url) as proxy:
        config = load_config(
            "tiny",
            {
                "iterate.num_iterations": 2,
                "evaluate.monitor_states": 8,
                "generate.num_episodes": 24,
                "generate.episodes_per_state": 4,
                "convert.val_fraction": 0.2,
                "train.train_batch_size": 16,
                "train.mini_batches": 1,
                "train.old_log_probs": "step",
                "train.learning_rate": 3e-4,
                "train.keep_zero_signal": True,
                "train.overrides": [WRITES_ROWS],
                "engine.server_url": [proxy.url],
            },
        )
        directory = asyncio.run(run_iterate(config, path, loop_with_trainer))
    return Run(path, config, directory, proxy)


@pytest.fixture
def sglang_server(_session_server: Server) -> Server:
    _session_server.restore()
    return _session_server
