"""`make smoke-gpu` on a CPU: each check passes a good run, and notices what it is there for."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.smoke import TINY, Smoke
from selfplay_pipeline.config.load import load_config

pytestmark = pytest.mark.bench
PARTS = ("tiny offline", "tiny online", "0.5B offline")


def test_the_verdict_says_of_each_part_that_it_passed(tmp_path):
    command = [sys.executable, "-m", "bench.smoke", "--device", "cpu", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    verdict = (folder / "verdict.md").read_text()
    assert verdict.startswith("**Smoke test on cpu: passed, ")
    assert "GPU: " in verdict and "sglang 0.5.12" in verdict
    for part in PARTS:
        lines = [line for line in verdict.splitlines() if line.startswith(f"| {part} |")]
        assert len(lines) >= 6, part
        assert all(line.endswith("| pass |") for line in lines)


@pytest.mark.bench
def test_the_evidence_of_a_machine_has_each_stage_and_the_memory_beside_what_was_counted(tmp_path):
    where = ("--folder", str(tmp_path / "runs"), "--output", str(tmp_path / "told"))
    command = [sys.executable, "-m", "bench.evidence", "--size", "small", "--device", "cpu", *where]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "told" / "evidence.json").read_text())
    assert found["checks"] and all(check["passed"] for check in found["checks"])
    small = found["sizes"]["small"]
    assert small["log_prob_gap"] < 1e-4
    assert 0.5 < small["memory"]["counted"] / small["memory"]["measured"] < 2
    assert {"play", "convert", "train: steps", "train: save"} <= small["estimate"].keys() & small["seconds"].keys()
    assert all(seconds > 0 for seconds in (*small["estimate"].values(), *small["seconds"].values()))
    told = (tmp_path / "told" / "evidence.md").read_text()
    assert "| second iteration, s | estimated | measured |" in told and "**Smoke test on cpu: passed, " in told


@pytest.mark.bench
def test_the_warm_start_of_the_race_is_made_by_imitation(tmp_path):
    model, output = tmp_path / "model", tmp_path / "warm"
    sizes = ("--layers", "2", "--tokens", "4000", "--heads", "2")
    taught = (str(output), "--model", str(model), "--episodes", "12")
    for arguments in (("bench.qwen", str(model), *sizes), ("bench.race.warm", *taught)):
        done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in (output / "training" / "metrics.jsonl").read_text().splitlines()]
    losses = [step["selfplay/loss"] for step in steps if "selfplay/loss" in step]
    assert losses[-1] < losses[0]
    chosen = load_config("bench/race/smollm2.yaml", {}).model
    assert (output / Path(chosen).relative_to("data/smollm2_warm") / "model.safetensors").exists()


def checked(iteration: Path) -> Smoke:
    """The checks of one iteration of the tiny model."""
    smoke = Smoke("cpu", iteration.parent, [])
    smoke.attempt("part", lambda part, config: smoke.check_iteration(part, TINY, iteration), {})
    return smoke


def test_an_iteration_as_it_is_passes_all_checks(run):
    checks = checked(run.path / "iter_1").checks
    assert len(checks) >= 6
    assert [check for check in checks if not check.passed] == []


def change(path: Path, act: Callable[[dict], None]) -> None:
    """Change the first line of a file."""
    first, *others = path.read_text().splitlines(keepends=True)
    line = json.loads(first)
    act(line)
    path.write_text(json.dumps(line) + "\n" + "".join(others))


@pytest.mark.parametrize(
    ("file", "act", "failed"),
    [
        ("trained_rows.jsonl", lambda row: row["rollout_log_probs"].pop(), "trained rows are those that were sampled"),
        ("trained_rows.jsonl", lambda row: row["rollout_log_probs"].reverse(), "trained rows are those that were"),
        (
            "trained_rows.jsonl",
            lambda row: row.update(old_log_probs=[-9.0] * len(row["old_log_probs"])),
            "server against",
        ),
        ("metrics.jsonl", lambda line: line.update({"actor/pg_loss": float("nan")}), "metrics are finite"),
        ("metrics.jsonl", lambda line: line.update({"actor/grad_norm": 0.0}), "norm of the gradient"),
        ("metrics.jsonl", lambda line: line.update({"actor/ppo_kl": 0.1}), "PPO's mean log ratio"),
        ("metrics.jsonl", lambda line: line.update({"rollout_corr/rollout_is_mean": 0.9}), "mean importance weight"),
        ("metrics.jsonl", lambda line: line.clear(), "what was written can be checked"),
    ],
)
def test_what_is_spoilt_fails(run, tmp_path, file, act, failed):
    iteration = tmp_path / "iter_1"
    shutil.copytree(run.path / "iter_1", iteration, ignore=shutil.ignore_patterns("trainer_state"))
    change(iteration / file, act)
    assert [check.what for check in checked(iteration).checks if not check.passed and failed in check.what]


def test_a_training_that_changes_no_weight_fails(tmp_path):
    smoke = Smoke("cpu", tmp_path, [])
    smoke.check_weights("part", TINY, Path(TINY))
    assert [check.found for check in smoke.checks if not check.passed] == ["0 of 51 tensors"]


def test_a_command_that_fails_is_told_with_its_last_line(tmp_path):
    smoke = Smoke("cpu", tmp_path, [])
    smoke.offline("part", {"model": "./nowhere", "train": {}})
    (check,) = smoke.checks
    assert not check.passed
    assert "exit code 2" in check.found and "nowhere" in check.found
