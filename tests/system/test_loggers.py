"""Figures of iterations in TensorBoard and, through its own client, in Weights & Biases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.history import Iteration
from selfplay_pipeline.iterate.logs import PipelineLog, numbers_of
from selfplay_pipeline.iterate.results import Evaluated, KnownInterval, Trained

HELD_OUT = KnownInterval(value=0.5, low=0.4, high=0.6)
FIRST = Iteration(0, evaluated=Evaluated(checkpoint="c", held_out_reward=HELD_OUT, held_out_greedy_reward=HELD_OUT))
PLAYED = Played(
    groups=8, mean_reward=0.7, reward_standard_error=0.1, agreement_rate=1.0, illegal_per_episode=0.0,
    messages_per_episode=1.0, groups_without_signal=2,
)  # fmt: skip
SECOND = Iteration(1, PLAYED, Trained(checkpoint="c", carried=False, steps=7), seconds={"train": 9.0})


def log(tmp_path, *loggers: str) -> PipelineLog:
    return PipelineLog(load_config("tiny", {"train.loggers": list(loggers)}), tmp_path)


def test_an_iterations_numbers_have_flat_names():
    numbers = numbers_of(SECOND)
    assert (numbers["selfplay/iteration"], numbers["selfplay/mean_reward"]) == (1, 0.7)
    assert (numbers["selfplay/groups_without_signal"], numbers["selfplay/seconds/train"]) == (0.25, 9)
    assert "selfplay/checkpoint" not in numbers and "selfplay/log_prob_gap" not in numbers


def test_a_continued_run_writes_each_iteration_once(tmp_path):
    for history in ([FIRST], [FIRST, SECOND]):
        with log(tmp_path, "tensorboard") as opened:
            opened.open()
            opened.write(history)
            opened.write(history)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("selfplay/held_out_reward/value")] == [0]
    assert [(event.step, event.value) for event in events.Scalars("selfplay/mean_reward")] == [
        (1, pytest.approx(0.7)),
    ]  # fmt: skip


def test_a_run_with_nothing_to_do_writes_nothing(tmp_path):
    with log(tmp_path, "tensorboard", "wandb") as closed:
        closed.write([FIRST])
    assert list(tmp_path.iterdir()) == []


def test_wandb_gets_the_same_figures(tmp_path):
    """In a process of its own, since wandb keeps its settings for the life of a process."""
    script = (
        "import json, pathlib, sys; from test_loggers import FIRST, SECOND, log\n"
        "with log(pathlib.Path(sys.argv[1]), 'wandb') as opened:\n"
        "    opened.open(); opened.write([FIRST, SECOND])"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    kept |= {"PYTHONPATH": str(Path(__file__).parent), "HOME": str(tmp_path), "WANDB_MODE": "offline"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=kept, stdin=subprocess.DEVNULL, check=True)
    (record,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for name in ("held_out_reward/low", "mean_reward", "seconds/train"):
        assert f"selfplay/{name}".encode() in record.read_bytes()
