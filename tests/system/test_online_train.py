"""Online training with the real verl and the real SGLang on a CPU: killed in the middle, continued, measured."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import selfplay
from shared_server import TINY, Server
from test_kill import Driver
from test_train import MARK, farthest, optimizer_updates, remaining, traces

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.base import MONITOR
from selfplay_pipeline.games.matching.game import MatchingGame

STEPS, STATES, EPISODES, HELD_OUT = 4, 2, 4, 20
CONFIG = f"""\
base: tiny
model: {TINY}
game: {{size: 3, max_score: 9, scale_max: 1, max_length: 20, max_errors: 1, prompts: compact}}
generate: {{episodes_per_state: {EPISODES}, temperature: 0.8, max_new_tokens: 64}}
train: {{learning_rate: 3.0e-4, kl_coef: 0.05, save_every: 1}}
online: {{steps: {STEPS}, states_per_step: {STATES}, held_out_states: {HELD_OUT}}}
"""


@dataclass
class Run:
    """A finished training that was killed once."""

    folder: Path
    running: list[str]
    """Command lines of what ran when it was killed."""
    traces: set[str]
    """Processes and folders in /tmp, then and in the training that continued."""
    lines_before: int
    """Lines of metrics.jsonl then."""
    drivers: list[Driver]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def probes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "server_0_weights.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("online")
    (home / "config.yaml").write_text(CONFIG)
    # Greedy validation, so that its figures can be compared exactly.
    return killed_once(home, "2", "--", "actor_rollout_ref.rollout.val_kwargs.temperature=0")


def killed_once(home: Path, when: str, *options: str) -> Run:
    """Train, kill the driver in the middle, and let the same command continue.

    Args:
        home: holds the configuration.
        when: the step that is to be saved by then.
        options: further ones of the command.
    """
    folder = home / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(folder))
        command = ("train-online", "--config", str(home / "config.yaml"), "--output", str(folder), *options)
        return _killed_once(home, folder, when, command)


def _killed_once(home: Path, folder: Path, when: str, command: tuple[str, ...]) -> Run:
    metrics, saved = folder / "metrics.jsonl", folder / "trainer_state" / "latest_checkpointed_iteration.txt"
    first = Driver(home, *command)
    running: list[str] = []
    seen: set[str] = set()

    def moment() -> bool:
        if not (saved.exists() and saved.read_text() >= when):
            return False
        running.extend(first.left())
        seen.update(traces(folder))
        return True

    first.send_when(signal.SIGKILL, moment)
    first.assert_nothing_is_left()
    before = metrics.read_text().count("\n") if metrics.exists() else 0
    second = Driver(home, *command)
    while second.process.poll() is None:
        seen |= traces(folder)
        time.sleep(2)
    assert second.process.returncode == 0, (home / "driver.log").read_text()[-3000:]
    second.assert_nothing_is_left()
    return Run(folder, running, seen, before, [first, second])


def test_what_a_kill_9_of_the_driver_leaves_is_nothing_not_even_the_server(run):
    assert any("sglang_launch" in command for command in run.running)
    assert any("train.verl.main" in command for command in run.running)
    assert run.lines_before < STEPS + 1, "the training was over before the kill"
    assert sum(trace.startswith("/tmp/") for trace in run.traces) == 4, "of the trainer and its server, twice"
    assert not remaining(run.traces)


def test_no_other_machine_can_reach_a_socket_of_online_training(run):
    listeners = {listener for driver in run.drivers for listener in driver.watch.listeners}
    commands = " ".join(listener.command for listener in listeners)
    for of_playing_or_training in ("sglang_launch", "sglang::scheduler", "train.verl.main"):
        assert of_playing_or_training in commands
    assert [listener for listener in sorted(listeners) if not listener.is_local] == []


def test_no_other_user_can_look_into_the_folders_of_online_training(run):
    assert {mode for driver in run.drivers for mode in driver.watch.scratch.values()} == {"drwx------"}


def test_no_temporary_file_is_left_by_online_training(run):
    assert [path for driver in run.drivers for path in driver.files_left()] == []


def test_a_line_a_step_without_gap_or_repetition(run):
    assert [line["step"] for line in run.lines] == list(range(STEPS + 1))
    for line in run.lines[1:]:
        assert line["selfplay/episodes"] == STATES * EPISODES
        assert line["selfplay/episodes_lost"] == 0
        with_signal = STATES - line["selfplay/groups_without_signal"]
        assert line["selfplay/rows"] <= 2 * EPISODES * (with_signal or STATES)
        assert 0 <= line["selfplay/reward"] <= 1
        assert {"actor/pg_loss", "actor/grad_norm", "actor/kl_loss", "timing_s/step"} <= line.keys()


def test_the_server_has_new_weights_after_each_step_and_they_are_the_trainers(run):
    by_step: dict[int, set[float]] = {}
    for probe in run.probes:
        by_step.setdefault(probe["step"], set()).add(round(probe["probe_logprob"], 5))
    assert sorted(by_step) == list(range(STEPS + 1))
    assert all(len(values) == 1 for values in by_step.values()), "a continued training has the weights that it had"
    assert len(set().union(*by_step.values())) == STEPS + 1
    for line in run.lines[1:]:
        assert line["training/rollout_probs_diff_max"] < 1e-3
        assert line["training/off_policy/trajectory_staleness_worst/max"] == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_servers_log_probs_are_those_of_the_files(run, when):
    import torch
    from transformers import AutoModelForCausalLM

    probe = run.probes[0 if when == "before" else -1]
    model = AutoModelForCausalLM.from_pretrained(
        TINY if when == "before" else run.folder / "checkpoint", dtype=torch.float32
    )
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([[0, 1, 2]])).logits[0, -1], -1)
    assert float(scores[probe["probe_token"]]) == pytest.approx(probe["probe_logprob"], abs=1e-5)


def test_a_step_is_one_update_and_the_checkpoint_a_trained_model(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert optimizer_updates(run.folder / "trainer_state") == STEPS
    checkpoint = run.folder / "checkpoint"
    assert farthest(checkpoint, TINY) > 1e-4
    AutoModelForCausalLM.from_pretrained(checkpoint)
    assert AutoTokenizer.from_pretrained(checkpoint).chat_template


@pytest.mark.parametrize("when", ["before", "after"])
def test_validation_gives_the_figures_of_selfplay_evaluate(run, when, sglang_server: Server, tmp_path):
    config = load_config(str(run.folder.parent / "config.yaml"), {"engine.server_url": [sglang_server.url]})
    states = held_out_states(MatchingGame(config.game), HELD_OUT, space=MONITOR)
    player = str(TINY.resolve() if when == "before" else run.folder / "checkpoint")
    job = EvaluationJob(player=player, states=states, output=tmp_path, episodes=1)
    evaluation = asyncio.run(run_evaluate(config, job))
    line = run.lines[0 if when == "before" else -1]
    figures = evaluation.modes["greedy"].figures
    counts = {"episodes", "episodes_lost", "groups", "groups_lost", "groups_without_signal"}
    assert {name.removeprefix("held_out/") for name in line if name.startswith("held_out/")} == figures.keys() | counts
    assert (line["held_out/episodes"], line["held_out/episodes_lost"]) == (HELD_OUT, 0)
    for name, interval in figures.items():
        expected = pytest.approx(interval.value, abs=1e-6) if interval.value is not None else None
        assert line[f"held_out/{name}"] == expected, name


def test_a_finished_training_is_not_repeated(run):
    before = (run.folder / "metrics.jsonl").read_text()
    again = selfplay(
        "train-online", "--config", str(run.folder.parent / "config.yaml"), "--output", str(run.folder),
        "--", "actor_rollout_ref.rollout.val_kwargs.temperature=0",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert (run.folder / "metrics.jsonl").read_text() == before
