"""The fault harness can fail: each outcome is told from the others, and lost or doubled episodes are seen."""

import json
from pathlib import Path

import pytest

from chaos import __main__ as harness
from chaos.endurance import slope
from chaos.faults import cases
from chaos.judging import Case, Verdict, judge
from chaos.outside import Ended
from chaos.signals import expected_codes, stage_begun
from chaos.traces import contents_of, differences

FINE = Ended(0, "", 1.0)


def episode(number: int, status: str = "agreed", score: int = 1) -> str:
    return json.dumps({"episode_id": f"s0-g{number:06d}-p0", "outcome": {"status": status, "score": score}}) + "\n"


def compared(folder: Path, *lines: str, **how: bool) -> list[str]:
    """What is wrong with a file of these lines, where episodes 0 and 1 are expected."""
    for name, text in (("undisturbed", episode(0) + episode(1)), ("found", "".join(lines))):
        (folder / name).mkdir()
        (folder / name / "games.jsonl").write_text(text)
    return differences(contents_of(folder / "undisturbed", **how), contents_of(folder / "found", **how))


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([episode(0)], "1 missing"),
        ([episode(0), episode(1), episode(1)], "1 twice"),
        ([episode(0), episode(1, score=2)], "1 missing, 1 other than undisturbed"),
        ([episode(0), episode(1, status="engine_failure")], "s0-g000001-p0 lost to an engine failure"),
        ([episode(0), episode(1).rstrip("\n")], "unreadable"),
        ([episode(0), episode(1).replace("1}", "NaN}")], "unreadable"),
    ],
    ids=["lost", "doubled", "another", "failed", "torn", "not-json"],
)
def test_an_episode_that_is_not_there_once_and_whole_is_a_difference(tmp_path, lines, what):
    (problem,) = compared(tmp_path, *lines)
    assert what in problem


def test_the_order_is_no_difference_and_of_policies_that_sample_only_the_ids_are_compared(tmp_path):
    assert compared(tmp_path, episode(1), episode(0, score=2), texts=False) == []


@pytest.mark.parametrize(
    ("first", "how", "outcome"),
    [
        (Ended(1, "playing 3/4\nselfplay: the disk is full\n", 1), {}, "handled"),
        (Ended(-9, "", 1), {"codes": (-9,)}, "handled"),
        (Ended(None, "", 1), {}, "hung"),
        (Ended(1, "Traceback (most recent call last):\nOSError: no\n", 1), {}, "traceback"),
        (Ended(1, "selfplay: no\n", 1), {"again": Ended(2, "selfplay: in use\n", 1)}, "lost"),
        (Ended(1, "selfplay: no\n", 1), {"lost": ["games.jsonl: 1 missing"]}, "lost"),
        (Ended(1, "selfplay: no\n", 1), {"left": ["process 7 sleep"]}, "left"),
        (FINE, {}, "unexpected"),
        (Ended(1, "", 1), {}, "unexpected"),
        (Ended(1, "selfplay: no\nand more\n", 1), {}, "unexpected"),
        (Ended(1, "selfplay: warning: no\n", 1), {}, "unexpected"),
    ],
)
def test_each_outcome_is_told_from_the_others(first, how, outcome):
    assert judge(**{"first": first, "again": FINE, "codes": (1, 2)} | how).outcome == outcome


def test_faults_have_names_of_their_own(capsys):
    names = [case.name for case in cases(0)]
    assert len(set(names)) == len(names) >= 40
    assert harness.main(["--list", "--kind", "kills"]) == 0 and "kill-at-random-1" in capsys.readouterr().out


def test_a_failure_of_the_harness_is_not_taken_for_handled(tmp_path):
    def broken(folder: Path) -> Verdict:
        raise RuntimeError("no good input")

    result = harness.run_one(Case("kind", "name", broken), tmp_path / "case", keep=False)
    assert result.verdict.outcome == "unexpected" and "harness" in result.verdict.detail
    assert harness.table([result]).splitlines()[-1].split() == ["all", "1", "0", "0", "0", "0", "0", "1"]


def test_a_signal_landed_in_the_newest_stage_that_was_said_to_begin():
    said = "configuration: tiny\niteration 0/1: evaluate with a\niteration 1/1: generate with a\nplaying 3/4\n"
    assert (stage_begun("configuration: tiny\n"), stage_begun(said)) == ("start-up", "generate 1")
    assert (expected_codes("SIGKILL"), expected_codes("SIGTERM")) == ({-9}, {130, 143, -15})


def test_growth_is_measured_after_the_program_has_loaded_what_it_needs():
    measured = ((0, 10), (20_000, 100), (60_000, 104), (100_000, 108))
    assert slope(measured) == pytest.approx(1.0)
