"""Where a training that was killed goes on, and which trainer states a loop keeps for that."""

import asyncio
import json
import random
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from factories import FINISHED

from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import TRAINING_RECORD
from selfplay_pipeline.evaluate.pairing import Pairing
from selfplay_pipeline.evaluate.states import StateSet
from selfplay_pipeline.generate.stage import make_job
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord, check_unchanged
from selfplay_pipeline.iterate.loop import Loop, run_iterate
from selfplay_pipeline.iterate.results import Trained
from selfplay_pipeline.train.offline import TrainResult, claim
from selfplay_pipeline.train.process import Trainer
from selfplay_pipeline.train.saves import (
    LATEST,
    PICKLED_POSITION,
    WHOLE,
    NewLines,
    go_back_to_last_logged_save,
    has_state,
    keep_lines,
    prune,
)
from selfplay_pipeline.train.verl_overrides import state_dir


def saved(folder: Path, whole: list[int], torn: list[int], logged: list[int], latest: str | None) -> tuple[Path, Path]:
    for step in whole + torn:
        (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
        (folder / f"global_step_{step}" / PICKLED_POSITION).touch()  # killed before it was removed
    for step in whole:
        (folder / f"global_step_{step}" / WHOLE).touch()
    if latest is not None:
        (folder / LATEST).write_text(latest)
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in logged))
    return folder, metrics


@pytest.mark.parametrize(
    ("whole", "torn", "logged", "latest", "expected"),
    [
        ([], [], [], None, 0),
        ([2], [], [1, 2], "2", 2),
        ([2, 4], [], [1, 2, 3], "4", 2),  # killed between save and log
        ([2], [4], [1, 2, 3], "2", 2),  # killed while saving
        ([2, 4], [], [1, 2, 3, 4], "", 4),  # killed while the record of the save was written
        ([2, 10], [], [*range(1, 11)], "10", 10),  # numbers, not texts
        ([2], [], [1], "2", 0),
    ],
)
def test_it_goes_back_to_the_last_whole_save_that_was_logged(tmp_path, whole, torn, logged, latest, expected):
    folder, metrics = saved(tmp_path, whole, torn, logged, latest)
    assert go_back_to_last_logged_save(folder, metrics) == expected
    assert (folder / LATEST).exists() == bool(expected)
    assert not expected or (folder / LATEST).read_text() == str(expected)
    left = {path.name for path in folder.glob("global_step_*")}
    assert left == {f"global_step_{step}" for step in whole if step <= expected}
    assert not list(folder.glob("*/data.pt")), "verl would unpickle it"
    if expected:
        (folder / f"global_step_{expected}" / "actor").rmdir()
        assert go_back_to_last_logged_save(folder, metrics) < expected, "a save without its content is none"


def test_each_line_of_a_growing_file_is_read_once(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    lines = NewLines(metrics)
    assert lines.read() == []
    metrics.write_text('{"step": 1}\n{"step"')
    assert lines.read() == [{"step": 1}]
    assert lines.read() == []
    metrics.write_text('read before\n{"step": 2}\n{"step": 3}\n')
    assert lines.read() == [{"step": 2}, {"step": 3}]
    with metrics.open("a") as file:
        file.write("4\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:4: damaged"):
        lines.read()


def test_of_a_finished_training_the_last_save_stays_without_its_copy_of_the_weights(tmp_path):
    folder, metrics = saved(tmp_path, [2, 4], [6], [1, 2, 3, 4], "4")
    copy = folder / "global_step_4" / "actor" / "huggingface"
    copy.mkdir()
    for name in ("model.safetensors", "config.json"):
        (copy / name).touch()
    prune(folder, 4)
    assert [path.name for path in folder.glob("global_step_*")] == ["global_step_4"]
    assert [path.name for path in copy.iterdir()] == ["config.json"]
    keep_lines(metrics, 2)
    assert [line["step"] for line in NewLines(metrics).read()] == [1, 2], "steps that are done again"


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": "one"}'])
def test_a_damaged_line_of_metrics_is_named(tmp_path, line):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl:2: damaged"):
        go_back_to_last_logged_save(tmp_path, metrics)


class OnlyTraining(Loop):
    """The loop without its games; what a training does is up to the test."""

    async def _generate(self, number, checkpoint):
        return Played(**FINISHED["generate"])

    async def _convert(self, number, games):
        return Converted()

    def _watch(self, number):
        pass


IN_PLACE = {"iterate.evaluate_every": 0, "iterate.num_iterations": 3, "iterate.keep_processes": False}


def looped(run: Path, *, interrupted: bool = False, **changes: Any) -> None:
    """Run the loop of `OnlyTraining`, which its training or its record interrupts, or not."""
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        asyncio.run(run_iterate(load_config("tiny", IN_PLACE | changes), run, OnlyTraining))


def trained(output: Path, weights: str = "weights", *, state: bool = True, **changes: Any) -> TrainResult:
    """Make what a training of one step leaves, and say so."""
    made = {name: output / name for name in ("checkpoint", "trainer_state")}
    save = made["trainer_state"] / "global_step_1" / "actor"
    for folder in (made["checkpoint"], save):
        folder.mkdir(parents=True, exist_ok=True)
    (made["checkpoint"] / "model.safetensors").write_text(weights)
    (made["trainer_state"] / LATEST).write_text("1")
    if state:
        (save / "optim_world_size_1_rank_0.pt").write_text(weights)
    (output / TRAINING_RECORD).write_text('{"learning_rate": 0.1}')
    done = {
        "steps": 1, "groups": 1, "groups_without_signal": 0, "rows": 2, "seconds_total": 1.0,
        "seconds_in_steps": 1.0, "log_prob_gap": None, "metrics_path": output / "metrics.jsonl", **made,
    }  # fmt: skip
    return TrainResult(**done | changes)


def test_a_loop_keeps_the_newest_trainer_state_and_the_one_that_a_cut_training_began_with(tmp_path, monkeypatch):
    run, began_with = tmp_path / "run", []

    async def train(job, trainer):
        began_with.append(job.initial_trainer_state and job.initial_trainer_state.parent.name)
        return trained(job.output)

    def left() -> list[str]:
        return sorted(state.parent.name for state in run.glob("iter_*/trainer_state"))

    finish = RunDirectory.finish

    def cut(directory, number, stage, record):
        if (number, stage) == (2, "train"):
            raise KeyboardInterrupt
        finish(directory, number, stage, record)

    monkeypatch.setattr("selfplay_pipeline.iterate.loop.train_policy", train)
    monkeypatch.setattr(RunDirectory, "finish", cut)
    looped(run, interrupted=True)
    assert left() == ["iter_1", "iter_2"]
    monkeypatch.setattr(RunDirectory, "finish", finish)
    looped(run)
    assert left() == ["iter_3"]
    assert began_with == [None, "iter_1", "iter_1", "iter_2"]


class Killed(BaseException):
    """What ends a command at a moment of `Moments`."""


class Moments:
    """Trains in place of verl, and kills the command at random moments.

    Weights and state are the list of iterations that were trained, in order. The newest state is in memory until the
    command is killed.
    """

    def __init__(self, run: Path, seed: int) -> None:
        self.run, self.chances, self.kills = run, random.Random(seed), 0
        self.held: tuple[Path, str] | None = None

    def pass_one(self) -> None:
        if self.kills < 8 and self.chances.random() < 0.4:
            self.kills, self.held = self.kills + 1, None
            raise Killed

    def holds(self, state: Path) -> bool:
        return self.held is not None and self.held[0] == state.resolve()

    async def train(self, job: TrainConfig, trainer: Any) -> TrainResult:
        self.pass_one()
        began, before = job.initial_trainer_state, ""
        if began is not None and self.holds(began):
            before = self.held[1]
        elif began is not None:
            before = (began / "global_step_1" / "actor" / "optim_world_size_1_rank_0.pt").read_text()
        weights = f"{before} {job.data.parent.name}"
        result = trained(job.output, weights, state=job.saves_state)
        self.held = state_dir(job), weights
        self.pass_one()
        return result

    def use(self, monkeypatch) -> None:
        """Put these trainings into the loop; the moments are also those before and after each record or move."""
        finish, replace = RunDirectory.finish, Path.replace

        def recorded(directory, *record):
            self.pass_one()
            finish(directory, *record)
            self.pass_one()

        def moved(path, target):
            folder = path.is_dir()
            if folder:
                self.pass_one()
            replace(path, target)
            if folder:
                self.pass_one()

        monkeypatch.setattr("selfplay_pipeline.iterate.loop.train_policy", self.train)
        monkeypatch.setattr("selfplay_pipeline.iterate.loop.prepare_training", lambda *parts: None)
        monkeypatch.setattr(Trainer, "holds", lambda trainer, state: self.holds(state))
        monkeypatch.setattr(RunDirectory, "finish", recorded)
        monkeypatch.setattr(Path, "replace", moved)


def with_rows(run: Path, iterations: int) -> None:
    for number in range(1, iterations + 1):
        (run / f"iter_{number}").mkdir(parents=True)
        (run / f"iter_{number}" / "train.parquet").touch()


SELDOM = {"iterate.keep_processes": True, "iterate.num_iterations": 8, "iterate.state_every": 3}


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_loop_that_seldom_saves_states_trains_each_iteration_once_in_every_checkpoint(
    tmp_path, monkeypatch, caplog, seed
):
    run, ended = tmp_path / "run", False
    with_rows(run, 8)
    moments = Moments(run, seed)
    moments.use(monkeypatch)
    while not ended:
        try:
            looped(run, **SELDOM)
            ended = True
        except Killed:
            pass
    assert moments.kills
    for number in range(1, 9):
        weights = (run / f"iter_{number}" / "checkpoint" / "model.safetensors").read_text()
        assert weights.split() == [f"iter_{one}" for one in range(1, number + 1)]
    assert "is gone" not in caplog.text and "other weights" not in caplog.text
    assert [state.parent.name for state in run.glob("iter_*/trainer_state")] == ["iter_8"]
    assert list(run.glob("iter_*/again")) == []


def test_an_undisturbed_loop_saves_the_state_of_every_kth_iteration_and_keeps_what_a_repetition_needs(
    tmp_path, monkeypatch
):
    run, kept = tmp_path / "run", []
    with_rows(run, 8)
    moments = Moments(run, 0)
    moments.kills = 8  # no more
    moments.use(monkeypatch)
    remove = Loop._remove_earlier_states

    def removed(loop, number):
        remove(loop, number)
        states = sorted(run.glob("iter_*/trainer_state"))
        kept.append([state.parent.name[-1] + " saved" * has_state(state) for state in states])

    monkeypatch.setattr(Loop, "_remove_earlier_states", removed)
    looped(run, **SELDOM)
    assert kept == [
        ["1"], ["1", "2"], ["3 saved"], ["3 saved", "4"], ["3 saved", "4", "5"], ["6 saved"], ["6 saved", "7"],
        ["8 saved"],
    ]  # fmt: skip


def cut_after(number: int, run: Path, monkeypatch) -> Moments:
    """Run the loop until an iteration is trained, and kill it there; the states until then were not saved."""
    with_rows(run, 3)
    moments, finish = Moments(run, 0), RunDirectory.finish
    moments.kills = 8
    moments.use(monkeypatch)

    def cut(directory, at, stage, record):
        finish(directory, at, stage, record)
        if (at, stage) == (number, "train"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish", cut)
        looped(run, interrupted=True, **SELDOM | {"iterate.num_iterations": 3})
    moments.held = None
    return moments


@pytest.mark.parametrize("gone", ["iter_1/train.parquet", "iter_2/train.parquet", "iter_1/trainer_state"])
def test_a_loop_without_what_a_repetition_needs_goes_on_with_a_new_optimizer_and_says_so(
    tmp_path, monkeypatch, caplog, gone
):
    run = tmp_path / "run"
    cut_after(2, run, monkeypatch)
    shutil.move(run / gone, tmp_path / "gone")
    with caplog.at_level("WARNING"):
        looped(run, **SELDOM | {"iterate.num_iterations": 3})
    assert "iteration 3: the trainer_state of the iteration before is gone" in caplog.text
    assert (run / "iter_3" / "checkpoint" / "model.safetensors").read_text() == " iter_3"


def test_a_repetition_that_ends_in_other_weights_is_reported(tmp_path, monkeypatch, caplog):
    run = tmp_path / "run"
    moments = cut_after(1, run, monkeypatch)

    async def otherwise(job, trainer):
        return await moments.train(job.model_copy(update={"data": Path("other/rows")}), trainer)

    monkeypatch.setattr("selfplay_pipeline.iterate.loop.train_policy", otherwise)
    with caplog.at_level("WARNING"):
        looped(run, **SELDOM | {"iterate.num_iterations": 3})
    assert caplog.text.count("trained again, it ends in slightly other weights") == 1
    assert "iteration 1: trained again" in caplog.text


def test_a_training_begun_before_an_option_came_goes_on_with_its_default(tmp_path):
    config = TrainConfig(model="m", data=Path("train.parquet"), output=tmp_path)
    options = deciding(config, "train")
    record = tmp_path / "trainer_state" / "training.json"
    record.parent.mkdir()
    since = {"train.old_log_probs", "train.method"}
    record.write_text(json.dumps({key: value for key, value in options.items() if key not in since}))
    claim(config, options)
    with pytest.raises(UserError, match=r"train\.old_log_probs = 'step', now it is 'games'"):
        claim(config, options | {"train.old_log_probs": "games"})


@pytest.mark.parametrize("moved", [False, True], ids=["copied", "moved"])
def test_a_run_in_another_place_goes_on_with_its_own_files(tmp_path, monkeypatch, moved):
    run, place, two = tmp_path / "run", tmp_path / "elsewhere" / "run", {"iterate.num_iterations": 2}
    began_with, identities = [], []

    async def train(job, trainer):
        training = deciding(job, "train") | {"data": str(job.data.resolve())}
        claim(job, training)
        identities.append((job.output / "trainer_state" / "training.json").read_text())
        began_with.append((job.model, str(job.initial_trainer_state)))
        if len(began_with) == 2:
            raise KeyboardInterrupt
        return trained(job.output)

    monkeypatch.setattr("selfplay_pipeline.iterate.loop.train_policy", train)
    looped(run, interrupted=True, **two)
    place.parent.mkdir()
    (shutil.move if moved else shutil.copytree)(run, place)
    (place / "iter_1" / "checkpoint" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds other files than when the iteration had made it"):
        looped(place, **two)
    (place / "iter_1" / "checkpoint" / "config.json").unlink()
    looped(place, **two)
    first = place / "iter_1"
    assert began_with[-1] == (str(first / "checkpoint"), str(first / "trainer_state"))
    assert identities[-1] == identities[-2], "another identity would have been refused"
    assert str(tmp_path) not in "".join(file.read_text() for file in place.rglob("*.json"))
    assert RunDirectory(place).load().trained(2).checkpoint == "iter_2/checkpoint"


@pytest.mark.parametrize("first", ["some/model", "base"])
def test_a_model_that_was_carried_forward_keeps_its_name_and_is_found_in_a_moved_run(tmp_path, first):
    run, moved = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "moved")
    shutil.copytree("data/tiny_model", run.path / "base")
    given = first if first == "some/model" else str(run.path / first)
    for number, figures in enumerate([{"checkpoint": given, "carried": True}] * 2 + [{"checkpoint": "c"}], start=1):
        run.finish(number, "train", StageRecord(seconds=0, figures=FINISHED["train"] | figures))
    assert RunDirectory(run.path).load() == run.state
    run.path.rename(moved.path)
    assert moved.load().trained(2).checkpoint == first
    kept = first if first == "some/model" else str((moved.path / first).resolve())
    own = str((moved.path / "iter_3" / "checkpoint").resolve())
    assert [moved.checkpoint(number) for number in (1, 2, 3)] == [kept, kept, own]


def test_a_hub_model_that_was_carried_forward_is_no_folder_that_was_removed(monkeypatch):
    monkeypatch.setattr("selfplay_pipeline.iterate.folder.content_hash", lambda model: "hash")
    made = Trained.model_validate(FINISHED["train"] | {"checkpoint": "some/model", "carried": True, "weights": "hash"})
    check_unchanged("some/model", made)
    with pytest.raises(UserError, match="some/model: holds other files than"):
        check_unchanged("some/model", made.model_copy(update={"weights": "other"}))
    with pytest.raises(UserError, match="some/model: was removed after the iteration had made it"):
        check_unchanged("some/model", made.model_copy(update={"carried": False}))


def test_a_loop_says_that_a_trainer_state_is_gone(tmp_path, monkeypatch, caplog):
    began_with, run = [], tmp_path / "run"

    async def train(job, trainer):
        began_with.append(job.initial_trainer_state)
        if len(began_with) == 2:
            shutil.rmtree(run / "iter_1" / "trainer_state")
            raise KeyboardInterrupt
        return trained(job.output)

    monkeypatch.setattr("selfplay_pipeline.iterate.loop.train_policy", train)
    looped(run, interrupted=True)
    assert "is gone" not in caplog.text
    with caplog.at_level("WARNING"):
        looped(run)
    assert began_with[2:] == [None, run / "iter_2" / "trainer_state"]
    assert caplog.text.count("iteration 2: the trainer_state of the iteration before is gone") == 1


def test_the_identity_of_episodes_does_not_hold_where_a_run_is(tmp_path):
    config, states = load_config("tiny", {}), StateSet("some states", ())
    arguments = []
    for run in (RunDirectory(tmp_path / "one"), RunDirectory(tmp_path / "two" / "three")):
        run.open(config)
        checkpoint = str(shutil.copytree("data/tiny_model", run.iteration(1) / "checkpoint"))
        played = make_job(config, run.games(2), checkpoint, 2, 0).arguments
        evaluated = Pairing(
            checkpoint, checkpoint, states, run.iteration(2) / "evaluation" / "greedy.jsonl", 1, greedy=True
        )
        arguments.append([played, evaluated.job(config).arguments])
    assert arguments[0] == arguments[1]
    assert {arguments[0][0]["model"], arguments[0][1]["first"]} == {"iter_1/checkpoint"}
