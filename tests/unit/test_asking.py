"""Questions of a training: records, their statistics, and what `selfplay slime questions` makes of them."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import selfplay
from factories import BOARD, Habits, make_episode, make_episodes, write_episodes
from hypothesis import given
from hypothesis import strategies as st
from quick import examples

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.humans import human_episodes
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.teacher import CountingTeacher
from selfplay_pipeline.generate.records import POLICY, EpisodeRecord
from selfplay_pipeline.slime.questions.analysis import analyse, human_reference, read, records_of
from selfplay_pipeline.slime.questions.output import HUMANS, charts_of, in_markdown
from selfplay_pipeline.slime.questions.records import FILE_NAME, AskingRecord, log_step, read_records
from selfplay_pipeline.slime.questions.statistics import (
    by_step,
    correlation,
    figures_of,
    frame_of,
    reward_by_questions,
    trend,
)


def dialogue(step: int = 0, group: int = 0, **fields) -> AskingRecord:
    counts = {"turns": 9, "messages": 4, "questions": 3, "specific": 2, "facts": 2, "repeated": 1, "learned": 1}
    counts |= {"partner_messages": 4, "leaks": 0}
    given = {"episode_id": f"g{group}", "reward": 0.5, "status": "agreed"} | counts | fields
    return AskingRecord(step=step, group=group, **given)


def test_a_step_is_read_back_in_order_and_takes_the_place_of_its_own_lines_and_of_later_ones(tmp_path):
    steps = {step: [dialogue(step, group) for group in range(2)] for step in range(4)}
    for step in (0, 1, 2, 3):
        log_step(tmp_path / "new" / "logs", step, steps[step])
    path = tmp_path / "new" / "logs" / FILE_NAME
    assert list(read_records(path)) == [record for step in steps.values() for record in step]
    again = [dialogue(2, 7, reward=0.1)]
    log_step(path.parent, 2, again)
    assert list(read_records(path)) == [*steps[0], *steps[1], *again]


@given(st.integers(1, 400))
def test_a_file_cut_anywhere_keeps_every_whole_line_and_can_be_continued(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("logs")
    path = folder / FILE_NAME
    whole = [dialogue(0, group) for group in range(3)]
    log_step(folder, 0, whole)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - cut])
    kept = path.read_bytes().count(b"\n")
    assert kept < 3
    assert list(read_records(path))[:kept] == whole[:kept]
    log_step(folder, 5, [dialogue(5)])
    assert list(read_records(path)) == [*whole[:kept], dialogue(5)]


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        *(({name: value}, name) for name, value in (("reward", 1.01), ("reward", -0.01), ("step", "soon"),
          ("step", 2**70), ("group", 2**70), ("group", -1), ("surprise", 1))),
        *(({part: 4, whole: 3}, f"'{part}' is 4, above '{whole}' 3") for part, whole in (
            ("questions", "messages"), ("specific", "questions"), ("repeated", "specific"),
            ("leaks", "partner_messages"))),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_file_and_field_but_a_torn_last_one_is_left_out(tmp_path, change, field, end):
    log_step(tmp_path, 0, [dialogue()])
    with (path := tmp_path / FILE_NAME).open("a") as file:
        good = dialogue(messages=9, questions=9, specific=3, repeated=0)
        file.write(json.dumps(good.model_dump() | change) + end)
    if not end:
        assert list(read_records(path)) == [dialogue()]
        return
    with pytest.raises(UserError, match=f"^{path}:2: .*{field}"):
        list(read_records(path))


def test_the_parts_of_a_whole_may_be_all_of_it():
    every = {name: 4 for name in ("messages", "questions", "specific", "repeated", "partner_messages", "leaks")}
    assert dialogue(**every, reward=1.0).questions == 4


# --- statistics ---------------------------------------------------------------------------------------------


def simulate(
    seed: int, steps: int = 5, states: int = 8, episodes: int = 4, rise: float = 0.0, fresh: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, counts and game states of dialogues; states differ in how much they make a player ask.

    Args:
        rise: of the mean from step to step.
        fresh: other states at every step, instead of the same ones.
    """
    rng = np.random.default_rng(seed)
    step, state, _ = np.indices((steps, states, episodes)).reshape(3, -1)
    state = state + step * states * fresh
    habit = np.exp(rng.normal(0, 0.6, state.max() + 1))
    return step, rng.poisson(habit[state]) + rise * step, state


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("rise", [0.3, -0.3])
def test_a_planted_change_is_found_whatever_number_the_first_step_has(rise, fresh):
    step, values, state = simulate(0, rise=rise, fresh=fresh)
    found = trend(step, values, state)
    assert found.verdict == ("rose" if rise > 0 else "fell")
    assert found.slope.low < rise < found.slope.high and found.p < 0.05
    opposite = trend(step + 100, -values, state)
    assert opposite.verdict == ("fell" if rise > 0 else "rose")
    assert (opposite.p, opposite.slope.value) == (found.p, pytest.approx(-found.slope.value))


@pytest.mark.long
@pytest.mark.parametrize(
    "design",
    [{"fresh": False}, {"steps": 2, "states": 4}, {"states": 30, "episodes": 1}],
)
def test_under_the_null_about_one_data_set_in_twenty_shows_a_trend(design):
    found = [trend(*simulate(seed, **design), resamples=399) for seed in range(400)]
    assert 0.02 <= np.mean([trend.p < 0.05 for trend in found]) <= 0.08


@given(st.integers(0, 10_000), st.floats(-0.3, 0.3), st.booleans())
@examples(30)
def test_the_interval_leaves_out_no_change_just_where_the_test_rejects(seed, rise, fresh):
    found = trend(*simulate(seed, rise=rise, fresh=fresh), resamples=399)
    assert (found.p < 0.05) == (not found.slope.low <= 0 <= found.slope.high) == (found.verdict != "no evidence")


@pytest.mark.parametrize(("steps", "states", "known"), [(2, 6, True), (1, 6, False), (2, 5, False)])
def test_a_trend_needs_two_steps_and_six_states(steps, states, known):
    step, values, state = simulate(0, steps=steps, states=states, fresh=False, rise=1)
    found = trend(step, values, state)
    assert (found.verdict != "cannot be told") == known
    assert (found.episodes, found.steps, found.states) == (len(step), steps, states)
    nothing = trend(step, np.full(len(step), np.nan), state)
    assert (nothing.verdict, nothing.episodes) == ("cannot be told", 0)


def test_flat_and_perfect_lines_have_a_verdict():
    step, _, state = simulate(0)
    assert trend(step, np.zeros(len(step)), state).p == 1
    assert trend(step, 2.0 * step, state).verdict == "rose"


def test_a_common_trend_is_no_correlation_within_steps():
    misled = 0
    for seed in range(100):
        step, questions, state = simulate(seed, steps=10, rise=1)
        rewards = 0.1 * step + np.random.default_rng(1000 + seed).normal(0, 0.1, len(step))
        assert np.corrcoef(questions, rewards)[0, 1] > 0.7
        within = correlation(questions, rewards, step, state, resamples=399)
        misled += not within.low <= 0 <= within.high
    assert misled <= 10


def test_a_correlation_within_steps_is_found_with_its_size():
    step, _, state = simulate(0, steps=10, states=20)
    rng = np.random.default_rng(1)
    questions = rng.normal(size=len(step)) - step
    rewards = 0.6 * (questions + step) + 0.8 * rng.normal(size=len(step)) + step
    found = correlation(questions, rewards, step, state)
    assert found.low < 0.6 < found.high
    assert found.high - found.low < 0.15


def test_hard_states_that_invite_questions_make_no_correlation_within_states():
    step, _, state = simulate(0, states=30)
    rng = np.random.default_rng(1)
    hardness = rng.normal(size=state.max() + 1)[state]
    questions, rewards = (sign * hardness + rng.normal(size=len(state)) for sign in (1, -1))
    assert correlation(questions, rewards, step, state).high < -0.3
    within = correlation(questions, rewards, state, state)
    assert within.low < 0 < within.high


def test_what_never_varies_has_no_correlation():
    step, values, state = simulate(0)
    assert correlation(np.ones(len(step)), values, step, state).value is None
    assert correlation(values, step * 1.0, step, state).value is None


def test_shares_are_ratios_of_sums_over_the_dialogues_of_a_step():
    few = dialogue(0, 0, messages=2, questions=2, specific=0, repeated=0)
    many = dialogue(0, 1, messages=8, questions=2, specific=2, repeated=1)
    found = figures_of(frame_of([few, many]))
    figures = {name: interval.value for name, interval in found.items()}
    assert (figures["asking"], figures["specific"], figures["repeated"]) == (0.4, 0.5, 0.5)
    assert figures["questions"] == 2
    assert found["repeated"].low is None, "only one state has a question for a score"
    assert found["asking"].low == 0.25


def test_a_state_missing_at_a_step_and_a_dialogue_without_messages_are_no_hindrance():
    silent = {"messages": 0, "questions": 0, "specific": 0, "repeated": 0, "partner_messages": 0}
    steps = by_step(frame_of([dialogue(2, 0), dialogue(2, 1), dialogue(7, 1, **silent)]))
    assert [(step.step, step.episodes, step.states) for step in steps] == [(2, 2, 2), (7, 1, 1)]
    assert steps[1].figures["asking"].value is None
    assert (steps[1].figures["questions"].value, steps[1].figures["questions"].low) == (0, None)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60))
@examples(40)
def test_every_dialogue_is_in_one_bin_of_questions(questions):
    records = [dialogue(0, g, messages=60, questions=n, specific=0, repeated=0) for g, n in enumerate(questions)]
    bins = reward_by_questions(frame_of(records))
    assert sum(found.episodes for found in bins) == len(questions)
    assert len(bins) <= 7
    assert (bins[0].low, bins[-1].high) == (min(questions), max(questions))
    assert all(before.high < after.low for before, after in itertools.pairwise(bins))
    assert all(found.reward.value == pytest.approx(0) for found in bins), "all have the same reward"


def test_reward_by_questions_is_free_of_a_common_trend():
    records = [
        dialogue(
            step, step * 4 + group, messages=9, questions=step + group % 2, specific=0, repeated=0, reward=step / 10
        )
        for step in range(5)
        for group in range(4)
    ]
    assert [found.reward.value for found in reward_by_questions(frame_of(records))] == pytest.approx([0] * 6)


# --- analysis -----------------------------------------------------------------------------------------------

TALKATIVE = Habits(talk=0.8, spoil=0, cut=0)


def training(log_dir: Path, steps: int = 4, states: int = 8, rise: float = 0.25, board: bool | None = True) -> Path:
    """What the hook leaves of a training in which questions become more, and pay."""
    rng = np.random.default_rng(0)
    for step in range(steps):
        log_step(log_dir, step, [
            dialogue(step, step * states + state, messages=8, questions=n, specific=n // 2, repeated=0,
                     reward=0.4 + 0.05 * n, people_played=board)
            for state in range(states) for n in rng.binomial(8, 0.1 + rise * step / 2, 4).tolist()
        ])  # fmt: skip
    return log_dir


def held_by(record: EpisodeRecord, players: list[str]) -> EpisodeRecord:
    """The episode with other players: only the policy leaves trajectories."""
    trajectories = [one for one in record.trajectories if players[one.seat] == POLICY]
    return record.model_copy(update={"players": players, "trajectories": trajectories})


def run_of(folder: Path, players: list[str]) -> Path:
    """A run of two iterations."""
    for number in (1, 2):
        first = 4 * number
        records = [make_episode(first + group, episode, habits=TALKATIVE) for group in range(4) for episode in range(2)]
        games = folder / f"iter_{number}" / "selfplay_games.jsonl"
        write_episodes(games, [held_by(record, players) for record in records])
        games.with_name("selfplay_games.summary.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory) -> Path:
    return training(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def done(log_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "plots"
    return selfplay("slime", "questions", str(log_dir), "--output", str(out), "--format", "svg"), out


@pytest.mark.long
def test_a_trend_of_questions_is_never_called_evidence_of_learning_to_ask(done, tmp_path):
    words = "This is no evidence that the policy learned when to ask"
    assert words in done[0].stdout and words in (done[1] / "analysis.md").read_text()
    flat = analyse(read(training(tmp_path, rise=0)))
    assert flat.trends["questions"].verdict == "no evidence"
    assert not any(words in sentence for sentence in flat.verdicts)


@pytest.mark.long
def test_humans_stand_beside_dialogues_on_their_own_board_only(tmp_path, log_dir):
    human = human_reference(MatchingGame())
    for board in (True, False, None):
        analysis = analyse(read(log_dir if board else training(tmp_path / str(board), board=board)))
        (asking,) = [chart for chart in charts_of(analysis) if chart.key == "asking"]
        assert asking.lines == ({HUMANS: human.figures["asking"].value} if board else {})
        assert ("| humans |" in in_markdown(analysis)) == bool(board)


@pytest.mark.parametrize(("size", "known"), [(8, True), (3, False)])
def test_the_board_of_a_run_is_read_from_its_arguments(tmp_path, size, known):
    folder = run_of(tmp_path, [POLICY, "shy"])
    assert read(folder).comparable is None
    arguments = {f"game.{name}": value for name, value in MatchingConfig(size=size).model_dump().items()}
    for number in (1, 2):
        write_json(folder / f"iter_{number}" / "selfplay_games.args.json", arguments)
        assert (read(folder).comparable is not None) == (known and number == 2), "all iterations say it"


def test_an_analysis_replaces_its_own_plots_and_no_others(done, log_dir, tmp_path):
    out = shutil.copytree(done[1], tmp_path / "plots")
    (out / "reward.png").write_text("of another command")
    assert selfplay("slime", "questions", str(log_dir), "--output", str(out), "--format", "pdf").returncode == 0
    assert not list(out.glob("*.svg")) and (out / "questions.pdf").exists()
    assert (out / "reward.png").read_text() == "of another command"


def test_analysis_json_holds_every_figure_with_its_interval(done):
    analysis = json.loads((done[1] / "analysis.json").read_text())
    assert [(step["step"], step["episodes"]) for step in analysis["steps"]] == [(number, 32) for number in range(4)]
    assert all(set(one) == {"value", "low", "high"} for step in analysis["steps"] for one in step["figures"].values())
    assert analysis["trends"]["questions"]["verdict"] == "rose"
    assert analysis["correlations"]["within steps"]["low"] > 0.9
    assert analysis["human"]["games"] == 134


def test_games_of_a_run_count_from_each_seat_that_the_policy_held(tmp_path):
    both = read(run_of(tmp_path / "both", [POLICY, POLICY]))
    first = read(run_of(tmp_path / "first", [POLICY, "shy"]))
    assert (both.unit, len(both.records), both.lost) == ("iteration", 32, 0)
    assert len(first.records) == 16
    assert first.records == both.records[::2]
    assert {record.step for record in first.records} == {1, 2}


def test_a_dialogue_of_a_game_is_what_its_turns_and_outcome_say():
    record = next(make_episodes(1, 1, habits=TALKATIVE))
    state = MatchingGame(BOARD).state_from_json(record.state)
    found = next(records_of(record, 3))
    counted = asking(record.turns, state, 0)
    assert counted.questions > 0
    assert (found.questions, found.messages, found.leaks) == (counted.questions, counted.messages, counted.leaks)
    assert (found.step, found.reward) == (3, record.outcome.normalized_reward)


def test_an_iteration_that_is_still_playing_is_left_out_since_short_episodes_end_first(tmp_path):
    folder = run_of(tmp_path, [POLICY, "shy"])
    (folder / "iter_2" / "selfplay_games.summary.json").unlink()
    found = read(folder)
    assert {record.step for record in found.records} == {1}
    assert len(found.records) == 8


def test_the_human_reference_counts_dialops_games_by_our_rules():
    human = human_reference(MatchingGame())
    assert human is not None
    assert (human.games, human.messages) == (134, 1610)
    assert human.with_question_mark == pytest.approx(439 / 1610)
    assert round(human.with_question_mark_mean_of_episodes, 2) == 0.29
    assert human.figures["asking"].value > human.with_question_mark, "not every question has its mark"
    assert human.figures["messages"].value == pytest.approx(1610 / (2 * 134)), "each game counts from both seats"
    assert human.figures["reward"].value == pytest.approx(0.921, abs=5e-4)


def test_without_the_human_games_there_is_no_human_line(tmp_path, monkeypatch):
    monkeypatch.setattr(MatchingGame, "human_episodes", lambda game: human_episodes(tmp_path / "none.jsonl"))
    assert human_reference(MatchingGame()) is None


def test_a_single_step_has_points_with_error_bars_since_a_band_would_have_no_width(tmp_path):
    silent = {"messages": 0, "questions": 0, "specific": 0, "repeated": 0}
    log_step(training(tmp_path, steps=1), 9, [dialogue(9, group, **silent) for group in range(3)])
    charts = {chart.key: chart for chart in charts_of(analyse(read(tmp_path)))}
    assert (charts["questions"].style, charts["questions"].series[0].x) == ("curve", [0, 9])
    assert (charts["asking"].style, charts["asking"].names) == ("points", ["0"])


def test_a_folder_without_an_episode_that_ended_is_refused(tmp_path):
    for records in ([], [dialogue(status="engine_failure")]):
        log_step(tmp_path, 0, records)
        with pytest.raises(UserError, match=r"no episode in it .yet.; .* did not all fail"):
            read(tmp_path)
    log_step(tmp_path, 1, [dialogue(1), dialogue(1, 1, status="engine_failure")])
    assert (len(read(tmp_path).records), read(tmp_path).lost) == (1, 2)


def test_the_counting_teacher_asks_each_number_of_questions_as_often_and_then_stops():
    assert [CountingTeacher(most=3).chance(asked) for asked in range(5)] == [3 / 4, 2 / 3, 1 / 2, 0, 0]


def test_a_correlation_and_its_interval_end_at_one():
    step, values, state = simulate(0, states=30)
    found = correlation(values, values + np.random.default_rng(1).normal(0, 0.01, len(values)), step, state)
    assert 0.9 < found.low <= found.high <= 1
