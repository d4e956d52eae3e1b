"""Several jobs in one pool: one limit, one file each, and what each would hold if it were played alone."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from reports import Reports

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import reporting
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines import transformers_engine
from selfplay_pipeline.engines.transformers_engine import TransformersEngine
from selfplay_pipeline.engines.types import EngineError, SamplingParams
from selfplay_pipeline.evaluate.pairing import Pairing, play_pairings
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.base import State, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.players import policy_player
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.run import PlayTask, run_tasks
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.generate.stage import make_job
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.generate.trajectory import ChatTokenizer

MODEL = "data/tiny_model"
SAMPLED, GREEDY = "sampled.jsonl", "greedy.jsonl"


@pytest.fixture(autouse=True)
def one_request_at_a_time(monkeypatch) -> None:
    """A batch changes the last bits of log-probs, and these tests compare files byte for byte."""
    monkeypatch.setattr(transformers_engine, "BATCH", 1)


@cache
def config() -> Config:
    changes = {"engine.kind": "transformers", "generate.max_new_tokens": 32, "generate.episodes_per_state": 1}
    return load_config("tiny", changes | {"generate.num_episodes": 3})


@cache
def real() -> TransformersEngine:
    return TransformersEngine(MODEL)


class Counting:
    """The real engine, which notes the temperature of each request, and those that wait for an answer at once."""

    def __init__(
        self, fails: Callable[[SamplingParams, str], bool] = lambda params, session: False, together: int = 1
    ) -> None:
        """Args:
        fails: Says of the parameters and the session whether a request fails.
        together: Number of requests that must wait at once before the first is answered.
        """
        self.asked: list[float] = []
        self.waiting: list[float] = []
        self.at_once: list[list[float]] = []
        self.fails, self.together = fails, together
        self.enough = asyncio.Event()

    async def generate(self, prompt_ids, params, *, session=""):
        self.asked.append(params.temperature)
        self.waiting.append(params.temperature)
        self.at_once.append(sorted(self.waiting))
        if len(self.waiting) == self.together:
            self.enough.set()
        await asyncio.wait_for(self.enough.wait(), 300)
        self.waiting.remove(params.temperature)
        if self.fails(params, session):
            raise EngineError("on purpose")
        return await real().generate(prompt_ids, params, session=session)


def state(number: int) -> State:
    return make_game(config().game).sample_state(state_rng(0, number))


def task(folder: Path, name: str, engine: Counting, **changes) -> PlayTask:
    """A job of three states that is played sampled or greedily, by its name."""
    job = replace(make_job(config(), folder / name, MODEL, 1, 0), **changes)
    policy = job.policy.model_copy(update={"temperature": 0.0 if name == GREEDY else 1.0})
    arguments = job.arguments | {"generate.temperature": policy.temperature}
    player = policy_player(engine, ChatTokenizer.load(MODEL), policy, 1024)
    return PlayTask(
        replace(job, policy=policy, arguments=arguments),
        make_game(config().game),
        state,
        lambda group, number: [player] * 2,
    )


def play(*tasks: PlayTask, reports: Reports | None = None) -> list[Summary]:
    real()._lock = asyncio.Lock()  # one of the event loop at hand
    with reporting.use(reports or Reports()):
        return asyncio.run(run_tasks(tasks))


def alone(one: PlayTask) -> Summary:
    real()._lock = asyncio.Lock()
    with reporting.use(Reports()):
        return asyncio.run(run_tasks([one]))[0]


def lines_in(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


@pytest.mark.long
def test_the_last_episodes_of_a_job_do_not_keep_the_next_job_waiting_and_one_limit_holds_for_all(tmp_path):
    engine, reports = Counting(together=4), Reports()
    play(*(task(tmp_path, name, engine, max_concurrency=4) for name in (SAMPLED, GREEDY)), reports=reports)
    assert [0.0, 1.0, 1.0, 1.0] in engine.at_once, "three sampled episodes, and the first greedy one beside them"
    assert max(map(len, engine.at_once)) == 4
    assert {report.title for report in reports.seen} == {"playing sampled.jsonl, greedy.jsonl"}
    assert [report.done for report in reports.seen] == list(range(7))
    assert {report.total for report in reports.seen} == {6}
    assert "reward: sampled 0." in reports.seen[-1].figures and ", greedy 0." in reports.seen[-1].figures


@pytest.mark.long
def test_each_file_holds_what_it_would_hold_alone(tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "pool").mkdir()
    first = alone(task(tmp_path / "alone", GREEDY, Counting()))
    sampled, greedy = play(*(task(tmp_path / "pool", name, Counting()) for name in (SAMPLED, GREEDY)))
    assert lines_in(tmp_path / "pool" / GREEDY) == lines_in(tmp_path / "alone" / GREEDY)
    assert greedy.mean_reward == first.mean_reward and (sampled.episodes, greedy.episodes) == (3, 3)
    assert {record.policy.temperature for record in read_episodes(tmp_path / "pool" / SAMPLED)} == {1.0}
    for name, played in ((SAMPLED, sampled), (GREEDY, greedy)):
        stored = json.loads((tmp_path / "pool" / name).with_suffix(".summary.json").read_text())
        assert stored["mean_reward"] == pytest.approx(played.mean_reward) and stored["episodes"] == 3
        arguments = json.loads((tmp_path / "pool" / name).with_suffix(".args.json").read_text())
        assert arguments["generate.temperature"] == (0.0 if name == GREEDY else 1.0)


@pytest.mark.long
def test_a_pool_that_was_killed_goes_on_with_the_missing_episodes_of_each_job(tmp_path):
    play(*(task(tmp_path, name, Counting()) for name in (SAMPLED, GREEDY)))
    kept = {}
    for name, lines in ((SAMPLED, 3), (GREEDY, 1)):
        path = tmp_path / name
        kept[name] = "".join(path.read_text().splitlines(keepends=True)[:lines])
        path.write_text(kept[name] + '{"episode_id": "torn')
        path.with_suffix(".summary.json").unlink()
    engine = Counting()
    summaries = play(*(task(tmp_path, name, engine) for name in (SAMPLED, GREEDY)))
    assert set(engine.asked) == {0.0}, "all sampled episodes were stored"
    assert [summary.episodes for summary in summaries] == [3, 3]
    for name, text in kept.items():
        assert (tmp_path / name).read_text().startswith(text)
        numbers = [record.group_index for record in read_episodes(tmp_path / name)]
        assert sorted(numbers) == [0, 1, 2] and (tmp_path / name).with_suffix(".summary.json").exists()


@pytest.mark.long
def test_a_lost_episode_is_counted_for_its_own_job_alone(tmp_path):
    def greedy_of_state_1(params: SamplingParams, session: str) -> bool:
        return params.temperature == 0 and session.startswith("s0-g000001")

    tasks = [task(tmp_path, name, Counting(greedy_of_state_1), max_failures=1) for name in (SAMPLED, GREEDY)]
    assert [(summary.episodes, summary.failures) for summary in play(*tasks)] == [(3, 0), (3, 1)]
    assert len(lines_in(tmp_path / SAMPLED)) == 3 and len(lines_in(tmp_path / GREEDY)) == 2
    engine = Counting()
    again = [task(tmp_path, name, engine, max_failures=1) for name in (SAMPLED, GREEDY)]
    assert [(summary.episodes, summary.failures) for summary in play(*again)] == [(3, 0), (3, 0)]
    assert set(engine.asked) == {0.0}


def test_a_file_of_other_episodes_is_refused_before_any_job_is_played(tmp_path):
    engine = Counting()
    play(task(tmp_path, GREEDY, engine))
    changed = task(tmp_path, GREEDY, engine)
    changed = replace(changed, job=replace(changed.job, arguments=changed.job.arguments | {"seed": 5}))
    before = len(engine.asked)
    with pytest.raises(UserError, match=r"greedy\.jsonl"):
        play(task(tmp_path, SAMPLED, engine), changed)
    assert len(engine.asked) == before and not (tmp_path / SAMPLED).exists()


@pytest.mark.long
def test_an_evaluation_is_that_of_its_modes_one_after_the_other(tmp_path):
    job = EvaluationJob(MODEL, held_out_states(make_game(config().game), 3), tmp_path / "both", episodes=1)
    evaluation = asyncio.run(run_evaluate(config(), job))
    each = [
        Pairing(MODEL, MODEL, job.states, tmp_path / "each" / f"{mode}.jsonl", 1, greedy=mode == "greedy")
        for mode in ("sampled", "greedy")
    ]

    async def one_after_the_other() -> None:
        async with Servers(Backends.of(config()), tmp_path) as servers:
            for pairing in each:
                assert await play_pairings(config(), [pairing], servers) == [0]

    (tmp_path / "each").mkdir()
    asyncio.run(one_after_the_other())
    assert lines_in(tmp_path / "both" / GREEDY) == lines_in(tmp_path / "each" / GREEDY)
    for mode in ("sampled", "greedy"):
        pair = [list(read_episodes(tmp_path / where / f"{mode}.jsonl")) for where in ("both", "each")]
        named = [sorted((record.episode_id, json.dumps(record.state)) for record in records) for records in pair]
        assert named[0] == named[1] and evaluation.modes[mode].episodes == 3
        arguments = [(tmp_path / where / f"{mode}.args.json").read_bytes() for where in ("both", "each")]
        assert arguments[0] == arguments[1]
