"""Evaluation: fixed held-out states, exact figures of each episode, partners, reference lines."""

import asyncio
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from command import selfplay
from factories import board_state, make_episode, write_episodes
from hypothesis import given
from hypothesis import strategies as st
from quick import examples

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.evaluate.figures_by_state import Seating, Tally
from selfplay_pipeline.evaluate.pairing import Pairing, check_names, comparable
from selfplay_pipeline.evaluate.run import (
    EvaluationJob,
    check_comparable,
    compare_with,
    default_folder,
    rewards_of,
    run_evaluate,
    totals_of,
)
from selfplay_pipeline.evaluate.states import (
    StateSet,
    count_shared,
    held_out_states,
    key_of,
    read_states,
    references,
    sample_held_out,
    states_in,
)
from selfplay_pipeline.games.base import CUT, HELD_OUT, MONITOR, TRAIN, Status, state_rng
from selfplay_pipeline.games.figures import Measures
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.proposals import ErrorKind
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.partners import seats_of
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
    keys = [[key_of(game(), state.to_dict()) for state in states.states[:5]] for states in (few, more)]
    assert keys[0] == keys[1]
    assert len({few.fingerprint, more.fingerprint, held_out_states(game(), 5, seed=1).fingerprint}) == 3


def test_held_out_states_of_a_configuration_are_of_the_space_that_no_training_uses():
    of = sample_held_out(config(), 5)
    assert of.fingerprint == held_out_states(game(), 5, space=HELD_OUT).fingerprint
    others = {held_out_states(game(), 5, space=space).fingerprint for space in (TRAIN, MONITOR)}
    assert of.fingerprint not in others and len(others) == 2


def test_a_state_with_other_scales_poses_the_same_problem_and_one_with_another_cell_does_not():
    data = held_out_states(game(), 1).states[0].to_dict()
    table = [[(data["table"][0][0] + 1) % 9, *data["table"][0][1:]], *data["table"][1:]]
    assert key_of(game(), data) == key_of(game(), data | {"scale1": 2.5}) != key_of(game(), data | {"table": table})


def lines_of_people(folder: Path, *changes: dict) -> Path:
    """A file of the states that people played, each with its change."""
    lines = HUMAN.read_text().splitlines()
    path = folder / "states.jsonl"
    path.write_text("\n".join(json.dumps(json.loads(line) | new) for line, new in zip(lines, changes, strict=False)))
    return path


def test_states_with_another_scale_are_other_states(tmp_path):
    fingerprints = {read_states(lines_of_people(tmp_path, new, {}), game("default")).fingerprint
                    for new in ({}, {"scale1": 2.5}, {"proposal_reward": 0})}  # fmt: skip
    assert len(fingerprints) == 2


def test_states_of_another_board_than_the_configurations_are_refused():
    with pytest.raises(UserError, match=r"human.jsonl:1: a board of size 8 .*--config default"):
        read_states(HUMAN, game("tiny"))


def test_states_shared_with_a_games_file_are_counted(tmp_path):
    games = write_episodes(tmp_path / "games.jsonl", [make_episode()])
    games.write_text("\n" + games.read_text() + "\n")  # all readers skip empty lines
    played = states_in(game(), games)
    for more, shared in (((), 0), ((board_state(0, 0),), 1), ((board_state(0, 0),) * 2, 1)):
        assert count_shared(game(), StateSet("x", (*four_states().states, *more)), played) == shared


def test_the_human_states_and_what_humans_reached_on_them():
    states = read_states(HUMAN, game("default"))
    lines = {name: line.value for name, line in references(game("default"), states).items()}
    assert len(states) == 134 and lines["optimum"] == 1
    assert lines["human"] == pytest.approx(0.921, abs=0.001)
    assert (lines["random"], lines["own_view"]) == pytest.approx((0.61, 0.77), abs=0.01)


@examples(20)
@given(st.lists(st.none() | st.floats(0, 1), min_size=4, max_size=4))
def test_the_human_line_is_the_mean_of_those_that_are_known(rewards):
    found, known = (
        references(game(), replace(four_states(), human=tuple(rewards))),
        [r for r in rewards if r is not None],
    )
    assert ("human" in found) == bool(known)
    if known:
        assert found["human"].value == pytest.approx(np.mean(known))


def test_the_line_of_silence_has_the_interval_of_its_standard_error():
    (found, line) = (lines["silence"] for lines in (references(game(), four_states()), game().wordless))
    assert found.value == line.value and line.standard_error > 0
    assert (found.low, found.high) == pytest.approx(
        [line.value + sign * 1.96 * line.standard_error for sign in (-1, 1)]
    )


def test_what_humans_reached_is_read_where_a_line_says_it(tmp_path):
    first, *_, last = (json.loads(line) for line in HUMAN.read_text().splitlines()[:4])
    reached = [
        {},
        {"proposal_reward": None},
        {"proposal_reward": 0},
        {"proposal_reward": last["best_assignment_reward"]},
    ]
    known = [first["proposal_reward"] / first["best_assignment_reward"], None, 0.0, 1.0]
    assert read_states(lines_of_people(tmp_path, *reached), game("default")).human == pytest.approx(known)


# --- figures


def with_turns(*turns: dict) -> EpisodeRecord:
    """An episode of these turns that ended without agreement."""
    record = make_episode(ends_after=0, ends_with=Status.CONTEXT_LENGTH)
    return type(record).model_validate(
        record.model_dump() | {"turns": [{"finish_reason": "stop"} | one for one in turns]}
    )


def said(seat: int, text: str, action: str = "message", **error: str) -> dict:
    return {"seat": seat, "text": text, "action": action} | error


def test_figures_of_an_episode_are_those_counted_by_hand():
    state = board_state(0, 0)
    reviewer, paper = map(int, np.argwhere(state.masks[0])[0])
    name, title = state.reviewers[reviewer].split()[0], state.papers[paper].split(":")[0]
    score = state.view(0)[reviewer][paper]
    record = with_turns(
        said(0, f"[message] {name} {title} {score}"), said(1, "[message] why? who?"),
        said(0, "hello", "invalid", error="…", error_kind="no_tag"), said(0, "[propose] …", "propose"),
    )  # fmt: skip
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
    twice = with_turns(*(said(0, f"[message]{name} {title} {score + more}") for more in (0, 1)))
    assert figures_of(twice, 0)["told"][0] == 1, "told twice differently, a number counts once"


@examples(40)
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
        assert figures[name][0] == sum(figures_of(record, seat)[name][0] for seat in (0, 1))


def test_episodes_lost_to_the_engine_are_counted_but_in_no_figure():
    played, lost = make_episode(0, 0), make_episode(0, 1, ends_after=1, ends_with=Status.ENGINE_FAILURE)
    tally = Tally(game(), 1, Seating.BOTH).add([played, lost])
    assert tally.statuses["engine_failure"] == 1
    assert tally.totals().intervals()["reward"].value == played.outcome.normalized_reward
    with pytest.raises(EngineError, match="every episode was lost"):
        Tally(game(), 1, Seating.BOTH).add([lost]).totals()


@pytest.mark.parametrize(
    ("seating", "seats"),
    [(Seating.BOTH, [(0, 1, 2)] * 4), (Seating.EITHER, [(0,), (1,), (2,), (0,)]), (Seating.ONE, [(0,)] * 4)],
)
def test_the_seats_of_the_evaluated_player_follow_from_the_number_of_the_episode(seating, seats):
    assert [seating.seats(episode, 3) for episode in range(4)] == seats
    assert Seating.ONE.seats(3, 3, 2) == (2,)


@pytest.mark.long
def test_figures_and_rewards_are_of_the_seat_that_is_asked_for(tmp_path):
    bargaining = load_config("tiny_bargaining", {"game.reward": "selfish"})
    states = held_out_states(make_game(bargaining.game), 20)
    means = []
    for seat in (0, 1):
        job = EvaluationJob("greedy", states, tmp_path / str(seat), partner="fair", seat=seat)
        evaluation = asyncio.run(run_evaluate(bargaining, job))
        figures, rewards = totals_of(bargaining, job, "scripted"), rewards_of(bargaining, job, "scripted")
        assert rewards.intervals()["reward"] == figures.intervals()["reward"]
        assert evaluation.seat == seat
        means.append(np.mean([record.outcome.reward_of(seat) for record in read_episodes(job.file("scripted"))]))
        assert rewards.intervals()["reward"].value == pytest.approx(means[-1])
        other = np.mean([record.outcome.reward_of(1 - seat) for record in read_episodes(job.file("scripted"))])
        assert other != pytest.approx(means[-1]), "the seats must differ, or this test shows nothing"


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


@pytest.mark.parametrize(
    ("reward", "partner", "scored"),
    [("selfish", "sharing", False), ("selfish", "self", True), ("cooperative", "sharing", True)],
)
def test_talk_is_not_scored_where_a_seat_can_exceed_silence_by_taking_from_its_partner(
    tmp_path, reward, partner, scored
):
    rules = {"game.reward": reward, "game.protocol": "fixed", "game.mute": True}
    chosen = load_config("tiny_bargaining", rules)
    states = held_out_states(make_game(chosen.game), 20)
    job = EvaluationJob("greedy", states, tmp_path / "e", partner=partner)
    found = asyncio.run(run_evaluate(chosen, job)).modes["scripted"].figures
    assert ("talk_score" in found) == scored
    assert not scored or found["talk_score"].low <= 0, "nobody hears a word"


def test_policy_is_no_name_of_a_player_where_nothing_is_trained():
    for players in (("policy",), ("random", "policy")):
        with pytest.raises(UserError, match="'policy' is not allowed here; give a checkpoint folder"):
            check_names(config(), players)
    check_names(config(), ["random", "data/tiny_model", "chat"])


def test_of_two_checkpoints_the_first_is_recorded_as_the_policy_and_each_seating_is_an_episode(tmp_path):
    names = ("data/tiny_model", "data/tiny_honest_model")
    for first, second in (names, names[::-1]):
        pairing = Pairing(first, second, four_states(), tmp_path / "games.jsonl", episodes=3, both_seatings=True)
        task = pairing.job(config())
        assert (task.policy.checkpoint, task.num_episodes) == (first, 4 * 3 * 2)


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
    assert value(evaluation, "untold") == pytest.approx(0.5, abs=0.01), "and whoever speaks first begins the episode"
    assert value(evaluation, "reward_seat_0") is not None


@pytest.mark.long
def test_muted_messages_say_nothing(tmp_path):
    loud, job = evaluate("sharing", tmp_path / "loud", count=50, episodes=1)
    muted = load_config("tiny", {"game.mute": True})
    quiet = asyncio.run(run_evaluate(muted, EvaluationJob("sharing", job.states, tmp_path / "quiet", episodes=1)))
    assert value(loud, "reward") == 1
    assert value(quiet, "reward") < 0.85
    assert value(quiet, "told") > 0, "it still speaks; nobody hears it"


@pytest.mark.long
def test_a_stopped_evaluation_continues_and_a_changed_one_is_refused(tmp_path):
    first, job = evaluate("random", tmp_path / "e", count=30)
    lines = job.file("scripted").read_text().splitlines(keepends=True)
    job.file("scripted").write_text("".join(lines[:17]) + '{"torn')
    (job.output / "scripted.summary.json").unlink()
    again, _ = evaluate("random", tmp_path / "e", count=30)
    assert again == first
    with pytest.raises(UserError, match=r"begun with num_states = 30, now it is 31; give the earlier value,"):
        evaluate("random", tmp_path / "e", count=31)


@pytest.mark.parametrize("kept", [0, 1, 7])
def test_episodes_that_a_finished_evaluation_has_lost_are_played_again(tmp_path, kept):
    first, job = evaluate("random", tmp_path / "e", count=5)
    lines = job.file("scripted").read_text().splitlines(keepends=True)
    job.file("scripted").write_text("".join(lines[:kept]))
    again, _ = evaluate("random", tmp_path / "e", count=5)
    assert again == first
    job.file("scripted").unlink()
    assert evaluate("random", tmp_path / "e", count=5)[0] == first


def test_an_episode_that_is_there_twice_or_of_no_state_is_refused_and_an_empty_line_is_played(tmp_path):
    first, job = evaluate("random", tmp_path / "e", count=5)
    lines = job.file("scripted").read_text().splitlines(keepends=True)
    for kept in (lines[:-1], lines):
        job.file("scripted").write_text("".join([*kept, lines[0]]))
        said = rf"scripted.jsonl:{len(kept) + 1}: episode .* is in line 1 too; remove one of the lines"
        with pytest.raises(UserError, match=said):
            evaluate("random", tmp_path / "e", count=5)
    job.file("scripted").write_text("".join([*lines[:-1], re.sub(r'"group_index":\d+', '"group_index":99', lines[-1])]))
    with pytest.raises(UserError, match=r"scripted.jsonl:10: .*99"):
        evaluate("random", tmp_path / "e", count=5)
    job.file("scripted").write_text("".join([*lines[:-1], "\n"]))
    assert evaluate("random", tmp_path / "e", count=5)[0] == first


def test_the_worth_of_words_is_kept_if_the_evaluation_is_repeated_without_swapped_messages(tmp_path):
    first, _ = evaluate("sharing", tmp_path / "e", count=5, name="tiny_honest", swaps=("swapped",))
    again, _ = evaluate("sharing", tmp_path / "e", count=5, name="tiny_honest")
    assert again == first and first.modes["scripted"].words is not None


def test_a_summary_without_statuses_is_named(tmp_path):
    _, job = evaluate("random", tmp_path / "e", count=2)
    job.file("scripted").with_suffix(".summary.json").write_text('{"statuses": null}')
    with pytest.raises(UserError, match=r"scripted\.summary\.json: field '.*`selfplay evaluate` writes this file"):
        evaluate("random", tmp_path / "e", count=2)


@pytest.mark.parametrize("command", ["evaluate random", "crossplay random sharing", "listen random"])
@pytest.mark.parametrize("option", ["--num-states", "evaluate.state_seed"])
def test_states_of_a_file_are_all_played(command, option, tmp_path):
    (file := tmp_path / "states.jsonl").write_text("")
    given = (option, "3") if option.startswith("-") else ("--set", f"{option}=3")
    done = selfplay(*command.split(), "--config", "tiny_honest", "--states", str(file), *given)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"selfplay: --states: all states of {file} are played; leave out {option}"


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


def test_a_state_whose_episode_was_lost_is_left_out_of_a_difference_and_this_is_said(tmp_path, caplog):
    (_, job), (_, some) = (evaluate("random", tmp_path / name, count=6) for name in ("every", "some"))
    file = some.file("scripted")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line)["group_index"] != 2))
    assert compare_with(config(), job, job.output)["scripted"]["reward"].value == 0 and not caplog.records
    difference = compare_with(config(), job, some.output)["scripted"]["reward"]
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert "do not have scripted episodes of the same states" in caplog.text


def test_a_muted_evaluation_is_compared_with_the_losses_of_one_that_was_heard(tmp_path):
    def played(*, mute: bool):
        muted = load_config("tiny_honest", {"game.mute": mute})
        states = held_out_states(MatchingGame(muted.game), 20)
        job = EvaluationJob("sharing", states, tmp_path / str(mute), episodes=1)
        return muted, job, asyncio.run(run_evaluate(muted, job)).modes["scripted"].figures

    _, heard, before = played(mute=False)
    muted, job, after = played(mute=True)
    difference = compare_with(muted, job, heard.output)["scripted"]
    for name in ("lost_to_telling", "lost_to_planning"):
        assert difference[name].value == pytest.approx(after[name].value - before[name].value)
    assert difference["lost_to_telling"].value > 0.05


@pytest.mark.parametrize(
    ("change", "may"),
    [
        *(({name: "x"}, True) for name in ("model", "weights.0", "policy.weights", "engine.kind", "states")),
        *(({name: 7}, True) for name in ("game.mute", "num_states", "evaluate.state_seed")),
        ({"first": "b", "second": "b"}, True),
        ({"first": "b"}, False),
        *(({name: 7}, False) for name in ("episodes", "both_seatings", "game.size", "contents of states")),
    ],
)  # fmt: skip
def test_evaluations_may_differ_by_the_evaluated_player_and_by_muting_alone(change, may):
    alone = {"first": "a", "second": "a", "weights.1": None, "episodes": 2, "game.size": 3}
    assert comparable(alone, alone | change) == comparable(alone | change, alone) == may


@pytest.mark.parametrize(
    ("partner", "same"), [({}, True), ({"second": "p", "weights.1": "w"}, True), ({"weights.1": "v"}, False)]
)
def test_a_checkpoint_as_partner_is_its_contents_and_not_its_path(partner, same):
    one = {"first": "a", "second": "b", "weights.1": "w", "episodes": 2}
    assert comparable(one, one | partner) == same


def test_a_packaged_model_has_one_default_folder_wherever_the_command_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = default_folder(shipped("data/tiny_honest_model"), "self", None, config())
    assert found == default_folder("data/tiny_honest_model", "self", None, config())


def test_each_evaluation_has_a_folder_of_its_own():
    muted, player = load_config("tiny", {"game.mute": True}), "data/x/iter_1/checkpoint"
    folders = [
        default_folder(player, "self", None, config()), default_folder(player, "self", None, config(), seat=0),
        default_folder("data/x/iter_2/checkpoint", "self", None, config()), default_folder(player, "self", None, muted),
        default_folder(player, "sharing", None, config()), default_folder(player, "self", HUMAN, config()),
    ]  # fmt: skip
    assert len({*folders}) == len(folders)
    assert all(folder.parent == Path("data/evaluations") for folder in folders)
    scripts = [default_folder(name, "self", None, config()) for name in ("модель", "模型", "été", ".", "a_b")]
    here = Path.cwd().name
    assert [folder.name for folder in scripts] == ["модель", "模型", "été", re.sub("_", "-", here), "a-b"]


def test_a_player_can_hold_the_first_seat_in_all_episodes(tmp_path):
    evaluation, job = evaluate("asker", tmp_path, "shy", 20, seat=0, episodes=1)
    played = list(read_episodes(job.file("scripted")))
    assert [episode.players for episode in played] == [["asker", "shy"]] * 20
    assert value(evaluation, "reward") > 0.95
    assert value(evaluation, "questions") == value(evaluation, "specific") == 1
    assert (value(evaluation, "leaks"), value(evaluation, "repeated")) == (0, 0)
    assert value(evaluation, "learned") > 1


def test_a_player_and_a_trained_policy_can_hold_any_one_seat(tmp_path):
    _, job = evaluate("sharing", tmp_path, "random", 4, seat=1, episodes=1)
    assert [episode.players for episode in read_episodes(job.file("scripted"))] == [["random", "sharing"]] * 4
    agent = {"iterate.partner": "sharing", "iterate.seat": 2}
    assert seats_of(load_config("tiny_mediation", agent)) == ("sharing", "sharing", "policy")
    assert seats_of(load_config("tiny_mediation", {})) == ("policy",) * 3


ALONE = """
from pydantic import BaseModel

from selfplay_pipeline.games.base import AGREED, Game, Opening
from selfplay_pipeline.games.turn_session import Move, TurnSession


class Number(BaseModel):
    number: int


class Guesser:
    def act(self, view, rng):
        return "1"


class Guessing(TurnSession):
    def opening(self, seat):
        return Opening("guess", "1 or 2")

    def act(self, seat, text):
        self.end(AGREED, text)
        return Move({}, "guess", text)


class Alone(Game):
    name, state, roles, actions = "alone", Number, ("",), frozenset({"guess"})
    players = {"one": Guesser(), "two": Guesser()}

    def sample_state(self, rng):
        return Number(number=int(rng.integers(1, 3)))

    def start(self, state):
        return Guessing(self, state)

    def rewards(self, state, decision):
        return (float(decision == str(state.number)),)
"""


def test_in_a_game_of_one_seat_nobody_meets_a_partner(tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)
    options = ("--game", str(tmp_path / "alone.py"), "--num-states", "4", "--output", str(tmp_path / "out"))
    for command in (("evaluate", "one", "--partner", "two"), ("crossplay", "one", "two")):
        done = selfplay(*command, *options)
        assert done.returncode == 2 and "has one seat, so that nobody plays with a partner" in done.stderr, done.stderr
    assert selfplay("evaluate", "one", *options).returncode == 0


@pytest.mark.parametrize(("states", "said"), [(19, True), (20, False)])
def test_that_intervals_over_few_states_are_too_narrow_is_said(states, said, tmp_path):
    done = selfplay(
        "evaluate", "random", "--config", "tiny", "--num-states", str(states), "--output", str(tmp_path / "e")
    )
    assert done.returncode == 0 and ("intervals over fewer than 20 states are too narrow" in done.stdout) == said
