"""Dialogues of a run's evaluations for the loggers: which states the rule chooses, and what a row tells."""

import pytest
from factories import BOARD, make_episode, write_episodes

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.dialogues import CHANGE, HIGHEST, LONGEST_TEXT, LOWEST, MEDIAN, Dialogues, choose_states
from selfplay_pipeline.simple import play_episodes
from selfplay_pipeline.train.loggers import in_markdown


@pytest.mark.parametrize(
    ("before", "now", "chosen"),
    [
        ((0.5, 0.1, 0.9), (0.5, 0.1, 0.9), {1: LOWEST, 0: MEDIAN, 2: HIGHEST}),
        ((0.5, 0.1, 0.9, 0.2), (0.5, 0.1, 0.9, 0.4), {1: LOWEST, 3: f"{MEDIAN}, {CHANGE}", 2: HIGHEST}),
        ((0.5, 0.1, 0.9, 0.5, 0.8), (0.5, 0.1, 0.9, 0.7, 0.8), {1: LOWEST, 0: MEDIAN, 2: HIGHEST, 3: CHANGE}),
        ((0.3, 0.3), (0.3, 0.3), {0: f"{LOWEST}, {MEDIAN}, {HIGHEST}"}),
        ((0.5, 0.1, 0.9), (0.5, None, 0.9), {0: MEDIAN, 2: HIGHEST}),
        ((), (), {}),
        ((0.5, 0.1, 0.9), (), {}),
    ],
    ids=[
        "lowest, median, highest", "of two in the middle, the lower one; one state for two reasons",
        "the change has a state of its own", "of equals, the first", "a state that was lost is left out",
        "nothing was played", "the evaluation left no episodes",
    ],
)  # fmt: skip
def test_states_are_chosen_by_the_first_evaluation_and_by_the_change_since(before, now, chosen):
    numbered = [{state: value for state, value in enumerate(values) if value is not None} for values in (before, now)]
    found = choose_states(*numbered)
    assert found == chosen and [*found] == [*chosen]


def written(run, number: int, records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    folder = run / f"iter_{number}" / "evaluation"
    folder.mkdir(parents=True)
    write_episodes(folder / "greedy.jsonl", records)
    return records


def test_a_row_tells_the_reward_what_each_seat_saw_and_what_was_said(tmp_path):
    first = written(tmp_path, 0, [make_episode(state, 0) for state in range(6)])
    second = written(tmp_path, 2, [make_episode(state, 1) for state in range(6)])
    dialogues = Dialogues(load_config("tiny").model_copy(update={"game": BOARD}), tmp_path)
    assert {row["iteration"] for row in dialogues.rows(0)} == {0}
    assert dialogues.rows(1) == [], "an iteration that was not evaluated has no rows"
    for row in dialogues.rows(2):
        record, before = second[row["state"]], first[row["state"]]
        assert row["reward"] == round(record.outcome.normalized_reward, 3)
        assert row["before"] == round(before.outcome.normalized_reward, 3)
        for seat in (0, 1):
            (side,) = [side for side in record.trajectories if side.seat == seat]
            assert row[f"seat {seat} saw"] and row[f"seat {seat} saw"] in side.messages[1].content, "the first message"
        for turn in record.turns:
            assert f"seat {turn.seat}: {turn.text.strip()[:LONGEST_TEXT]}" in row["dialogue"]
        assert row["dialogue"].endswith(record.outcome.status)
        assert row["dialogue"].count("(illegal: ") == record.outcome.num_illegal


def test_an_illegal_turn_shows_its_reason_and_a_long_one_is_cut(tmp_path):
    record = make_episode(0, 0)
    long, illegal = (
        record.turns[0].model_copy(update=changed)
        for changed in ({"text": "y" * (LONGEST_TEXT + 7)}, {"error": "no such paper", "error_kind": "cut"})
    )
    written(tmp_path, 0, [record.model_copy(update={"turns": [long, illegal]})])
    (row,) = Dialogues(load_config("tiny", {}), tmp_path).rows(0)
    assert "y … (7 more characters)\n" in row["dialogue"] and "(illegal: no such paper)\n" in row["dialogue"]


def test_seats_with_rewards_of_their_own_have_columns_of_their_own(tmp_path):
    config = load_config("tiny", {"game": "examples/haggle.py", "generate.num_episodes": 8})
    play_episodes(config, tmp_path / "iter_0" / "evaluation" / "greedy.jsonl", ["talking"])
    row = Dialogues(config, tmp_path).rows(0)[0]
    assert (row["reward of seat 0"] + row["reward of seat 1"]) / 2 == pytest.approx(row["reward"], abs=1e-3)
    assert row["seat 0 saw"].startswith("You sell") and row["seat 1 saw"].startswith("You buy")


def test_text_has_short_columns_in_a_line_and_long_ones_in_blocks():
    rows = [
        {"state": 3, "reward": 0.5, "saw": "a ``` b", "said": "one\ntwo"},
        {"state": 4, "reward": 1.0, "saw": "c", "said": "d"},
    ]
    assert in_markdown(rows, "Rule.") == (
        "Rule.\n\n**state: 3, reward: 0.500, saw: a ``` b**\n\nsaid:\n\n    one\n    two\n\n"
        "**state: 4, reward: 1.000, saw: c**\n\nsaid:\n\n    d"
    )
