"""Stages are coroutines: one goes on while another waits."""

import asyncio
import signal
import sys

import psutil
import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.processes import spawn
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.train import process
from selfplay_pipeline.train.launch import Launch
from selfplay_pipeline.train.process import Making, Trainer

TRAINS_UNTIL_THE_OTHERS_HAVE_PLAYED = """
import pathlib, sys, time
print("training", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
(pathlib.Path(sys.argv[2]) / "ended_0").touch()
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A trainer whose process ends once the file of the episodes' figures is there."""

    def spawn_instead(command, log, env):
        program = TRAINS_UNTIL_THE_OTHERS_HAVE_PLAYED
        return spawn([sys.executable, "-c", program, str(tmp_path / "games.summary.json"), command[-1]], log, env)

    monkeypatch.setattr(process, "spawn", spawn_instead)
    with Trainer() as trainer:
        yield trainer


def test_episodes_are_played_while_a_training_is_waited_for(trainer, tmp_path):
    """The training would never end if its wait let nothing else be done."""
    config = load_config("tiny", {"generate.num_episodes": 8})

    async def together():
        training = trainer.run(Making((), {}), Launch(log=tmp_path / "train.log"), lambda: False)
        playing = generate_episodes(config, tmp_path / "games.jsonl", seats=("sharing", "sharing"))
        _, played = await asyncio.gather(training, playing)
        return played

    assert asyncio.run(asyncio.wait_for(together(), 120)).episodes == 8


def test_the_trainer_is_stopped_when_its_wait_is_cancelled(trainer, tmp_path):
    async def cancelled():
        waiting = asyncio.create_task(trainer.run(Making((), {}), Launch(log=tmp_path / "train.log"), lambda: False))
        while "training" not in ((tmp_path / "train.log").read_text() if (tmp_path / "train.log").exists() else ""):
            await asyncio.sleep(0.01)
        assert trainer.process_id is not None
        waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(cancelled())
    assert trainer.process_id is None


def test_ctrl_c_while_a_training_is_waited_for_stops_its_processes(trainer, tmp_path):
    """As a command takes it; nothing but the wait hears of it."""
    log, asked = tmp_path / "train.log", []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def watch() -> bool:
        if not asked and "training" in log.read_text():
            asked.append(trainer.process_id)
            signal.raise_signal(signal.SIGINT)
        return False

    try:
        stopping.interrupt()
        with pytest.raises(KeyboardInterrupt):
            stopping.run(trainer.run(Making((), {}), Launch(log=log), watch))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopping.stop.asked = None
    assert asked and trainer.process_id is None and not psutil.pid_exists(asked[0])
