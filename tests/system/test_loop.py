"""The whole loop, two iterations, with the real server behind a recording proxy and the real verl."""

import asyncio
import json
import shutil
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from selfplay_pipeline.convert.parquet_check import check_parquet
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.held_out import REWARD_RISE, WORTH_RISE
from selfplay_pipeline.iterate.loop import run_iterate

TEMPERATURE = 0.8
"""Of the built-in `tiny`."""


def logprobs(folder: str, rows: list[dict], temperature: float) -> list[list[float]]:
    """transformers' log-probs of each row's unmasked response tokens."""
    import torch

    network = model(folder)
    answers = []
    for row in rows:
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        with torch.inference_mode():
            table = torch.log_softmax(network(ids).logits[0, :-1].float() / temperature, -1)
        start = len(row["prompt_ids"]) - 1
        answers.append(
            [
                float(table[start + i, token])
                for i, (token, own) in enumerate(zip(row["response_ids"], row["response_mask"], strict=True))
                if own
            ]
        )
    return answers


@cache
def model(folder: str):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def stored(rows: list[dict]) -> list[list[float]]:
    return [[p for p, own in zip(row["response_logprobs"], row["response_mask"], strict=True) if own] for row in rows]


def mean_difference(first: list[list[float]], second: list[list[float]]) -> float:
    pairs = [(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)]
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def test_the_output_layout_is_complete_and_both_iterations_trained(run):
    for number in (1, 2):
        folder = run.path / f"iter_{number}"
        for name in ("selfplay_games.jsonl", "train.parquet", "val.parquet", "checkpoint/config.json"):
            assert (folder / name).exists(), name
        assert (folder / "trainer_state").exists() == (number == 2), "the newest alone is kept"
        assert run.directory.state.iterations[number]["train"].figures["steps"] > 0
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["packages"]["verl"] == "0.9.1"
    assert manifest["config"]["seed"] == 0


def test_rows_hold_exactly_what_the_server_was_given_and_returned(run):
    """Every request's prompt and answer is a prefix of one row, and every row is one request's prompt and answer."""
    recorded = {}
    for exchange in run.proxy.exchanges:
        prompt, output = tuple(exchange["request"]["input_ids"]), exchange["response"]["output_ids"]
        values = [entry[0] for entry in exchange["response"]["meta_info"]["output_token_logprobs"]]
        recorded.setdefault(prompt + tuple(output), []).append((prompt, output, values))
    requests = 0
    for number in (1, 2):
        for row in run.rows(number):
            ids = row["prompt_ids"] + row["response_ids"]
            end = len(ids)
            own = [len(row["prompt_ids"]) + i for i, mask in enumerate(row["response_mask"]) if mask]
            while own:
                candidates = recorded.get(tuple(ids[:end]), [])
                width = len(row["prompt_ids"])
                matching = [
                    c
                    for c in candidates
                    if [row["response_logprobs"][i - width] for i in range(len(c[0]), end)]
                    == pytest.approx(c[2], abs=1e-6)
                    and all(row["response_mask"][i - width] for i in range(len(c[0]), end))
                ]
                assert matching, f"no request gave these tokens: {row['extra_info']}"
                prompt, output, _ = matching[0]
                requests += 1
                assert own[-len(output) :] == list(range(len(prompt), end))
                own = own[: -len(output)]
                end = own[-1] + 1 if own else 0
    games = [game for number in (1, 2) for game in run.games(number)]
    assert requests == sum(len(game.turns) for game in games)


def test_each_iterations_games_were_played_by_the_checkpoint_before(run):
    first = "data/tiny_model", run.rows(1)
    second = str(run.path / "iter_1" / "checkpoint"), run.rows(2)
    for folder, rows in (first, second):
        assert mean_difference(logprobs(folder, rows, TEMPERATURE), stored(rows)) < 1e-4
    assert mean_difference(logprobs(first[0], second[1], TEMPERATURE), stored(second[1])) > 1e-3


def test_the_weights_differ_after_each_iteration_and_are_float32(run):
    from safetensors.torch import load_file

    folders = ["data/tiny_model", *(str(run.path / f"iter_{n}" / "checkpoint") for n in (1, 2))]
    weights = [load_file(f"{folder}/model.safetensors") for folder in folders]
    for before, after in pairwise(weights):
        assert all(after[name].dtype == before[name].dtype for name in after)
        assert any(not after[name].equal(before[name]) for name in after)
    assert json.loads(Path(folders[2], "config.json").read_text())["dtype"] == "float32"


def test_verls_own_logprobs_of_the_first_step_equal_the_stored_ones(run):
    for number in (1, 2):
        steps = [json.loads(line) for line in (run.path / f"iter_{number}" / "metrics.jsonl").read_text().splitlines()]
        assert steps[0]["selfplay/log_prob_gap/max"] < 1e-4
        assert len(steps) == run.directory.state.iterations[number]["train"].figures["steps"]


def test_verls_dataset_and_all_checks_accept_the_data(run):
    for name in ("train", "val"):
        report = check_parquet(run.path / "iter_2" / f"{name}.parquet", "data/tiny_model")
        assert len(report.lines) == 6


def test_mask_reward_and_positions_of_every_row_as_verl_gets_them(run):
    from selfplay_pipeline.train.verl.replay import trajectory_fields

    for row in run.rows(1) + run.rows(2):
        fields = trajectory_fields(row)
        own = fields["response_mask"].nonzero().flatten()
        assert fields["rm_scores"].sum() == pytest.approx(row["reward_model"]["normalized_reward"])
        assert float(fields["rm_scores"][own[-1]]) == pytest.approx(row["reward_model"]["normalized_reward"])
        assert fields["loss_mask"].tolist() == row["response_mask"]
        assert fields["position_ids"].tolist() == list(range(len(row["prompt_ids"]) + len(row["response_ids"])))


def test_games_of_different_iterations_play_different_states(run):
    indices = [{game.group_index for game in run.games(number)} for number in (1, 2)]
    assert not indices[0] & indices[1]


def test_the_same_command_again_does_nothing(run):
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}
    again = asyncio.run(run_iterate(run.config, run.path))
    assert again.state == run.directory.state
    changed = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert not changed


def test_one_server_served_the_whole_run(run):
    assert run.proxy.paths.count("/update_weights_from_disk") == 2, "once for each new checkpoint"


def test_every_checkpoint_is_evaluated_on_the_same_held_out_states(run):
    evaluations = [run.path / f"iter_{number}" / "evaluation" for number in (0, 1, 2)]
    states = [
        {game.group_index: game.state for game in read_episodes(folder / "sampled.jsonl")} for folder in evaluations
    ]
    assert len(states[0]) == 8
    assert states[0] == states[1] == states[2]
    for number, checkpoint in ((0, "data/tiny_model"), (1, str((run.path / "iter_1" / "checkpoint").resolve()))):
        greedy = list(read_episodes(evaluations[number] / "greedy.jsonl"))
        assert {game.policy.checkpoint for game in greedy} == {checkpoint}
        assert {game.policy.temperature for game in greedy} == {0}


def test_each_evaluation_has_its_rise_over_the_first_paired_by_state(run):
    first, *later = (run.directory.state.evaluated(number) for number in (0, 1, 2))
    assert first.by_mode(REWARD_RISE) == {}
    for one in later:
        rises = one.by_mode(REWARD_RISE)
        assert rises["sampled"].value == pytest.approx(one.reward.value - first.reward.value)
        assert rises["sampled"].low <= rises["sampled"].value <= rises["sampled"].high
        assert "greedy" in rises and one.by_mode(WORTH_RISE) == {}


def test_tensorboard_has_the_figures_of_iterations_and_verls_of_steps(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def values(folder: Path, name: str) -> dict[int, float]:
        events = EventAccumulator(str(folder / "tensorboard"))
        events.Reload()
        return {event.step: event.value for event in events.Scalars(name)}

    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert values(run.path, "selfplay/held_out_reward/low") == pytest.approx(
        {line["iteration"]: line["held_out_reward"]["low"] for line in lines}
    )
    assert values(run.path, "selfplay/mean_reward") == pytest.approx(
        {line["iteration"]: line["mean_reward"] for line in lines[1:]}
    )
    for number in (1, 2):
        steps = [json.loads(line) for line in (run.path / f"iter_{number}" / "metrics.jsonl").read_text().splitlines()]
        assert values(run.path / f"iter_{number}", "actor/grad_norm") == pytest.approx(
            {step["step"]: step["actor/grad_norm"] for step in steps}
        )


def test_metrics_hold_a_line_for_each_iteration_and_the_best_is_named(run):
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert line["states_shared_with_training"] == 0
        interval = line["held_out_reward"]
        assert 0 < interval["low"] <= interval["value"] <= interval["high"] <= 1
    for line in lines[1:]:
        assert 0 < line["token_entropy"] < 1
        rewards = defaultdict(set)
        for game in run.games(line["iteration"]):
            rewards[game.group_index].add(game.outcome.normalized_reward)
        flat = sum(len(values) == 1 for values in rewards.values())
        assert line["groups_without_signal"] == pytest.approx(flat / len(rewards))
        assert 0 <= line["proposed_without_message"] < 0.5
        assert line["log_prob_gap"] < 1e-4
        assert line["distinct_messages"] > 5
    best = json.loads((run.path / "best.json").read_text())
    assert best["held_out_reward"]["value"] == max(line["held_out_reward"]["value"] for line in lines)
    assert best["checkpoint"] == lines[best["iteration"]]["checkpoint"]


def forget(run: Path, *stages: str) -> None:
    """Take stages of the second iteration out of the record, as if the run had been killed before their ends."""
    state = json.loads((run / "state.json").read_text())
    for stage in stages:
        del state["iterations"]["2"][stage]
    (run / "state.json").write_text(json.dumps(state))


def test_a_copied_and_a_moved_run_go_on_with_their_own_files(run, sglang_server, loop_with_trainer, tmp_path):
    """The training of the second iteration is done again in a copy, and its evaluation in the copy that was moved."""
    config = run.config.model_copy(deep=True)
    config.engine.server_url = [sglang_server.url]
    copy, moved, hidden = tmp_path / "copy", tmp_path / "moved", run.path.with_name("hidden")
    shutil.copytree(run.path, copy)
    run.path.rename(hidden)
    try:
        for made in ("checkpoint", "trainer_state", "evaluation"):
            shutil.rmtree(copy / "iter_2" / made)
        (copy / "iter_2" / "metrics.jsonl").unlink()
        forget(copy, "train", "evaluate")
        asyncio.run(run_iterate(config, copy, loop_with_trainer))
        first = json.loads((copy / "iter_2" / "metrics.jsonl").read_text().splitlines()[0])
        assert first["selfplay/log_prob_gap/max"] < 1e-4, "other weights than those that played"
        copy.rename(moved)
        games = moved / "iter_2" / "evaluation" / "sampled.jsonl"
        lines = games.read_bytes().splitlines(keepends=True)
        games.write_bytes(b"".join(lines[:5]))
        games.with_name("sampled.summary.json").unlink()
        forget(moved, "evaluate")
        asyncio.run(run_iterate(config, moved, loop_with_trainer))
    finally:
        hidden.rename(run.path)
    checkpoint = str(moved / "iter_2" / "checkpoint")
    assert [game.policy.checkpoint == checkpoint for game in read_episodes(games)] == [False] * 5 + [True] * 3
    for file in moved.rglob("*.json"):
        assert str(run.path) not in file.read_text(), file


def test_ahead_of_training_the_stored_log_probs_are_of_the_weights_that_played_and_the_old_ones_of_those_trained(
    run, sglang_server, loop_with_trainer, tmp_path
):
    """The initial model plays iteration 2 while 1 is trained, and the checkpoint of 1 plays iteration 3."""
    config = run.config.model_copy(deep=True)
    config.engine.server_url = [sglang_server.url]
    config.iterate.ahead, config.iterate.num_iterations, config.iterate.evaluate_every = 1, 3, 3
    config.train.learning_rate = 1e-3
    state = asyncio.run(run_iterate(config, tmp_path, loop_with_trainer)).state
    made = [str(config.model), *(str(tmp_path / f"iter_{number}" / "checkpoint") for number in (1, 2))]
    for number, played, trained, staleness in ((1, 0, 0, 0), (2, 0, 1, 1), (3, 1, 2, 1)):
        folder = tmp_path / f"iter_{number}"
        games = list(read_episodes(folder / "selfplay_games.jsonl"))
        assert len(games) == 24
        assert {Path(game.policy.checkpoint).resolve() for game in games} == {Path(made[played]).resolve()}
        rows = pq.read_table(folder / "train.parquet").to_pylist()
        assert mean_difference(logprobs(made[played], rows, TEMPERATURE), stored(rows)) < 1e-4
        assert state.trained(number).staleness == staleness
        first = [row for row in json_lines(folder / "trained_rows.jsonl") if row["step"] == 1]
        by_seat = {
            (row["extra_info"]["index"], row["extra_info"]["episode"], row["extra_info"]["seat"]): row for row in rows
        }
        row_of = [by_seat[row["group"], row["episode"], row["seat"]] for row in first]
        assert mean_difference(stored(row_of), [row["rollout_log_probs"] for row in first]) < 1e-6
        assert (
            mean_difference(logprobs(made[trained], row_of, TEMPERATURE), [row["old_log_probs"] for row in first])
            < 1e-4
        )
        step = json_lines(folder / "metrics.jsonl")[0]
        assert (step["selfplay/log_prob_gap/mean"] > 1e-3) == (staleness > 0)
        assert (abs(step["rollout_corr/rollout_is_std"]) > 1e-3) == (staleness > 0), "importance weights"


def json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
