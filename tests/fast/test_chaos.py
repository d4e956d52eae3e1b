"""The harness of bad inputs can fail: each outcome is told from the others, and a case can be run again."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from chaos import __main__ as harness
from chaos.cases import Case, Verdict
from chaos.command import Ended, Limits, run_program
from chaos.inputs import cases
from chaos.judge import Expected, judge, judge_good, listing

EXPECTED = Expected(r"games\.jsonl:3")


@cache
def names(seed: int) -> list[str]:
    return [case.name for case in cases(seed)]


def verdict(folder: Path, code: str, limits: Limits = Limits()) -> Verdict:
    """Judge a small program in a folder of its own."""
    before = listing(folder)
    ended = run_program([sys.executable, "-c", code], folder, limits)
    return judge(ended, EXPECTED, before, listing(folder))


def refusal(message: str, code: int = 2, further: str = "pass") -> str:
    return f"import sys; {further}; print({message!r}, file=sys.stderr); sys.exit({code})"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "case"
    place.mkdir()
    return place


def test_the_list_of_bad_inputs_is_long_enough_and_names_are_unique():
    assert len(names(0)) >= 400
    assert len(set(names(0))) == len(names(0))


def test_the_list_is_the_same_for_a_seed():
    assert [case.name for case in cases(0)] == names(0)
    assert names(1) != names(0)


def test_every_option_of_every_command_is_tried():
    from chaos.inputs.options import COMMANDS, FREE, commands

    untried = {name for name, _ in commands()} - set(COMMANDS)
    assert untried == {"model smollm2"}  # it takes a folder and nothing else
    tried = " ".join(names(0))
    for command, options in commands():
        for option in options:
            elsewhere = command in untried or option.name == "dry_run" or (command, option.name) in FREE
            assert elsewhere or f"options/{command}{option.opts[0]}".replace(" ", "-").replace("--", "-") in tried


def test_one_line_that_names_the_place_is_handled(folder):
    assert verdict(folder, refusal("selfplay: games.jsonl:3: field 'episode' is missing")).outcome == "handled"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("raise ValueError('games.jsonl:3')", "traceback"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "traceback"),
        ("print('done')", "accepted"),
        (refusal("selfplay: something is wrong"), "obscure"),
        (refusal("selfplay: games.jsonl:3: bad", code=1), "obscure"),
        (refusal("games.jsonl:3: bad"), "obscure"),
        (refusal("selfplay: games.jsonl:3: bad\nand more"), "obscure"),
        (refusal("selfplay: games.jsonl:3: \x1b[31mbad"), "obscure"),
        (refusal("selfplay: games.jsonl:3: " + "bad " * 1000), "obscure"),
        (refusal("selfplay: games.jsonl:3: bad", further="open('half.parquet.tmp', 'w')"), "left"),
    ],
)
def test_each_outcome_is_told_from_the_others(folder, code, outcome):
    assert verdict(folder, code).outcome == outcome


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(folder):
    code = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    assert verdict(folder, code, Limits(seconds=0.5)).outcome == "hung"


def test_a_command_that_takes_too_much_memory_is_ended(folder):
    code = "import time; held = b'x' * 200_000_000; time.sleep(60)"
    found = verdict(folder, code, Limits(gigabytes=0.15))
    assert found.outcome == "hung" and "GB" in found.detail


def test_a_command_that_starts_a_trainer_has_accepted_its_input(folder):
    trainer = "[sys.executable, '-c', 'import time; time.sleep(60)', 'train.verl.main']"
    found = verdict(folder, f"import subprocess, sys; subprocess.run({trainer})")
    assert found.outcome == "accepted" and "train.verl.main" in found.detail


def test_a_good_input_that_is_refused_is_no_control():
    refused = Ended(2, "", "selfplay: no\n", 0.1)
    assert judge_good(refused, begins=False).outcome == "obscure"
    assert judge_good(Ended(0, "", "", 0.1), begins=False).outcome == "handled"
    assert judge_good(Ended(0, "", "", 0.1), begins=True).outcome == "obscure"


def test_changed_and_removed_files_are_seen_but_locks_are_not(folder):
    (folder / "kept").write_text("as it was")
    before = listing(folder)
    (folder / ".lock").touch()
    (folder / "run.lock").touch()
    assert listing(folder) == before
    (folder / "kept").write_text("otherwise, and longer")
    assert listing(folder) != before


def test_cases_that_are_in_the_results_are_not_run_again(tmp_path, monkeypatch, capsys):
    ran = []

    def case(name: str, outcome: str) -> Case:
        def tried(folder: Path) -> Verdict:
            ran.append(name)
            return Verdict(outcome, "as planned")

        return Case("kind", name, tried)

    monkeypatch.setattr(harness, "begin", lambda: None)
    monkeypatch.setattr(harness, "chosen", lambda options: [case("one", "handled"), case("two", "accepted")])
    arguments = ["--results", str(tmp_path / "results.jsonl")]
    assert harness.main(arguments) == 1
    assert harness.main(arguments) == 1
    assert sorted(ran) == ["one", "two"]
    said = capsys.readouterr().out
    assert 'make chaos ARGS="--case two --keep"' in said
    total = next(line.split() for line in said.splitlines() if line.startswith("all "))
    assert total == ["all", "2", "1", "0", "0", "1", "0", "0", "0"]


def test_a_failure_of_the_harness_is_not_taken_for_handled(tmp_path):
    def broken(folder: Path) -> Verdict:
        raise RuntimeError("no good input")

    result = harness.run_one(Case("kind", "name", broken), tmp_path / "case", keep=False)
    assert result.outcome == "lost" and "harness" in result.detail
