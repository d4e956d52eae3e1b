"""Three checkpoints hold the seats of one episode, each with an SGLang server of its own."""

import asyncio
import json
from itertools import product
from pathlib import Path

import numpy as np
from test_engines import next_logprobs
from test_rooms import RoomsGame, RoomsState

from bench.serving import RecordingEngine
from selfplay_pipeline.config import load_config
from selfplay_pipeline.core.content import content_hash
from selfplay_pipeline.engines.types import Completion, SamplingParams
from selfplay_pipeline.generate.job import policy_record
from selfplay_pipeline.generate.records import POLICY
from selfplay_pipeline.generate.run import GenerateJob, run_generate
from selfplay_pipeline.generate.seats import seat_players
from selfplay_pipeline.servers import Servers

PLAYERS = ("data/tiny_model", "data/tiny_honest_model", "data/tiny_apart_model")
FOURTH = "data/tiny_shy_model"
EPISODES, TEMPERATURE = 4, 1.0
LARGEST_GAP, SMALLEST_DIFFERENCE = 1e-4, 1e-2
"""Bounds of differences between log-probs: by rounding of one checkpoint, and between two checkpoints."""


def gap(prompt: list[int], completion: Completion, checkpoint: str) -> float:
    """Returns the largest difference between a completion's log-probs and those of a checkpoint."""
    logprobs = next_logprobs([*prompt, *completion.token_ids], TEMPERATURE, checkpoint)
    rows = logprobs[len(prompt) - 1 : -1]
    computed = rows[range(len(rows)), completion.token_ids]
    return float(np.abs(computed.numpy() - np.array(completion.logprobs)).max())


def test_each_of_three_checkpoints_says_its_own_words_and_a_fourth_takes_the_place_of_one(tmp_path: Path) -> None:
    config = load_config("tiny", {})
    policy = policy_record(config, PLAYERS[0], content_hash(PLAYERS[0]), TEMPERATURE)
    names = [POLICY, *PLAYERS[1:]]
    games = tmp_path / "games.jsonl"
    recorders: dict[str, RecordingEngine] = {}

    async def play() -> tuple[list[int], Completion, Completion]:
        prompt, params = [1, 2, 3], SamplingParams(TEMPERATURE, 8, ())
        async with Servers(config.engine, tmp_path, at_once=3) as servers:
            by_name = await seat_players(config, names, policy, servers)
            for name, player in by_name.items():
                recorders[name] = RecordingEngine(player.engine)
                object.__setattr__(player, "engine", recorders[name])
            job = GenerateJob(games, 0, 0, 2, EPISODES // 2, EPISODES, 0, policy, {})
            states = [RoomsState(numbers=(3, 4)), RoomsState(numbers=(5, 9))]
            players = [by_name[name] for name in names]
            await run_generate(job, RoomsGame(), states.__getitem__, lambda number: players)
            fourth = await servers.serving(FOURTH, beside=PLAYERS[1:])
            last = await servers.serving(PLAYERS[2], beside=[FOURTH, PLAYERS[1]])
            return prompt, await fourth.generate(prompt, params), await last.generate(prompt, params)

    prompt, of_fourth, of_last = asyncio.run(play())
    for line in map(json.loads, games.read_text().splitlines()):
        assert line["players"] == names
        assert line["policy"]["weights"] == content_hash(PLAYERS[0])
        assert line["other_weights"] == {name: content_hash(name) for name in PLAYERS[1:]}
        assert {turn["seat"] for turn in line["turns"]} >= {0, 1}
    for (name, recorder), checkpoint in product(recorders.items(), PLAYERS):
        calls = [call for episode in recorder.episodes.values() for _, call in episode]
        assert {session[-2:] for episode in recorder.episodes.values() for session, _ in episode} == {
            f"-{names.index(name)}"
        }
        gaps = [gap(call.prompt, call.completion, checkpoint) for call in calls]
        if checkpoint == (PLAYERS[0] if name == POLICY else name):
            assert max(gaps) < LARGEST_GAP
        else:
            assert max(gaps) > SMALLEST_DIFFERENCE
    assert gap(prompt, of_fourth, FOURTH) < LARGEST_GAP, "it was loaded in place of the first"
    assert gap(prompt, of_last, PLAYERS[2]) < LARGEST_GAP, "it was left as it was"
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["server.log", "server_2.log", "server_3.log"]
