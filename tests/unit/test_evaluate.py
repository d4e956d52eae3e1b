"""Evaluation: fixed held-out states, exact figures of each episode, partners, reference lines."""

import asyncio
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from factories import board_state, make_episode
from hypothesis import given, settings
from hypothesis import strategies as st

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.pairing import check_names
from selfplay_pipeline.evaluate.run import EvaluationJob, check_comparable, compare_with, default_folder, run_evaluate
from selfplay_pipeline.evaluate.states import (
    StateSet,
    count_shared,
    held_out_states,
    key_of,
    read_states,
    references,
    states_in,
)
from selfplay_pipeline.evaluate.tally import Seating, Tally
from selfplay_pipeline.games.base import CUT, Status, state_rng
from selfplay_pipeline.games.figures import Measures
from selfplay_pipeline.games.matching.actions import ErrorKind
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.generate.records import EpisodeRecord, read_episodes
from selfplay_pipeline.metrics.figures import measure

HUMAN = Path("data/dialop/optimization_human.jsonl")


@cache
def config(name: str = "tiny") -> Config:
    return load_config(name, {})


@cache
def game(name: str = "tiny") -> MatchingGame:
    return MatchingGame(config(name).game)


@cache
def four_states() -> StateSet:
    return held_out_states(game(), 4)


def evaluate(player: str, output: Path, partner: str = "self", count: int = 60, name: str = "tiny", **changes):
    job = EvaluationJob(player, held_out_states(game(name), count), output, partner=partner, **changes)
    return asyncio.run(run_evaluate(config(name), job)), job


def figures_of(record: EpisodeRecord, *seats: int) -> Measures:
    return measure(Measured(game(), record, seats))


def value(evaluation, figure: str) -> float:
    return evaluation.modes["scripted"].figures[figure].value


# --- states


@pytest.mark.long
def test_held_out_states_are_never_those_of_training():
    held_out = held_out_states(game(), 500)
    for seed in (0, 1):
        trained = {key_of(game(), game().sample_state(state_rng(seed, number)).to_dict()) for number in range(500)}
        assert count_shared(game(), held_out, trained) == 0


def test_held_out_states_are_the_same_every_time_and_the_first_of_more_are_those_of_fewer():
    few, more = held_out_states(game(), 5), held_out_states(game(), 9)
    assert few.fingerprint == held_out_states(game(), 5).fingerprint
    assert [key_of(game(), state.to_dict()) for state in few.states] == [
        key_of(game(), s.to_dict()) for s in more.states[:5]
    ]
    assert held_out_states(game(), 5, seed=1).fingerprint != few.fingerprint


def test_states_with_another_scale_are_other_states(tmp_path):
    lines = HUMAN.read_text().splitlines()[:2]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(json.loads(line) | {"scale1": 2.5}) for line in lines))
    first, second = (read_states(tmp_path / name, game("default")) for name in ("a.jsonl", "b.jsonl"))
    assert first.fingerprint != second.fingerprint


def test_states_of_another_board_than_the_configurations_are_refused():
    with pytest.raises(UserError, match=r"human.jsonl:1: a board of size 8 .*--config default"):
        read_states(HUMAN, game("tiny"))


def test_states_shared_with_a_games_file_are_counted(tmp_path):
    record = make_episode()
    (tmp_path / "games.jsonl").write_text(record.model_dump_json() + "\n")
    states = held_out_states(game(), 3)
    assert count_shared(game(), states, states_in(game(), tmp_path / "games.jsonl")) == 0
    shared = type(states)("x", (*states.states, board_state(0, 0)))
    assert count_shared(game(), shared, states_in(game(), tmp_path / "games.jsonl")) == 1


def test_the_human_states_and_what_humans_reached_on_them():
    states = read_states(HUMAN, game("default"))
    lines = references(game("default"), states)
    assert len(states) == 134
    assert lines["human"].value == pytest.approx(0.921, abs=0.001)
    assert lines["random"].value == pytest.approx(0.61, abs=0.01)
    assert lines["own_view"].value == pytest.approx(0.77, abs=0.01)
    assert lines["optimum"].value == 1


@settings(max_examples=20)
@given(st.lists(st.none() | st.floats(0, 1), min_size=4, max_size=4))
def test_the_human_line_is_the_mean_of_those_that_are_known(rewards):
    states = replace(four_states(), human=tuple(rewards))
    found, known = references(game(), states), [reward for reward in rewards if reward is not None]
    assert ("human" in found) == bool(known)
    if known:
        assert found["human"].value == pytest.approx(np.mean(known))
    assert found["optimum"].value == 1


def test_what_humans_reached_is_read_where_a_line_says_it(tmp_path):
    lines = [json.loads(line) for line in HUMAN.read_text().splitlines()[:4]]
    known = [lines[0]["proposal_reward"] / lines[0]["best_assignment_reward"], None, 0.0, 1.0]
    lines[1]["proposal_reward"] = None
    lines[2]["proposal_reward"] = 0
    lines[3]["proposal_reward"] = lines[3]["best_assignment_reward"]
    (tmp_path / "states.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_states(tmp_path / "states.jsonl", game("default")).human == pytest.approx(known)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask1": [[1, 0], [0, 1]]}, r"states\.jsonl:2: game state: field 'mask1' has shape \(2, 2\)"),
        ({"table": None}, r"states\.jsonl:2: game state"),
        ({"best_assignment_reward": 3}, r"states\.jsonl:2: game state: best_assignment_reward is 3"),
        ({"proposal_reward": "many"}, r"states\.jsonl:2: field 'proposal_reward': 'many' is no score between 0 and"),
    ],
)
def test_a_bad_state_names_file_line_and_field(tmp_path, change, words):
    good = json.loads(HUMAN.read_text().splitlines()[0])
    path = tmp_path / "states.jsonl"
    path.write_text("\n".join(json.dumps(state) for state in (good, good | change)))
    with pytest.raises(UserError, match=words):
        read_states(path, game("default"))


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no game state"), ("[1]\n", ":1: expected a JSON object"), ("{", ":1: not JSON")],
)
def test_a_file_that_holds_no_states_is_refused(tmp_path, text, words):
    path = tmp_path / "states.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_states(path, game("default"))
    with pytest.raises(UserError, match="No such file"):
        read_states(tmp_path / "none.jsonl", game("default"))


# --- figures


def test_figures_of_an_episode_are_those_counted_by_hand():
    record, state = make_episode(ends_after=0, ends_with=Status.CONTEXT_LENGTH), board_state(0, 0)
    view = state.view(0)
    (reviewer, paper), score = next(
        ((r, p), s) for r, row in enumerate(view) for p, s in enumerate(row) if s is not None
    )
    name, title = state.reviewers[reviewer].split()[0], state.papers[paper].split(":")[0]
    turn = {"finish_reason": "stop"}
    turns = [
        {"seat": 0, "text": f"[message] {name} {title} {score}", "action": "message"} | turn,
        {"seat": 1, "text": "[message] why? who?", "action": "message"} | turn,
        {"seat": 0, "text": "hello", "action": "invalid", "error": "…", "error_kind": "no_tag"} | turn,
        {"seat": 0, "text": "[propose] …", "action": "propose"} | turn,
    ]
    record = type(record).model_validate(record.model_dump() | {"turns": turns})
    both, first = figures_of(record, 0, 1), figures_of(record, 0)
    assert both["messages"] == (2, 1)
    assert first["messages"] == (1, 1)
    assert (both["questions"][0], first["questions"][0]) == (1, 0)
    assert both["words"] == (5, 1)
    assert both["proposals"] == (1, 1)
    assert both["illegal"] == both["illegal_no_tag"] == (1, 1)
    assert first["told"] == (1, int(state.masks[0].sum()))
    assert both["told"] == (1, int(state.masks[0].sum() + state.masks[1].sum()))
    assert both["reward"] == (0, 1)
    assert both["reward_if_agreed"] == (0, 0)
    assert first["reward_seat_0"] == (0, 1)
    assert first["reward_seat_1"] == (0, 0)


@settings(max_examples=40)
@given(st.integers(0, 5), st.integers(0, 40))
def test_figures_of_any_episode_fit_together(group, number):
    record = make_episode(group, number)
    figures = figures_of(record, 0, 1)
    assert figures["illegal"][0] == record.outcome.num_illegal
    assert figures["messages"][0] == record.outcome.num_messages
    assert figures["turns"][0] == record.outcome.num_turns
    assert figures["illegal"][0] == sum(figures[f"illegal_{kind}"][0] for kind in (CUT, *ErrorKind))
    assert 0 <= figures["told"][0] <= figures["told"][1]
    assert figures["reward_if_agreed"][0] == figures["reward"][0]
    for name in ("messages", "illegal", "words", "proposals", "questions", "told"):
        halves = [figures_of(record, seat)[name] for seat in (0, 1)]
        assert figures[name][0] == sum(half[0] for half in halves)


def test_episodes_lost_to_the_engine_are_counted_but_in_no_figure():
    records = [make_episode(0, 0), make_episode(0, 1, ends_after=1, ends_with=Status.ENGINE_FAILURE)]
    tally = Tally(game(), 1, Seating.BOTH).add(records)
    assert tally.statuses["engine_failure"] == 1
    assert tally.totals().intervals()["reward"].value == records[0].outcome.normalized_reward


# --- scripted players, and the reference lines that they reach


@pytest.mark.long
def test_scripted_partners_play_as_the_references_say(tmp_path):
    random, _ = evaluate("random", tmp_path / "r", count=200)
    assert value(random, "reward") == pytest.approx(random.references["random"].value, abs=0.04)
    own, _ = evaluate("own-view", tmp_path / "o", count=200, episodes=1)
    assert own.references["own_view"].low <= value(own, "reward") <= own.references["own_view"].high + 0.02
    sharing, _ = evaluate("sharing", tmp_path / "s", count=200, episodes=1)
    assert value(sharing, "reward") == value(sharing, "optimal") == 1
    assert value(sharing, "told") == pytest.approx(0.5, abs=0.05), "seat 0 tells all, seat 1 nothing"


@pytest.mark.parametrize("players", [("policy",), ("random", "policy")])
def test_policy_is_no_name_of_a_player_where_nothing_is_trained(players):
    with pytest.raises(UserError, match="'policy' is not allowed here; give a checkpoint folder"):
        check_names(config(), players)
    check_names(config(), ["random", "data/tiny_model", "chat"])


def test_both_seatings_are_played_and_only_the_evaluated_players_words_count(tmp_path):
    evaluation, job = evaluate("own-view", tmp_path / "e", partner="random", count=20, episodes=3)
    records = list(read_episodes(job.file("scripted")))
    assert len(records) == 20 * 3 * 2
    for record in records:
        (seat,) = Seating.EITHER.seats(record.episode, 2)
        assert record.players[seat] == "own-view"
        assert record.players[1 - seat] == "random"
        assert record.trajectories == []
    assert value(evaluation, "messages") == pytest.approx(0.5, abs=0.01), "it talks when it speaks first"
    assert value(evaluation, "reward_seat_0") is not None


def test_muted_messages_say_nothing(tmp_path):
    loud, job = evaluate("sharing", tmp_path / "loud", count=50, episodes=1)
    settings_ = load_config("tiny", {"game.mute": True})
    quiet = asyncio.run(run_evaluate(settings_, EvaluationJob("sharing", job.states, tmp_path / "quiet", episodes=1)))
    assert value(loud, "reward") == 1
    assert value(quiet, "reward") < 0.85
    assert value(quiet, "told") > 0, "it still speaks; nobody hears it"


def test_a_stopped_evaluation_continues_and_a_changed_one_is_refused(tmp_path):
    first, job = evaluate("random", tmp_path / "e", count=30)
    lines = job.file("scripted").read_text().splitlines(keepends=True)
    job.file("scripted").write_text("".join(lines[:17]) + '{"torn')
    (job.output / "scripted.summary.json").unlink()
    again, _ = evaluate("random", tmp_path / "e", count=30)
    assert again == first
    with pytest.raises(UserError, match=r"begun with evaluate\.num_states = 30, now it is 31; give the earlier value,"):
        evaluate("random", tmp_path / "e", count=31)


def test_evaluations_of_other_states_or_with_other_partners_are_not_compared(tmp_path):
    _, job = evaluate("random", tmp_path / "e", count=3)
    _, fewer = evaluate("random", tmp_path / "fewer", count=2)
    _, silent = evaluate("random", tmp_path / "silent", partner="silent", count=3)
    check_comparable(config(), job, job.output)
    for other in (fewer, silent):
        with pytest.raises(UserError, match=rf"^{other.output}: not comparable: .* scripted\.args\.json of both"):
            check_comparable(config(), job, other.output)
    (job.output / "evaluation.json").unlink()
    with pytest.raises(UserError, match=f"^{job.output}: no finished evaluation there with scripted episodes"):
        check_comparable(config(), job, job.output)


@pytest.mark.long
def test_two_evaluations_of_the_same_states_are_compared_in_pairs(tmp_path):
    _, worse = evaluate("random", tmp_path / "random", count=80)
    _, better = evaluate("sharing", tmp_path / "sharing", count=80)
    difference = compare_with(config(), better, worse.output)["scripted"]["reward"]
    assert 0.2 < difference.low < difference.value < difference.high < 0.5
    _, other = evaluate("random", tmp_path / "fewer", count=79)
    with pytest.raises(UserError, match="not comparable"):
        compare_with(config(), better, other.output)
    _, opposed = evaluate("sharing", tmp_path / "opposed", partner="silent", count=80)
    with pytest.raises(UserError, match="not comparable"):
        compare_with(config(), opposed, better.output)
    with pytest.raises(UserError, match="no finished evaluation"):
        compare_with(config(), better, tmp_path / "nothing")


def test_a_number_told_twice_differently_counts_once():
    record, state = make_episode(ends_after=0, ends_with=Status.CONTEXT_LENGTH), board_state(0, 0)
    reviewer, paper = map(int, np.argwhere(state.masks[0])[0])
    name, title = state.reviewers[reviewer].split()[0], state.papers[paper].split(":")[0]
    score = state.view(0)[reviewer][paper]
    said = [f"[message]{name} {title} {score}", f"[message] so {name} {title} {score + 1}?"]
    turns = [{"seat": 0, "text": text, "action": "message", "finish_reason": "stop"} for text in said]
    figures = figures_of(type(record).model_validate(record.model_dump() | {"turns": turns}), 0)
    assert figures["told"][0] == 1
    assert figures["words"][0] == 7


@pytest.mark.long
def test_cross_play_fills_the_matrix_for_both_seatings(tmp_path):
    names = ["random", "own-view", "sharing"]
    result = asyncio.run(run_crossplay(config(), names, held_out_states(game(), 60), 1, tmp_path))
    rewards = np.array([[cell.value for cell in row] for row in result.rewards])
    assert rewards.shape == (3, 3)
    assert rewards[2, 2] == 1
    assert rewards[2, 0] < 0.8, "random proposes before it is asked"
    assert json.loads((tmp_path / "crossplay.json").read_text())["players"] == names
    with pytest.raises(UserError, match="different players"):
        asyncio.run(run_crossplay(config(), ["random", "random"], held_out_states(game(), 2), 1, tmp_path))


def test_each_evaluation_has_a_folder_of_its_own():
    names = {
        default_folder("data/x/iter_1/checkpoint", "self", None, config()),
        default_folder("data/x/iter_2/checkpoint", "self", None, config()),
        default_folder("data/x/iter_2/checkpoint", "sharing", None, config()),
        default_folder("data/x/iter_2/checkpoint", "self", HUMAN, config()),
        default_folder("data/x/iter_2/checkpoint", "self", None, load_config("tiny", {"game.mute": True})),
    }
    assert len(names) == 5
    assert all(folder.parent == Path("data/evaluations") for folder in names)


def test_a_player_can_hold_the_first_seat_in_all_episodes(tmp_path):
    evaluation, job = evaluate("asker", tmp_path, "shy", 20, first_only=True, episodes=1)
    played = list(read_episodes(job.file("scripted")))
    assert [episode.players for episode in played] == [["asker", "shy"]] * 20
    assert value(evaluation, "reward") > 0.95
    assert value(evaluation, "questions") == value(evaluation, "specific") == 1
    assert (value(evaluation, "leaks"), value(evaluation, "repeated")) == (0, 0)
    assert value(evaluation, "learned") > 1
