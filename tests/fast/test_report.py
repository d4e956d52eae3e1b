"""Reports: what an episode reads like, which episodes go into a page, what is drawn, and that hostile text stays
text."""

import asyncio
import base64
import hashlib
import itertools
import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from command import selfplay
from factories import BOARD, Habits, episode_records, make_episode, make_episodes, write_episodes
from hypothesis import given, settings
from matplotlib.figure import Figure

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.evaluate.tally import Seating, Tally
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord, describe
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report import reading, sample
from selfplay_pipeline.report.charts import Chart, Series, charts_of
from selfplay_pipeline.report.draw import DARK, LIGHT, _stack, draw, in_dark
from selfplay_pipeline.report.page import facts, render
from selfplay_pipeline.report.reading import read_episode, read_state, read_stream
from selfplay_pipeline.report.run import write_plots
from selfplay_pipeline.report.sample import take_sample
from selfplay_pipeline.report.scan import Scan, scan
from selfplay_pipeline.report.sources import EpisodesFile, discover

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "[message] </script><script>alert(1)</script><img src=x onerror=alert(2)> & \u202e" + "x" * 5_000


class ByteDecoder:
    """Of the factories' byte-level tokenizer; special tokens as their text, halves of characters as �."""

    def decode(self, ids: list[int]) -> str:
        special = {256: b"<|im_start|>", 257: b"<|im_end|>"}
        return b"".join(special.get(token) or bytes([token]) for token in ids).decode(errors="replace")


def spoken(text: str, **options) -> EpisodeRecord:
    """An episode whose first words are these."""
    record = make_episode(**options, habits=Habits(spoil=0, cut=0))
    turn = record.turns[0].model_copy(update={"text": text})
    return record.model_copy(update={"turns": [turn, *record.turns[1:]]})


def scan_of(path: Path, records, mode="training", iteration=None) -> Scan:
    return scan(EpisodesFile(write_episodes(path, records), mode, path.stem, iteration))


def note_rules(path: Path, board: MatchingConfig = BOARD) -> None:
    """Beside a file of episodes, as `generate` and `evaluate` do."""
    write_json(path.with_suffix(".args.json"), {f"game.{key}": value for key, value in board.model_dump().items()})


# --- one episode


@settings(max_examples=60)
@given(episode_records())
def test_gains_add_up_to_what_the_proposal_lacks(record):
    state, episode = read_state(record), read_episode(record)
    if not episode.drawing.decision:
        assert episode.drawing.results == []
        return
    (table,) = episode.drawing.results
    *papers, together = [int(row[2].replace("=", "0")) for row in table.cells]
    assert sum(papers) == together <= 0
    assert together == int(table.cells[-1][0]) - int(table.cells[-1][1]) and int(table.cells[-1][1]) == state.best
    chosen = {
        column: int(state.drawing.whole[0].cells[row][column]) for row, column in episode.drawing.marks["proposed"]
    }
    assert [row[0].split()[-1] for row in table.cells[:-1]] == [str(chosen[column]) for column in sorted(chosen)]
    if episode.finished:
        assert together == record.outcome.score - state.best


@settings(max_examples=60)
@given(episode_records())
def test_of_several_optima_the_one_most_like_the_proposal_is_shown(record):
    state, episode = read_state(record), read_episode(record)
    scores, marks = state.drawing.whole[0].cells, episode.drawing.marks
    optima = [
        set(zip(order, range(3), strict=True))
        for order in itertools.permutations(range(3))
        if sum(int(scores[reviewer][paper]) for paper, reviewer in enumerate(order)) == state.best
    ]
    assert set(marks["optimum"]) in optima
    if "proposed" in marks:
        alike = [len(cells & set(marks["proposed"])) for cells in optima]
        assert len(set(marks["optimum"]) & set(marks["proposed"])) == max(alike)


@settings(max_examples=60)
@given(episode_records())
def test_a_trajectory_reads_as_its_tokens_with_own_ones_apart(record):
    for trajectory in record.trajectories:
        stream = read_stream(trajectory, ByteDecoder())
        ids = trajectory.prompt_ids + trajectory.response_ids
        assert "".join(text for run in stream.runs for text in run.texts) == ByteDecoder().decode(ids)
        own = [run for run in stream.runs if run.log_probs]
        assert sum(run.tokens for run in own) == sum(trajectory.response_mask)
        assert sum(run.tokens for run in stream.runs) == len(ids)
        total = sum(value for run in own for value in run.log_probs)
        assert total == pytest.approx(sum(trajectory.response_logprobs), abs=1e-4 * (1 + len(ids)))


def test_bytes_of_one_character_are_one_piece():
    trajectory = make_episode(1, habits=Habits(spoil=1, cut=0)).trajectories[0]
    texts = [text for run in read_stream(trajectory, ByteDecoder()).runs for text in run.texts]
    assert "ï" in texts and "雪" in texts
    assert not any("�" in text for text in texts)


def test_very_long_texts_and_trajectories_are_cut_with_a_count(monkeypatch):
    episode = read_episode(spoken("[message] " + "y" * 20_000))
    assert episode.turns[0].text.endswith("… (12010 more characters)")
    monkeypatch.setattr(reading, "MOST_TOKENS", 20)
    stream = read_stream(make_episode().trajectories[0], ByteDecoder())
    assert sum(run.tokens for run in stream.runs) == 20
    trajectory = make_episode().trajectories[0]
    assert stream.left_out == len(trajectory.prompt_ids) + len(trajectory.response_ids) - 20


# --- a file of episodes


def test_a_file_is_scanned_to_the_figures_that_evaluate_computes(tmp_path):
    records = list(make_episodes(6, 3))
    note_rules(tmp_path / "games.jsonl")
    found = scan_of(tmp_path / "games.jsonl", records)
    assert found.figures == Tally(MatchingGame(BOARD), 6, Seating.BOTH).add(records).totals().intervals()
    assert [place.reward for place in found.places] == [record.outcome.normalized_reward for record in records]
    assert found.summary.to_dict()["token_entropy"] > 0


def test_episodes_lost_to_the_engine_are_listed_but_in_no_figure(tmp_path):
    records = [make_episode(0), make_episode(1, ends_after=1, ends_with=Status.ENGINE_FAILURE)]
    found = scan_of(tmp_path / "games.jsonl", records)
    assert len(found.places) == 2 and len(found.rewards) == 1
    assert scan_of(tmp_path / "lost.jsonl", records[1:]).figures == {}


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path):
    path = write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2))
    whole = path.read_text()
    path.write_text(whole + whole[:100])
    assert len(scan(EpisodesFile(path, "training", "games")).places) == 4


def test_a_bad_line_is_named(tmp_path):
    path = write_episodes(tmp_path / "games.jsonl", make_episodes(1, 2))
    path.write_text(path.read_text() + '{"schema_version": 2}\n')
    with pytest.raises(UserError, match=r"games\.jsonl:3: field 'episode_id'"):
        scan(EpisodesFile(path, "training", "games"))


# --- which episodes are in the page


def test_everything_is_taken_where_it_fits(tmp_path):
    scans = [scan_of(tmp_path / f"{n}.jsonl", make_episodes(3, 4, seed=n)) for n in (0, 1)]
    taken = take_sample(scans, lambda found: ByteDecoder(), 10_000_000)
    assert taken.rule == "all episodes"
    assert [episode.id for episode in taken.episodes] == [
        r.episode_id for n in (0, 1) for r in make_episodes(3, 4, seed=n)
    ]
    assert [taken.states[k].group for k in taken.state_of] == [n for _ in (0, 1) for n in (0, 1, 2) for _ in range(4)]


def test_a_large_file_gives_whole_groups_with_its_telling_episodes_within_the_budget(tmp_path):
    records = list(make_episodes(40, 4))
    found = scan_of(tmp_path / "games.jsonl", records)
    taken = take_sample([found], lambda found: None, 60_000)
    assert taken.rule == sample.RULE and 0 < len(taken.episodes) < 160
    states, episodes = (
        [state.model_dump() for state in taken.states],
        [episode.model_dump() for episode in taken.episodes],
    )
    assert sum(len(sample.embedded(part).encode()) for part in states + episodes) <= 60_000
    groups = {taken.states[k].group for k in taken.state_of}
    assert len(taken.episodes) == 4 * len(groups)
    ranked = sorted(records, key=lambda record: record.outcome.normalized_reward)
    rewards = [episode.reward for episode in taken.episodes]
    assert min(rewards) == ranked[0].outcome.normalized_reward
    assert max(rewards) == ranked[-1].outcome.normalized_reward
    assert max(episode.illegal for episode in taken.episodes) == max(record.outcome.num_illegal for record in records)


def test_groups_are_taken_evenly_over_the_file():
    assert list(sample._spread(8)) == [0, 4, 2, 6, 1, 5, 3, 7]
    for count in (1, 2, 3, 5, 100):
        assert sorted(sample._spread(count)) == list(range(count))


def test_what_markup_adds_when_escaped_counts(tmp_path):
    found = scan_of(tmp_path / "games.jsonl", [spoken("[message] " + "<" * 4_000, group=n) for n in range(10)])
    taken = take_sample([found], lambda found: None, 60_000)
    assert len(taken.episodes) == 2


@pytest.mark.parametrize("character", ["a", "é", "雪", "🂡", "&", '"', "\\"])
def test_a_page_has_as_many_bytes_as_it_may_have_whatever_was_said(tmp_path, character):
    found = scan_of(tmp_path / "games.jsonl", [spoken("[message] " + character * 2_000, group=n) for n in range(30)])
    taken = take_sample([found], lambda found: None, 60_000)
    parts = [part.model_dump() for part in (*taken.states, *taken.episodes)]
    sizes = [len(sample.embedded(part).encode()) for part in parts]
    assert 0 < len(taken.episodes) < 30 and sum(sizes) <= 60_000 < sum(sizes) + 2 * max(sizes)


def test_a_group_that_is_too_large_is_left_out_and_the_others_stay(tmp_path):
    large = [spoken("[message] " + "<" * 7_000, group=0, episode=n) for n in range(8)]
    records = [*large, *make_episodes(5, 2, seed=3)]
    taken = take_sample([scan_of(tmp_path / "games.jsonl", records)], lambda found: None, 60_000)
    assert len(taken.episodes) > 0 and "s0-g000000-p0" not in {episode.id for episode in taken.episodes}


def test_episodes_lost_to_the_engine_are_neither_worst_nor_median(tmp_path):
    lost = [make_episode(n, ends_after=1, ends_with=Status.ENGINE_FAILURE) for n in range(3)]
    played = [make_episode(n, habits=Habits(spoil=0, cut=0, best=1)) for n in range(3, 6)]
    order = sample._order(scan_of(tmp_path / "games.jsonl", [*lost, *played]))
    assert set(order[:2]) <= {3, 4, 5}
    assert sorted(order) == list(range(6))


# --- runs


@pytest.fixture
def run_folder(whole_run, tmp_path) -> Path:
    """A run of one's own, to change at will."""
    return shutil.copytree(whole_run, tmp_path / "run")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    """A run in its second iteration: training episodes with their arguments, an evaluation, verl's metrics."""
    run = RunDirectory(tmp_path_factory.mktemp("whole") / "run")
    config = load_config("tiny", {"iterate.num_iterations": 3})
    write_json(run.path / "manifest.json", describe(config.model_dump(mode="json")))
    for number in (1, 2):
        write_episodes(run.games(number), make_episodes(4, 3, seed=number))
        note_rules(run.games(number))
    write_episodes(run.iteration(0) / "evaluation" / "sampled.jsonl", make_episodes(5, 1, seed=7))
    steps = [
        {
            "step": n,
            "actor/pg_loss": 0.1 * n,
            "perf/total_num_tokens": 8.0 * n,
            "selfplay/log_prob_gap/mean": 10.0 ** (n - 5),
        }
        for n in (1, 2)
    ]
    (run.iteration(1) / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    episode = scan(EpisodesFile(run.games(1), "training", "")).summary.to_dict()
    train = {"checkpoint": "c", "carried": False, "steps": 2, "log_prob_gap": 1e-4}
    run.finish(1, "generate", StageRecord(seconds=3, figures=episode))
    run.finish(1, "train", StageRecord(seconds=9, figures=train))
    return run.path


def charts(path: Path) -> dict[str, Chart]:
    source = discover(path)
    return {chart.key: chart for chart in charts_of(source, [scan(file) for file in source.files])}


def test_training_games_are_drawn_at_the_policy_that_played_them(run_folder):
    found = charts(run_folder)
    by_label = {series.label: series for series in found["reward"].series}
    assert list(by_label["training episodes"].x) == [0, 1]
    assert list(by_label["held out, sampled"].x) == [0]
    (low, value, high) = (getattr(by_label["training episodes"], name)[0] for name in ("low", "y", "high"))
    assert low <= value <= high
    assert {series.label: list(series.x) for series in found["entropy"].series if series.x} == {
        "held out, sampled": [0], "training episodes": [0, 1],
    }  # fmt: skip


def test_the_reference_lines_stand_beside_the_rewards(run_folder):
    lines = charts(run_folder)["reward"].lines
    assert list(lines) == ["random", "own view", "optimum"]
    assert 0 < lines["random"] < lines["own view"] < 1 == lines["optimum"]


def test_the_optimum_is_the_best_that_the_game_knows_of(run_folder):
    source = replace(discover(run_folder), references={"best": Interval(value=0.7, low=0.6, high=0.8)})
    found = charts_of(source, [scan(file) for file in source.files])
    assert next(chart for chart in found if chart.key == "reward").lines["optimum"] == 0.7


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [({}, True), ({"max_length": 40, "prompts": "compact"}, True), ({"hard_factor": 0.0}, False), ({"size": 3}, False)],
)
def test_human_pairs_are_drawn_on_the_board_that_they_played_and_on_no_other(tmp_path, changes, drawn):
    board = MatchingConfig(**changes)
    path = write_episodes(tmp_path / "selfplay_games.jsonl", make_episodes(2, 1, config=board))
    note_rules(path, board)
    found = charts(path)["reward"]
    assert {"human pairs (8×8)", "GPT-3.5 (8×8)"} <= found.lines.keys() if drawn else len(found.lines) == 3
    assert ("human pairs (8×8): 0.921 [0.906, 0.936] in 134 episodes of their own" in found.note) == drawn
    path.with_suffix(".args.json").unlink()
    assert "human pairs (8×8)" not in charts(path)["reward"].lines, "whose board is not known"


@pytest.mark.parametrize("protocol", ["free", "fixed"])
def test_the_lines_of_play_without_words_are_drawn_and_the_talk_score_where_silence_is_a_bound(tmp_path, protocol):
    board = {"size": 3, "max_score": 9, "scale_min": 1.0, "scale_max": 1.0, "hard_factor": 0.0}
    honest = {"visibility": "complementary", "score_power": 3}
    for name, changes, known in (("honest", honest, True), ("other", {}, False)):
        config = MatchingConfig(**board, **changes, protocol=protocol)
        path = write_episodes(tmp_path / name / "selfplay_games.jsonl", make_episodes(2, 1, config=config))
        write_json(path.with_suffix(".args.json"), {f"game.{key}": value for key, value in config.model_dump().items()})
        source = discover(path)
        (found,) = [scan(file) for file in source.files]
        (chart,) = [chart for chart in charts_of(source, [found]) if chart.key == "reward"]
        assert ("talk_score" in found.figures) == (known and protocol == "fixed")
        assert ("silence: one fixed proposer" in chart.note) == known
        assert ("none is a bound" in chart.note) == (known and protocol == "free")
        drawn = {line: value for line, value in chart.lines.items() if line in ("silence", "pass", "counter")}
        lines = {"silence": 0.84, "pass": 0.92, "counter": 0.97} if protocol == "free" else {"silence": 0.84}
        assert drawn == pytest.approx(lines if known else {}, abs=0.005)
    path.with_suffix(".args.json").unlink()
    assert "talk_score" not in scan(discover(path).files[0]).figures, "whose configuration is not known"


def one_point(**interval: list[float]) -> str:
    series = Series("training episodes", [3], [0.0047], **interval)
    return draw(Chart("loss", "Policy loss", "", "optimiser step", "policy loss", [series]), "svg").decode()


def test_a_single_point_has_one_whole_number_below_it_and_a_scale_that_begins_at_zero():
    numbers = [float(text) for text in re.findall(r"<!-- (-?[\d.]+) -->", one_point())]
    assert numbers[0] == 3.0, "the only number of the axis below"
    assert numbers[1] == 0.0 and numbers[-1] >= 0.004 and numbers[1:] == sorted(numbers[1:])


def test_a_single_point_has_its_interval():
    assert "LineCollection" in one_point(low=[0.002], high=[0.006])
    assert "LineCollection" not in one_point()


def test_time_steps_and_rewards_are_drawn(run_folder):
    found = charts(run_folder)
    assert {series.label: list(series.y) for series in found["seconds"].series if series.x} == {
        "generate": [3], "train": [9],
    }  # fmt: skip
    assert list(found["loss"].series[0].y) == [0.1, 0.2]
    sampled = [sum(sum(t.response_mask) for r in make_episodes(4, 3, seed=n) for t in r.trajectories) for n in (1, 2)]
    tokens = {series.label: list(series.y) for series in found["tokens"].series}
    assert tokens["generate, sampled"] == sampled
    assert tokens["train"] == [24]
    assert found["log_prob_gap"].log and list(found["log_prob_gap"].series[1].y) == [1e-4]
    for series in found["histogram"].series:
        assert sum(series.y) == pytest.approx(1)


def test_what_reward_is_lost_to_is_stacked_up_to_what_it_lacks(run_folder):
    note_rules(run_folder / "iter_0" / "evaluation" / "sampled.jsonl")
    found = charts(run_folder)
    (reward,) = (series for series in found["reward"].series if series.label == "held out, sampled")
    stack = found["where_reward_is_lost_sampled"]
    assert stack.style == "stack" and [series.label for series in stack.series] == [
        "lost to telling", "lost to planning", "lost to agreement",
    ]  # fmt: skip
    assert [sum(series.y[0] for series in stack.series)] == pytest.approx([1 - reward.y[0]])


def test_what_is_gained_is_stacked_below_zero():
    parts = [Series(str(number), [0], [y]) for number, y in enumerate([0.2, -0.1, 0.3, -0.2])]
    axes = Figure().subplots()
    _stack(Chart("parts", "Parts", "", "", "", parts, style="stack"), axes, LIGHT)
    assert [bar.get_y() for bar in axes.patches] == [0.0, 0.0, 0.2, -0.1]


def test_a_run_with_one_iteration_and_one_that_has_only_begun_can_be_shown(run_folder):
    shutil.rmtree(run_folder / "iter_2")
    assert {"reward", "histogram", "loss"} <= charts(run_folder).keys()
    (run_folder / "state.json").unlink()
    shutil.rmtree(run_folder / "iter_0")
    (run_folder / "iter_1" / "metrics.jsonl").unlink()
    assert {"reward", "histogram"} <= charts(run_folder).keys()
    source = discover(run_folder)
    assert "0 of 3 iterations trained" in facts(source, [scan(file) for file in source.files], datetime.now(UTC))


def test_a_file_that_has_only_begun_draws_no_point(run_folder):
    (run_folder / "iter_2" / "selfplay_games.jsonl").write_text("")
    found = charts(run_folder)
    assert [list(found[key].series[0].x) for key in ("entropy", "flat_groups")] == [[0], [0]]
    write_episodes(run_folder / "iter_2" / "selfplay_games.jsonl", make_episodes(3, 1))
    assert list(charts(run_folder)["flat_groups"].series[0].x) == [0]


def test_many_steps_are_drawn_as_means(run_folder):
    steps = [{"step": n, "actor/pg_loss": float(n)} for n in range(1, 1201)]
    (run_folder / "iter_1" / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (series,) = charts(run_folder)["loss"].series
    assert series.label == "means of 3 steps" and len(series.y) == 400
    assert list(series.y[:2]) == list(series.x[:2]) == [2, 5]


def test_steps_are_numbered_through_the_iterations(run_folder):
    (run_folder / "iter_2" / "metrics.jsonl").write_text('{"step": 1, "actor/pg_loss": 0.5}\n')
    assert list(charts(run_folder)["loss"].series[0].x) == [1, 2, 3]


def test_an_online_training_has_a_report(tmp_path):
    lines = [{"step": 0, "held_out/reward": 0.7}, {"step": 1, "selfplay/reward": 0.75}]
    lines.append({"step": 2, "selfplay/reward": 0.8, "held_out/reward": 0.9})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "server_0_weights.jsonl").write_text('{"step": 1}\n')
    found = charts(tmp_path)
    assert found.keys() == {"step_reward", "step_held_out"}
    assert list(found["step_held_out"].series[0].x) == [0, 2]
    assert list(found["step_reward"].series[0].x) == [1, 2]


@pytest.mark.parametrize("finished", [True, False])
def test_an_evaluation_against_a_partner_is_reported_with_its_own_figures(tmp_path, finished):
    config = load_config("tiny", {})
    states = held_out_states(MatchingGame(config.game), 20)
    job = EvaluationJob("sharing", states, tmp_path / "evaluation", partner="random", episodes=2)
    evaluation = asyncio.run(run_evaluate(config, job))
    if not finished:
        (job.output / "evaluation.json").unlink()
    source = discover(job.output)
    (found,) = [scan(file) for file in source.files]
    assert source.kind == "evaluation"
    expected = evaluation.modes["scripted"].figures
    assert {name: found.figures[name] for name in expected} == expected
    lines = charts(job.output)["reward"].lines
    assert lines["own view"] == pytest.approx(evaluation.references["own_view"].value)


def test_a_crossplay_folder_has_a_report(tmp_path):
    config = load_config("tiny", {})
    states = held_out_states(MatchingGame(config.game), 3)
    asyncio.run(run_crossplay(config, ["random", "sharing", "silent"], states, 1, tmp_path / "crossplay"))
    reward = charts(tmp_path / "crossplay")["reward"]
    assert len(reward.names) == 9 and len(reward.series[0].x) == 9
    assert draw(reward, "png").startswith(b"\x89PNG")


def test_an_iteration_an_evaluation_and_a_file_have_reports(run_folder):
    for path, kind in (
        ("iter_1", "iteration"),
        ("iter_0/evaluation", "episodes"),
        ("iter_1/selfplay_games.jsonl", "episodes"),
    ):
        source = discover(run_folder / path)
        assert source.kind == kind
        found = charts(run_folder / path)
        assert found["reward"].style == "points" and "histogram" in found
    assert "loss" in charts(run_folder / "iter_1")


@pytest.mark.parametrize("name", ["nothing-there", "empty"])
def test_what_cannot_be_reported_on_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="give a run directory"):
        discover(tmp_path / name)


# --- pictures


@pytest.mark.long
def test_plots_are_written_in_every_format_and_repeat_to_the_byte(tmp_path):
    source = discover(write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2)))
    scans = [scan(file) for file in source.files]
    paths = write_plots(source, scans, ["png", "svg", "pdf"], tmp_path / "plots")
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert {path.name for path in paths} == {f"{name}{end}" for name in ("reward", "histogram") for end in starts}
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix])
    reward = charts_of(source, scans)[0]
    assert draw(reward, "svg") == (tmp_path / "plots" / "reward.svg").read_bytes()
    assert draw(reward, "svg", DARK) != draw(reward, "svg")


@pytest.mark.parametrize("values", [[1e-6, 1e-4, 1e-2], [2e-4, 3e-4, 4e-4]], ids=["decades", "less than one"])
def test_a_logarithmic_axis_has_numbers_to_read(values):
    chart = Chart("gap", "Gap", "", "step", "nats", [Series("each step", [1, 2, 3], values)], log=True)
    text = draw(chart, "svg").decode()
    assert re.search(r"\de\N{MINUS SIGN}0\d", text)
    assert "mathdefault" not in text


def test_names_of_files_are_drawn_as_they_are(tmp_path):
    source = discover(write_episodes(tmp_path / "_$x_{bad$\x01.jsonl", make_episodes(1, 2)))
    for chart in charts_of(source, [scan(file) for file in source.files]):
        ElementTree.fromstring(draw(chart, "svg"))


# --- the page


@pytest.mark.long
def test_the_dark_picture_of_a_chart_is_what_drawing_it_in_dark_gives(run_folder):
    def nameless(svg: bytes) -> bytes:
        return re.sub(rb"\b[mph][0-9a-f]{10}\b", b"", svg)

    for chart in (charts(run_folder)[key] for key in ("reward", "entropy")):
        assert nameless(in_dark(draw(chart, "svg", LIGHT))) == nameless(draw(chart, "svg", DARK))


def page_of(tmp_path: Path, records, max_bytes: int = 1_000_000) -> str:
    source = discover(write_episodes(tmp_path / "games.jsonl", records))
    scans = [scan(file) for file in source.files]
    decoder = ByteDecoder()
    return render(source, scans, lambda room: take_sample(scans, lambda found: decoder, room), max_bytes, AT)


def test_hostile_text_cannot_leave_its_place(tmp_path):
    page = page_of(tmp_path, [spoken(HOSTILE)])
    assert "alert(1)" in page
    assert "<script>alert" not in page and "<img src=x" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    assert data["episodes"][0]["turns"][0]["text"] == HOSTILE


@pytest.mark.long
def test_a_page_keeps_to_its_size_whatever_is_in_it(tmp_path):
    records = [spoken("[message] " + "<&>" * 300, group=n) for n in range(60)]
    page = page_of(tmp_path, records, max_bytes=300_000)
    assert len(page.encode()) <= 300_000
    assert re.search(r"\d+ of 60 episodes are in this page", page)
    assert not page_of(tmp_path, records[:5], max_bytes=300_000).count(" of 5 games are")


def test_the_page_allows_itself_nothing_but_its_own_script_and_style(tmp_path):
    page = page_of(tmp_path, make_episodes(1, 2))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src 'none'; img-src data:;")
    for kind, tag in (("script", "script"), ("style", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy.replace("&#39;", "'")
    outside = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)
    assert not re.findall(r"(?:src|href|srcset)=\"(?!#|data:)", outside)


# --- mistakes


def failed(*arguments: str) -> str:
    done = selfplay("report", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("reading episodes")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("state.json", "[]", "state.json: Input should be"),
        ("state.json", '{"iterations": {"1": {"sleep": {}}}}', "state.json: field 'iterations.1.sleep"),
        ("manifest.json", '{"config": {}}', "manifest.json: field 'created'"),
        ("manifest.json", "{", "manifest.json:1: not JSON"),
        ("iter_1/metrics.jsonl", '{"step": 1}\n{"step"\n', "metrics.jsonl:2: not a step's metrics"),
        ("iter_1/metrics.jsonl", '{"loss": 1}\n', "metrics.jsonl:1: not a step's metrics"),
        ("iter_0/evaluation/evaluation.json", "{}", "evaluation.json: field 'player'"),
        ("iter_1/selfplay_games.jsonl", "{}\n", "selfplay_games.jsonl:1: field 'episode_id'"),
    ],
)
def test_a_file_of_a_run_that_is_broken_is_named(run_folder, file, content, words):
    (run_folder / file).write_text(content)
    assert words in failed(str(run_folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": {"table": [[1]]}}, "field 'mask1' is missing"),
        ({"state.papers": [1, 2, 3]}, "games.jsonl:2: "),
        ({"state.best_assignment_reward": None}, "games.jsonl:2: "),
        ({"players": ["policy"]}, "field 'players'"),
        ({"outcome.proposal": [[0, 0], [1, 1], [7, 2]]}, "is no matching of 3 and 3"),
        ({"outcome.proposal": [[0, 0]]}, "is no matching of 3 and 3"),
        ({"outcome.score": float("nan")}, "a finite number"),
    ],
)
def test_an_episode_that_cannot_have_been_is_named_with_its_line(tmp_path, change, words):
    good, bad = (json.loads(make_episode(n).model_dump_json()) for n in (0, 1))
    for path, value in change.items():
        *outer, key = path.split(".")
        (bad[outer[0]] if outer else bad)[key] = value
    path = tmp_path / "games.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
    line = failed(str(path))
    assert "games.jsonl:2: " in line and words in line


def test_wrong_options_and_places_are_one_line(tmp_path):
    path = str(write_episodes(tmp_path / "games.jsonl", make_episodes(1, 2)))
    (tmp_path / "folder").mkdir()
    assert "--format gif: give html" in failed(path, "--format", "gif")
    assert "folder: cannot be written" in failed(path, "--output", str(tmp_path / "folder"))
    assert "cannot be written" in failed(path, "--output", f"{path}/page.html")
    assert "cannot be written" in failed(path, "--format", "svg", "--output", path)
    assert "no such file or folder" in failed(str(tmp_path / "nothing"))


def test_the_command_writes_a_page_or_plots_beside_what_it_reads(tmp_path):
    path = str(write_episodes(tmp_path / "games.jsonl", make_episodes(1, 2)))
    assert "report.html" in selfplay("report", path).stdout
    assert "<title>Episodes: " in (tmp_path / "report.html").read_text()
    selfplay("report", path, "--format", "svg,pdf")
    assert sorted(file.name for file in (tmp_path / "plots").iterdir()) == [
        "histogram.pdf", "histogram.svg", "reward.pdf", "reward.svg",
    ]  # fmt: skip


def test_a_style_of_the_users_does_not_change_a_drawing():
    chart = Chart("loss", "Policy loss", "", "optimiser step", "policy loss", [Series("loss", [1, 2], [0.5, 0.4])])
    expected = draw(chart, "svg")
    with matplotlib.rc_context({"text.usetex": True, "lines.linewidth": 9, "font.family": "cursive"}):
        assert draw(chart, "svg") == expected


@pytest.mark.parametrize("content", ["", "\n\n", '{"schema_version": 2'])
def test_a_file_without_a_whole_episode_gives_no_page(tmp_path, content):
    (tmp_path / "games.jsonl").write_text(content)
    done = selfplay("report", str(tmp_path / "games.jsonl"))
    assert done.returncode == 2 and "no whole episode in it (yet)" in done.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.long
def test_a_page_that_is_full_says_how_many_episodes_it_holds(tmp_path):
    write_episodes(tmp_path / "games.jsonl", make_episodes(24, 2))
    few = selfplay("report", str(tmp_path / "games.jsonl"), "--max-megabytes", "0.5")
    shown = re.search(r"with (\d+) of 48 episodes \(--max-megabytes takes more\)", few.stdout)
    assert shown and 0 < int(shown[1]) < 48
    assert (tmp_path / "report.html").stat().st_size <= 500_000
    assert "of 48 episodes" not in selfplay("report", str(tmp_path / "games.jsonl")).stdout
