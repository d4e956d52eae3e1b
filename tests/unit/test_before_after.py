"""The dialogue at the end of `iterate`: one held-out state, before and after, chosen by a rule."""

import io
import re
from pathlib import Path

import pytest
from command import next_words, selfplay
from factories import FINISHED, Habits, make_episode, write_episodes

from selfplay_pipeline.cli.show.iterate import show_run
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.dialogues import choose_state
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.report.before_after import BeforeAfter, before_and_after
from selfplay_pipeline.report.sources import EpisodesFile
from selfplay_pipeline.report.terminal import LONGEST_TURN, MOST_TURNS, show_before_and_after


def rewards(*values: float | None) -> dict[int, float]:
    """Rewards of states 0, 1, …; None for a state that was not played."""
    return {state: value for state, value in enumerate(values) if value is not None}


@pytest.mark.parametrize(
    ("before", "after", "chosen"),
    [
        ((0.5, 0.5, 0.5), (0.9, 0.6, 0.0), 1), ((0.5, 0.5, 0.5, 0.5), (0.5, 0.0, 0.9, 0.5), 1),
        ((0.0, 0.0, 0.0, 0.0), (0.4, 0.1, 0.2, 0.3), 2),
        ((0.0, 0.1, 0.2, 0.9), (0.3, 0.4, 0.5, 0.9), 0),
        ((0.5, 0.5), (0.5, 0.5 + 1e-9), None), ((), (), None),
        ((None, 0.5, 0.5), (0.9, None, 0.6), 2), ((None, 0.5), (0.5, None), None),
    ],
    ids=[
        "the median of three", "states without a change do not count", "of two in the middle, the lower change",
        "the first of those that changed alike", "none changed", "none played",
        "states that one side lacks do not count", "no state in common",
    ],
)  # fmt: skip
def test_the_state_with_the_median_change_is_chosen(before, after, chosen):
    assert choose_state(rewards(*before), rewards(*after)).state == chosen


def test_the_rule_and_the_number_of_states_are_said_in_one_line():
    choice = choose_state(rewards(0.5, 0.5, 0.5, 0.5, 0.1), rewards(0.9, 0.6, 0.0, 0.5))
    assert (choice.states, choice.rose, choice.fell) == (4, 2, 1)
    assert choice.in_words() == (
        "One dialogue as an example, chosen by a rule: of 4 held-out states, played greedily (always the likeliest "
        "token) before and after, the reward rose on 2 and fell on 1; of these 3, state 1 is the first with the "
        "(lower) median change."
    )
    assert choose_state(rewards(1.0), rewards(1.0)).in_words() == (
        "No dialogue to show: the reward changed on none of 1 held-out states, played greedily (always the likeliest "
        "token) before and after."
    )


# --- read from a run folder


def episodes(number: int, states: int = 8, habits: Habits = Habits(spoil=0, cut=0)) -> list[EpisodeRecord]:
    """An episode of each state; other numbers are other dialogues."""
    return [make_episode(state, number, habits=habits) for state in range(states)]


def rewards_in(records: list[EpisodeRecord]) -> dict[int, float]:
    return {record.group_index: record.outcome.normalized_reward for record in records}


def run_of(folder: Path, *evaluated: list[EpisodeRecord] | None, **settings) -> RunDirectory:
    """A finished run with an evaluation before it and after each iteration; None for one that left no episodes."""
    run = RunDirectory(folder)
    run.open(load_config("tiny", {"iterate.num_iterations": len(evaluated) - 1} | settings))
    for number, records in enumerate(evaluated):
        for stage in FINISHED if number else ("evaluate",):
            run.finish(number, stage, StageRecord(seconds=1, figures=FINISHED[stage]))
        run.iteration(number).mkdir()
        if records is not None:
            write_episodes(run.iteration(number) / "evaluation" / "greedy.jsonl", records)
    return run


def printed(found: BeforeAfter | None, *, terminal: bool = False) -> str:
    assert found is not None
    console = Terminal(file=io.StringIO(), force_terminal=terminal, width=140)
    show_before_and_after(found, console)
    return console.file.getvalue()


def shown(run: RunDirectory, *, terminal: bool) -> str:
    return printed(before_and_after(run.path), terminal=terminal)


def test_the_first_and_the_last_evaluation_are_compared(tmp_path):
    every = [episodes(0), None, episodes(1), episodes(2)]
    found = before_and_after(run_of(tmp_path / "run", *every).path)
    assert found is not None and [file.iteration for file, _ in found.episodes] == [0, 3]
    assert found.choice == choose_state(rewards_in(every[0]), rewards_in(every[3]))
    records = [record for _, record in found.episodes]
    assert [record.group_index for record in records] == [found.choice.state] * 2
    assert [record.turns for record in records] == [one[found.choice.state].turns for one in (every[0], every[3])]


def test_if_no_reward_changed_this_is_said_and_no_dialogue_is_shown(tmp_path):
    text = shown(run_of(tmp_path / "run", episodes(0), episodes(0)), terminal=True)
    assert " ".join(text.split()) == choose_state({0: 1.0}, {0: 1.0}).in_words().replace("of 1", "of 8")


def test_states_whose_episodes_were_lost_do_not_count(tmp_path):
    found = before_and_after(run_of(tmp_path / "run", episodes(0), episodes(1, states=7)).path)
    assert found is not None and found.choice.states == 7


def test_an_evaluation_that_was_not_finished_is_not_compared(tmp_path):
    run = run_of(tmp_path / "run", episodes(0), episodes(1))
    write_episodes(run.iteration(2) / "evaluation" / "greedy.jsonl", episodes(2))
    found = before_and_after(run.path)
    assert found is not None and [file.iteration for file, _ in found.episodes] == [0, 1]


@pytest.mark.parametrize("evaluated", [(None, None), (episodes(0), None), (None, episodes(1))])
def test_without_two_greedy_evaluations_there_is_no_dialogue_and_the_run_still_ends(evaluated, tmp_path, capsys):
    run = run_of(tmp_path / "run", *evaluated)
    assert before_and_after(run.path) is None
    show_run(run)
    assert "ialogue" not in capsys.readouterr().out


def test_a_log_has_a_line_for_each_turn_and_no_tables_or_colours(tmp_path):
    run = run_of(tmp_path / "run", episodes(0), episodes(1, habits=Habits(spoil=0.9, cut=0)))
    found = before_and_after(run.path)
    rule, *lines = shown(run, terminal=False).splitlines()
    assert rule == found.choice.in_words()
    heads = [number for number, line in enumerate(lines) if not line.startswith("  ")]
    for number, title, (_, record) in zip(heads, ("before training", "after iteration 1"), found.episodes, strict=True):
        outcome = record.outcome
        assert lines[number].startswith(f"{title}  {outcome.status}  reward {outcome.normalized_reward:.3f}")
    assert len(lines) == 2 + sum(len(record.turns) for _, record in found.episodes)
    first = found.episodes[0][1].turns[0]
    assert lines[1] == f"  seat {first.seat} (policy): {' / '.join(first.text.splitlines())}"
    assert any("  illegal: " in line for line in lines[heads[1] :])


def test_a_terminal_also_has_what_each_seat_sees_and_colours(tmp_path):
    text = shown(run_of(tmp_path / "run", episodes(0), episodes(1)), terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain != text
    assert plain.count("seat 0 (policy) sees") == plain.count("seat 1 (policy) sees") == 1
    assert "(…) hidden from that player" in plain


def test_long_turns_and_long_episodes_are_shortened(tmp_path):
    record = make_episode(0)
    turn = record.turns[0].model_copy(update={"text": "[message] " + "word " * 500, "action": "message", "error": None})
    many = record.model_copy(update={"turns": [turn] * (MOST_TURNS + 3)})
    file = EpisodesFile(tmp_path / "greedy.jsonl", "greedy", "", 1)
    _, head, *lines = printed(BeforeAfter(choose_state({0: 0.0}, {0: 1.0}), ((file, many),))).splitlines()
    assert head.startswith("after iteration 1") and len(lines) == MOST_TURNS + 1 and "  … 3 more turns" in lines
    assert all(len(line) < LONGEST_TURN + 50 for line in lines)


# --- the whole end


def test_a_run_with_nothing_left_to_do_ends_with_verdict_dialogue_page_and_next_command(tmp_path):
    run = run_of(tmp_path / "run", episodes(0), episodes(1))
    done = selfplay("iterate", "--config", "tiny", "--num-iterations", "1", "--output", str(run.path))
    assert done.returncode == 0, done.stderr
    order = ("self-play in", "is shown", "One dialogue", "before training", "after iteration 1", "newest", " report ")
    places = [done.stdout.index(words) for words in order]
    assert places == sorted(places)
    assert f"show {run.path}/iter_1/evaluation/greedy.jsonl --episode s0-g00000" in done.stdout
    assert next_words(done)[:2] == ["evaluate", str(run.path / "iter_1" / "checkpoint")]
    assert next_words(done)[2:] == ["--config", "tiny"]


def test_the_next_command_measures_the_best_trained_checkpoint(tmp_path):
    run = run_of(tmp_path / "run", None, None, None)
    for best, suggested in ((1, 1), (2, 2), (0, 2)):
        write_json(run.path / "best.json", {"iteration": best, "checkpoint": "c", **FINISHED["evaluate"]["figures"]})
        assert show_run(run) == run.path / f"iter_{suggested}" / "checkpoint"


def test_the_next_command_names_the_partner_of_the_run(tmp_path):
    run = run_of(tmp_path / "run", None, None, **{"iterate.partner": "sharing", "iterate.seat": 1})
    options = "--config tiny --num-iterations 1 --partner sharing --set iterate.seat=1 --output"
    done = selfplay("iterate", *options.split(), str(run.path))
    assert next_words(done)[2:] == ["--config", "tiny", "--partner", "sharing", "--seat", "1"]
