"""The arms of `make learn`: what they differ in, what they share, and how they are shown."""

import pytest
from test_verdict import SILENT, TALKS, about, outcomes

from bench.arms import ARMS, CREDIT, IMITATION, MUTED, PLACEBO, SELF_PLAY, Effort, Played, Point, Study
from bench.compared import Results, compare, evidence, tables
from bench.curves import plot
from bench.learn import main
from bench.verdict import conditions, verdict
from selfplay_pipeline.config.identity import differences, flatten
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.listen import Replay, totals_of


@pytest.fixture
def study(tmp_path):
    return Study("tiny_honest", None, iterations=4, states=20, episodes=1, work=tmp_path)


def settings(study, arm):
    return flatten(study.config(1, ARMS[arm].changes).model_dump(mode="json"))


@pytest.mark.parametrize(
    ("arm", "key", "values"),
    [
        (MUTED, "game.mute", (False, True)), (PLACEBO, "convert.placebo", (False, True)),
        (CREDIT, "convert.credit", ("episode", "turn")),
    ],
)  # fmt: skip
def test_an_arm_differs_from_self_play_in_one_key(study, arm, key, values):
    assert differences(settings(study, SELF_PLAY), settings(study, arm)) == {key: values}


def test_imitation_continued_is_refused_where_it_is_not_known_whom_the_warm_start_imitated():
    with pytest.raises(UserError, match="name the scripted player with --teacher"):
        main(arms=[IMITATION], model="some/model", teacher=None)


def test_each_seed_is_evaluated_on_states_of_its_own_and_all_its_arms_on_the_same(study):
    assert study.held_out(1).fingerprint != study.held_out(2).fingerprint
    of_arms = {study._job(Played("warm start", mute), 1)[1].states.fingerprint for mute in (False, True)}
    assert of_arms == {study.held_out(1).fingerprint}


def test_arms_that_were_not_trained_are_left_out(study):
    assert study.outcomes([1, 2]) == study.heard([1, 2]) == {}


def test_imitation_waits_for_self_play_whose_tokens_it_is_to_have(study):
    with pytest.raises(UserError, match="train self-play of seed 1 first"):
        study.train(IMITATION, 1)
    assert not list(study.work.iterdir()), "nothing is left half-written"


REPLAY = {"state": 0, "seat": 0, "message": "", "said": [0], "expected": [1], "decided": [1]}
FOLLOWS = {kind: totals_of([Replay.model_validate(REPLAY | {"kind": kind})]) for kind in ("changed", "swapped")}


@pytest.fixture(scope="module")
def results():
    players = compare(outcomes(2, **TALKS, **SILENT), {SELF_PLAY: {1: FOLLOWS, 2: FOLLOWS}}, 100)
    found = conditions(evidence(players, about(0.84, 0.001)))
    points = [Point(iteration=number, rewards={"sampled": 0.7, "greedy": 0.8}) for number in (0, 2, 4)]
    return Results(
        command="make learn",
        config={},
        iterations=4,
        states_of_each_seed=200,
        episodes_of_each_state=1,
        references={"silence": about(0.84, 0.001), "optimum": about(1.0, 0.0)},
        players=players,
        effort={SELF_PLAY: {1: Effort(minutes=9.0, episodes=2048, sampled_tokens=70_000, updates=32, shared=0)}},
        curves={SELF_PLAY: {1: points, 2: points}, IMITATION: {1: []}, CREDIT: {1: points}},
        conditions=found,
        verdict=verdict(found),
    )


def test_the_tables_have_a_column_for_each_player_a_row_for_each_figure_and_the_verdict(results):
    text = tables(results)
    assert "|  | warm start | self-play | muted | placebo |" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| self-play minus it as trained, sampled |")]
    assert [cell.strip()[:4] for cell in row.split("|")[2:-1]] == ["", "+0.1", "+0.2"]
    assert "| follows a changed message |  | 1.000 [1.000, 1.000] |  |" in text
    assert "| minutes a seed | 9.0 |" in text
    assert "| there is more than one seed of each arm | yes | 2 |" in text
    assert text.endswith(f"{results.verdict}\n") and "Reference lines: silence 0.840" in text


def test_what_was_found_is_read_back_as_it_was_written_and_drawn(results, tmp_path):
    assert Results.model_validate_json(results.model_dump_json()) == results
    plot(results, tmp_path / "learning.png")
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
