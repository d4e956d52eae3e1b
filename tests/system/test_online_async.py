"""Online training that plays a batch ahead, with the real verl and SGLang on a CPU: killed in the middle, continued."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from typing import Any

import pytest
from shared_server import TINY, Server
from test_online_train import Run
from test_train import farthest, optimizer_updates

from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import FinishReason, SamplingParams

STEPS, STATES, EPISODES = 5, 2, 4
# At this learning rate the weights of neighbouring versions give the same log-probs to 1e-3; a row whose tokens or
# log-probs are shifted would differ by far more.
CONFIG = f"""\
base: tiny
model: {TINY}
game: {{size: 3, max_score: 9, scale_max: 1, max_length: 20, max_errors: 1, prompts: compact}}
generate: {{episodes_per_state: {EPISODES}, temperature: 0.8, max_new_tokens: 64}}
train: {{learning_rate: 1.0e-6, kl_coef: 0.05, save_every: 1}}
online: {{mode: colocate_async, steps: {STEPS}, states_per_step: {STATES}}}
evaluate: {{monitor_states: 4}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A training that was killed once the second step was saved, and continued by the same command."""
    home = tmp_path_factory.mktemp("async")
    (home / "config.yaml").write_text(CONFIG)
    run = Run(home / "run", STEPS, [])
    saved = run.folder / "trainer_state" / "latest_checkpointed_iteration.txt"
    run.begin().send_when(signal.SIGKILL, lambda: saved.exists() and saved.read_text() >= "2")
    run.drivers[0].assert_nothing_is_left()
    assert len(run.lines) < STEPS + 1, "the training was over before the kill"
    assert run.begin().process.wait(1200) == 0, (home / "driver.log").read_text()[-3000:]
    run.drivers[1].assert_nothing_is_left()
    return run


def rows_by_step(run: Run) -> dict[int, list[dict[str, Any]]]:
    lines = map(json.loads, (run.folder / "weight_versions.jsonl").read_text().splitlines())
    return {line["step"]: line["rows"] for line in lines}


def test_a_killed_training_does_every_step_once(run):
    assert [line["step"] for line in run.lines] == list(range(STEPS + 1))
    for line in run.lines[1:]:
        assert (line["selfplay/episodes"], line["selfplay/episodes_lost"]) == (STATES * EPISODES, 0)


def test_all_weights_are_trained_one_update_a_step(run):
    assert optimizer_updates(run.folder / "trainer_state") == STEPS
    moved = farthest(run.folder / "checkpoint", TINY)
    assert 1e-6 < moved < 2 * STEPS * 1e-6, "AdamW's steps at this learning rate"


def test_each_trained_row_names_weights_that_existed_and_verls_staleness_follows(run):
    rows = rows_by_step(run)
    assert sorted(rows) == list(range(1, STEPS + 1))
    whole = [line for line in run.lines[1:] if "timing_s/step" in line]
    assert len(whole) >= STEPS - 1, "only the step at which the training was killed may lack what verl computes last"
    for line in run.lines[1:]:
        step, versions = line["step"], rows[line["step"]]
        assert len(versions) == line["selfplay/rows"]
        assert all(0 <= row["oldest"] <= row["newest"] < step for row in versions)
    for line in whole:
        worst = [line["step"] - 1 - row["oldest"] for row in rows[line["step"]]]
        assert line["training/off_policy/trajectory_staleness_worst/max"] == max(worst)
        assert line["training/off_policy/trajectory_staleness_worst/mean"] == pytest.approx(sum(worst) / len(worst))


def test_rows_were_played_ahead_with_older_weights(run):
    behind = [step - 1 - row["oldest"] for step, rows in rows_by_step(run).items() for row in rows]
    assert max(behind) >= 1


def test_log_probs_belong_to_their_tokens_although_episodes_were_broken_off(run):
    for line in run.lines[1:]:
        assert line["training/rollout_probs_diff_max"] < 1e-2
        assert line["training/rollout_probs_diff_mean"] < 1e-3


def test_no_state_is_trained_on_in_two_steps_and_none_is_left_over(run):
    states = [{row["state"] for row in rows} for rows in rows_by_step(run).values()]
    assert sum(map(len, states)) == len(set().union(*states))
    saved = json.loads((run.folder / "trainer_state" / f"global_step_{STEPS}" / "unfinished.json").read_text())
    assert saved == {"taken": STEPS * STATES, "unfinished": []}


def test_an_aborted_completion_keeps_its_tokens_and_goes_on_as_if_it_had_not_been_aborted(sglang_server: Server):
    greedy = SamplingParams(temperature=0.0, max_new_tokens=200, stop_token_ids=())
    prompt = [5, 6, 7]

    async def act() -> tuple[Any, Any, Any]:
        async with asyncio.timeout(300), SGLangEngine([sglang_server.url]) as engine:
            whole = await engine.generate(prompt, greedy)
            for wait in itertools.cycle(0.01 * 1.4**power for power in range(24)):  # until it is sampled meanwhile
                asked = asyncio.create_task(engine.generate_until_aborted(prompt, greedy))
                await asyncio.sleep(wait)
                await engine.abort()
                first = await asked
                if first.finish_reason is FinishReason.ABORT and first.token_ids:
                    break
            left = SamplingParams(temperature=0.0, max_new_tokens=200 - len(first.token_ids), stop_token_ids=())
            return whole, first, await engine.generate([*prompt, *first.token_ids], left)

    whole, first, rest = asyncio.run(act())
    assert first.finish_reason is FinishReason.ABORT and 0 < len(first.token_ids) < len(whole.token_ids)
    assert first.token_ids + rest.token_ids == whole.token_ids
    assert first.logprobs + rest.logprobs == pytest.approx(whole.logprobs, abs=1e-3)
