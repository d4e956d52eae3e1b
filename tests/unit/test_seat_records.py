"""Who held each seat of an episode: checkpoints, scripts, people, in any mixture; those are trained that say so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import BOARD, POLICY, TINY, Habits, RandomTurns, board_state, byte_chat, write_episodes

from selfplay_pipeline.convert.parquet import sampler_of
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.convert.rows import PARTNER
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.types import Completion, EngineError, SamplingParams
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.registry import parse_game_config
from selfplay_pipeline.generate.players import Player, PolicyPlayer, Scripted
from selfplay_pipeline.generate.records import EpisodeRecord, SeatRecord, parse_episode
from selfplay_pipeline.generate.run import SeatedEpisode
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.report.questions.analysis import records_of
from selfplay_pipeline.report.reading import read_episode
from selfplay_pipeline.report.scan import scan
from selfplay_pipeline.report.sources import discover

A, B, C = TINY, "data/tiny_shy_model", "data/tiny_honest_model"
LOGPROB = {A: -0.25, B: -0.5, C: -0.75}
"""The log-prob of every token that a checkpoint samples."""


@dataclass
class Marked(RandomTurns):
    """Answers at random, as a certain checkpoint."""

    checkpoint: str = ""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        answer = await super().generate(prompt_ids, params, session=session)
        return replace(answer, logprobs=[LOGPROB[self.checkpoint]] * len(answer.token_ids))


def player(checkpoint: str, *, trained: bool, temperature: float = 1.0) -> PolicyPlayer:
    """A checkpoint; its engine learns of the episode when that begins."""
    habits = Habits(talk=0.6, spoil=0.1, cut=0)
    rng = np.random.default_rng(0)
    engine = Marked(byte_chat(), board_state(0, 0), habits, rng, None, EngineError, checkpoint=checkpoint)
    sampler = {"checkpoint": checkpoint, "weights": content_hash(checkpoint), "temperature": temperature}
    policy = POLICY.model_copy(update=sampler)
    return PolicyPlayer(engine, byte_chat(), policy, 1 << 30, "checkpoint", checkpoint, trained)


def play(players: Sequence[Player], group: int = 0, episode: int = 0) -> EpisodeRecord:
    """One episode, written to a line and read again."""
    state = board_state(0, group)
    seated = SeatedEpisode(MatchingGame(BOARD), state, players, f"s0-g{group:06d}-p{episode}", (0, group, episode))
    for seat, one in enumerate(players):
        if isinstance(one, PolicyPlayer):
            assert isinstance(one.engine, Marked)
            one.engine.episode, one.engine.state = seated.episode, state
            one.engine.rng = np.random.default_rng([group, episode, seat])
    seated.episode.play_out()
    record = seated.record(POLICY)
    line = record.model_dump_json().encode()
    assert parse_episode(line) == record and parse_episode(line).model_dump_json().encode() == line
    return record


def trained(checkpoint: str) -> PolicyPlayer:
    return player(checkpoint, trained=True)


def fixed(checkpoint: str, temperature: float = 1.0) -> PolicyPlayer:
    return player(checkpoint, trained=False, temperature=temperature)


# --- three checkpoints in one file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(A, B), (B, C), (C, A), (A, C)])
def test_each_log_prob_and_hash_is_that_of_the_checkpoint_that_held_the_seat(first, second):
    for players in (
        [trained(first), fixed(second)],
        [fixed(second), trained(first)],
        [trained(first), trained(second)],
    ):
        record = play(players)
        weights = [content_hash(one.policy.checkpoint) for one in players]
        assert [seat.policy.weights for seat in record.seats if seat.policy] == weights
        assert [one.seat for one in record.trajectories] == [n for n, one in enumerate(players) if one.trained]
        assert {turn.seat for turn in record.turns} == {0, 1}
        for trajectory in record.trajectories:
            sampler, name = record.sampler_of(trajectory), players[trajectory.seat].name
            assert (sampler.checkpoint, sampler.weights) == (name, content_hash(name))
            own = np.array(trajectory.response_logprobs)[np.array(trajectory.response_mask) == 1]
            assert len(own) and set(own) == {LOGPROB[name]}


def test_convert_takes_the_trained_seats_and_says_whose_they_are_and_with_whom_they_are_compared(tmp_path):
    """A is trained in either seat, opposite B, C and itself."""
    seatings = [(trained(A), fixed(B)), (fixed(B), trained(A)), (trained(A), fixed(C)), (fixed(C), trained(A))]
    seatings += [(trained(A), trained(A))] * 2
    records = [play(pair, group, episode) for group in (0, 1) for episode, pair in enumerate(seatings)]
    done = run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert sampler_of(tmp_path / "train.parquet") == (A, content_hash(A))
    partners = [content_hash(B)] * 2 + [content_hash(C)] * 2 + [""] * 2
    found = {(row["extra_info"]["episode"], row["extra_info"]["seat"], row[PARTNER]) for row in rows}
    own = [(0,), (1,), (0,), (1,), (0, 1), (0, 1)]
    assert found == {(episode, seat, partners[episode]) for episode, seats in enumerate(own) for seat in seats}
    assert (len(rows), done.groups, done.partners) == (2 * 8, 2 * 3, 3)
    for row in rows:
        own_tokens = [p for p, mask in zip(row["response_logprobs"], row["response_mask"], strict=True) if mask]
        assert set(own_tokens) == {LOGPROB[A]}


# --- a trained seat 1 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["sharing", B])
def test_seat_1_is_trained_opposite_a_script_or_a_checkpoint_that_plays_greedily(first, tmp_path):
    """What a seat that is not trained was sampled with is no concern of the rows."""
    other = fixed(B, temperature=0.0) if first == B else Scripted(first)
    records = [play([other, trained(A)], 0, episode) for episode in range(3)]
    assert [seat.trained for seat in records[0].seats] == [False, True]
    run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert [(row["extra_info"]["episode"], row["extra_info"]["seat"]) for row in rows] == [(0, 1), (1, 1), (2, 1)]
    assert {row["sampling_temperature"] for row in rows} == {1.0}
    assert [row["reward_model"]["normalized_reward"] for row in rows] == [
        record.outcome.reward_of(1) for record in records
    ]


@pytest.fixture(scope="module")
def selfish() -> list[EpisodeRecord]:
    """Episodes with rewards of their own: a person in seat 0, and in seat 1 a checkpoint that is trained."""
    game = BargainingGame(parse_game_config('{"name": "bargaining", "reward": "selfish"}'))
    held = {"players": None, "policy": None, "all_seats": [SeatRecord(kind="person", name="person"), trained(A).record]}
    scripts, records = [Scripted("random"), Scripted("sharing")], []
    for group, episode in product(range(3), range(4)):
        state = game.sample_state(state_rng(0, group))
        seated = SeatedEpisode(game, state, scripts, f"{group}-{episode}", (0, group, episode))
        seated.episode.play_out()
        record = seated.record(POLICY)
        changed = record.model_copy(update=held | {"trajectories": replay(record, game, byte_chat())[1:]})
        records.append(parse_episode(changed.model_dump_json().encode()))
    return records


def test_every_reader_takes_the_trained_seat_whatever_its_player_is_called(selfish, tmp_path):
    own = [record.outcome.reward_of(1) for record in selfish]
    assert own != [record.outcome.normalized_reward for record in selfish]
    path, summary = write_episodes(tmp_path / "episodes.jsonl", selfish), Summary()
    for record in selfish:
        summary.add(record)
    (file,) = discover(path).files
    assert summary.mean_reward == pytest.approx(np.mean(own))
    assert [place.reward for place in scan(file).places] == own
    assert [asked.reward for record in selfish for asked in records_of(record, 0)] == own
    assert read_episode(selfish[0]).players == ["person", A]
    run_convert(path, tmp_path)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert [row["reward_model"]["normalized_reward"] for row in rows] == own
    assert {row["extra_info"]["seat"] for row in rows} == {1}


# --- what is written ------------------------------------------------------------------------------------------------


def policy_player() -> PolicyPlayer:
    one = trained(A)
    return PolicyPlayer(one.engine, one.chat, POLICY, one.context_length)


@pytest.mark.parametrize(
    ("players", "written"),
    [
        ([policy_player(), policy_player()], {"players", "policy"}),
        ([Scripted("asker"), policy_player()], {"players", "policy"}),
        ([policy_player(), fixed(B)], {"players", "policy", "other_weights"}),
        ([policy_player(), fixed(B, temperature=0.5)], {"seats"}),
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
