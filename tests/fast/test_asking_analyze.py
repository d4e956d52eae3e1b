"""`selfplay questions`: dialogues of slime's hook or of our own runs become plots, a table and a verdict."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from command import selfplay
from factories import BOARD, Habits, make_episode, make_episodes, write_episodes
from test_asking_records import dialogue

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.humans import human_episodes
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.generate.records import POLICY, EpisodeRecord
from selfplay_pipeline.report.questions.analysis import Records, analyse, human_reference, read, records_of
from selfplay_pipeline.report.questions.output import HUMANS, charts_of, in_markdown
from selfplay_pipeline.report.questions.records import FILE_NAME, log_step

CHARTS = {"questions", "facts", "asking", "reward", "kinds", "learned", "leaks", "length", "reward_by_questions"}
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
        write_episodes(
            folder / f"iter_{number}" / "selfplay_games.jsonl",
            [held_by(record, players) for record in records],
        )
        (folder / f"iter_{number}" / "selfplay_games.summary.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory) -> Path:
    return training(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def done(log_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "plots"
    return selfplay("questions", str(log_dir), "--output", str(out), "--format", "svg"), out


@pytest.mark.long
def test_every_plot_is_written_in_every_format(log_dir, tmp_path):
    out = tmp_path / "plots"
    result = selfplay("questions", str(log_dir), "--output", str(out), "--format", "png,svg,pdf")
    assert result.returncode == 0
    plots = {f"{key}.{form}" for key in CHARTS for form in ("png", "svg", "pdf")}
    assert {path.name for path in out.iterdir()} == plots | {"analysis.json", "analysis.md"}
    for key in CHARTS:
        assert (out / f"{key}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{key}.pdf").read_bytes().startswith(b"%PDF")
        assert ElementTree.parse(out / f"{key}.svg").getroot().tag.endswith("svg")


@pytest.mark.long
def test_the_terminal_shows_the_table_and_a_plain_verdict_that_names_its_test(done):
    printed = done[0].stdout
    for words in (
        r"Questions an episode rose: \d\.\d+ \[.*\] at training step 0, \d\.\d+ \[.*\] at training step 3; "
        r"slope \+\d\.\d+ \[.*\] per training step, p < 0\.001 \(wild cluster bootstrap test, two-sided, 5 %",
        r"Normalised reward rose",
        r"Within a step, episodes with more questions end better: r = 1\.000",
        r"Leak meter: 0\.000",
        r"humans +268",
    ):
        assert re.search(words, printed), words


def test_a_trend_of_questions_is_never_called_evidence_of_learning_to_ask(done, tmp_path):
    words = "This is no evidence that the policy learned when to ask"
    assert words in done[0].stdout and words in (done[1] / "analysis.md").read_text()
    flat = analyse(read(training(tmp_path, rise=0)))
    assert flat.trends["questions"].verdict == "no evidence"
    assert not any(words in sentence for sentence in flat.verdicts)


@pytest.mark.parametrize("board", [False, None])
def test_humans_stand_beside_dialogues_on_their_own_board_only(tmp_path, board):
    analysis = analyse(read(training(tmp_path, board=board)))
    assert all(HUMANS not in chart.lines for chart in charts_of(analysis))
    assert "| humans |" not in in_markdown(analysis)


@pytest.mark.parametrize(("size", "known"), [(8, True), (3, False)])
def test_the_board_of_a_run_is_read_from_its_arguments(tmp_path, size, known):
    folder = run_of(tmp_path, [POLICY, "shy"])
    assert read(folder).comparable is None
    arguments = {f"game.{name}": value for name, value in MatchingConfig(size=size).model_dump().items()}
    for number in (1, 2):
        write_json(folder / f"iter_{number}" / "selfplay_games.args.json", arguments)
    assert (read(folder).comparable is not None) == known


def test_analysis_json_holds_every_figure_with_its_interval(done):
    analysis = json.loads((done[1] / "analysis.json").read_text())
    assert [step["step"] for step in analysis["steps"]] == [0, 1, 2, 3]
    assert {step["episodes"] for step in analysis["steps"]} == {32}
    for step in analysis["steps"]:
        for name in ("questions", "asking", "specific", "repeated", "learned", "reward", "length", "leaks"):
            assert set(step["figures"][name]) == {"value", "low", "high"}
    assert analysis["trends"]["questions"]["verdict"] == "rose"
    assert analysis["correlations"]["within steps"]["low"] > 0.9
    assert analysis["human"]["games"] == 134


def test_the_table_has_a_row_for_each_step_all_of_them_and_the_humans(done):
    lines = (done[1] / "analysis.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert rows == ["training step", "---:", "0", "1", "2", "3", "all", "humans"]
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


@pytest.mark.long
def test_the_same_dialogues_give_the_same_bytes(log_dir, done, tmp_path):
    selfplay("questions", str(log_dir), "--output", str(tmp_path), "--format", "svg")
    for name in ("questions.svg", "analysis.json", "analysis.md"):
        assert (tmp_path / name).read_bytes() == (done[1] / name).read_bytes()


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


@pytest.mark.long
def test_one_step_and_silent_dialogues_are_drawn_as_far_as_they_go(tmp_path):
    silent = {"messages": 0, "questions": 0, "specific": 0, "repeated": 0}
    log_step(tmp_path / "logs", 5, [dialogue(5, group, **silent) for group in range(3)])
    done = selfplay("questions", str(tmp_path / "logs"), "--output", str(tmp_path / "out"))
    assert done.returncode == 0
    assert "Whether questions an episode rose or fell cannot be told: it is known at 1 training step" in " ".join(
        done.stdout.split()
    )
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {
        "questions",
        "facts",
        "reward",
        "leaks",
        "length",
    }


def test_the_human_reference_counts_dialops_games_by_our_rules(log_dir):
    human = human_reference(MatchingGame())
    assert human is not None
    assert (human.games, human.messages) == (134, 1610)
    assert human.with_question_mark == pytest.approx(439 / 1610)
    assert round(human.with_question_mark_mean_of_episodes, 2) == 0.29
    assert human.figures["asking"].value > human.with_question_mark, "not every question has its mark"
    assert human.figures["messages"].value == pytest.approx(1610 / (2 * 134)), "each game counts from both seats"
    assert human.figures["reward"].value == pytest.approx(0.921, abs=5e-4)
    line = next(chart for chart in charts_of(analyse(read(log_dir))) if chart.key == "asking").lines
    assert line == {HUMANS: human.figures["asking"].value}


def test_without_the_human_games_there_is_no_human_line(log_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(MatchingGame, "human_episodes", lambda game: human_episodes(tmp_path / "none.jsonl"))
    assert human_reference(MatchingGame()) is None
    analysis = analyse(read(log_dir)).model_copy(update={"human": None})
    assert all(HUMANS not in chart.lines for chart in charts_of(analysis))
    assert "humans" not in in_markdown(analysis)


def test_a_single_step_has_points_with_error_bars_since_a_band_would_have_no_width(tmp_path):
    silent = {"messages": 0, "questions": 0, "specific": 0, "repeated": 0}
    log_step(training(tmp_path, steps=1), 9, [dialogue(9, group, **silent) for group in range(3)])
    charts = {chart.key: chart for chart in charts_of(analyse(read(tmp_path)))}
    assert (charts["questions"].style, charts["questions"].series[0].x) == ("curve", [0, 9])
    assert (charts["asking"].style, charts["asking"].names) == ("points", ["0"])


def test_no_evidence_is_said_where_there_is_none(tmp_path):
    rng = np.random.default_rng(1)
    found = read(training(tmp_path, rise=0))
    records = [
        record.model_copy(update={"reward": reward})
        for record, reward in zip(found.records, rng.random(128), strict=True)
    ]
    verdicts = analyse(Records(tmp_path, found.unit, records, 0)).verdicts
    assert verdicts[0].startswith("No evidence that questions an episode rose or fell: ")
    assert verdicts[4].startswith("No evidence that within a step episodes with more questions end better or worse: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere"], "/nowhere: no such folder"),
        (["LOGS", "--format", "gif"], "--format gif: give any of png, svg, pdf"),
        (["EMPTY"], "no episode in it (yet); expected questions.jsonl"),
        (["BAD"], f"{FILE_NAME}:1: field 'reward'"),
        (["LOST"], "did not all fail"),
        (["LOGS", "--output", "FILE"], "is a file; give a folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, words, tmp_path, log_dir):
    places = {"LOGS": log_dir, "EMPTY": tmp_path, "BAD": tmp_path / "bad", "LOST": tmp_path / "lost"}
    (tmp_path / "file").write_text("")
    log_step(places["BAD"], 0, [dialogue()])
    bad = places["BAD"] / FILE_NAME
    bad.write_text(bad.read_text().replace('"reward":0.5', '"reward":"high"'))
    log_step(places["LOST"], 0, [dialogue(status="engine_failure")])
    given = [str({**places, "FILE": tmp_path / "file"}.get(argument, argument)) for argument in arguments]
    done = selfplay("questions", "--output", str(tmp_path / "out"), *given)
    assert done.returncode == 2
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_bad_line_of_a_run_is_named(tmp_path):
    folder = run_of(tmp_path, [POLICY, POLICY])
    games = folder / "iter_1" / "selfplay_games.jsonl"
    games.write_text(games.read_text().replace('"group_index":4', '"group_index":-4', 1))
    with pytest.raises(UserError, match=re.escape(f"{games}:1: field 'group_index'")):
        read(folder)
