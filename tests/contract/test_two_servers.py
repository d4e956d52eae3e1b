"""Several servers and several copies of the model: episodes stay where their prefix is cached, and outlive a server."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from recording_proxy import RecordingProxy
from shared_server import Server, started
from test_engines import prompt
from test_server_faults import GAMES, IDS, Run

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.engines.sglang_api import PROBE_IDS
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import SGLangServer
from selfplay_pipeline.engines.types import SamplingParams
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import Trajectory
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.iterate.results import Trained

COPIES, EPISODES, TURNS, DRAWS = 2, 12, 4, 8
PARAMS = SamplingParams(1.0, 8, ())


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Iterator[SGLangServer]:
    """A server with two copies of the model, each with a scheduler and a prefix cache of its own."""
    with started(tmp_path_factory.mktemp("copies") / "server.log", data_parallel=COPIES) as server:
        yield server


def test_copies_of_the_model_draw_apart(copies):
    """The first requests that each gets; SGLang's one seed would give all copies the same replies."""
    body = {"input_ids": list(prompt()), "sampling_params": {"temperature": 10.0, "max_new_tokens": 12}}

    async def draw() -> list[list[list[int]]]:
        async with SGLangEngine([copies]) as engine:
            ask = partial(engine.clients[0].call, "/generate")
            return [
                [(await ask(body | {"routed_dp_rank": rank}))["output_ids"] for _ in range(DRAWS)]
                for rank in range(COPIES)
            ]

    first, second = asyncio.run(draw())
    assert first[0] not in first[1:], "they are random"
    assert first != second


def test_a_server_of_several_copies_that_has_nothing_to_do_sleeps(copies):
    """All of its processes, at the latest after what it did before; SGLang's own would take a whole core forever."""
    processes = psutil.Process(copies.child.pid).children(recursive=True)

    def seconds() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    def is_idle() -> bool:
        before = seconds()
        time.sleep(2)
        return seconds() - before < 1

    assert any(is_idle() for _ in range(30))


def test_an_episode_stays_at_one_copy_of_the_model_and_finds_its_prefix_there(copies):
    """By what SGLang says of each answer: the copy that gave it (`dp_rank`) and the tokens that were cached there."""
    opening = len(prompt())

    async def play(url: str) -> None:
        async with SGLangEngine([url]) as engine:
            await engine.find_ranks()
            ids = [[*prompt(), number] for number in range(EPISODES)]
            for _ in range(TURNS):
                asked = (engine.generate(each, PARAMS, session=f"e{number}-0") for number, each in enumerate(ids))
                for number, done in enumerate(await asyncio.gather(*asked)):
                    ids[number] += done.token_ids

    with RecordingProxy(copies.url) as proxy:
        asyncio.run(play(proxy.url))
    at = Counter()
    for number in range(EPISODES):
        turns = [exchange for exchange in proxy.exchanges if exchange["request"]["input_ids"][opening] == number]
        said = [turn["response"]["meta_info"] for turn in turns]
        (rank,) = {meta["dp_rank"] for meta in said}
        at[rank] += 1
        # The last token of an answer was sampled and never read.
        read = [len(turn["request"]["input_ids"] + turn["response"]["output_ids"]) - 1 for turn in turns]
        assert [meta["cached_tokens"] for meta in said[1:]] == read[:-1]
        assert len(turns) == TURNS
    assert at == {rank: EPISODES // COPIES for rank in range(COPIES)}


def test_a_loop_goes_on_with_the_other_server_where_one_is_dead_at_a_reload(
    tmp_path, sglang_server, copies, loop_with_trainer
):
    """The first is dead while the second iteration is played, and is there again for the last evaluation."""
    with ExitStack() as dead, ExitStack() as again, RecordingProxy(copies.url) as second:
        first = dead.enter_context(RecordingProxy(sglang_server.url))
        proxies, asked = [first], {}

        class Loop(loop_with_trainer):
            async def _generate(self, number: int, checkpoint: str) -> Played:
                before = len(second.exchanges)
                played = await super()._generate(number, checkpoint)
                asked[number] = [exchange["request"]["input_ids"] for exchange in second.exchanges[before:]]
                if number == 2:
                    proxies.append(again.enter_context(RecordingProxy(sglang_server.url, first.port)))
                return played

            async def _train(self, number: int, checkpoint: str, rows: Path) -> Trained:
                dead.close()
                return await super()._train(number, checkpoint, rows)

        config = load_config(
            "tiny",
            {
                "iterate.num_iterations": 2, "iterate.evaluate_every": 2, "evaluate.monitor_states": 8,
                "generate.num_episodes": 16, "generate.episodes_per_state": 4,
                "train.train_batch_size": 32, "train.mini_batches": 1, "train.keep_zero_signal": True,
                "engine.server_url": [first.url, second.url],
            },
        )  # fmt: skip
        asyncio.run(run_iterate(config, tmp_path, Loop))
    turns = [
        sum(len(record.turns) for record in read_episodes(tmp_path / f"iter_{number}" / "selfplay_games.jsonl"))
        for number in (1, 2)
    ]
    own = {number: len([ids for ids in requests if ids != list(PROBE_IDS)]) for number, requests in asked.items()}
    assert 0 < own[1] < turns[0], "both played"
    assert own[2] == turns[1], "the other one played all"
    back = proxies[1]
    # The loop goes on while it trains, so that the server may be back in time to load the first checkpoint too.
    assert back.paths.count("/update_weights_from_disk") in (1, 2)
    assert len(back.exchanges) > 1, "after the probe it played again"
    for server in (sglang_server, Server(copies.url, tmp_path)):
        server.restore()


def test_all_episodes_of_two_servers_are_there_when_one_is_killed(tmp_path, sglang_server, copies):
    """So hot, turns are often illegal, so that episodes are long and of all lengths, and many always in their midst."""
    run, hot = (
        Run(tmp_path, "{hang_timeout: 5}", errors=5),
        ("--temperature", "2", "--set", "generate.max_new_tokens=20"),
    )
    with RecordingProxy(sglang_server.url) as proxy:
        driver = run.begin(
            "--server-url", proxy.url, "--server-url", copies.url, "--set", "generate.max_concurrency=48", *hot
        )
        run.wait_until(lambda: run.played() >= 20, driver)
        (server,) = psutil.Process(copies.child.pid).children()
        server.kill()
        killed = run.played()
        assert driver.process.wait(1200) == 0, run.said()[-3000:]
    assert killed < GAMES, "it was killed after the last game"
    assert run.ids() == IDS
    gone, *lost = (line for line in run.said().splitlines() if f"{copies.url}/" in line)
    assert "its episodes go on at the other servers; waiting up to 10 s for it" in gone
    # The other one may have played all before the time is over.
    assert all("it did not come back (engine.hang_timeout)" in line for line in lost)
    answered = [exchange["request"]["input_ids"] + exchange["response"]["output_ids"] for exchange in proxy.exchanges]
    here = {tuple(ids) for ids in answered}
    played = (own_turns(trajectory) for record in read_episodes(run.games) for trajectory in record.trajectories)
    turns = [ends for ends in played if ends]  # a player may have had no turn when its partner ended the episode
    assert here <= {ids for ends in turns for ids in ends}, "an answer was lost"
    assert len(answered) < sum(map(len, turns)), "the other one answered too"
    assert any(ends[-1] in here and not here.issuperset(ends) for ends in turns), "no episode went on in its midst"


def own_turns(trajectory: Trajectory) -> list[tuple[int, ...]]:
    """All tokens up to the end of each own turn."""
    mask = [*trajectory.response_mask, 0]
    ends = [end for end in range(1, len(mask)) if mask[end - 1] > mask[end]]
    return [tuple(trajectory.prompt_ids + trajectory.response_ids[:end]) for end in ends]
