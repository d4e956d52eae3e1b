"""Three checkpoints hold the seats of one episode, each with an SGLang server of its own."""

import asyncio
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
from factories import TINY, other_weights
from test_engines import next_logprobs

from bench.serving import RecordingEngine
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.types import Completion, SamplingParams
from selfplay_pipeline.games.base import AGREED, Opening, Step
from selfplay_pipeline.games.registry import find, make_game
from selfplay_pipeline.games.turn_session import Move, TurnSession
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.players import PolicySeat
from selfplay_pipeline.generate.records import POLICY, EpisodeRecord
from selfplay_pipeline.generate.seats import Backends, Servers, seat_players, seats_named
from selfplay_pipeline.generate.stage import policy_record

EPISODES, TURNS, TEMPERATURE = 2, 9, 1.0
PROMPT = [1, 2, 3]
LARGEST_GAP, SMALLEST_DIFFERENCE = 1e-3, 1e-2
"""Bounds of differences between log-probs: by rounding of one checkpoint, and between two checkpoints."""


class Round(TurnSession):
    """The seats speak in turns, whatever they say."""

    def opening(self, seat: int) -> Opening:
        return Opening("rules", f"you are seat {seat}")

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        return super().step(seat, text)  # also a turn that was cut off is one

    def act(self, seat: int, text: str) -> Move:
        self.next = ((seat + 1) % 3,)
        if self.counts.turns == TURNS:
            self.end(AGREED, self.state.letters)
        return Move({other: f"seat {seat} spoke" for other in range(3) if other != seat})


def gap(prompt: list[int], completion: Completion, checkpoint: str) -> float:
    """Returns the largest difference between a completion's log-probs and those of a checkpoint."""
    logprobs = next_logprobs([*prompt, *completion.token_ids], TEMPERATURE, checkpoint)
    rows = logprobs[len(prompt) - 1 : -1]
    computed = rows[range(len(rows)), completion.token_ids]
    return float(np.abs(computed.numpy() - np.array(completion.logprobs)).max())


def test_each_of_three_checkpoints_says_its_own_words_and_a_fourth_takes_the_place_of_one(tmp_path: Path) -> None:
    config = load_config("tiny", {"generate.temperature": TEMPERATURE})
    game = make_game(config.game)
    checkpoints = [TINY, "data/tiny_honest_model", other_weights(tmp_path / "third", 0.8)]
    policy = policy_record(config, TINY, content_hash(TINY))
    names = [POLICY, *checkpoints[1:]]
    recorders: dict[str, RecordingEngine] = {}
    fourth_model = other_weights(tmp_path / "fourth")

    async def play() -> tuple[list[EpisodeRecord], Completion, Completion]:
        params = SamplingParams(TEMPERATURE, 8, ())
        async with Servers(Backends.of(config), tmp_path, at_once=3) as servers:
            by_name = await seat_players(game, seats_named(game, config.engine, names, policy), servers)
            players = [by_name[name] for name in names]
            three = find("examples/relay.py")()
            three.start = lambda state: Round(three, state)
            state = three.state(letters=("a", "b"))
            episodes = [Episode(three, state, players, f"e{number}", (0, 0, number)) for number in range(EPISODES)]
            for episode, (seat, name) in product(episodes, enumerate(names)):
                held = episode.seats[seat]
                assert isinstance(held, PolicySeat)
                held.engine = recorders.setdefault(name, RecordingEngine(held.engine))
            await asyncio.gather(*(one.run() for one in episodes))
            fourth = await servers.serving(fourth_model, keep=checkpoints[1:])
            last = await servers.serving(checkpoints[2], keep=[fourth_model, checkpoints[1]])
            records = [one.record(policy) for one in episodes]
            return records, await fourth.generate(PROMPT, params), await last.generate(PROMPT, params)

    records, of_fourth, of_last = asyncio.run(play())
    for record in records:
        assert [seat.name for seat in record.seats] == names
        assert [seat.policy and seat.policy.weights for seat in record.seats] == [*map(content_hash, checkpoints)]
        assert [turn.seat for turn in record.turns] == [0, 1, 2] * (TURNS // 3)
    for (seat, name), (other, checkpoint) in product(enumerate(names), enumerate(checkpoints)):
        calls = [call for calls in recorders[name].episodes.values() for call in calls]
        assert Counter(session for session, _ in calls) == {f"e{e}-{seat}": TURNS // 3 for e in range(EPISODES)}
        largest = max(gap(call.prompt, call.completion, checkpoint) for _, call in calls)
        assert largest < LARGEST_GAP if seat == other else largest > SMALLEST_DIFFERENCE
    assert gap(PROMPT, of_fourth, fourth_model) < LARGEST_GAP, "it was loaded in place of the first"
    assert gap(PROMPT, of_last, checkpoints[2]) < LARGEST_GAP, "it was left as it was"
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["server.log", "server_2.log", "server_3.log"]
