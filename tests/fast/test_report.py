"""Reports: what a play reads like, which plays go into a page, what is drawn, and that hostile text stays text."""

import base64
import hashlib
import itertools
import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from factories import BOARD, Habits, make_play, make_plays, play_records, write_plays
from hypothesis import given, settings

from selfplay_pipeline.config import load_config
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.evaluate.figures import Tally
from selfplay_pipeline.files import write_json
from selfplay_pipeline.games.matching import MatchingGame
from selfplay_pipeline.games.types import Status
from selfplay_pipeline.generate.records import PlayRecord
from selfplay_pipeline.iterate.manifest import RunDirectory, StageRecord, describe
from selfplay_pipeline.report import reading, sample
from selfplay_pipeline.report.charts import Chart, charts_of
from selfplay_pipeline.report.draw import DARK, draw
from selfplay_pipeline.report.page import facts, render
from selfplay_pipeline.report.reading import gains, read_board, read_play, read_stream
from selfplay_pipeline.report.run import write_plots
from selfplay_pipeline.report.sample import take_sample
from selfplay_pipeline.report.scan import Scan, scan
from selfplay_pipeline.report.sources import GamesFile, discover

HOSTILE = "[message] </script><script>alert(1)</script><img src=x onerror=alert(2)> & \u202e" + "x" * 5_000


class ByteDecoder:
    """Of the factories' byte-level tokenizer; special tokens as their text, halves of characters as �."""

    def decode(self, ids: list[int]) -> str:
        special = {256: b"<|im_start|>", 257: b"<|im_end|>"}
        return b"".join(special.get(token) or bytes([token]) for token in ids).decode(errors="replace")


def spoken(text: str, **options) -> PlayRecord:
    """A play whose first words are these."""
    record = make_play(**options, habits=Habits(spoil=0, cut=0))
    turn = record.turns[0].model_copy(update={"text": text})
    return record.model_copy(update={"turns": [turn, *record.turns[1:]]})


def scan_of(path: Path, records, mode="training", iteration=None) -> Scan:
    return scan(GamesFile(write_plays(path, records), mode, path.stem, iteration))


# --- one play


@settings(max_examples=60, deadline=None)
@given(play_records())
def test_gains_add_up_to_what_the_proposal_lacks(record):
    board, play = read_board(record), read_play(record)
    cells = gains(board, play)
    if play.proposal is None:
        assert cells == []
        return
    assert sum(cell.best_score for cell in cells) == board.best
    assert all(board.table[cell.proposed][cell.paper] == cell.proposed_score for cell in cells)
    assert sum(cell.gain for cell in cells) <= 0
    if play.agreed:
        assert sum(cell.gain for cell in cells) == record.outcome.score - board.best


@settings(max_examples=60, deadline=None)
@given(play_records())
def test_of_several_optima_the_one_most_like_the_proposal_is_shown(record):
    board, play = read_board(record), read_play(record)
    optima = [
        order
        for order in itertools.permutations(range(3))
        if sum(board.table[reviewer][paper] for paper, reviewer in enumerate(order)) == board.best
    ]
    assert tuple(play.optimum) in optima
    if play.proposal is not None:
        alike = [sum(a == b for a, b in zip(order, play.proposal, strict=True)) for order in optima]
        assert sum(a == b for a, b in zip(play.optimum, play.proposal, strict=True)) == max(alike)


@settings(max_examples=60, deadline=None)
@given(play_records())
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
    trajectory = make_play(1, habits=Habits(spoil=1, cut=0)).trajectories[0]
    texts = [text for run in read_stream(trajectory, ByteDecoder()).runs for text in run.texts]
    assert "ï" in texts and "雪" in texts
    assert not any("�" in text for text in texts)


def test_very_long_texts_and_trajectories_are_cut_with_a_count(monkeypatch):
    play = read_play(spoken("[message] " + "y" * 20_000))
    assert play.turns[0].text.endswith("… (12010 more characters)")
    monkeypatch.setattr(reading, "MOST_TOKENS", 20)
    stream = read_stream(make_play().trajectories[0], ByteDecoder())
    assert sum(run.tokens for run in stream.runs) == 20
    trajectory = make_play().trajectories[0]
    assert stream.left_out == len(trajectory.prompt_ids) + len(trajectory.response_ids) - 20


# --- a file of plays


def test_a_file_is_scanned_to_the_figures_that_evaluate_computes(tmp_path):
    records = list(make_plays(6, 3))
    found = scan_of(tmp_path / "games.jsonl", records)
    assert found.figures == Tally(MatchingGame(BOARD), 6, self_play=True).add(records).totals().intervals()
    assert [place.reward for place in found.places] == [record.outcome.normalized_reward for record in records]
    assert found.summary.to_dict()["token_entropy"] > 0


def test_plays_lost_to_the_engine_are_listed_but_in_no_figure(tmp_path):
    records = [make_play(0), make_play(1, ends_after=1, ends_with=Status.ENGINE_FAILURE)]
    found = scan_of(tmp_path / "games.jsonl", records)
    assert len(found.places) == 2 and len(found.rewards) == 1
    assert scan_of(tmp_path / "lost.jsonl", records[1:]).figures == {}


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path):
    path = write_plays(tmp_path / "games.jsonl", make_plays(2, 2))
    whole = path.read_text()
    path.write_text(whole + whole[:100])
    assert len(scan(GamesFile(path, "training", "games")).places) == 4


def test_a_bad_line_is_named(tmp_path):
    path = write_plays(tmp_path / "games.jsonl", make_plays(1, 2))
    path.write_text(path.read_text() + '{"schema_version": 1}\n')
    with pytest.raises(UserError, match=r"games\.jsonl:3: field 'game_id'"):
        scan(GamesFile(path, "training", "games"))


# --- which plays are in the page


def test_everything_is_taken_where_it_fits(tmp_path):
    scans = [scan_of(tmp_path / f"{n}.jsonl", make_plays(3, 4, seed=n)) for n in (0, 1)]
    taken = take_sample(scans, lambda found: ByteDecoder(), 10_000_000)
    assert taken.rule == "all plays"
    assert [play.id for play in taken.plays] == [r.game_id for n in (0, 1) for r in make_plays(3, 4, seed=n)]
    assert [taken.boards[k].group for k in taken.board_of] == [n for _ in (0, 1) for n in (0, 1, 2) for _ in range(4)]


def test_a_large_file_gives_whole_groups_with_its_telling_plays_within_the_budget(tmp_path):
    records = list(make_plays(40, 4))
    found = scan_of(tmp_path / "games.jsonl", records)
    taken = take_sample([found], lambda found: None, 60_000)
    assert taken.rule == sample.RULE and 0 < len(taken.plays) < 160
    boards, plays = [board.model_dump() for board in taken.boards], [play.model_dump() for play in taken.plays]
    assert sum(len(sample.embedded(part).encode()) for part in boards + plays) <= 60_000
    groups = {taken.boards[k].group for k in taken.board_of}
    assert len(taken.plays) == 4 * len(groups)
    ranked = sorted(records, key=lambda record: record.outcome.normalized_reward)
    rewards = [play.reward for play in taken.plays]
    assert min(rewards) == ranked[0].outcome.normalized_reward
    assert max(rewards) == ranked[-1].outcome.normalized_reward
    assert max(play.illegal for play in taken.plays) == max(record.outcome.num_illegal for record in records)


def test_groups_are_taken_evenly_over_the_file():
    assert list(sample._spread(8)) == [0, 4, 2, 6, 1, 5, 3, 7]
    for count in (1, 2, 3, 5, 100):
        assert sorted(sample._spread(count)) == list(range(count))


def test_what_markup_adds_when_escaped_counts(tmp_path):
    found = scan_of(tmp_path / "games.jsonl", [spoken("[message] " + "<" * 4_000, group=n) for n in range(10)])
    taken = take_sample([found], lambda found: None, 60_000)
    assert len(taken.plays) == 2


# --- runs


@pytest.fixture
def run_folder(tmp_path) -> Path:
    """A run in its second iteration: training games with their arguments, an evaluation, verl's metrics."""
    run = RunDirectory(tmp_path / "run")
    config = load_config("tiny", {"iterate.num_iterations": 3})
    write_json(run.path / "manifest.json", describe(config.model_dump(mode="json")))
    for number in (1, 2):
        write_plays(run.games(number), make_plays(4, 3, seed=number))
        arguments = {f"game.{key}": value for key, value in BOARD.model_dump().items()}
        write_json(run.games(number).with_suffix(".args.json"), arguments)
    write_plays(run.iteration(0) / "evaluation" / "sampled.jsonl", make_plays(5, 1, seed=7))
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
    play = scan(GamesFile(run.games(1), "training", "")).summary.to_dict()
    train = {"checkpoint": "c", "carried": False, "steps": 2, "log_prob_gap": 1e-4}
    run.finish(1, "generate", StageRecord(seconds=3, figures=play))
    run.finish(1, "train", StageRecord(seconds=9, figures=train))
    return run.path


def charts(path: Path) -> dict[str, Chart]:
    source = discover(path)
    return {chart.key: chart for chart in charts_of(source, [scan(file) for file in source.files])}


def test_training_games_are_drawn_at_the_policy_that_played_them(run_folder):
    found = charts(run_folder)
    by_label = {series.label: series for series in found["reward"].series}
    assert list(by_label["training games"].x) == [0, 1]
    assert list(by_label["held out, sampled"].x) == [0]
    (low, value, high) = (getattr(by_label["training games"], name)[0] for name in ("low", "y", "high"))
    assert low <= value <= high
    assert list(found["entropy"].series[0].x) == [0, 1]


def test_the_four_reference_lines_stand_beside_the_rewards(run_folder):
    lines = charts(run_folder)["reward"].lines
    assert list(lines) == ["random", "own view", "human pairs (8×8)", "optimum"]
    assert 0 < lines["random"] < lines["own view"] < 1 == lines["optimum"]


def test_time_steps_and_rewards_are_drawn(run_folder):
    found = charts(run_folder)
    assert {series.label: list(series.y) for series in found["seconds"].series if series.x} == {
        "generate": [3], "train": [9],
    }  # fmt: skip
    assert list(found["loss"].series[0].y) == [0.1, 0.2]
    sampled = [sum(sum(t.response_mask) for r in make_plays(4, 3, seed=n) for t in r.trajectories) for n in (1, 2)]
    tokens = {series.label: list(series.y) for series in found["tokens"].series}
    assert tokens["generate, sampled"] == sampled
    assert tokens["train"] == [24]
    assert found["log_prob_gap"].log and list(found["log_prob_gap"].series[1].y) == [1e-4]
    for series in found["histogram"].series:
        assert sum(series.y) == pytest.approx(1)


def test_a_run_with_one_iteration_and_one_that_has_only_begun_can_be_shown(run_folder):
    shutil.rmtree(run_folder / "iter_2")
    assert {"reward", "histogram", "loss"} <= charts(run_folder).keys()
    (run_folder / "state.json").unlink()
    shutil.rmtree(run_folder / "iter_0")
    (run_folder / "iter_1" / "metrics.jsonl").unlink()
    assert {"reward", "histogram"} <= charts(run_folder).keys()
    source = discover(run_folder)
    assert "0 of 3 iterations trained" in facts(source, [scan(file) for file in source.files], datetime.now(UTC))


def test_an_iteration_an_evaluation_and_a_file_have_reports(run_folder):
    for path, kind in (
        ("iter_1", "iteration"),
        ("iter_0/evaluation", "games"),
        ("iter_1/selfplay_games.jsonl", "games"),
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


def test_plots_are_written_in_every_format_and_repeat_to_the_byte(tmp_path):
    source = discover(write_plays(tmp_path / "games.jsonl", make_plays(2, 2)))
    scans = [scan(file) for file in source.files]
    paths = write_plots(source, scans, ["png", "svg", "pdf"], tmp_path / "plots")
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert {path.name for path in paths} == {f"{name}{end}" for name in ("reward", "histogram") for end in starts}
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix])
    reward = charts_of(source, scans)[0]
    assert draw(reward, "svg") == (tmp_path / "plots" / "reward.svg").read_bytes()
    assert draw(reward, "svg", DARK) != draw(reward, "svg")


# --- the page


def page_of(tmp_path: Path, records) -> str:
    source = discover(write_plays(tmp_path / "games.jsonl", records))
    scans = [scan(file) for file in source.files]
    taken = take_sample(scans, lambda found: ByteDecoder(), 1_000_000)
    return render(source, scans, taken, datetime(2026, 1, 1, tzinfo=UTC))


def test_hostile_text_cannot_leave_its_place(tmp_path):
    page = page_of(tmp_path, [spoken(HOSTILE)])
    assert "alert(1)" in page
    assert "<script>alert" not in page and "<img src=x" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    assert data["plays"][0]["turns"][0]["text"] == HOSTILE


def test_the_page_allows_itself_nothing_but_its_own_script_and_style(tmp_path):
    page = page_of(tmp_path, make_plays(1, 2))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src 'none'; img-src data:;")
    for kind, tag in (("script", "script"), ("style", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy.replace("&#39;", "'")
    outside = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)
    assert not re.findall(r"(?:src|href|srcset)=\"(?!#|data:)", outside)
