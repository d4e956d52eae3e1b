"""Who held each seat of an episode, in any mixture, and whose rewards count: those of the seats that are trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import (
    BOARD,
    POLICY,
    TINY,
    Habits,
    RandomTurns,
    board_state,
    byte_chat,
    make_episode,
    other_weights,
    write_episodes,
)

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.parquet import sampler_of
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.convert.rows import METADATA_KEY, PARTNER
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.types import Completion, EngineError, SamplingParams
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.states import sample_held_out
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.base import Status, state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.registry import parse_game_config
from selfplay_pipeline.generate.episode import Episode, Player
from selfplay_pipeline.generate.players import PolicySeat, policy_player, script_player
from selfplay_pipeline.generate.read_records import parse_episode
from selfplay_pipeline.generate.records import EpisodeRecord, SeatRecord
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.metrics.signal import Signal
from selfplay_pipeline.report.reading import read_episode
from selfplay_pipeline.report.scan import scan
from selfplay_pipeline.report.sources import discover
from selfplay_pipeline.slime.questions.analysis import records_of

A, B = TINY, "data/tiny_honest_model"
LOGPROB = {A: -0.25, B: -0.5}
"""The log-prob of every token that a checkpoint samples; another one never samples a token that is trained on."""


@dataclass
class Marked(RandomTurns):
    """Answers at random, as a certain checkpoint."""

    checkpoint: str = ""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        answer = await super().generate(prompt_ids, params, session=session)
        return replace(answer, logprobs=[LOGPROB.get(self.checkpoint, -0.75)] * len(answer.token_ids))


def player(checkpoint: str, *, trained: bool, temperature: float = 1.0) -> Player:
    """A checkpoint; its engine learns of the episode when that begins."""
    sampler = {"checkpoint": checkpoint, "weights": content_hash(checkpoint), "temperature": temperature}
    policy = POLICY.model_copy(update=sampler)
    return policy_player(engine_of(checkpoint), byte_chat(), policy, 1 << 30, "checkpoint", checkpoint, trained)


def engine_of(checkpoint: str) -> Marked:
    habits, rng = Habits(talk=0.6, spoil=0.1, cut=0), np.random.default_rng(0)
    return Marked(byte_chat(), board_state(0, 0), habits, rng, None, EngineError, checkpoint=checkpoint)


def play(players: Sequence[Player], group: int = 0, episode: int = 0) -> EpisodeRecord:
    """One episode, written to a line and read again."""
    state = board_state(0, group)
    seated = Episode(MatchingGame(BOARD), state, players, f"s0-g{group:06d}-p{episode}", (0, group, episode))
    for number, seat in enumerate(seated.seats):
        if isinstance(seat, PolicySeat):
            assert isinstance(seat.engine, Marked)
            seat.engine.episode, seat.engine.state = seated, state
            seat.engine.rng = np.random.default_rng([group, episode, number])
    seated.play_out()
    record = seated.record(POLICY)
    line = record.model_dump_json().encode()
    assert parse_episode(line) == record and parse_episode(line).model_dump_json().encode() == line
    return record


def trained(checkpoint: str) -> Player:
    return player(checkpoint, trained=True)


def fixed(checkpoint: str, temperature: float = 1.0) -> Player:
    return player(checkpoint, trained=False, temperature=temperature)


# --- three checkpoints in one file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(A, B), (B, A)])
def test_each_log_prob_and_hash_is_that_of_the_checkpoint_that_held_the_seat(first, second):
    one, other = trained(first), trained(second)
    for players in ([one, fixed(second)], [fixed(second), one], [one, other]):
        record = play(players)
        weights = [content_hash(one.record.policy.checkpoint) for one in players]
        assert [seat.policy.weights for seat in record.seats if seat.policy] == weights
        assert [one.seat for one in record.trajectories] == [n for n, one in enumerate(players) if one.record.trained]
        assert {turn.seat for turn in record.turns} == {0, 1}
        for trajectory in record.trajectories:
            sampler, name = record.sampler_of(trajectory), players[trajectory.seat].record.name
            assert (sampler.checkpoint, sampler.weights) == (name, content_hash(name))
            own = np.array(trajectory.response_logprobs)[np.array(trajectory.response_mask) == 1]
            assert len(own) and set(own) == {LOGPROB[name]}


def test_convert_takes_the_trained_seats_and_says_whose_they_are_and_with_whom_they_are_compared(tmp_path):
    """A is trained in either seat, opposite B, a third one and itself."""
    third = other_weights(tmp_path / "third")
    seatings = [(trained(A), fixed(B)), (fixed(B), trained(A)), (trained(A), fixed(third)), (fixed(third), trained(A))]
    seatings = [pair for pair in [*seatings, (trained(A), trained(A))] for _ in range(2)]
    records = [play(pair, group, episode) for group in (0, 1) for episode, pair in enumerate(seatings)]
    done = run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert sampler_of(tmp_path / "train.parquet") == (A, content_hash(A))
    partners = [f"{seat}: {content_hash(other)}" for other in (B, third) for seat in (1, 0)] + [""]
    found = {(row["extra_info"]["episode"], row["extra_info"]["seat"], row[PARTNER]) for row in rows}
    own = [(0,), (1,), (0,), (1,), (0, 1)]
    assert found == {(episode, seat, partners[episode // 2]) for episode in range(10) for seat in own[episode // 2]}
    assert (len(rows), done.groups, done.partners) == (2 * 12, 2 * 5, 5)
    for row in rows:
        own_tokens = [p for p, mask in zip(row["response_logprobs"], row["response_mask"], strict=True) if mask]
        assert set(own_tokens) == {LOGPROB[A]}


# --- a trained seat 1 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["sharing", B])
def test_seat_1_is_trained_opposite_a_script_or_a_checkpoint_that_plays_greedily(first, tmp_path):
    """What a seat that is not trained was sampled with is no concern of the rows."""
    other = fixed(B, temperature=0.0) if first == B else script_player(first)
    records = [play([other, trained(A)], 0, episode) for episode in range(3)]
    assert [seat.trained for seat in records[0].seats] == [False, True]
    run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert [(row["extra_info"]["episode"], row["extra_info"]["seat"]) for row in rows] == [(0, 1), (1, 1), (2, 1)]
    assert {row["sampling_temperature"] for row in rows} == {1.0}


SELFISH = BargainingGame(parse_game_config('{"name": "bargaining", "reward": "selfish"}'))


def selfish(seat: int, group: int, episode: int) -> EpisodeRecord:
    """Returns an episode with rewards of their own: in this seat a trained checkpoint, a person in the other."""
    state = SELFISH.sample_state(state_rng(0, group))
    seated = Episode(
        SELFISH, state, [script_player("random"), script_player("sharing")], f"{group}-{episode}", (0, group, episode)
    )
    seated.play_out()
    record = seated.record(POLICY)
    held = [SeatRecord(kind="person", name="person"), trained(A).record]
    streams = [stream for stream in replay(record, SELFISH, byte_chat()) if stream.seat == seat]
    seats = {"players": None, "policy": None, "all_seats": held if seat else held[::-1], "trajectories": streams}
    return parse_episode(record.model_copy(update=seats).model_dump_json().encode())


@pytest.mark.parametrize("seat", [0, 1])
def test_every_reader_takes_the_rewards_of_the_trained_seat_whatever_its_player_is_called(seat, tmp_path):
    records = [selfish(seat, group, episode) for group, episode in product(range(3), range(4))]
    own = [record.outcome.reward_of(seat) for record in records]
    assert own != [record.outcome.normalized_reward for record in records]
    path = write_episodes(tmp_path / "episodes.jsonl", records)
    (file,) = discover(path).files
    assert summary_of(records).mean_reward == pytest.approx(np.mean(own))
    assert [place.reward for place in scan(file).places] == own
    assert [asked.reward for record in records for asked in records_of(record, 0)] == own
    assert read_episode(records[0]).players == (["person", A] if seat else [A, "person"])
    run_convert(path, tmp_path)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert [row["reward_model"]["normalized_reward"] for row in rows] == own
    assert {row["extra_info"]["seat"] for row in rows} == {seat}


# --- rewards of their own -------------------------------------------------------------------------------------------


def with_rewards(record: EpisodeRecord, first: float, second: float) -> EpisodeRecord:
    rewards = {"rewards": [first, second] if first != second else None, "normalized_reward": (first + second) / 2}
    return record.model_copy(update={"outcome": record.outcome.model_copy(update=rewards)})


def summary_of(records: list[EpisodeRecord]) -> Summary:
    summary = Summary()
    for record in records:
        summary.add(record)
    return summary


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([(0.5, 0.1), (0.5, 0.9)], False),
        ([(0.5, 0.5), (0.5, 0.9)], False),
        ([(0.4, 0.6), (0.5, 0.5)], True),
        ([(0.4, 0.4), (0.5, 0.5)], True),
        ([(0.5, 0.5), (0.5, 0.5)], False),
    ],
)
def test_a_group_has_signal_where_the_policys_rewards_differ_whatever_its_partners_do(rewards, signal):
    group = [with_rewards(selfish(0, 0, episode), *pair) for episode, pair in enumerate(rewards)]
    assert summary_of(group).signal == Signal(groups=1, without=not signal)


@pytest.mark.parametrize("by", [0.1, -0.1])
def test_rewards_with_another_mean_than_the_episodes_or_of_seats_that_share_theirs_are_refused(by):
    record = with_rewards(selfish(0, 0, 0), 0.3, 0.7)
    outcome = record.outcome.model_copy(update={"normalized_reward": 0.5 + by})
    with pytest.raises(ValueError, match="but 'rewards' have another mean"):
        parse_episode(record.model_copy(update={"outcome": outcome}).model_dump_json().encode())
    shared = next(record for group in range(9) if (record := make_episode(group)).outcome.status == "agreed")
    reward = shared.outcome.normalized_reward
    apart = with_rewards(shared, reward - by / 10, reward + by / 10)
    with pytest.raises(ValueError, match=r"'outcome.rewards': .*, but the proposal gives"):
        parse_episode(apart.model_dump_json().encode())


def test_rows_have_the_rewards_of_their_seats_even_if_the_last_episode_shared_one(tmp_path):
    """Both seats are the policy's: each gets its own reward."""
    played = []
    for group, episode in product(range(2), range(4)):
        record = selfish(0, group, episode)
        both = {"all_seats": None, "players": ["policy"] * 2, "policy": POLICY}
        played.append(record.model_copy(update=both | {"trajectories": replay(record, SELFISH, byte_chat())}))
    assert any(record.outcome.rewards for record in played[:-1])
    without = {"status": Status.TURN_LIMIT, "proposal": None, "score": 0.0, "rewards": None, "normalized_reward": 0.0}
    played[-1] = played[-1].model_copy(update={"outcome": played[-1].outcome.model_copy(update=without)})
    run_convert(write_episodes(tmp_path / "games.jsonl", played), tmp_path)
    table = pq.read_table(tmp_path / "train.parquet")
    assert json.loads(table.schema.metadata[METADATA_KEY])["shared_reward"] is False
    by_id = {record.episode_id: record.outcome for record in played}
    rows = [(row["extra_info"], row["reward_model"]["normalized_reward"]) for row in table.to_pylist()]
    assert [reward for _, reward in rows] == [by_id[info["episode_id"]].reward_of(info["seat"]) for info, _ in rows]
    assert len(rows) == 2 * len(played)


def test_a_cell_of_the_cross_play_is_the_reward_of_the_player_in_its_row(tmp_path):
    config = load_config("tiny_bargaining", {}).model_copy(update={"game": SELFISH.config})
    states = sample_held_out(config, 20)
    result = asyncio.run(run_crossplay(config, ["greedy", "sharing"], states, 1, tmp_path / "out"))
    (_, first), (other, _) = result.rewards
    assert first.value > 0.8 > 0.6 > other.value


# --- what is written ------------------------------------------------------------------------------------------------


def policy() -> Player:
    return policy_player(engine_of(A), byte_chat(), POLICY, 1 << 30)


@pytest.mark.parametrize(
    ("players", "written"),
    [
        ([policy(), policy()], {"players", "policy"}),
        ([script_player("asker"), policy()], {"players", "policy"}),
        ([policy(), fixed(B)], {"players", "policy", "other_weights"}),
        ([policy(), fixed(B, temperature=0.5)], {"seats"}),
        ([trained(A), fixed(B)], {"seats"}),
    ],
    ids=["self-play", "script", "checkpoint", "checkpoint that samples otherwise", "no policy"],
)
def test_seats_are_written_only_where_players_and_policy_do_not_say_it(players, written):
    record = play(players)
    line = json.loads(record.model_dump_json())
    assert line.keys() & {"players", "policy", "other_weights", "seats"} == written
    assert record.seats == [one.record for one in players]


SEAT = {"kind": "checkpoint", "name": B, "trained": False, "policy": POLICY.model_dump()}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"players": ["policy", "policy"]}, "either this list, or 'players' and 'policy'"),
        ({"policy": POLICY.model_dump()}, "either this list, or 'players' and 'policy'"),
        ({"seats": None}, "either this list, or 'players' and 'policy'"),
        ({"seats": [SEAT | {"kind": "opponent"}, SEAT]}, "seats.0.kind"),
        ({"seats": [SEAT, SEAT | {"policy": None}]}, "seats.1.*a seat of kind 'checkpoint' has one"),
        ({"seats": [SEAT | {"kind": "script"}, SEAT]}, "seats.0.*a seat of kind 'script' has none"),
        ({"seats": [{"kind": "person", "name": "person", "trained": True}, SEAT]}, "a person cannot be trained"),
        ({"seats": [SEAT]}, "field 'seats': has 1"),
        ({"seats": [SEAT, SEAT]}, "field 'trajectories': one is of seat 0, .*not trained"),
    ],
)
def test_seats_that_cannot_have_been_are_refused_by_field(changed, said):
    line = json.loads(play([trained(A), fixed(B)]).model_dump_json()) | changed
    with pytest.raises(ValueError, match=said):
        parse_episode(json.dumps({name: value for name, value in line.items() if value is not None}).encode())
