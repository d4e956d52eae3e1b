"""The verdict at the end of `evaluate` and of pages: what evaluated episodes show about the use of words."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.evaluate.run import Evaluation, EvaluationJob, job_of, run_evaluate
from selfplay_pipeline.evaluate.silence import above_silence
from selfplay_pipeline.evaluate.states import held_out_states, read_states
from selfplay_pipeline.evaluate.verdict import LIMITS, UNCOMPARED, UNSWAPPED, in_words, verdict
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

COUNT = 40
SILENCE = (
    "the reward is above silence on the same states (silence is the best that play without words reaches on average)"
)


def rewards(*by_state: float) -> Totals:
    """Rewards of one episode of each state; NaN for a lost one."""
    counts = [float(not np.isnan(one)) for one in by_state]
    return Totals.of({"reward": (np.nan_to_num(by_state), counts)})


def evaluated(player: str, folder: Path, *options: str, config: str = "tiny_honest") -> tuple[list[str], Evaluation]:
    """Lines that `selfplay evaluate` prints, and what it stores."""
    done = selfplay("evaluate", player, "--config", config, "--output", str(folder),
                    "--num-states", str(COUNT), *options)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), Evaluation.model_validate_json((folder / "evaluation.json").read_text())


# --- the difference to silence


def test_each_reward_is_compared_with_what_silence_expects_of_the_same_state():
    game = make_game(load_config("tiny_honest", {}).game)
    states = held_out_states(game, 6).states
    expected = game.wordless_rewards(states, np.random.default_rng(1))["silence"]
    better = above_silence(game, states, {"sampled": rewards(*expected + 0.1)})["sampled"]
    # Two draws of the hidden scores differ a little. Unpaired, the interval would be 0.07 wide.
    assert 0.09 < better.low < better.value < better.high < 0.115 and np.std(expected) > 0.03


def test_a_state_whose_episode_was_lost_is_left_out():
    game = make_game(load_config("smollm2", {}).game)  # silence is the same on each of its states
    states = held_out_states(game, 3).states
    found = above_silence(game, states, {"sampled": rewards(0.8, float("nan"), 1.0)})["sampled"]
    assert found.value == pytest.approx(0.9 - 0.662, abs=0.03)


def test_in_free_play_silence_bounds_nothing_and_is_not_computed(monkeypatch):
    game = make_game(load_config("tiny", {}).game)
    monkeypatch.setattr(type(game), "wordless_rewards", None)
    assert above_silence(game, held_out_states(game, 2).states, {"sampled": rewards(1, 1)}) == {}


def test_states_that_are_not_of_the_rules_are_evaluated_without_silence(tmp_path, caplog):
    """The filter for hard states keeps none on which both players' own plans are good."""
    config = load_config("tiny_honest", {"game.hard_factor": 1.3})
    game = make_game(config.game)
    easy = make_game(load_config("tiny_honest", {"game.hard_factor": 0}).game)
    (file := tmp_path / "states.jsonl").write_text(
        "".join(json.dumps(easy.state_to_json(state)) + "\n" for state in held_out_states(easy, 12).states)
    )
    states = read_states(file, game).states
    assert above_silence(game, states, {"sampled": rewards(*[1.0] * 12)}) == {}
    assert "silence is not computed on these states" in caplog.text


# --- sentences


UP, DOWN, AROUND = (Interval(value=at, low=at - 0.02, high=at + 0.02) for at in (0.1, -0.1, 0.01))


@pytest.mark.parametrize(
    ("above", "worth", "said"),
    [
        ({"sampled": UP}, {"sampled": UP}, [
            f"On these states {SILENCE}: sampled +0.100 [+0.080, +0.120].",
            "On these states the reward falls when messages are swapped: sampled +0.100 [+0.080, +0.120].", LIMITS]),
        ({"sampled": AROUND, "greedy": DOWN}, {}, [
            f"On these states {SILENCE.replace('above', 'below')}: greedy -0.100 [-0.120, -0.080].",
            "It is not shown that the reward is above silence: sampled +0.010 [-0.010, +0.030].", UNSWAPPED, LIMITS]),
        ({"sampled": AROUND}, {}, [
            "Nothing is shown on these states.", f"It is not shown that {SILENCE}: sampled +0.010 [-0.010, +0.030].",
            UNSWAPPED, LIMITS]),
        ({}, {"greedy": UP}, [
            "On these states the reward falls when messages are swapped: greedy +0.100 [+0.080, +0.120].",
            UNCOMPARED, LIMITS]),
        ({}, {}, [UNCOMPARED, UNSWAPPED, LIMITS]),
    ],
    ids=["both shown", "below and open", "nothing shown", "free play", "nothing measured"],
)  # fmt: skip
def test_what_is_shown_is_said_before_what_is_not_and_limits_last(above, worth, said):
    assert in_words(above, worth) == said


def test_muted_messages_cannot_be_swapped_and_nobody_is_told_to():
    assert UNSWAPPED not in in_words({}, {}, muted=True)


# --- the command and the pages


def test_the_command_ends_with_the_verdict_and_its_page_repeats_it(tmp_path):
    lines, evaluation = evaluated("speaking", tmp_path / "e", "--set", "evaluate.swap_messages=true")
    said = verdict(evaluation)
    assert lines[-1 - len(said) : -1] == said
    assert said[0].startswith("On these states the reward is above silence on the same states")
    page = tmp_path / "page.html"
    assert selfplay("report", str(tmp_path / "e"), "--output", str(page)).returncode == 0
    assert all(f"<p>{sentence}</p>" in page.read_text() for sentence in said)


def test_the_page_of_a_file_says_what_its_episodes_show_as_the_evaluation_does(tmp_path):
    _, evaluation = evaluated("silent", tmp_path / "e")
    page = tmp_path / "page.html"
    assert selfplay("report", str(tmp_path / "e" / "scripted.jsonl"), "--output", str(page)).returncode == 0
    assert all(f"<p>{sentence}</p>" in page.read_text() for sentence in verdict(evaluation))


def test_a_muted_evaluation_is_not_above_silence(tmp_path):
    _, evaluation = evaluated("speaking", tmp_path / "e", "--set", "game.mute=true")
    above = evaluation.modes["scripted"].above_silence
    assert above is not None and above.low < 0


def test_the_evaluations_of_a_run_leave_silence_out(tmp_path):
    config = load_config("tiny_honest", {})
    job = replace(job_of(config, "silent", tmp_path / "e", num_states=3), silence=False)
    assert asyncio.run(run_evaluate(config, job)).modes["scripted"].above_silence is None
    assert not EvaluationJob("silent", job.states, tmp_path).silence
