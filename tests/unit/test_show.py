"""`selfplay show`: one game in a terminal, which no word of a model may steer."""

import io
import threading
import unicodedata
from pathlib import Path

from command import selfplay
from factories import BOARD, POLICY, Habits, make_episode, make_episodes, write_episodes
from rich.console import Console
from test_report import ByteDecoder, spoken

from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.report import terminal
from selfplay_pipeline.report.reading import read_episode, read_state


def plain(record, decoder=None, **options) -> str:
    console = Console(file=io.StringIO(), width=140, highlight=False)
    terminal.show_episode(record, console, decoder, **options)
    return console.file.getvalue()


def test_a_game_is_shown_with_both_tables_the_dialogue_and_its_gains():
    record = make_episode(3, 1, habits=Habits(spoil=0.4, cut=0))
    text, state, episode = plain(record), read_state(record), read_episode(record)
    assert record.episode_id in text and record.outcome.status in text
    assert f"reward {record.outcome.normalized_reward:.3f} ({episode.score:g} of {state.best:g})" in text
    assert "seat 0 (policy) sees" in text and "seat 1 (policy) sees" in text
    for turn in record.turns:
        assert all(line in text for line in turn.text.strip().splitlines())
        assert turn.error is None or f"illegal: {turn.error}"[:60] in text
    (gains,) = episode.drawing.results
    assert all(cell in text for row in gains.cells for cell in row)


def test_what_a_player_cannot_see_is_marked_without_colour_too():
    record = make_episode(0)
    views = read_state(record).drawing.views
    hidden = [view.cells[row][column] for view in views for row, column in view.cells_that_are["hidden"]]
    hidden = [number for number in hidden if number != "·"]
    assert hidden and all(f"({number})" in plain(record) for number in hidden)


def test_with_its_rules_an_episode_shows_where_its_reward_was_lost_and_what_each_turn_was_worth():
    record, game = make_episode(3, 1, habits=Habits(spoil=0, cut=0)), MatchingGame(BOARD)
    text, episode = plain(record, game=game), read_episode(record, game=game)
    _, lost = episode.drawing.results
    assert lost.rows == ["to telling", "to planning", "to agreement", "together"]
    assert all(cell in text for row in lost.cells for cell in row)
    assert lost.cells[-1][1] == f"{1 - record.outcome.normalized_reward:.3f}"
    noted = [turn.note for turn in episode.turns if turn.note]
    assert noted and all(f"({note})" in " ".join(text.split()) for note in noted)


def test_a_models_words_neither_steer_the_terminal_nor_are_taken_for_markup():
    text = plain(spoken("[message] a\x1b[2J\x1b]0;title\x07\x9b31m\u202edrow\u2066\rb [red]c[/red]"))
    assert not [c for c in text if unicodedata.category(c) == "Cc" and c != "\n"]
    assert "␛[2J" in text and "[red]c[/red]" in text


def test_tokens_are_shown_with_the_log_probs_of_unlikely_ones():
    record = make_episode(2, habits=Habits(spoil=0, cut=0))
    (unlikely, *_) = [p for p in record.trajectories[0].response_logprobs if p < -0.5]
    assert f"({unlikely:.2f})" in plain(record, ByteDecoder())
    assert "tokens of seat 0" in plain(record, ByteDecoder()) and "tokens of seat 0" not in plain(record)


def test_with_rendered_history_each_turn_has_its_tokens_under_its_number():
    policy = POLICY.model_copy(update={"history": "rendered"})
    record = next(one for one in make_episodes(1, 8, policy=policy) if len(one.trajectories) > 3)
    turns = sum(one.seat == 0 for one in record.trajectories)
    shown = plain(record, ByteDecoder())
    assert [f"tokens of seat 0, turn {number} of {turns}:" in shown for number in range(1, turns + 2)] == [
        *[True] * turns,
        False,
    ]


def test_best_worst_random_last_or_one_by_its_id(tmp_path):
    records = list(make_episodes(5, 3))
    path = write_episodes(tmp_path / "games.jsonl", records)
    rewards = [record.outcome.normalized_reward for record in records]
    assert terminal.choose(path, "best").outcome.normalized_reward == max(rewards)
    assert terminal.choose(path, "worst").outcome.normalized_reward == min(rewards)
    assert terminal.choose(path, "last") == records[-1]
    assert terminal.choose(path, "random", 3) == terminal.choose(path, "random", 3)
    assert len({terminal.choose(path, "random", seed).episode_id for seed in range(30)}) > 8
    assert terminal.find_episode(path, records[4].episode_id) == records[4]
    for options in (("--best", "--worst"), ("--episode", ""), ("--episode", "s9-g000000-p0")):
        assert selfplay("show", str(path), *options).returncode == 2


def test_tokens_that_cannot_be_read_are_said_to_be_missing(tmp_path):
    nobody = make_episode().policy.model_copy(update={"checkpoint": "/nowhere/at/all"})
    path = write_episodes(tmp_path / "games.jsonl", [make_episode(policy=nobody)])
    assert "No tokens" in selfplay("show", str(path), "--tokens").stdout
    moved = write_episodes(tmp_path / "run" / "iter_1" / "selfplay_games.jsonl", [make_episode(policy=nobody)])
    (tmp_path / "run" / "iter_1" / "checkpoint").symlink_to(Path("data/tiny_model").resolve())
    assert "tokens of seat 0" in selfplay("show", str(moved), "--tokens").stdout


def test_following_shows_the_newest_game_of_a_growing_file(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "POLL_SECONDS", 0.01)
    path, records = tmp_path / "games.jsonl", list(make_episodes(2, 2))
    lines = [record.model_dump_json() + "\n" for record in records]
    games = terminal.follow(path)
    (tmp_path / "first").write_text(lines[0] + lines[1] + lines[2][:50])
    threading.Timer(0.2, (tmp_path / "first").rename, [path]).start()
    assert next(games) == (records[1], 2)
    path.write_text("".join(lines[:3]))
    assert next(games) == (records[2], 1)
    path.write_text("\n\n" + lines[3])
    assert next(games) == (records[3], 1)
