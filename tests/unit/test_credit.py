"""A credit for each turn: what it is, what GRPO makes of it, and where there is none."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import BOARD, episode_records, make_episodes, play, write_episodes
from hypothesis import given
from hypothesis import strategies as st

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.credit import check_credit, turn_credits
from selfplay_pipeline.convert.rows import CREDITS, own_turns
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import CUT, HELD_OUT, state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.lost_reward import known_cells, lost, matching_of, possible_score
from selfplay_pipeline.games.matching.scripted import Sharing
from selfplay_pipeline.games.matching.teacher import Teacher
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.train.credit import token_advantages, turn_advantages
from selfplay_pipeline.train.groups import read_data

HONEST = BOARD.model_copy(update={"visibility": "complementary", "score_power": 3})
GAME = MatchingGame(HONEST)


def played(number: int, *players: str) -> tuple[Any, list[Any], float, list[float]]:
    """The state, turns, reward and credits of an episode of two scripted players."""
    state = GAME.sample_state(state_rng(0, number, HELD_OUT))
    episode = play(GAME, state, *players, seed=number)
    reward = episode.session.outcome().rewards[0]
    return state, episode.turns, reward, GAME.credits(state, episode.turns, reward)


@given(episode_records())
def test_each_own_turn_of_any_episode_has_a_credit(record: EpisodeRecord) -> None:
    game = MatchingGame(BOARD)
    by_seat = turn_credits(record, game)
    assert sum(map(len, by_seat.values())) == len(record.turns)
    assert all(-1 <= credit <= 1 for credits in by_seat.values() for credit in credits)
    for seat in record.trajectories:
        assert len(own_turns(seat.response_mask)) == len(by_seat[seat.seat])


def test_a_proposal_that_is_accepted_is_credited_with_its_loss_to_planning_and_the_answer_with_nothing() -> None:
    for number, names in enumerate(product(["teacher", "sharing", "own-view", "deaf-teacher"], repeat=2)):
        state, turns, _, found = played(number, *names)
        losses = lost(state, turns, HONEST, agreed=True)
        assert losses is not None and turns[-1].action == "accept"
        assert found[-2:] == [pytest.approx(-losses.planning), 0.0]


def test_what_could_be_reached_depends_on_nothing_that_comes_after() -> None:
    for number, names in enumerate(product(["teacher", "sharing", "own-view"], repeat=2)):
        state, turns, reward, found = played(number, *names)
        for end in range(1, len(turns)):
            assert GAME.credits(state, turns[:end], reward) == pytest.approx(found[:end])


def test_what_could_be_reached_before_a_proposal_does_not_depend_on_it() -> None:
    game = MatchingGame(BOARD)
    for number in range(10):
        state = game.sample_state(state_rng(0, number, HELD_OUT))
        *_, proposal, _ = play(game, state, Sharing(), seed=number).turns
        others = permutations(reviewer for reviewer, _ in proposal.proposal)
        plans = [[(one, paper) for paper, one in enumerate(other)] for other in others]
        credits = {game.credits(state, [proposal.model_copy(update={"proposal": p})], 1.0)[0] for p in plans}
        assert len(credits) == 1


def test_after_a_rejection_the_next_proposal_is_credited_as_if_there_had_been_none() -> None:
    state, turns, _, _ = played(3, "own-view", "own-view")
    *_, proposal, accepted = turns
    rejected = accepted.model_copy(update={"action": "reject"})
    found = GAME.credits(state, [proposal, rejected, proposal, accepted], 0.5)
    score = state.score(matching_of(proposal)) / state.best
    assert found[0] == found[2] and found[1] == found[3] == pytest.approx(0.5 - score)


@given(episode_records())
def test_only_while_a_proposal_waits_for_its_answer_it_is_what_can_be_reached(record: EpisodeRecord) -> None:
    """The session says what waits; any proposal may be a bad one, and be answered late, illegally or not at all."""
    game = MatchingGame(BOARD)
    state = game.state_from_json(record.state)
    session, expected = game.start(state), list[float]()
    for turn, known in zip(record.turns, known_cells(state, record.turns, BOARD), strict=False):
        pending = session.pending
        reachable = possible_score(state, known[turn.seat], BOARD) if pending is None else state.score(pending)
        expected.append(0.25 - reachable / state.best)
        session.step(turn.seat, turn.text, cut=turn.error_kind == CUT)
    assert game.credits(state, record.turns, 0.25) == pytest.approx(expected)


def test_in_a_state_the_first_turn_is_credited_as_its_episode_was_rewarded() -> None:
    state = GAME.sample_state(state_rng(0, 3, HELD_OUT))
    told = [play(GAME, state, Sharing(), Teacher(), seed=seed) for seed in range(20)]
    rewards = [episode.session.outcome().rewards[0] for episode in told]
    first = [GAME.credits(state, one.turns, reward)[0] for one, reward in zip(told, rewards, strict=True)]
    assert len(set(rewards)) > 2 and np.subtract(rewards, first) == pytest.approx(rewards[0] - first[0])


def test_who_was_told_more_could_reach_more() -> None:
    muted, gains = MatchingGame(HONEST.model_copy(update={"mute": True})), list[float]()
    for number in range(20):
        state, turns, reward, (_, planned, accepted) = played(number, "sharing", "sharing")
        assert (reward, planned, accepted) == (1.0, 0.0, 0.0), "what was told is all that was missing"
        gains.append(muted.credits(state, turns, reward)[1] - planned)
    assert min(gains) == 0 and max(gains) > 0.1


def test_an_answer_is_credited_with_what_becomes_of_the_proposal() -> None:
    state, turns, _, _ = played(3, "sharing", "sharing")
    rejected = turns[-1].model_copy(update={"action": "reject"})
    *_, planned, answered = GAME.credits(state, [*turns[:-1], rejected], 0.0)
    assert planned == answered == -1.0, "nothing came of the best plan"


def row(episode: int, seat: int, *credits: float) -> dict[str, Any]:
    mask = [1, 1, 0] * len(credits)
    return {"extra_info": {"episode": episode, "seat": seat}, CREDITS: list(credits), "response_mask": mask[:-1]}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8).filter(lambda rewards: np.std(rewards) > 1e-3))
def test_with_one_turn_an_episode_that_is_credited_with_the_reward_they_are_grpos_advantages(
    rewards: list[float],
) -> None:
    found = turn_advantages([row(number, 0, reward) for number, reward in enumerate(rewards)], by_std=True)
    expected = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-6)
    assert np.ravel(found) == pytest.approx(expected)


def test_turns_are_compared_with_the_same_turn_of_the_same_seat_and_all_divided_by_one_number() -> None:
    rows = [row(0, 0, 0.5, 0.0), row(0, 1, -0.2), row(1, 0, 0.1), row(1, 1, -0.4)]
    assert turn_advantages(rows, by_std=False) == [
        pytest.approx([0.2, 0.0]), pytest.approx([0.1]), pytest.approx([-0.2]), pytest.approx([-0.1]),
    ]  # fmt: skip
    spread = np.std([0.5, 0.1], ddof=1) + 1e-6
    assert turn_advantages(rows, by_std=True)[0] == pytest.approx([0.2 / spread, 0.0])
    assert token_advantages(rows, by_std=False)[0] == pytest.approx([0.2, 0.2, 0.0, 0.0, 0.0])


def test_converting_writes_the_credits_beside_the_same_rows(tmp_path: Path) -> None:
    games = write_episodes(tmp_path / "games.jsonl", make_episodes(4, 3))
    plain = run_convert(games, tmp_path / "plain")
    report = run_convert(games, tmp_path / "credited", credits_by=MatchingGame(BOARD))
    assert report.credit == "turn" and "each turn its own" in report.to_text() and "each turn" not in plain.to_text()
    expected = {one.episode_id: turn_credits(one, MatchingGame(BOARD)) for one in make_episodes(4, 3)}
    rows, credited = (pq.read_table(tmp_path / name / "train.parquet").to_pylist() for name in ("plain", "credited"))
    for one, other in zip(rows, credited, strict=True):
        credits = other.pop(CREDITS)
        about = one["extra_info"]
        assert one == other and credits == pytest.approx(expected[about["episode_id"]][about["seat"]])
    assert len(read_data([tmp_path / "credited" / "train.parquet"]).groups) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda credits: credits[:-1], "credits, but"),
        (lambda credits: [float("nan")] * len(credits), "nan, expected"),
        (lambda credits: [2.0] * len(credits), "2.0, expected"), (lambda credits: None, "0 credits"),
    ],
)  # fmt: skip
def test_credits_that_cannot_be_are_refused_with_their_row(tmp_path: Path, change: Any, words: str) -> None:
    games = write_episodes(tmp_path / "games.jsonl", make_episodes(4, 3))
    run_convert(games, tmp_path, credits_by=MatchingGame(BOARD))
    path = tmp_path / "train.parquet"
    table = pq.read_table(path)
    column = table.column(CREDITS).to_pylist()
    column[5] = change(column[5])
    at = table.schema.get_field_index(CREDITS)
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array([*column], table.schema.field(at).type)), path)
    with pytest.raises(UserError, match=f"row 5: field 'turn_credits': .*{words}"):
        read_data([path])


@pytest.mark.parametrize(
    ("config", "key", "value", "words"),
    [
        ("tiny_shy", "seed", 1, "iterate.partner: shy"),
        ("tiny_honest", "convert.placebo", True, "convert.placebo: true"),
        ("tiny_honest", "train.method", "filtered-bc", "train.method: filtered-bc"),
        ("tiny_bargaining", "seed", 1, "bargaining has no credit of single turns"),
    ],
)  # fmt: skip
def test_credits_are_refused_where_nothing_would_come_of_them(config: str, key: str, value: Any, words: str) -> None:
    check_credit(load_config(config, {key: value}))
    with pytest.raises(UserError, match=f"convert.credit: turn: .*{words}"):
        check_credit(load_config(config, {"convert.credit": "turn", key: value}))


@pytest.mark.parametrize("change", [{"size": 4}, {"max_score": 3}])
def test_episodes_of_other_rules_are_refused_with_their_line(tmp_path: Path, change: dict[str, Any]) -> None:
    games = write_episodes(tmp_path / "games.jsonl", make_episodes(3, 2))
    with pytest.raises(UserError, match=r"games.jsonl:1: .*give the configuration"):
        run_convert(games, tmp_path, credits_by=MatchingGame(BOARD.model_copy(update=change)))
    assert not (tmp_path / "train.parquet").exists()


def test_episodes_of_another_game_and_of_another_player_are_refused() -> None:
    record = next(make_episodes(1, 1))
    with pytest.raises(ValueError, match="field 'game': an episode of bargaining, but "):
        turn_credits(record.model_copy(update={"game": "bargaining"}), MatchingGame(BOARD))
    shared = record.model_copy(update={"players": ["policy", "shy"], "trajectories": record.trajectories[:1]})
    with pytest.raises(ValueError, match="self-play"):
        turn_credits(shared, MatchingGame(BOARD))
