"""`iterate.ahead`: which stages run at the same time, with which checkpoint, and what goes on after an interruption."""

import asyncio
import re
from pathlib import Path

import pytest
from factories import FINISHED

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import IterateConfig
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import TRAINING_RECORD
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate import loop, preflight
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.held_out import Evaluated
from selfplay_pipeline.iterate.history import history_of
from selfplay_pipeline.iterate.loop import Loop, run_iterate, side_by_side
from selfplay_pipeline.iterate.results import Trained
from selfplay_pipeline.iterate.schedule import rounds_of, saves_state, source_of, stages_of

ITERATIONS = 3
OPTIONS = {"iterate.num_iterations": ITERATIONS, "iterate.ahead": 1}


def schedule(**options) -> list[list[list[str]]]:
    """Each round's lanes, a stage as its first letter and the number of its iteration."""
    return [
        [[f"{stage[0]}{number}" for number, stage in lane] for lane in current.lanes if lane]
        for current in rounds_of(IterateConfig(num_iterations=ITERATIONS, **options))
    ]


def test_without_ahead_all_stages_follow_each_other():
    assert schedule() == [
        [["e0"]], [["g1", "c1", "t1", "e1"]], [["g2", "c2", "t2", "e2"]], [["g3", "c3", "t3", "e3"]],
    ]  # fmt: skip


def test_ahead_each_training_has_the_next_episodes_and_the_last_evaluation_beside_it():
    assert schedule(ahead=1) == [
        [["g1", "c1"]],
        [["t1"], ["g2", "c2", "e0"]],
        [["t2"], ["g3", "c3", "e1"]],
        [["t3"], ["e2"]],
        [["e3"]],
    ]
    assert schedule(ahead=1, evaluate_every=2) == [
        [["g1", "c1"]], [["t1"], ["g2", "c2", "e0"]], [["t2"], ["g3", "c3"]], [["t3"], ["e2"]], [["e3"]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"state_every": 3}, [3, 6, 7]),
        ({"state_every": 9}, [7]),
        ({"state_every": 3, "keep_processes": False}, [1, 2, 3, 4, 5, 6, 7]),
        ({"state_every": 3, "partners": ["self=0.5", "member_2=0.5"]}, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_every_kth_iteration_and_the_last_save_a_state_and_all_do_if_no_process_keeps_it(options, saved):
    chosen = IterateConfig(num_iterations=7, **options)
    assert [number for number in range(1, 8) if saves_state(chosen, number)] == saved


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_schedule_has_every_stage_once_and_a_checkpoint_is_made_before_it_is_used(ahead, every):
    options = IterateConfig(num_iterations=5, ahead=ahead, evaluate_every=every)
    made, done = {0}, []
    for current in rounds_of(options):
        assert len({source_of(options, *one) for lane in current.lanes for one in lane if one[1] != "train"}) <= 1 or (
            not ahead
        ), "the server would have to serve two checkpoints at once"
        for lane in current.lanes:
            fresh = set(made)
            for number, stage in lane:
                assert source_of(options, number, stage) in fresh, (number, stage)
                fresh |= {number} if stage == "train" else set()
                done.append((number, stage))
        made |= {number for lane in current.lanes for number, stage in lane if stage == "train"}
    assert sorted(done) == sorted((number, stage) for number in range(6) for stage in stages_of(options, number))


class Stages(Loop):
    """The loop with stages that only note what they were given.

    A training ends only when the next iteration's episodes are played, as a loop without `ahead` never could.
    """

    calls: list[tuple[str, int, str]]
    played: dict[int, asyncio.Event]

    def note(self, stage: str, number: int, checkpoint: str) -> None:
        self.calls.append(
            (stage, number, checkpoint if checkpoint.startswith("data/") else Path(checkpoint).parent.name)
        )

    def done(self, number: int) -> asyncio.Event:
        return self.played.setdefault(number, asyncio.Event())

    async def _generate(self, number, checkpoint):
        self.note("generate", number, checkpoint)
        self.done(number).set()
        return Played(**FINISHED["generate"])

    async def _convert(self, number, games):
        return Converted()

    async def _train(self, number, checkpoint, rows):
        self.note("train", number, checkpoint)
        if number < self.config.iterate.num_iterations and self.run.state.get(number + 1, "generate") is None:
            await self.done(number + 1).wait()
        folder = self.run.iteration(number) / "checkpoint"
        folder.mkdir(parents=True, exist_ok=True)
        record = self.run.iteration(number) / TRAINING_RECORD
        record.parent.mkdir(exist_ok=True)
        record.write_text("{}")
        return Trained(
            checkpoint=str(folder), carried=False, steps=1, seconds_in_steps=1.0, staleness=self._staleness(number)
        )

    async def _evaluate(self, number, checkpoint):
        self.note("evaluate", number, checkpoint)
        return Evaluated(**FINISHED["evaluate"])


@pytest.fixture
def stages(monkeypatch) -> type[Stages]:
    monkeypatch.setattr(loop, "prepare_training", lambda *parts: None)
    monkeypatch.setattr(loop, "check_run", lambda config: None)
    monkeypatch.setattr(Stages, "calls", [], raising=False)
    monkeypatch.setattr(Stages, "played", {}, raising=False)
    return Stages


MODEL = "data/tiny_model"
IN_FULL = {
    ("generate", 1, MODEL), ("generate", 2, MODEL), ("generate", 3, "iter_1"),
    ("train", 1, MODEL), ("train", 2, "iter_1"), ("train", 3, "iter_2"),
    ("evaluate", 0, MODEL), ("evaluate", 1, "iter_1"), ("evaluate", 2, "iter_2"), ("evaluate", 3, "iter_3"),
}  # fmt: skip


def test_the_next_iteration_is_played_while_one_is_trained_by_the_checkpoint_it_began_with(tmp_path, stages):
    run = asyncio.run(asyncio.wait_for(run_iterate(load_config("tiny", OPTIONS), tmp_path / "run", stages), 60))
    assert {(stage, number, source.removeprefix("../")) for stage, number, source in stages.calls} == IN_FULL
    assert len(stages.calls) == len(IN_FULL), "nothing is done twice"
    assert [iteration.to_line().get("staleness") for iteration in history_of(run.state)] == [None, 0, 1, 1]
    assert [iteration.number for iteration in history_of(run.state) if iteration.evaluated] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("number", "stage"), [(1, "convert"), (2, "generate"), (1, "train"), (0, "evaluate"), (3, "evaluate")]
)
def test_after_an_interruption_each_stage_goes_on_with_the_same_checkpoint(
    tmp_path, stages, monkeypatch, number, stage
):
    config, finish = load_config("tiny", OPTIONS), RunDirectory.finish

    def cut(directory, at, done, record):
        if (at, done) == (number, stage):
            raise KeyboardInterrupt
        finish(directory, at, done, record)

    monkeypatch.setattr(RunDirectory, "finish", cut)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(asyncio.wait_for(run_iterate(config, tmp_path / "run", stages), 60))
    monkeypatch.setattr(RunDirectory, "finish", finish)
    stages.played.clear()
    asyncio.run(asyncio.wait_for(run_iterate(config, tmp_path / "run", stages), 60))
    assert set(stages.calls) == IN_FULL


@pytest.mark.parametrize("every", [1, 0])
def test_the_first_evaluation_is_written_down_before_the_first_training_ends(tmp_path, stages, monkeypatch, every):
    async def fails(*parts: object) -> None:
        raise RuntimeError("training 1 fails")

    monkeypatch.setattr(stages, "_train", fails)
    options = {"iterate.num_iterations": 2, "iterate.evaluate_every": every}
    with pytest.raises(RuntimeError, match="training 1 fails"):
        asyncio.run(run_iterate(load_config("tiny", options), tmp_path / "run", stages))
    written = {"metrics.jsonl", "best.json"} & {path.name for path in (tmp_path / "run").iterdir()}
    assert written == ({"metrics.jsonl", "best.json"} if every else set())


async def test_if_one_of_two_fails_the_other_is_cancelled_and_has_cleaned_up_before_the_error():
    cleaned = []

    async def playing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise UserError("no")

    with pytest.raises(UserError):
        await asyncio.wait_for(side_by_side(playing(), failing()), 60)
    assert cleaned == [True]


@pytest.mark.parametrize("given", [{}, {"engine.server_url": ["http://127.0.0.1:1"]}])
def test_a_server_and_a_trainer_on_the_same_gpus_are_refused(given, monkeypatch):
    monkeypatch.setattr(preflight, "resolve_device", lambda device: "cuda")
    config = load_config("tiny", OPTIONS | given)
    if given:
        preflight.check_ahead(config, shares=preflight.shares_gpu(config))
        with pytest.raises(UserError, match=r"iterate\.ahead 1: .* on the same GPUs"):
            preflight.check_ahead(config, shares=True)
        return
    with pytest.raises(UserError, match=r"iterate\.ahead 1: .* give engine.server_url"):
        preflight.check_run(config)


def test_a_server_that_is_stopped_for_each_training_cannot_play_meanwhile():
    with pytest.raises(UserError, match=re.escape("keep_processes: false")):
        load_config("tiny", OPTIONS | {"iterate.keep_processes": False})


def test_what_a_server_decides_is_refused_before_the_run_folder_is_begun(tmp_path, monkeypatch, stages):
    async def shares(config):
        return True

    monkeypatch.setattr(loop, "attached_share", shares)
    with pytest.raises(UserError, match=r"iterate.ahead 1: the server and the trainer are on the same GPUs"):
        asyncio.run(run_iterate(load_config("tiny", OPTIONS), tmp_path / "run", stages))
    assert not (tmp_path / "run").exists()


def test_the_seed_of_the_last_iteration_is_checked_first():
    with pytest.raises(UserError, match=r"seed: 2147483645: the last iteration's seed would be too large"):
        preflight.check_run(load_config("tiny", OPTIONS | {"seed": 2147483645}))


def test_a_schedule_of_verls_which_counts_the_steps_of_one_iteration_is_refused():
    cosine = ["actor_rollout_ref.actor.optim.lr_scheduler_type=cosine"]
    with pytest.raises(UserError, match=r"sets this key itself; use iterate.decay_iterations in its place"):
        preflight.check_run(load_config("tiny", OPTIONS | {"train.overrides": cosine}))
