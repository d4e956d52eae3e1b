"""Online training of an adapter with the real verl and SGLang on a CPU: killed twice, and continued.

`test_cluster.py` and `test_online_async.py` train all weights.
"""

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
from shared_server import TINY
from test_engines import next_logprobs
from test_kill import Driver
from test_lora import assert_low_rank
from test_train import MARK, farthest, optimizer_updates, remaining, traces

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.base import MONITOR
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.generate.read_records import read_episodes

STEPS, STATES, EPISODES, HELD_OUT, RANK = 3, 2, 8, 8, 4
"""All episodes of a step have equal rewards, so that its weights stay, twice in a million times."""
CONFIG = f"""\
base: tiny
model: {TINY}
game: {{size: 3, max_score: 9, scale_max: 1, max_length: 20, max_errors: 1, prompts: compact}}
generate: {{episodes_per_state: {EPISODES}, temperature: 0.8, max_new_tokens: 64}}
train: {{learning_rate: 3.0e-3, kl_coef: 0.05, save_every: 1, lora_rank: {RANK}}}
online: {{steps: {STEPS}, states_per_step: {STATES}}}
evaluate: {{monitor_states: {HELD_OUT}}}
"""


@dataclass
class Run:
    """A finished training."""

    folder: Path
    steps: int
    drivers: list[Driver]

    @property
    def command(self) -> tuple[str, ...]:
        """Its arguments; validation is greedy, so that its figures can be compared exactly."""
        where = ("--config", str(self.folder.parent / "config.yaml"), "--output", str(self.folder))
        return ("train-online", *where, "--", "actor_rollout_ref.rollout.val_kwargs.temperature=0")

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def probes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "server_0_weights.jsonl").read_text().splitlines()]

    def begin(self) -> Driver:
        self.drivers.append(Driver(self.folder.parent, *self.command))
        return self.drivers[-1]


@dataclass
class Killed(Run):
    """A training that was killed twice, and continued by the same command."""

    running: list[str]
    """Command lines of the processes that ran during its first step."""
    traces: set[str]
    """Processes and folders in /tmp, during that step and in the processes that continued."""
    lines_before: tuple[int, ...] = ()
    """Lines of metrics.jsonl after each kill."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Three steps of an adapter, killed once the first is saved, and in the validation after the last."""
    home = tmp_path_factory.mktemp("killed")
    (home / "config.yaml").write_text(CONFIG)
    folder = home / "run"
    run = Killed(folder, STEPS, [], [], set())
    saved = folder / "trainer_state" / "latest_checkpointed_iteration.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(folder))
        first = run.begin()

        def moment() -> bool:
            # Looked for before the first step ends, since the look may take as long as the steps that are left.
            if not run.running and (folder / "metrics.jsonl").exists():
                run.running.extend(first.left())
                run.traces.update(traces(folder))
            return bool(run.running) and saved.exists() and saved.read_text() >= "1"

        first.send_when(signal.SIGKILL, moment)
        first.assert_nothing_is_left()
        second, last_save = run.begin(), folder / "trainer_state" / f"global_step_{STEPS}" / "whole.json"
        lines_before = [len(run.lines)]
        second.send_when(signal.SIGKILL, last_save.exists)
        second.assert_nothing_is_left()
        run.lines_before = (*lines_before, len(run.lines))
        third = run.begin()
        while third.process.poll() is None:
            run.traces |= traces(folder)
            time.sleep(2)
        assert third.process.returncode == 0, (home / "driver.log").read_text()[-3000:]
        third.assert_nothing_is_left()
    return run


def test_what_a_kill_9_of_the_driver_leaves_is_nothing_not_even_the_server(killed: Killed) -> None:
    assert any("sglang_launch" in command for command in killed.running)
    assert any("train.verl.main" in command for command in killed.running)
    assert max(killed.lines_before) < killed.steps + 1, "the training was over before the kill"
    assert sum(trace.startswith("/tmp/") for trace in killed.traces) == 4, "of the trainer and its server, twice"
    assert not remaining(killed.traces)
    assert [path for driver in killed.drivers for path in driver.files_left()] == []


def test_no_other_machine_can_reach_a_socket_of_online_training_nor_another_user_its_folders(killed: Killed) -> None:
    listeners = {listener for driver in killed.drivers for listener in driver.watch.listeners}
    commands = " ".join(listener.command for listener in listeners)
    for of_playing_or_training in ("sglang_launch", "sglang::scheduler", "train.verl.main"):
        assert of_playing_or_training in commands
    assert [listener for listener in sorted(listeners) if not listener.is_local] == []
    assert {mode for driver in killed.drivers for mode in driver.watch.scratch.values()} == {"drwx------"}


def test_a_line_a_step_without_gap_or_repetition(killed: Killed) -> None:
    assert [line["step"] for line in killed.lines] == list(range(killed.steps + 1))
    for line in killed.lines[1:]:
        assert line["selfplay/episodes"] == STATES * EPISODES
        assert line["selfplay/episodes_lost"] == 0
        with_signal = STATES - line["selfplay/groups_without_signal"]
        assert line["selfplay/rows"] <= 2 * EPISODES * (with_signal or STATES)
        assert 0 <= line["selfplay/reward"] <= 1
        assert {"actor/pg_loss", "actor/grad_norm"} <= line.keys()
    assert abs(killed.lines[1]["actor/kl_loss"]) < 1e-7 < killed.lines[2]["actor/kl_loss"], "to the model as it was"


def test_the_server_has_new_weights_after_each_step_and_they_are_the_trainers(killed: Killed) -> None:
    by_step: dict[int, set[float]] = {}
    for probe in killed.probes:
        by_step.setdefault(probe["step"], set()).add(round(probe["probe_logprob"], 5))
    assert sorted(by_step) == list(range(killed.steps + 1))
    assert all(len(values) == 1 for values in by_step.values()), "a continued training has the weights that it had"
    assert len(set().union(*by_step.values())) == killed.steps + 1
    for line in killed.lines[1:]:
        assert line["training/rollout_probs_diff_max"] < 1e-4
    worst = "training/off_policy/trajectory_staleness_worst/max"
    assert {line[worst] for line in killed.lines if worst in line} == {0}, "a step that was stopped lacks it"


def test_the_servers_log_probs_are_those_of_the_files(killed: Killed) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    for probe, folder in ((killed.probes[0], TINY), (killed.probes[-1], killed.folder / "checkpoint")):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            scores = torch.log_softmax(model(torch.tensor([[0, 1, 2]])).logits[0, -1], -1)
        assert float(scores[probe["probe_token"]]) == pytest.approx(probe["probe_logprob"], abs=1e-5)


def test_a_step_is_one_update_and_the_checkpoint_a_trained_model(killed: Killed) -> None:
    from transformers import AutoTokenizer

    assert optimizer_updates(killed.folder / "trainer_state") == killed.steps
    assert farthest(killed.folder / "checkpoint", TINY) > 1e-4
    assert AutoTokenizer.from_pretrained(killed.folder / "checkpoint").chat_template


def test_a_step_that_was_saved_is_not_done_again_although_its_validation_was_broken_off(killed: Killed) -> None:
    sampled = [json.loads(line)["step"] for line in (killed.folder / "weight_versions.jsonl").read_text().splitlines()]
    assert sampled == list(range(1, killed.steps + 1))
    last = (killed.folder / "train.log").read_text().split("Platform override")[-1]
    assert "Initial validation metrics" in last and "Training Progress" not in last, "the last process only validated"


def test_an_adapter_is_trained_and_kept(killed: Killed) -> None:
    assert_low_rank(killed.folder / "checkpoint", TINY, RANK)
    assert (killed.folder / "adapter" / "adapter_config.json").exists()


def smallest_lead(checkpoint: str, episodes: Path) -> float:
    """Returns by how much, at least, the likeliest of the tokens led the next one where a player chose, in nats."""
    leads = []
    for side in (side for record in read_episodes(episodes) for side in record.trajectories):
        logprobs = next_logprobs(side.prompt_ids + side.response_ids, folder=checkpoint)[len(side.prompt_ids) - 1 : -1]
        first, second = logprobs[[bool(own) for own in side.response_mask]].topk(2).values.T
        leads.append(float((first - second).min()))
    return min(leads)


@pytest.mark.parametrize("when", ["before", "after"])
def test_validation_gives_the_figures_of_selfplay_evaluate(killed: Killed, when: str, tmp_path: Path) -> None:
    config = load_config(str(killed.folder.parent / "config.yaml"), {"engine.kind": "transformers"})
    states = held_out_states(MatchingGame(config.game), HELD_OUT, space=MONITOR)
    player = str(TINY.resolve() if when == "before" else killed.folder / "checkpoint")
    job = EvaluationJob(player=player, states=states, output=tmp_path, episodes=1)
    evaluation = asyncio.run(run_evaluate(config, job))
    if smallest_lead(player, job.file("greedy")) < 1e-4:
        pytest.skip("two engines, which round differently, may choose different tokens")
    line = killed.lines[0 if when == "before" else -1]
    figures = evaluation.modes["greedy"].figures
    counts = {"episodes", "episodes_lost", "groups", "groups_lost", "groups_without_signal"}
    assert {name.removeprefix("held_out/") for name in line if name.startswith("held_out/")} == figures.keys() | counts
    assert (line["held_out/episodes"], line["held_out/episodes_lost"]) == (HELD_OUT, 0)
    for name, interval in figures.items():
        expected = pytest.approx(interval.value, abs=1e-6) if interval.value is not None else None
        assert line[f"held_out/{name}"] == expected, name


def test_a_finished_training_is_not_repeated(killed: Killed) -> None:
    before = (killed.folder / "metrics.jsonl").read_text()
    again = selfplay(*killed.command)
    assert again.returncode == 0, again.stderr
    assert (killed.folder / "metrics.jsonl").read_text() == before
