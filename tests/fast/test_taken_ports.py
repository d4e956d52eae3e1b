"""A port that another process took between the choice and the bind costs a start, and no training."""

import asyncio
import sys

import pytest

from selfplay_pipeline.core.processes import spawn
from selfplay_pipeline.train import process
from selfplay_pipeline.train.launch import Launch
from selfplay_pipeline.train.process import Making, Trainer, TrainError

VERL = """
import json, pathlib, sys
launch, tries = json.loads(sys.stdin.readline()), pathlib.Path(sys.argv[1])
tries.write_text(tries.read_text() + "x")
if len(tries.read_text()) <= TAKEN:
    with open(launch["log"], "a") as log:
        log.write("DistNetworkError: code: -98, name: EADDRINUSE, message: address already in use")
    sys.exit(1)
if FAILS:
    sys.exit("no memory")
(pathlib.Path(sys.argv[2]) / "ended_0").touch()
"""


@pytest.fixture
def train(tmp_path, monkeypatch, caplog):
    """Runs a training whose process finds ports taken the first times, and notes the starts and the lines told."""

    def run(taken: int, *, fails: bool = False, begun: bool = False) -> None:
        tries = tmp_path / "tries"
        tries.write_text("")
        program = VERL.replace("TAKEN", str(taken)).replace("FAILS", str(fails))

        def spawn_instead(command, log, env):
            return spawn([sys.executable, "-c", program, str(tries), command[-1]], log, env)

        monkeypatch.setattr(process, "spawn", spawn_instead)
        try:
            with Trainer() as trainer:
                asyncio.run(trainer.run(Making((), {}), Launch(log=tmp_path / "train.log"), lambda: begun))
        finally:
            run.starts, run.told = len(tries.read_text()), caplog.messages

    return run


@pytest.mark.long
def test_a_training_that_finds_a_port_taken_is_started_again(train):
    train(taken=1)
    assert train.starts == 2
    (line,) = train.told
    assert "verl found a port taken before the first step (Address already in use" in line
    assert "starting it again (1 of 2)" in line


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "starts"),
    [({"taken": 9}, 3), ({"taken": 9, "begun": True}, 1), ({"taken": 0, "fails": True}, 1)],
    ids=["taken again and again", "after a step", "another reason"],
)
def test_it_is_started_again_twice_at_most_and_only_for_that_reason_before_a_step(train, arguments, starts):
    with pytest.raises(TrainError, match="ended with exit code 1"):
        train(**arguments)
    assert train.starts == starts
    assert len(train.told) == starts - 1
