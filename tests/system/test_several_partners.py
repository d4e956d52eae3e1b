"""Two iterations with itself, its past and a script as partners, and a population of two: on two servers."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from shared_server import started

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.engines.sglang_server import SGLangServer
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.iterate.population import run_population

TINY = "data/tiny_model"
PARTNERS = [
    {"player": "self", "share": 0.5},
    {"player": "past", "share": 0.25, "last": 1},
    {"player": "sharing", "share": 0.25},
]


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> Iterator[SGLangServer]:
    """A server beside the session's."""
    with started(tmp_path_factory.mktemp("second") / "second.log") as server:
        yield server


def config(*servers, **changes) -> Config:
    given = {
        "model": TINY, "iterate.num_iterations": 2, "evaluate.monitor_states": 4,
        "generate.num_episodes": 16, "generate.episodes_per_state": 2, "train.train_batch_size": 16,
        "train.learning_rate": 3e-4, "train.keep_zero_signal": True,
        "engine.server_url": [server.url for server in servers],
    }  # fmt: skip
    return load_config("tiny", given | changes)


def test_a_policy_is_trained_with_itself_its_past_and_a_script(sglang_server, second, loop_with_trainer, tmp_path):
    asked = config(sglang_server, second, **{"iterate.partners": PARTNERS})
    run = asyncio.run(run_iterate(asked, tmp_path / "run", loop_with_trainer))
    models = [shipped(TINY), run.checkpoint(1), run.checkpoint(2)]
    assert len({content_hash(model) for model in models}) == 3
    for number in (1, 2):
        policy, past = content_hash(models[number - 1]), content_hash(models[0])
        records = [*read_episodes(run.games(number))]
        tables = Counter(record.partners for record in records)
        others = [f"{seat}: {name}" for name in (past, "sharing") for seat in (0, 1)]
        assert tables == {"": 8} | dict.fromkeys(others, 2), "each partner in either seat"
        rows = pq.read_table(run.rows(number)).to_pylist()
        assert Counter(row["extra_info"]["seat"] for row in rows) == {0: 12, 1: 12}
        for record in records:
            held = {record.seats[at].policy.weights for at in record.trained_seats}
            assert held == {policy} and len(record.trajectories) == (2 if not record.partners else 1)
        played = run.state.played(number)
        assert played is not None
        assert {partner: found.share for partner, found in played.partners.items()} == {
            "past": 0.25, "self": 0.5, "sharing": 0.25,
        }  # fmt: skip
        evaluated = read_episodes(run.iteration(number) / "evaluation" / "sampled.jsonl")
        assert {record.partners for record in evaluated} == {""}
    before, after = (load_file(Path(model) / "model.safetensors") for model in models[:2])
    assert any(not after[name].equal(before[name]) for name in before)


def test_two_members_are_trained_with_each_other(sglang_server, second, loop_with_trainer, tmp_path):
    runs = asyncio.run(run_population(config(sglang_server, second), tmp_path / "all", 2, loop_with_trainer))
    assert [run.path.name for run in runs] == ["member_1", "member_2"]
    weights = {(at, number): content_hash(run.checkpoint(number)) for at, run in enumerate(runs) for number in (1, 2)}
    assert len({*weights.values()}) == 4, "each training changes the weights of its own member"
    for at, run in enumerate(runs):
        other = weights[1 - at, 1]
        records = [*read_episodes(run.games(2))]
        assert Counter(record.partners for record in records) == {"": 8, f"0: {other}": 4, f"1: {other}": 4}
        held = {record.seats[seat].policy.weights for record in records for seat in record.trained_seats}
        assert held == {weights[at, 1]}
        assert all(run.state.evaluated(number) for number in (0, 1, 2))
