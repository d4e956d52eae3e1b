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
from factories import BOARD, FINISHED, Habits, episode_records, make_episode, make_episodes, write_episodes
from hypothesis import given
from matplotlib.figure import Figure
from quick import examples, long_but

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.figures_by_state import Seating, Tally
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord, describe
from selfplay_pipeline.iterate.table import run_table
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report import reading, sample
from selfplay_pipeline.report.charts import Chart, Series, charts_of
from selfplay_pipeline.report.draw import DARK, LIGHT, _curve, _points, _stack, draw, in_dark
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


@examples(60)
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


@examples(60)
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


@examples(60)
@given(episode_records())
def test_a_trajectory_reads_as_its_tokens_with_own_ones_apart(record):
    for trajectory in record.trajectories:
        stream = read_stream(trajectory, ByteDecoder())
        ids = trajectory.prompt_ids + trajectory.response_ids
        texts = [text for run in stream.runs for text in run.texts]
        assert "".join(texts) == ByteDecoder().decode(ids)
        assert not any("�" in text for text in texts), "the bytes of a character are one piece"
        own = [run for run in stream.runs if run.log_probs]
        assert sum(run.tokens for run in own) == sum(trajectory.response_mask)
        assert sum(run.tokens for run in stream.runs) == len(ids)
        total = sum(value for run in own for value in run.log_probs)
        assert total == pytest.approx(sum(trajectory.response_logprobs), abs=1e-4 * (1 + len(ids)))


def test_very_long_texts_and_trajectories_are_cut_with_a_count(monkeypatch):
    assert read_episode(spoken("[message] " + "y" * 20_000)).turns[0].text.endswith("… (12010 more characters)")
    monkeypatch.setattr(reading, "MOST_TOKENS", 20)
    trajectory = make_episode().trajectories[0]
    stream = read_stream(trajectory, ByteDecoder())
    assert sum(run.tokens for run in stream.runs) == 20
    assert stream.left_out == len(trajectory.prompt_ids) + len(trajectory.response_ids) - 20


# --- a file of episodes


def test_a_file_is_scanned_to_the_figures_that_evaluate_computes(tmp_path):
    records = list(make_episodes(6, 3))
    note_rules(tmp_path / "games.jsonl")
    found = scan_of(tmp_path / "games.jsonl", records)
    assert found.figures == Tally(MatchingGame(BOARD), 6, Seating.BOTH).add(records).totals().intervals()
    assert [place.reward for place in found.places] == [record.outcome.normalized_reward for record in records]
    assert found.summary.to_dict()["token_entropy"] > 0


def test_a_line_that_is_being_written_is_not_there_yet_and_a_bad_one_is_named(tmp_path):
    path = write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2))
    with path.open("a") as file:
        file.write(path.read_text()[:100])
    assert len(scan(EpisodesFile(path, "training", "games")).places) == 4
    with path.open("a") as file:
        file.write("}\n")
    with pytest.raises(UserError, match=r"games\.jsonl:5: "):
        scan(EpisodesFile(path, "training", "games"))


def test_a_file_of_two_runs_whose_groups_have_the_same_numbers_is_refused(tmp_path):
    records = [record for seed in (0, 1) for record in make_episodes(2, 2, seed=seed)]
    with pytest.raises(UserError, match=r"games\.jsonl: episode \S+: field 'state': group 0 has two different states"):
        scan_of(tmp_path / "games.jsonl", records)


# --- which episodes are in the page


def test_everything_is_taken_where_it_fits(tmp_path):
    files = [list(make_episodes(3, 4, seed=seed)) for seed in (0, 1)]
    scans = [scan_of(tmp_path / f"{number}.jsonl", records) for number, records in enumerate(files)]
    taken = take_sample(scans, lambda found: ByteDecoder(), 10_000_000)
    assert taken.rule == "all episodes"
    assert [episode.id for episode in taken.episodes] == [record.episode_id for file in files for record in file]
    assert [taken.states[k].group for k in taken.state_of] == [n for _ in files for n in (0, 1, 2) for _ in range(4)]


@pytest.mark.long
def test_a_large_file_gives_whole_groups_with_its_telling_episodes_within_the_budget(tmp_path):
    records = list(make_episodes(40, 4))
    taken = take_sample([scan_of(tmp_path / "games.jsonl", records)], lambda found: None, 60_000)
    assert taken.rule == sample.RULE and 0 < len(taken.episodes) < 160
    assert sum(sizes_of(taken)) <= 60_000
    assert len(taken.episodes) == 4 * len({taken.states[k].group for k in taken.state_of})
    rewards = [record.outcome.normalized_reward for record in records]
    shown = [episode.reward for episode in taken.episodes]
    assert (min(shown), max(shown)) == (min(rewards), max(rewards))
    assert max(episode.illegal for episode in taken.episodes) == max(record.outcome.num_illegal for record in records)


def sizes_of(taken) -> list[int]:
    """Bytes of each part of a sample."""
    return [len(sample.embedded(part.model_dump()).encode()) for part in (*taken.states, *taken.episodes)]


def test_groups_are_taken_evenly_over_the_file():
    assert list(sample._spread(8)) == [0, 4, 2, 6, 1, 5, 3, 7]
    for count in (1, 2, 3, 5, 100):
        assert sorted(sample._spread(count)) == list(range(count))


@pytest.mark.parametrize("character", long_but({"🂡", "<"}, ["a", "é", "雪", "🂡", "&", "<", '"', "\\"]))
def test_a_page_has_as_many_bytes_as_it_may_have_whatever_was_said(tmp_path, character):
    found = scan_of(tmp_path / "games.jsonl", [spoken("[message] " + character * 2_000, group=n) for n in range(30)])
    taken = take_sample([found], lambda found: None, 60_000)
    sizes = sizes_of(taken)
    assert 0 < len(taken.episodes) < 30 and sum(sizes) <= 60_000 < sum(sizes) + 2 * max(sizes)


def test_a_group_that_is_too_large_is_left_out_and_the_others_stay(tmp_path):
    large = [spoken("[message] " + "<" * 7_000, group=9, episode=n) for n in range(8)]
    found = scan_of(tmp_path / "games.jsonl", [*large, *make_episodes(5, 2, seed=3)])
    ids = {episode.id for episode in take_sample([found], lambda found: None, 60_000).episodes}
    assert ids and large[0].episode_id not in ids


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
    names = ("actor/pg_loss", "perf/total_num_tokens", "selfplay/log_prob_gap/mean")
    write_steps(run.iteration(1), *(dict(zip(names, (0.1 * n, 8.0 * n, 10.0 ** (n - 5)), strict=True)) for n in (1, 2)))
    episode = scan(EpisodesFile(run.games(1), "training", "")).summary.to_dict()
    run.finish(1, "generate", StageRecord(seconds=3, figures=episode))
    train = FINISHED["train"] | {"steps": 2, "log_prob_gap": 1e-4}
    run.finish(1, "train", StageRecord(seconds=9, figures=train))
    return run.path


def write_steps(folder: Path, *steps: dict[str, float]) -> None:
    lines = (json.dumps({"step": number} | step) + "\n" for number, step in enumerate(steps, 1))
    (folder / "metrics.jsonl").write_text("".join(lines))


def charts(path: Path) -> dict[str, Chart]:
    source = discover(path)
    return {chart.key: chart for chart in charts_of(source, [scan(file) for file in source.files])}


def test_training_games_are_drawn_at_the_policy_that_played_them_beside_the_reference_lines(whole_run):
    found = charts(whole_run)
    by_label = {series.label: series for series in found["reward"].series}
    played = by_label["training episodes"]
    assert (list(played.x), list(by_label["held out, sampled"].x)) == ([0, 1], [0])
    assert played.low[0] <= played.y[0] <= played.high[0]
    assert {series.label: list(series.x) for series in found["entropy"].series if series.x} == {
        "held out, sampled": [0], "training episodes": [0, 1],
    }  # fmt: skip
    lines = found["reward"].lines
    assert list(lines) == ["random", "own view", "optimum"]
    assert 0 < lines["random"] < lines["own view"] < 1 == lines["optimum"]


def test_the_optimum_is_the_best_that_the_game_knows_of(whole_run):
    source = replace(discover(whole_run), references={"best": Interval(value=0.7, low=0.6, high=0.8)})
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
    board = {"size": 3, "max_score": 9, "scale_max": 1.0, "hard_factor": 0.0}
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


def test_a_single_point_has_one_number_below_it_a_scale_from_zero_and_its_interval_if_any():
    numbers = [float(text) for text in re.findall(r"<!-- (-?[\d.]+) -->", one_point())]
    assert numbers[0] == 3.0, "the only number of the axis below"
    assert numbers[1] == 0.0 and numbers[-1] >= 0.004 and numbers[1:] == sorted(numbers[1:])
    assert "LineCollection" in one_point(low=[0.002], high=[0.006])
    assert "LineCollection" not in one_point()


def test_time_steps_and_rewards_are_drawn(whole_run):
    found = charts(whole_run)
    assert {series.label: list(series.y) for series in found["seconds"].series if series.x} == {
        "generate": [3], "train": [9],
    }  # fmt: skip
    assert list(found["loss"].series[0].y) == [0.1, 0.2]
    sampled = [sum(sum(t.response_mask) for r in make_episodes(4, 3, seed=n) for t in r.trajectories) for n in (1, 2)]
    tokens = {series.label: list(series.y) for series in found["tokens"].series}
    assert (tokens["generate, sampled"], tokens["train"]) == (sampled, [24])
    assert found["log_prob_gap"].log and list(found["log_prob_gap"].series[1].y) == [1e-4]
    assert [sum(series.y) for series in found["histogram"].series] == pytest.approx([1] * 2)


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


@pytest.mark.parametrize("paint", [_points, _curve])
def test_an_interval_is_drawn_from_its_low_end_to_its_high_end(paint):
    axes, series = Figure().subplots(), Series("all episodes", [0], [0.5], low=[0.4], high=[0.7])
    paint(Chart("reward", "Reward", "", "", "", [series], names=["games"]), axes, LIGHT)
    ((segment,),) = (bars.get_segments() for bars in axes.collections)
    assert segment[:, 1].tolist() == pytest.approx([0.4, 0.7])


def test_a_run_with_one_iteration_and_one_that_has_only_begun_can_be_shown(run_folder):
    shutil.rmtree(run_folder / "iter_2")
    assert {"reward", "histogram", "loss"} <= charts(run_folder).keys()
    (run_folder / "state.json").unlink()
    shutil.rmtree(run_folder / "iter_0")
    (run_folder / "iter_1" / "metrics.jsonl").unlink()
    assert {"reward", "histogram"} <= charts(run_folder).keys()
    source = discover(run_folder)
    assert "0 of 3 iterations trained" in facts(source, [scan(file) for file in source.files], datetime.now(UTC))


def test_training_games_of_a_run_that_plays_ahead_stand_at_the_policy_that_played_them(run_folder):
    manifest = run_folder / "manifest.json"
    found = json.loads(manifest.read_text())
    found["config"]["iterate"]["ahead"] = 1
    manifest.write_text(json.dumps(found))
    write_episodes(run_folder / "iter_3" / "selfplay_games.jsonl", make_episodes(4, 3, seed=3))
    played = {series.label: list(series.x) for series in charts(run_folder)["reward"].series}
    assert played["training episodes"] == [0, 0, 1]


def test_groups_without_signal_are_those_of_the_rewards_that_are_trained_on(run_folder):
    run = RunDirectory(run_folder)
    run.load()
    before = charts(run_folder)["flat_groups"].series[0].y
    converted = Converted(groups=8, groups_without_signal=2, trained_reward=0.5)
    run.finish(1, "convert", StageRecord(seconds=1, figures=converted.model_dump(mode="json")))
    assert list(charts(run_folder)["flat_groups"].series[0].y) == [0.25, before[1]]
    page, _ = render(discover(run_folder), [], lambda scan: None, 1_000_000, AT)
    row = next(one for one in page[page.index('id="iterations"') :].split("<tr>") if '<th scope="row">1</th>' in one)
    assert "<td>25%</td>" in row
    assert "2/8" in [cell for column in run_table(run).columns for cell in column.cells]


@pytest.mark.parametrize(("seat", "turns"), [(0, 1), (1, 1), (None, 2)])
def test_the_seats_of_a_player_that_plays_with_its_namesake_are_those_that_were_evaluated(tmp_path, seat, turns):
    states = held_out_states(MatchingGame(BOARD), 3)
    job = EvaluationJob("sharing", states, tmp_path, partner="sharing", seat=seat, episodes=1)
    evaluation = asyncio.run(run_evaluate(load_config("tiny_honest", {}), job))
    (file,) = discover(tmp_path).files
    assert scan(file).figures["turns"].value == turns
    assert scan(file).figures["messages"].value == evaluation.modes["scripted"].figures["messages"].value


def test_a_file_that_has_only_begun_draws_no_point(run_folder):
    for episodes in ([], make_episodes(3, 1)):
        write_episodes(run_folder / "iter_2" / "selfplay_games.jsonl", episodes)
        assert list(charts(run_folder)["flat_groups"].series[0].x) == [0]


@pytest.mark.parametrize("reject", [0.0, 1.0])
def test_what_agreed_episodes_earn_is_drawn_where_there_are_any(tmp_path, reject):
    habits = Habits(talk=0, spoil=0, cut=0, reject=reject)
    path = write_episodes(tmp_path / "games.jsonl", make_episodes(3, 1, habits=habits))
    every, agreed = charts(path)["reward"].series
    assert (list(every.x), list(agreed.x)) == ([0], [] if reject else [0])


def test_steps_are_numbered_through_the_iterations_and_many_are_drawn_as_means(run_folder):
    write_steps(run_folder / "iter_2", {"actor/pg_loss": 0.5})
    assert list(charts(run_folder)["loss"].series[0].x) == [1, 2, 3]
    (run_folder / "iter_2" / "metrics.jsonl").unlink()
    write_steps(run_folder / "iter_1", *({"actor/pg_loss": float(n)} for n in range(1, 1201)))
    (series,) = charts(run_folder)["loss"].series
    assert series.label == "means of 3 steps" and len(series.y) == 400
    assert list(series.y[:2]) == list(series.x[:2]) == [2, 5]


def test_an_online_training_has_a_report(tmp_path):
    held_out, reward = "held_out/reward", "selfplay/reward"
    write_steps(
        tmp_path, {"step": 0, held_out: 0.7}, {"step": 1, reward: 0.75}, {"step": 2, reward: 0.8, held_out: 0.9}
    )
    for beside in ("server_0_weights", "weight_versions", "games.people"):
        (tmp_path / f"{beside}.jsonl").write_text('{"step": 1}\n')
    found = charts(tmp_path)
    assert found.keys() == {"step_reward", "step_held_out"}
    assert list(found["step_held_out"].series[0].x) == [0, 2]
    assert list(found["step_reward"].series[0].x) == [1, 2]


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.long
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


@pytest.mark.long
def test_a_crossplay_folder_has_a_report(tmp_path):
    config = load_config("tiny", {})
    states = held_out_states(MatchingGame(config.game), 3)
    players, arms = ["random", "sharing", "silent"], ["a", "a", ""]
    result = asyncio.run(run_crossplay(config, players, states, 1, tmp_path / "crossplay", arms))
    found = charts(tmp_path / "crossplay")
    reward, matrix = found["reward"], found["matrix"]
    assert len(reward.names) == len(reward.series[0].x) == 9
    assert [list(row.y) for row in matrix.series] == [[cell.value for cell in row] for row in result.rewards]
    assert list(matrix.names) == ["0: a", "1: a", "2: silent"]
    for chart in (reward, matrix):
        assert draw(chart, "png").startswith(b"\x89PNG")
    drawn = draw(matrix, "svg").decode()
    assert all(f"[{cell.low:.2f}, {cell.high:.2f}]" in drawn for row in result.rewards for cell in row)
    source = discover(tmp_path / "crossplay")
    told = facts(source, [], datetime.now(UTC))
    assert f"a: {result.gaps['a'].in_words()}" in told and not [fact for fact in told if "lost" in fact]
    lossy = replace(source, crossplay=source.crossplay.model_copy(update={"lost": 3}))
    assert "3 episodes lost to the engine or a chat model" in facts(lossy, [], datetime.now(UTC))


@pytest.mark.parametrize(
    ("path", "kind"),
    [("iter_1", "iteration"), ("iter_0/evaluation", "episodes"), ("iter_1/selfplay_games.jsonl", "episodes")],
)
def test_an_iteration_an_evaluation_and_a_file_have_reports_and_an_empty_folder_has_none(
    whole_run, tmp_path, path, kind
):
    assert discover(whole_run / path).kind == kind
    found = charts(whole_run / path)
    assert found["reward"].style == "points" and "histogram" in found and ("loss" in found) == (kind == "iteration")
    with pytest.raises(UserError, match="give a run directory"):
        discover(tmp_path)


# --- pictures


@pytest.mark.long
def test_a_plot_is_of_the_format_that_its_name_says_and_repeats_to_the_byte(tmp_path):
    source = discover(write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2)))
    scans = [scan(file) for file in source.files]
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for path in write_plots(source, scans, ["png", "svg", "pdf"], tmp_path / "plots"):
        assert path.read_bytes().startswith(starts.pop(path.suffix, path.read_bytes()))
    reward = charts_of(source, scans)[0]
    assert not starts and draw(reward, "svg") == (tmp_path / "plots" / "reward.svg").read_bytes()
    with matplotlib.rc_context({"text.usetex": True, "lines.linewidth": 9, "font.family": "cursive"}):
        assert draw(reward, "svg") == (tmp_path / "plots" / "reward.svg").read_bytes(), "a user's style changes nothing"
    assert draw(reward, "svg", DARK) != draw(reward, "svg")


@pytest.mark.parametrize("values", [[1e-6, 1e-4, 1e-2], [2e-4, 3e-4, 4e-4]], ids=["decades", "less than one"])
def test_a_logarithmic_axis_has_numbers_to_read(values):
    chart = Chart("gap", "Gap", "", "step", "nats", [Series("each step", [1, 2, 3], values)], log=True)
    text = draw(chart, "svg").decode()
    assert re.search(r"\de\N{MINUS SIGN}0\d", text)
    assert "mathdefault" not in text


@pytest.mark.parametrize("log", [True, False], ids=["logarithmic", "linear"])
@pytest.mark.parametrize(
    "values", [[4e-7], [4e-7, 4.05e-7, 4.1e-7], [4e-7, 4.000001e-7], [1e-6, 1.1e-6, 1e-2], [0.3, 0.5], [8, 9.5, 11]]
)
def test_the_ticks_of_an_axis_tell_numbers_apart(monkeypatch, values, log):
    monkeypatch.setitem(matplotlib.rcParamsDefault, "svg.fonttype", "none")
    series = Series("each step", [*range(len(values))], values)
    text = draw(Chart("gap", "Gap", "", "step", "nats", [series], log=log), "svg").decode()
    ticks = re.findall(r"<text[^>]*>([^<a-df-zA-Z]+)</text>", text.partition('id="matplotlib.axis_2"')[2])
    assert len(ticks) == len({*ticks}) > 1


def test_names_of_files_are_drawn_as_they_are(tmp_path):
    source = discover(write_episodes(tmp_path / "_$x_{bad$\x01.jsonl", make_episodes(1, 2)))
    for chart in charts_of(source, [scan(file) for file in source.files]):
        ElementTree.fromstring(draw(chart, "svg"))


# --- the page


@pytest.mark.long
def test_the_dark_picture_of_a_chart_is_what_drawing_it_in_dark_gives(whole_run):
    def nameless(svg: bytes) -> bytes:
        return re.sub(rb"\b[mph][0-9a-f]{10}\b", b"", svg)

    for chart in (charts(whole_run)[key] for key in ("reward", "entropy")):
        assert nameless(in_dark(draw(chart, "svg", LIGHT))) == nameless(draw(chart, "svg", DARK))


def page_of(tmp_path: Path, records, max_bytes: int = 1_000_000) -> str:
    source = discover(write_episodes(tmp_path / "games.jsonl", records))
    scans = [scan(file) for file in source.files]
    decoder = ByteDecoder()
    return render(source, scans, lambda found: decoder, max_bytes, AT)[0]


def test_hostile_text_cannot_leave_its_place(tmp_path):
    page = page_of(tmp_path, [spoken(HOSTILE)])
    assert "alert(1)" in page
    assert "<script>alert" not in page and "<img src=x" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    assert data["episodes"][0]["turns"][0]["text"] == HOSTILE


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


@pytest.mark.long
def test_the_command_writes_a_page_of_bounded_size_or_plots_beside_what_it_reads(tmp_path):
    path = str(
        write_episodes(tmp_path / "games.jsonl", [spoken(f"[message] {'<&>' * 300}", group=n) for n in range(60)])
    )
    said = selfplay("report", path, "--max-megabytes", "0.5").stdout
    page = tmp_path / "report.html"
    shown = re.search(r"with (\d+) of 60 episodes \(--max-megabytes takes more\)", said)
    assert 0 < int(shown[1]) < 60 and page.stat().st_size <= 500_000
    assert f"{shown[1]} of 60 episodes are in this page" in page.read_text()
    assert "of 60 episodes" not in selfplay("report", path).stdout and "<title>Episodes: " in page.read_text()
    assert selfplay("report", path, "--format", "gif").returncode == 2
    selfplay("report", path, "--format", "svg,pdf")
    found = {file.name for file in (tmp_path / "plots").iterdir()}
    assert found == {f"{chart}.{kind}" for chart in ("histogram", "reward") for kind in ("pdf", "svg")}
