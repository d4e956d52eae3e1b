"""What the fault harness makes of what it sees: episodes lost or doubled, verdicts, moments, growth."""

import json
from collections import Counter
from pathlib import Path

import pytest

from chaos.cases import Verdict
from chaos.endurance import Sample, slope
from chaos.faults import cases
from chaos.judging import Seen, judge
from chaos.outside import Ended
from chaos.runs import temporaries
from chaos.signals import STAGES, expected_codes, moments, stage_at_end, stage_begun
from chaos.traces import differences, fingerprint

FINE = Ended(0, "", "", 1.0)


def episode(number: int, status: str = "agreed", score: int = 1) -> str:
    return json.dumps({"episode_id": f"s0-g{number:06d}-p0", "outcome": {"status": status, "score": score}}) + "\n"


def compared(folder: Path, *lines: str, **how: bool) -> list[str]:
    """What is wrong with a file of these lines, where episodes 0 and 1 are expected."""
    for name, text in (("as_it_should_be", episode(0) + episode(1)), ("found", "".join(lines))):
        (folder / name).mkdir()
        (folder / name / "games.jsonl").write_text(text)
    return differences(fingerprint(folder / "as_it_should_be", **how), fingerprint(folder / "found", **how))


def ended(code: int | None, err: str = "") -> Ended:
    return Ended(code, "", err, 1.0)


def verdict(first: Ended, *, again: Ended = FINE, codes: tuple[int, ...] = (1, 2), **how: object) -> Verdict:
    return judge(Seen(first, again, codes, **how))  # type: ignore[arg-type]


def test_the_same_episodes_in_another_order_are_no_difference(tmp_path):
    assert compared(tmp_path, episode(1), episode(0)) == []


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


def test_of_policies_that_sample_only_the_ids_are_compared(tmp_path):
    assert compared(tmp_path, episode(0), episode(1, score=2), contents=False) == []


def test_a_file_more_or_less_is_a_difference():
    one, two = {"a": Counter()}, {"b": Counter()}
    assert differences(one, two) == ["a is missing", "b was left"]


def test_a_temporary_file_is_found_wherever_it_lies(tmp_path):
    (tmp_path / "iter_1").mkdir()
    (tmp_path / "iter_1" / ".train.parquet.7.tmp").touch()
    assert temporaries(tmp_path) == ["iter_1/.train.parquet.7.tmp was left"]


def test_a_fault_is_handled_when_the_command_says_why_it_ended_and_continues():
    assert verdict(ended(1, "playing 3/4\nselfplay: the disk is full\n")) == Verdict("handled", "the disk is full")


@pytest.mark.parametrize(
    ("first", "how", "outcome"),
    [
        (ended(None), {}, "hung"),
        (ended(1, "Traceback (most recent call last):\nOSError: no\n"), {}, "traceback"),
        (ended(130, "selfplay: stopped\nTraceback (most recent call last):\nKeyboardInterrupt\n"), {}, "traceback"),
        (ended(1, "selfplay: no\n"), {"again": ended(2, "selfplay: in use\n")}, "lost"),
        (ended(1, "selfplay: no\n"), {"lost": ["games.jsonl: 1 missing"]}, "lost"),
        (ended(1, "selfplay: no\n"), {"left": ["process 7 sleep"]}, "left"),
        (ended(0), {}, "accepted"),
        (ended(3, "selfplay: no\n"), {}, "obscure"),
        (ended(1), {}, "obscure"),
        (ended(1, "selfplay: no\nand more\n"), {}, "obscure"),
        (ended(1, "selfplay: warning: no\n"), {}, "obscure"),
        (ended(1, "selfplay: no answer\n"), {"names": ["http://127.0.0.1:7"]}, "obscure"),
    ],
    ids=[
        "hung", "traceback", "traceback-after-the-message", "refused-again", "lost", "left", "accepted", "code",
        "silent", "many-lines", "warning-alone", "which-server",
    ],
)  # fmt: skip
def test_every_other_end_has_its_name(first, how, outcome):
    assert verdict(first, **how).outcome == outcome


def test_a_log_that_the_message_quotes_may_hold_a_traceback():
    said = "selfplay: verl ended with exit code 1; the end of its log:\nTraceback (most recent call last):\nBad\n"
    assert verdict(ended(1, said), quotes=True).outcome == "handled"


def test_a_killed_command_need_not_say_anything():
    assert verdict(ended(-9), codes=(-9,)) == Verdict("handled", "exit code -9")


def test_faults_have_names_of_their_own_and_are_the_same_for_the_same_seed():
    names = [case.name for case in cases(0)]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert names == [case.name for case in cases(0)]


def test_moments_of_a_run_are_the_same_for_the_same_seed_and_come_in_the_order_of_its_stages():
    assert moments(0, 1) == moments(0, 1) != moments(0, 2)
    anywhere = {"start-up", "between stages"}
    for run in range(20):
        order = [STAGES.index(moment.stage) for moment in moments(0, run) if moment.stage not in anywhere]
        assert order == sorted(order)


def test_all_stages_get_their_share_of_moments():
    drawn = Counter(moment.stage for run in range(25) for moment in moments(0, run))
    assert all(drawn[stage] >= 8 for stage in STAGES)


def test_a_signal_landed_in_the_newest_stage_that_was_said_to_begin_unless_that_was_over():
    said = "configuration: tiny\niteration 0/1: evaluate with a\niteration 1/1: generate with a\nplaying 3/4\n"
    assert stage_begun("configuration: tiny\n") == "start-up"
    assert stage_at_end(said, ["evaluate 0"]) == "generate 1"
    assert stage_at_end(said, ["evaluate 0", "generate 1"]) == "between stages"


@pytest.mark.parametrize(("number", "codes"), [("SIGKILL", {-9}), ("SIGTERM", {130, 143, -15})])
def test_a_driver_ends_as_its_signal_says(number, codes):
    assert expected_codes(number) == codes


def test_growth_is_measured_after_the_program_has_loaded_what_it_needs():
    samples = [Sample(0, games, memory, 8, 3, 0, 0) for games, memory in
               ((0, 10), (20_000, 100), (60_000, 104), (100_000, 108))]  # fmt: skip
    assert slope(samples) == pytest.approx(1.0)
