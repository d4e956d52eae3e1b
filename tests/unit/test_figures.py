"""Every figure has one definition, and is one number wherever a file of episodes is looked at."""

import ast
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import pytest
from factories import Habits, make_episode, make_episodes, write_episodes

import selfplay_pipeline
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.evaluate.figures_by_state import Seating, Tally
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import all_games, game_named
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.summary import Played, Summary
from selfplay_pipeline.metrics.figures import FIGURES, _in_seat, figures_of, measure, rows_of, summarised
from selfplay_pipeline.metrics.signal import Signal
from selfplay_pipeline.report.scan import scan
from selfplay_pipeline.report.sources import discover
from selfplay_pipeline.slime.questions.analysis import records_of
from selfplay_pipeline.slime.questions.records import FIGURES as ASKED
from selfplay_pipeline.slime.questions.statistics import figures_of as asked_figures
from selfplay_pipeline.slime.questions.statistics import frame_of
from selfplay_pipeline.train.groups import read_data

SOURCES = sorted(Path(selfplay_pipeline.__file__).parent.rglob("*.py"))
STATES, EPISODES = 6, 4


@cache
def words_in(path: Path) -> tuple[list[str], set[str]]:
    """Returns all string literals of a file, and the names of the functions that it calls."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return texts, {function.id for function in called if isinstance(function, ast.Name)}


@pytest.mark.parametrize("game", all_games(), ids=lambda game: game.name)
def test_a_label_is_written_once(game):
    """Two games may have a label in common."""
    others = {other.name for other in all_games()} - {game.name}
    paths = [path for path in SOURCES if path.parent.name not in others]
    written = [text for path in paths for text in words_in(path)[0]]
    labels = {figure.label for figure in (*FIGURES, *game.figures)}
    assert {label: written.count(label) for label in labels} == dict.fromkeys(labels, 1)


@pytest.mark.parametrize("game", all_games(), ids=lambda game: game.name)
def test_a_name_is_given_once(game):
    figures = figures_of(game).values()
    for names in ([one.name for one in (*FIGURES, *game.figures)], [one.label for one in figures],
                  [one.summary for one in figures if one.summary]):  # fmt: skip
        assert len(set(names)) == len(names)


def test_only_metrics_and_games_define_figures():
    package = Path(selfplay_pipeline.__file__).parent
    defining = {path.relative_to(package).parts[0] for path in SOURCES if "Figure" in words_in(path)[1]}
    assert defining == {"metrics", "games"}


@pytest.fixture(scope="module")
def records() -> list[EpisodeRecord]:
    """Those of the last state all end without agreement, and one of another state is missing."""
    alike = Habits(spoil=1.0, cut=0.0)
    silent = [make_episode(STATES - 1, number, habits=alike) for number in range(EPISODES)]
    return [*list(make_episodes(STATES - 1, EPISODES, habits=Habits(talk=0.7)))[1:], *silent]


@pytest.fixture(scope="module")
def played(records) -> Played:
    summary = Summary()
    for record in records:
        summary.add(record)
    return summary.result()


def test_a_file_has_the_same_figures_in_its_summary_in_evaluations_and_in_the_report(records, played, tmp_path):
    (file,) = discover(write_episodes(tmp_path / "episodes.jsonl", records)).files
    game = game_named(records[0].game)
    tally = Tally(game, STATES, Seating.BOTH).add(records).totals().intervals()
    assert scan(file).figures == tally
    for key, figure in summarised(game).items():
        assert getattr(played, key) == pytest.approx(tally[figure.name].value or 0), figure.name


def test_what_is_asked_is_counted_the_same_in_the_analysis_of_questions(records):
    one_seat = [record.model_copy(update={"players": ["policy", "shy"], "trajectories": []}) for record in records]
    tally = Tally(game_named(records[0].game), STATES, Seating.ONE).add(one_seat).totals().intervals()
    asked = asked_figures(frame_of([asked for record in one_seat for asked in records_of(record, 0)]))
    assert list(asked) == list(ASKED)
    for name, interval in asked.items():
        assert interval.value == pytest.approx(tally[name].value), name


def test_a_table_shows_what_has_a_value(records):
    game = game_named(records[0].game)
    figures = Tally(game, STATES, Seating.BOTH).add(records).totals().intervals()
    labels = [label for label, _ in rows_of([figures], game)]
    assert {"normalised reward", "illegal actions an episode", "questions an episode"} <= set(labels)
    assert not any("reward in seat" in label for label in labels), "no seat played alone"


def test_groups_without_signal_are_the_same_everywhere(records, played, tmp_path):
    path = write_episodes(tmp_path / "episodes.jsonl", records)
    converted = run_convert(path, tmp_path)
    (file,) = discover(path).files
    signal = Signal(played.groups, played.groups_without_signal)
    assert signal.groups == STATES and signal.without > 0
    assert scan(file).summary.signal == signal
    assert Signal(converted.groups, converted.groups_without_signal) == signal
    assert read_data([tmp_path / "train.parquet"]).signal == signal


@pytest.mark.parametrize(
    ("rewards", "without"),
    [([0.5], 1), ([0.5, 0.5], 1), ([0.5, 0.6], 0), ([0.5, 0.5, 0.5 + 1e-5], 0), ([0.5, 0.5 - 1e-7], 1)],
)
def test_a_group_has_a_signal_if_two_rewards_differ_by_a_millionth(rewards, without):
    assert Signal.of([rewards, [0.0, 1.0]]) == Signal(groups=2, without=without)


def test_a_figure_of_one_game_is_in_no_summary_of_another(records, monkeypatch):
    other = next(game for game in all_games() if game.name != records[0].game)
    eyes = Figure("eyes", "eyes an episode", lambda episode: 1, summary="eyes_per_episode")
    monkeypatch.setattr(type(other), "figures", (*other.figures, eyes))
    summary = Summary()
    for record in records:
        summary.add(record)
    assert "eyes_per_episode" in summarised(other)
    assert "eyes_per_episode" not in summary.figures
    assert "eyes" not in [figure.name for figure, _ in summary.shown]


@pytest.mark.parametrize(
    ("game", "has"),
    [("matching", {"questions", "facts"}), ("bargaining", {"questions", "facts"}), ("mediation", {"questions"}),
     ("planning", {"questions"})],
)  # fmt: skip
def test_a_game_has_figures_only_of_what_it_reads_in_messages(game, has):
    of_kind = {
        kind: {one.summary for one in FIGURES if one.reads == kind and one.summary} for kind in ("questions", "facts")
    }
    found = set(summarised(game_named(game)))
    assert {kind for kind, keys in of_kind.items() if keys <= found} == has
    assert {kind for kind, keys in of_kind.items() if keys & found} == has


def test_a_game_that_counts_no_questions_has_no_figure_of_them(records, monkeypatch):
    monkeypatch.setattr(type(game_named(records[0].game)), "asking", Game.asking)
    figures = measure(Measured(game_named(records[0].game), records[0], [0]))
    assert "messages" in figures
    assert not {"questions", "asking", "facts", "specific", "repeated", "learned", "leaks"} & figures.keys()


def test_the_reward_in_a_seat_is_that_of_the_episodes_in_it():
    record = make_episode(habits=Habits(talk=0, spoil=0, cut=0, reject=0, best=1))
    game = game_named(record.game)
    (above, below), (nothing, none) = (_in_seat(0, "").parts(Measured(game, record, seats)) for seats in ((0,), (1,)))
    assert (above, below) == (1, 1) and (nothing, none) == (0, 0)


def test_a_message_is_repeated_where_one_of_the_seats_said_it_before_whatever_is_around_it():
    said = [(0, "[message] a"), (1, "[message] a"), (0, "[message] a "), (0, "[message] b"), (1, "[propose] a")]
    turns = [
        {"seat": seat, "text": text, "action": text[1:].split("]")[0], "finish_reason": "stop"} for seat, text in said
    ]
    record = make_episode(ends_after=0)
    record = type(record).model_validate(record.model_dump() | {"turns": turns})
    for seats, repeated in (((0,), (1, 3)), ((1,), (0, 1)), ((0, 1), (2, 4))):
        assert measure(Measured(game_named(record.game), record, seats))["repeated_messages"] == repeated


def test_what_could_not_be_measured_has_no_figure_instead_of_a_zero(records):
    summary = Summary()
    for record in records:
        summary.add(record.model_copy(update={"trajectories": []}))
    assert "token_entropy" not in summary.figures and summary.result().token_entropy is None


def test_the_standard_error_is_that_of_the_means_of_the_groups():
    summary, groups = Summary(), {0: [0.0, 0.5], 1: [1.0, 1.0], 2: [0.2]}
    summary.rewards.update(groups)
    assert summary.reward_error == pytest.approx(stdev(map(fmean, groups.values())) / 3**0.5)
