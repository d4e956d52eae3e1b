"""The harness of faults notices what it looks for: planted losses, duplicates, remains and wrong ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaos.judging import judge
from chaos.outside import Ended, Running
from chaos.signals import EPOCHS, expected_codes, problems_of_iteration, problems_of_run, stage_begun
from chaos.traces import contents_of, differences
from chaos.twice import delivered, stored_after

MODEL = Path(__file__).parents[2] / "data" / "tiny_honest_model"
GOOD, STOPPED = Ended(0, "", 1.0), Ended(2, "selfplay: a line that says what to do", 1.0)
TRACEBACK = Ended(1, "Traceback (most recent call last):\nValueError: no", 1.0)


@pytest.mark.parametrize(
    ("first", "again", "lost", "left", "outcome"),
    [
        (STOPPED, GOOD, [], [], "handled"),
        (Ended(None, "", 60.0), GOOD, [], [], "hung"),
        (STOPPED, Ended(None, "", 60.0), [], [], "hung"),
        (TRACEBACK, GOOD, [], [], "traceback"),
        (STOPPED, TRACEBACK, [], [], "traceback"),
        (STOPPED, STOPPED, [], [], "lost"),
        (STOPPED, GOOD, ["an episode is missing"], ["a server"], "lost"),
        (STOPPED, GOOD, [], ["a server"], "left"),
        (Ended(1, "selfplay: another exit code", 1.0), GOOD, [], [], "unexpected"),
        (Ended(2, "selfplay: two\nlines", 1.0), GOOD, [], [], "unexpected"),
        (Ended(2, "no message of the program", 1.0), GOOD, [], [], "unexpected"),
    ],
)
def test_the_worst_observation_decides(first, again, lost, left, outcome):
    assert judge(first, again, {2}, lost, left).outcome == outcome


def test_a_killed_command_needs_no_message():
    assert judge(Ended(-9, "", 1.0), GOOD, {-9}).outcome == "handled"
    assert judge(Ended(2, "", 1.0), GOOD, {2}, silent=True).outcome == "handled"
    assert expected_codes("SIGKILL") == {-9} and expected_codes("SIGTERM") == {130, 143, -15}


def line_of(name: str, status: str = "agreed", text: str = "") -> str:
    return json.dumps({"episode_id": name, "outcome": {"status": status}, "text": text}) + "\n"


UNDISTURBED = line_of("a") + line_of("b")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (line_of("b") + line_of("a"), None),
        (line_of("a"), "1 missing"),
        (UNDISTURBED + line_of("a"), "1 twice"),
        (line_of("a") + line_of("b", text="another"), "1 missing, 1 other than undisturbed"),
        (line_of("a") + line_of("b", "engine_failure"), "b lost to an engine failure"),
        (UNDISTURBED[:-1], "unreadable"),
        (UNDISTURBED[:-9], "unreadable"),
    ],
)
def test_a_difference_to_the_undisturbed_episodes_is_told(tmp_path, found, told):
    folders = [tmp_path / "undisturbed", tmp_path / "found"]
    for folder, text in zip(folders, (UNDISTURBED, found), strict=True):
        folder.mkdir()
        (folder / "games.jsonl").write_text(text)
    lines = differences(*map(contents_of, folders))
    assert lines == [] if told is None else len(lines) == 1 and told in lines[0]


def test_files_that_are_missing_left_or_cut_are_told(tmp_path):
    pq.write_table(pa.table({"row": [1, 2]}), tmp_path / "rows.parquet")
    whole = contents_of(tmp_path)
    assert differences(whole, {}) == ["rows.parquet is missing"] and differences({}, whole) == ["rows.parquet was left"]
    (tmp_path / "rows.parquet").write_bytes((tmp_path / "rows.parquet").read_bytes()[:-1])
    (line,) = differences(whole, contents_of(tmp_path))
    assert "unreadable" in line


IDS = ["s0-g000000-p0", "s0-g000000-p1", "s0-g000001-p0", "s0-g000001-p1"]


@pytest.fixture
def iteration(tmp_path: Path) -> Path:
    """An iteration of two groups, both trained on in each epoch."""
    folder = tmp_path / "iter_1"
    folder.mkdir()
    (folder / "selfplay_games.jsonl").write_text("".join(map(line_of, IDS)))
    rows = pa.table({"extra_info": [{"index": group} for group in (0, 0, 1, 1)]})
    for name in ("train", "val"):
        pq.write_table(rows, folder / f"{name}.parquet")
    steps = [json.dumps({"step": step, "groups": [[0, 0], [0, 1]]}) + "\n" for step in range(1, EPOCHS + 1)]
    (folder / "metrics.jsonl").write_text("".join(steps))
    shutil.copytree(MODEL, folder / "checkpoint")
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_whole_iteration_has_no_fault(iteration):
    assert problems_of_iteration(iteration, IDS) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("selfplay_games.jsonl", line_of(IDS[0]), "", f"1 episodes are missing, such as {IDS[0]}"),
        ("selfplay_games.jsonl", line_of(IDS[0]), line_of(IDS[0]) * 2, f"twice or others, such as {IDS[0]}"),
        ("selfplay_games.jsonl", IDS[0], "s1-g000000-p0", "twice or others, such as s1-g000000-p0"),
        ("metrics.jsonl", '"step": 2', '"step": 1', "metrics.jsonl has the steps [1, 1]"),
        ("metrics.jsonl", "[[0, 0], [0, 1]]", "[[0, 0], [0, 0]]", "groups were not all trained on 2 times"),
        ("checkpoint/config.json", "{", "", "the checkpoint cannot be loaded"),
    ],
)
def test_a_planted_fault_of_an_iteration_is_told(iteration, file, old, new, told):
    change(iteration / file, old, new)
    assert any(told in problem for problem in problems_of_iteration(iteration, IDS))


@pytest.mark.parametrize("file", ["train.parquet", "val.parquet", "metrics.jsonl"])
def test_a_file_that_is_not_there_is_told(iteration, file):
    (iteration / file).unlink()
    assert any("Error" in problem for problem in problems_of_iteration(iteration, IDS))


def test_weights_that_are_not_finite_are_told(iteration):
    from safetensors.torch import load_file, save_file

    weights = load_file(iteration / "checkpoint" / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, iteration / "checkpoint" / "model.safetensors", {"format": "pt"})
    assert problems_of_iteration(iteration, IDS) == ["the checkpoint holds weights that are not finite"]


def test_what_a_run_left_is_told(iteration):
    (iteration / "metrics.jsonl.tmp").touch()
    assert problems_of_run(iteration.parent, 0, 1)[0] == "iter_1/metrics.jsonl.tmp was left"


def test_the_stage_of_a_signal_is_the_newest_that_was_announced():
    said = "member_0, iteration 1/2: generate with x\nmember_1, iteration 1/2: convert with y\n"
    assert [stage_begun(text) for text in ("", said, "iteration 2/2: train with z\n")] == [
        "start-up", "convert 1 of member_1", "train 2",
    ]  # fmt: skip


def test_contents_count_episodes_alone_where_policies_sample(tmp_path):
    (tmp_path / "games.jsonl").write_text(line_of("a", text="one") + line_of("a", text="two"))
    assert contents_of(tmp_path, texts=False) == {"games.jsonl": Counter({"a": 2})}


def test_what_is_written_after_a_signal_is_named(tmp_path):
    (tmp_path / "games.jsonl").write_text("{}\n")
    (tmp_path / "server.log").write_text("log")
    now = (tmp_path / "games.jsonl").stat().st_mtime
    assert stored_after(tmp_path, now) == []
    assert stored_after(tmp_path, now - 10) == ["games.jsonl was written after the signal"]
    os.utime(tmp_path / "games.jsonl", (0, 0))  # a file that was written before the signal, and renamed after it
    assert stored_after(tmp_path, now - 10) == ["games.jsonl was written after the signal"]


def test_a_signal_to_a_zombie_does_not_count(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    running = Running(process, tmp_path / "stderr")
    assert delivered(running, "SIGTERM")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not delivered(running, "SIGTERM") and process.returncode == -signal.SIGTERM
