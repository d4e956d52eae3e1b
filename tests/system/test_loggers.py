"""Figures and dialogues of iterations in each logger of verl's, read back from what its own client wrote."""

import json
import os
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from factories import make_episode, write_episodes
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.dialogues import RULE, Dialogues
from selfplay_pipeline.iterate.held_out import Evaluated
from selfplay_pipeline.iterate.history import Iteration
from selfplay_pipeline.iterate.logs import PipelineLog, numbers_of
from selfplay_pipeline.iterate.results import KnownInterval, Trained

HELD_OUT = KnownInterval(value=0.5, low=0.4, high=0.6)
REWARDS = {name: HELD_OUT for name in ("held_out_reward", "held_out_greedy_reward")}
FIRST = Iteration(0, evaluated=Evaluated(checkpoint="c", figures=REWARDS))
PLAYED = Played(
    groups=8, mean_reward=0.7, reward_standard_error=0.1, agreement_rate=1.0, illegal_per_episode=0.0,
    messages_per_episode=1.0, groups_without_signal=2,
)  # fmt: skip
SECOND = Iteration(1, PLAYED, Trained(checkpoint="c", carried=False, steps=7), seconds={"train": 9.0})


def evaluated_in(folder: Path) -> list[dict]:
    """Write the greedy episodes of two evaluations into the folder of a run; returns the expected rows of the table."""
    for number in range(2):
        records = [make_episode(state, number) for state in range(5)]
        (folder / f"iter_{number}" / "evaluation").mkdir(parents=True)
        write_episodes(folder / f"iter_{number}" / "evaluation" / "greedy.jsonl", records)
    dialogues = Dialogues(load_config("tiny", {}), folder)
    rows = dialogues.rows(0) + dialogues.rows(1)
    assert len(rows) > 4 and {row["iteration"] for row in rows} == {0, 1}
    return rows


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


def test_tensorboard_gets_the_dialogues_as_text_and_the_curves_in_common_charts(tmp_path):
    rows = evaluated_in(tmp_path)
    with log(tmp_path, "tensorboard") as opened:
        opened.open()
        opened.write([FIRST, SECOND])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    texts = {event.step: event.tensor_proto.string_val[0].decode() for event in events.Tensors(f"{TEXT}/text_summary")}
    for number, text in texts.items():
        assert text.startswith(RULE)
        for row in (row for row in rows if row["iteration"] == number):
            assert f"state: {row['state']}, chosen: {row['chosen']}, reward: {row['reward']:.3f}" in text
            assert row["seat 0 saw"] in text and row["seat 1 saw"] in text
            assert "dialogue:\n\n    " + row["dialogue"].replace("\n", "\n    ") in text
    assert texts.keys() == {0, 1}
    (layout,) = events.Tensors("custom_scalars__config__")
    for curve in ("held_out_reward/value", "held_out_words/greedy/swapped_reward/value", "wordless/silence/value"):
        assert f"selfplay/{curve}".encode() in layout.tensor_proto.string_val[0]


TEXT = "selfplay/dialogues"


def test_a_table_that_cannot_be_written_is_a_warning_and_the_figures_go_on(tmp_path, caplog):
    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("no text.")

    with log(tmp_path, "tensorboard") as opened:
        opened.open()
        opened.loggers.table(TEXT, 3, [{"state": Unprintable()}], "A rule.")
        opened.write([FIRST])
    said = "train.loggers: tensorboard: selfplay/dialogues of step 3 was not written: ValueError: no text"
    assert caplog.messages == [said]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    assert "selfplay/held_out_reward/value" in events.Reload().Tags()["scalars"]


def test_a_run_with_nothing_to_do_writes_nothing(tmp_path):
    with log(tmp_path, "tensorboard", "wandb") as closed:
        closed.write([FIRST])
    assert list(tmp_path.iterdir()) == []


def alone(tmp_path, logger: str, **variables: str) -> None:
    """Log two iterations in a process of its own, since clients keep their settings for the life of a process."""
    script = (
        "import asyncio, pathlib, sys; from test_loggers import FIRST, SECOND, log\n"
        "with log(pathlib.Path(sys.argv[1]), sys.argv[2]) as opened:\n"
        "    async def stage(): opened.open()\n"  # as in `iterate`, a task with a context of its own
        "    asyncio.run(stage()); opened.write([FIRST, SECOND])"
    )
    prefixes = ("WANDB_", "MLFLOW_", "SWANLAB_", "TRACKIO_", "CLEARML_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.with_name("support")), kept.get("PYTHONPATH", "")])
    kept |= {"PYTHONPATH": paths, "HOME": str(tmp_path), **variables}
    command = [sys.executable, "-c", script, str(tmp_path), logger]
    done = subprocess.run(command, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_wandb_gets_the_same_figures(tmp_path):
    alone(tmp_path, "wandb", WANDB_MODE="offline")
    (record,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for name in ("held_out_reward/low", "mean_reward", "seconds/train"):
        assert f"selfplay/{name}".encode() in record.read_bytes()


def test_wandb_gets_a_table_of_all_dialogues_so_far(tmp_path):
    rows = evaluated_in(tmp_path)
    alone(tmp_path, "wandb", WANDB_MODE="offline")
    tables = [json.loads(file.read_text()) for file in tmp_path.glob(f"wandb/offline-run-*/files/media/table/{TEXT}*")]
    longest = max(tables, key=lambda table: len(table["data"]))
    assert len(tables) == 2 and [dict(zip(longest["columns"], row, strict=True)) for row in longest["data"]] == rows


@pytest.mark.skipif(not find_spec("mlflow"), reason="`selfplay setup mlflow` installs it")
def test_mlflow_gets_the_same_figures_and_a_table_of_dialogues(tmp_path):
    rows = evaluated_in(tmp_path)
    alone(tmp_path, "mlflow")
    (table,) = [json.loads(file.read_text()) for file in tmp_path.glob(f"mlflow_artifacts/*/artifacts/{TEXT}.json")]
    written = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert written == [pytest.approx(row) for row in rows], "MLflow rounds numbers"
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        rows = store.execute("select step, value from metrics where key = 'selfplay/mean_reward'").fetchall()
        (name,) = store.execute("select name from runs").fetchone()
    assert rows == [(1, 0.7)] and name == f"{tmp_path.name}-iterations"


@pytest.mark.skipif(not find_spec("trackio"), reason="`selfplay setup trackio` installs it")
def test_trackio_gets_the_same_figures_and_a_table_of_all_dialogues_so_far(tmp_path):
    expected = evaluated_in(tmp_path)
    alone(tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    with sqlite3.connect(tmp_path / "trackio" / "selfplay.db") as store:
        rows = store.execute("select step, metrics from metrics order by step").fetchall()
    tables = {step: found[TEXT] for step, metrics in rows if TEXT in (found := json.loads(metrics))}
    assert tables.keys() == {0, 1} and tables[1] == {"_type": "trackio.table", "_value": expected}
    figures = {step: found for step, metrics in rows if TEXT not in (found := json.loads(metrics))}
    assert figures[1]["selfplay/mean_reward"] == 0.7 and figures[0]["selfplay/held_out_reward/value"] == 0.5


@pytest.mark.skipif(not find_spec("swanlab"), reason="`selfplay setup swanlab` installs it")
def test_swanlab_gets_the_same_figures_and_a_table_of_dialogues(tmp_path):
    rows = evaluated_in(tmp_path)
    alone(tmp_path, "swanlab", SWANLAB_MODE="offline")
    (record,) = tmp_path.glob("swanlog/run-*/run-*.swanlab")
    for name in ("held_out_reward/low", "mean_reward", "seconds/train"):
        assert f"selfplay/{name}".encode() in record.read_bytes()
    tables = [file.read_text() for file in sorted(tmp_path.glob("swanlog/run-*/media/echarts/*.json"))]
    for row in rows:
        assert all(json.dumps(cell)[1:-1] in tables[row["iteration"]] for cell in row.values() if isinstance(cell, str))


@pytest.mark.skipif(not find_spec("clearml"), reason="`selfplay setup clearml` installs it")
def test_clearml_gets_the_same_figures_and_a_table_of_dialogues(tmp_path):
    rows = evaluated_in(tmp_path)
    alone(tmp_path, "clearml", CLEARML_OFFLINE_MODE="1")
    (metrics,) = tmp_path.glob(".clearml/cache/offline/offline-*/metrics.jsonl")
    events = [event for line in metrics.read_text().splitlines() for event in json.loads(line)]
    assert [event["value"] for event in events if event["variant"] == "mean_reward"] == [0.7]
    tables = [json.loads(event["plot_str"])["data"][0] for event in events if event["variant"] == "dialogues"]
    assert len(tables) == 2 and tables[1]["header"]["values"] == [[column] for column in rows[0]]
    last = [row for row in rows if row["iteration"]]
    assert tables[1]["cells"]["values"][1] == [row["state"] for row in last]
