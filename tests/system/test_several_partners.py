"""Two iterations with itself, its past and a script as partners: two servers, a row for each seat of the policy."""

import asyncio
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from safetensors.torch import load_file

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.generate.records import read_episodes
from selfplay_pipeline.iterate.loop import run_iterate

TINY = "data/tiny_model"
PARTNERS = [
    {"player": "self", "share": 0.5},
    {"player": "past", "share": 0.25, "last": 1},
    {"player": "sharing", "share": 0.25},
]


def test_a_policy_is_trained_with_itself_its_past_and_a_script(sglang_server, loop_with_trainer, tmp_path):
    second = SGLangServer(ServerSpec(model=TINY, device="cpu", log_path=tmp_path / "second.log"))
    second.key = ""  # as the session's server
    asyncio.run(second.start())
    changes = {
        "model": TINY, "iterate.num_iterations": 2, "iterate.evaluate_states": 4, "iterate.partners": PARTNERS,
        "generate.num_episodes": 16, "generate.episodes_per_state": 2, "train.train_batch_size": 16,
        "train.learning_rate": 3e-4, "train.keep_zero_signal": True,
        "engine.server_url": [sglang_server.url, second.url],
    }  # fmt: skip
    try:
        run = asyncio.run(run_iterate(load_config("tiny", changes), tmp_path / "run", loop_with_trainer))
    finally:
        second.stop()
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
