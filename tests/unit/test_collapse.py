"""Figures of a run by iteration, which is the best, and when a run has collapsed."""

import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from factories import FINISHED, Habits, make_episode

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.games.tags import ActionKind
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.generate.summary import Played, Summary
from selfplay_pipeline.iterate import history as limits
from selfplay_pipeline.iterate.folder import RunDirectory, RunState, StageRecord, describe
from selfplay_pipeline.iterate.held_out import Evaluated
from selfplay_pipeline.iterate.history import EPISODE_FIGURES, Iteration, best_iteration, collapse_reason, history_of
from selfplay_pipeline.iterate.logs import PipelineLog
from selfplay_pipeline.iterate.loop import Loop
from selfplay_pipeline.iterate.results import Trained
from selfplay_pipeline.train.process import Trainer

HEALTHY = FINISHED["generate"] | {
    "token_entropy": 0.1, "groups_without_signal": 10, "groups": 100, "repeated_messages": 0.0,
    "proposed_without_message": 0.1,
}  # fmt: skip


def held_out(value: float, width: float = 0.01) -> dict:
    interval = {"value": value, "low": value - width, "high": value + width}
    return {"checkpoint": f"c{value}", "figures": {"held_out_reward": interval, "held_out_greedy_reward": interval}}


def iteration(number: int, held: dict | None = None, gap: float = 1e-6, **played: float) -> Iteration:
    """A healthy iteration with one change; 0 was only evaluated."""
    evaluated = Evaluated(**(held or held_out(0.8)))
    if not number:
        return Iteration(number, evaluated=evaluated)
    trained = Trained(**FINISHED["train"], log_prob_gap=gap)
    return Iteration(number, Played(**HEALTHY | played), trained, evaluated)


@pytest.mark.parametrize(
    ("history", "what"),
    [
        ([{}], "one iteration"), ([{}] * 3, "three"),
        ([{"held": held_out(0.8, 0.1)}, {"held": held_out(0.7, 0.1)}], "a fall within the intervals"),
        ([{"held": held_out(0.7)}, {"held": held_out(0.8)}], "a rise"),
        ([{"proposed_without_message": 1.0}] * 2, "a policy that never talked"),
    ],
)  # fmt: skip
def test_a_healthy_run_has_not_collapsed(history, what):
    assert collapse_reason([iteration(number + 1, **one) for number, one in enumerate(history)]) is None, what


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_entropy": 1e-4}, "deterministic"),
        ({"groups_without_signal": 97}, "97% of the groups carry no signal"),
        ({"repeated_messages": 0.6}, "repeat an earlier one"),
        ({"proposed_without_message": 0.95}, "before any message"),
        ({"gap": 0.3}, "disagree by 0.30 nats"),
        ({"held": held_out(0.7)}, "held-out reward fell from 0.800 after iteration 1 to 0.700"),
    ],
)
def test_each_sign_of_a_collapse_is_named(change, words):
    assert words in (collapse_reason([iteration(1), iteration(2, **change)]) or "")


@pytest.mark.parametrize(
    ("figure", "limit", "holds"),
    [
        ("token_entropy", limits.MIN_ENTROPY, False), ("repeated_messages", limits.MAX_REPEATED, False),
        ("proposed_without_message", limits.MAX_SILENT, False), ("gap", limits.MAX_LOG_PROB_GAP, False),
        ("groups_without_signal", 95, True),
    ],
)  # fmt: skip
def test_at_its_limit_a_figure_shows_no_collapse_but_for_groups_without_a_signal(figure, limit, holds):
    assert (collapse_reason([iteration(1), iteration(2, **{figure: limit})]) is not None) == holds


def test_a_figure_that_an_earlier_version_did_not_take_shows_no_collapse():
    trained = Trained(checkpoint="c", carried=False, steps=1)
    assert collapse_reason([Iteration(1, Played(**FINISHED["generate"]), trained)]) is None


def test_the_best_iteration_is_that_of_the_highest_held_out_reward_the_first_checkpoint_included():
    history = [iteration(number, held_out(value)) for number, value in ((0, 0.8), (2, 0.9), (4, 0.85))]
    assert best_iteration(history).iteration == 2
    assert best_iteration(history[:1]).checkpoint == "c0.8"
    assert best_iteration([Iteration(1)]) is None


def test_history_joins_the_stages_of_an_iteration_and_leaves_out_one_that_is_not_trained():
    episode = {name: 0.5 for name in ("mean_reward", "token_entropy")} | {"groups_without_signal": 2, "groups": 8}
    episode, train = FINISHED["generate"] | episode, FINISHED["train"] | {"steps": 3, "log_prob_gap": 0.1}
    trained = {"generate": episode, "convert": {}, "train": train}
    state = RunState(
        iterations={
            number: {stage: StageRecord(seconds=1, figures=figures) for stage, figures in stages.items()}
            for number, stages in {0: {"evaluate": held_out(0.8)}, 1: trained, 2: {"generate": episode}}.items()
        }
    )
    first, second = (iteration.to_line() for iteration in history_of(state))
    assert first["held_out_reward"]["value"] == 0.8
    assert (second["groups_without_signal"], second["steps"], second["log_prob_gap"]) == (0.25, 3, 0.1)
    assert "questions_per_episode" not in second, "was not taken"


def test_signs_of_degeneration_are_counted_from_the_episodes():
    summary, episodes = Summary(), [make_episode(0, n, habits=Habits(talk=0.7)) for n in range(40)]
    for record in episodes:
        summary.add(record)
    figures = summary.to_dict()
    said = [[t.text for t in record.turns if t.action == ActionKind.MESSAGE] for record in episodes]
    repeats = sum(len(texts) - len(set(texts)) for texts in said)
    assert figures["repeated_messages"] == pytest.approx(repeats / sum(map(len, said)))
    assert figures["distinct_messages"] == len({text for texts in said for text in texts})
    legal = [[t.action for t in r.turns if t.action in (ActionKind.MESSAGE, ActionKind.PROPOSE)] for r in episodes]
    untold = sum(actions[0] == ActionKind.PROPOSE for actions in legal if actions)
    assert figures["proposed_without_message"] == untold / 40
    seats = [seat for record in episodes for seat in record.trajectories]
    own = [p for seat in seats for p, m in zip(seat.response_logprobs, seat.response_mask, strict=True) if m]
    assert figures["token_entropy"] == pytest.approx(-sum(own) / len(own))


def test_a_run_that_collapsed_says_so(tmp_path, caplog):
    episode = {**dict.fromkeys(EPISODE_FIGURES, 0.5), "repeated_messages": 0.9, "distinct_messages": 5}
    episode |= {"groups_without_signal": 0, "groups": 8}
    run = RunDirectory(tmp_path)
    for stage, figures in {"generate": episode, "train": FINISHED["train"], "evaluate": held_out(0.8)}.items():
        run.finish(1, stage, StageRecord(seconds=1, figures=figures))
    config = load_config("tiny", {})
    log, servers = PipelineLog(config, tmp_path), Servers(Backends.of(config), tmp_path)
    loop = Loop(config, run, servers, Trainer(), log)
    loop._watch(1)
    assert "iteration 1: collapse? 90% of the messages repeat" in caplog.text
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert "90% of the messages repeat" in line["collapse"]
    assert json.loads((tmp_path / "best.json").read_text())["iteration"] == 1


@pytest.mark.parametrize("count", [1, 9, 10, 11, 101])
def test_iterations_are_counted_not_spelled(tmp_path, count):
    for number in range(count, 0, -1):
        (tmp_path / f"iter_{number}").mkdir()
    for name in ("iter_", "iter_x", "iter_3.old", "my_iter_4"):
        (tmp_path / name).mkdir()
    (tmp_path / "iter_1000").touch()
    assert RunDirectory(tmp_path).numbers() == list(range(1, count + 1))


def test_the_state_of_a_run_of_many_iterations_is_read_back_in_their_order(tmp_path):
    directory = RunDirectory(tmp_path)
    for number in range(1, 13):
        carried = number not in (2, 9, 11)
        figures = {"checkpoint": f"iter_{number}/checkpoint", "carried": carried, "steps": number}
        directory.finish(number, "train", StageRecord(seconds=1.0, figures=figures))
    again = RunDirectory(tmp_path)
    again.load()
    assert list(again.state.iterations) == list(range(1, 13))
    assert [again.state.trained(number).steps for number in range(1, 13)] == list(range(1, 13))
    made = [Path(again.checkpoint(number)).parent.name for number in range(2, 13)]
    assert made == ["iter_2"] * 7 + ["iter_9"] * 2 + ["iter_11"] * 2
    with pytest.raises(ValueError, match="iteration 13 is not trained"):
        again.checkpoint(13)


def test_a_manifest_says_what_is_installed_here_and_which_code_ran():
    begun, found = datetime.now(UTC).replace(microsecond=0), describe({"seed": 3})
    assert begun <= datetime.fromisoformat(found["created"]) <= datetime.now(UTC)
    assert found["config"] == {"seed": 3} and found["python"] == platform.python_version()
    assert found["packages"]["numpy"] == np.__version__
    for package, version in found["packages"].items():
        installed = [one.version for one in metadata.distributions(name=package)]
        assert version == (installed[0] if installed else None)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    revision = found["git_revision"]
    assert revision is None if head.returncode else revision.removesuffix("+changes") == head.stdout.strip()
