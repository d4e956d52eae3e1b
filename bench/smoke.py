"""Tests playing, training and learning on a new machine. `make smoke-gpu` prints a verdict to paste into an issue.

The project's own commands are run as a user runs them. The tiny model goes through one iteration and three steps of
online training; a model with Qwen2.5-0.5B's configuration and random weights, or a given one, goes through one
iteration. The output is then checked as the tests check it.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import qwen
from bench.command import run
from selfplay_pipeline.config.training import WRITES_ROWS

PACKAGES = ("selfplay-pipeline", "torch", "sglang", "verl", "transformers", "ray")
STEPS = 3
TINY = "data/tiny_model"
TINY_RUN: dict[str, Any] = {
    "base": "tiny",
    "model": TINY,
    "generate": {"num_episodes": 64},
    "train": {"mini_batches": 1, "old_log_probs": "step", "loggers": []},
    "evaluate": {"monitor_states": 8},
    "iterate": {"num_iterations": 1},
    "online": {"steps": STEPS, "states_per_step": 4},
}
QWEN_RUN: dict[str, Any] = {
    "base": "default",
    "game": {"size": 2, "max_length": 4, "prompts": "compact"},
    "generate": {"num_episodes": 8, "episodes_per_state": 2, "temperature": 1.0, "max_new_tokens": 32},
    # All episodes of random weights may have reward 0: without the entropy term there would be no gradient.
    "train": {
        "train_batch_size": 16, "micro_batch_size": 2, "learning_rate": 1e-5, "keep_zero_signal": True,
        "overrides": ["actor_rollout_ref.actor.entropy_coeff=0.001"], "loggers": [],
    },
    "iterate": {"num_iterations": 1, "evaluate_every": 0},
}  # fmt: skip
GAPS = {"cpu": 1e-4, "cuda": 0.02}
"""Largest mean difference between server and trainer of a sampled token's log-prob in nats (offline) and of its
probability (online), in float32 and in bfloat16."""
WEIGHTS = {"cpu": 1e-3, "cuda": 0.05}
"""Largest distance of the mean importance weight (trainer over server, per token) from 1."""


@dataclass(frozen=True)
class Check:
    """One line of the verdict."""

    part: str
    what: str
    found: str
    wanted: str
    passed: bool


@dataclass
class Smoke:
    """A run of the smoke test, and its checks."""

    device: str
    folder: Path
    checks: list[Check]

    def check(self, part: str, what: str, found: Any, wanted: str, passed: bool) -> None:
        """Record the result of a check."""
        shown = f"{found:.2g}" if isinstance(found, float) else str(found)
        self.checks.append(Check(part, what, shown.replace("|", "/"), wanted, passed))

    def command(self, part: str, name: str, *arguments: str) -> bool:
        """Run one of the project's commands, with its output in a file; returns whether it succeeded."""
        log = self.folder / f"{part} {name}.log".replace(" ", "_")
        print(f"{part}: selfplay {name} … (log {log})", flush=True)
        began = time.monotonic()
        with log.open("wb") as file:
            command = [sys.executable, "-m", "selfplay_pipeline", name, *arguments]
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        found = f"{time.monotonic() - began:.0f} s" if code == 0 else f"exit code {code}: {_last_line(log)}"
        self.check(part, f"selfplay {name}", found, "exit code 0", code == 0)
        return code == 0

    def configured(self, part: str, config: dict[str, Any]) -> str:
        """Write a configuration file for this device; returns its path."""
        file = self.folder / f"{part}.yaml".replace(" ", "_")
        file.write_text(json.dumps(config | {"device": self.device}, indent=1))
        return str(file)

    def offline(self, part: str, config: dict[str, Any]) -> None:
        """Run one iteration: play, convert, train."""
        overrides = [*config["train"].get("overrides", []), WRITES_ROWS]
        noted = config | {"train": config["train"] | {"overrides": overrides}}
        file, out = self.configured(part, noted), self.folder / part.replace(" ", "_")
        if not self.command(part, "iterate", "--config", file, "--output", str(out)):
            return
        iteration = out / "iter_1"
        data = str(iteration / "train.parquet")
        self.command(part, "convert", "--check", data, "--config", file)
        self.check_iteration(part, str(config["model"]), iteration)

    def check_iteration(self, part: str, model: str, iteration: Path) -> None:
        """Check that the sampled tokens were trained on, with equal log-probs, and that the weights changed."""
        self._check_rows(part, iteration)
        self._check_metrics(part, read_lines(iteration / "metrics.jsonl"), "rollout_corr/rollout_is_mean")
        self.check_weights(part, model, iteration / "checkpoint")

    def online(self, part: str, config: dict[str, Any]) -> None:
        """Run some steps of online training."""
        file, out = self.configured(part, config), self.folder / part.replace(" ", "_")
        if not self.command(part, "train-online", "--config", file, "--output", str(out)):
            return
        steps = [line for line in read_lines(out / "metrics.jsonl") if line["step"]]
        self.check(part, "steps", len(steps), f"{STEPS}", len(steps) == STEPS)
        lost = sum(line["selfplay/episodes_lost"] for line in steps)
        self.check(part, "episodes lost", lost, "0", not lost)
        gap = max(line["training/rollout_probs_diff_mean"] for line in steps)
        limit = GAPS[self.device]
        self.check(part, "server against trainer: mean gap of probabilities", gap, f"< {limit}", gap < limit)
        self._check_metrics(part, steps, None)
        self.check_weights(part, str(config["model"]), out / "checkpoint")

    def _check_rows(self, part: str, iteration: Path) -> None:
        """Check that exactly the played rows were trained on, and measure the log-prob gap of trainer and server."""
        import pyarrow.parquet as pq

        played = {}
        for row in pq.read_table(iteration / "train.parquet").to_pylist():
            info = row["extra_info"]
            own = list(compress(row["response_logprobs"], row["response_mask"]))
            played[info["index"], info["episode"], info["seat"], row.get("turn", 0)] = own
        trained = [row for row in read_lines(iteration / "trained_rows.jsonl") if row["step"] == 1]
        exact = sum(
            _near(played[row["group"], row["episode"], row["seat"], row["turn"]], row["rollout_log_probs"])
            for row in trained
        )
        found = f"{exact} of {len(trained)} rows"
        self.check(part, "trained rows are those that were sampled", found, "all", 0 < exact == len(trained))
        pairs = [pair for row in trained for pair in zip(row["old_log_probs"], row["rollout_log_probs"], strict=True)]
        gaps = [abs(trainers - servers) for trainers, servers in pairs]
        mean, limit = sum(gaps) / len(gaps), GAPS[self.device]
        what = f"server against trainer: mean gap of {len(gaps)} log-probs (largest {max(gaps):.2g})"
        self.check(part, what, mean, f"< {limit}", mean < limit)

    def _check_metrics(self, part: str, lines: list[dict[str, Any]], weight: str | None) -> None:
        numbers = [value for line in lines for value in line.values() if isinstance(value, int | float)]
        finite = all(map(math.isfinite, numbers))
        self.check(part, f"{len(numbers)} metrics are finite", finite, "True", finite and bool(numbers))
        norm = min(line["actor/grad_norm"] for line in lines)
        self.check(part, "norm of the gradient, smallest step", norm, "> 0", norm > 0)
        ratio = max(abs(line["actor/ppo_kl"]) for line in lines)
        limit = WEIGHTS[self.device]
        self.check(part, "PPO's mean log ratio, worst step", ratio, f"< {limit}", ratio < limit)
        if weight is not None:
            far = abs(lines[0][weight] - 1)
            self.check(part, "mean importance weight of the first step, from 1", far, f"< {limit}", far < limit)

    def check_weights(self, part: str, before: str, after: Path) -> None:
        """Check that a training changed weights and left all of them finite."""
        import torch
        from transformers import AutoModelForCausalLM

        old, new = (
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict() for model in (before, after)
        )
        changed = sum(not old[name].equal(new[name]) for name in old)
        self.check(part, "weights that the training changed", f"{changed} of {len(old)} tensors", "some", changed > 0)
        finite = all(bool(tensor.isfinite().all()) for tensor in new.values())
        self.check(part, "weights are finite", finite, "True", finite)

    def attempt(self, part: str, do: Callable[[str, dict[str, Any]], None], config: dict[str, Any]) -> None:
        """Run a part; missing or malformed output of a command is a failed check."""
        try:
            do(part, config)
        except Exception as error:
            self.check(part, "what was written can be checked", f"{type(error).__name__}: {error!s:.200}", "yes", False)

    def doctor(self, part: str, config: dict[str, Any]) -> None:
        """Run `selfplay doctor` for this machine and the model, and print its report."""
        file = self.configured(part, config)
        if self.command(part, "doctor", "--config", file):
            print((self.folder / f"{part} doctor.log".replace(" ", "_")).read_text())

    def verdict(self, seconds: float) -> str:
        """Returns the verdict as a Markdown table."""
        passed = sum(check.passed for check in self.checks)
        said = "passed" if passed == len(self.checks) else "FAILED"
        lines = [
            f"**Smoke test on {self.device}: {said}, {passed} of {len(self.checks)} checks in {seconds:.0f} s**",
            "",
            *(f"- {line}" for line in described_machine()),
            "",
            "| part | check | found | wanted | |",
            "|---|---|---|---|---|",
        ]
        for check in self.checks:
            mark = "pass" if check.passed else "**FAIL**"
            lines.append(f"| {check.part} | {check.what} | {check.found} | {check.wanted} | {mark} |")
        return "\n".join(lines)


def main(
    device: Annotated[str, typer.Option(help="gpu, or cpu for a smaller run.")] = "gpu",
    output: Annotated[Path, typer.Option(help="Folder; each run gets a new one in it.")] = Path("data/smoke"),
    model: Annotated[
        str, typer.Option(help="Model of the larger run, such as Qwen/Qwen2.5-0.5B-Instruct [default: random weights].")
    ] = "",
) -> None:
    """Play, train and check on this machine; exit code 1 if a check fails."""
    began = time.monotonic()
    os.environ["TQDM_DISABLE"] = "1"
    folder = output / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    smoke = Smoke("cpu" if device == "cpu" else "cuda", folder, [])
    if not model:
        model = str(folder / "model")
        small: dict[str, Any] = {"layers": 2, "tokens": qwen.FEW} if smoke.device == "cpu" else {}
        qwen.build_apart(Path(model), **small)
    smoke.attempt("0.5B", smoke.doctor, QWEN_RUN | {"model": model})
    smoke.attempt("tiny offline", smoke.offline, TINY_RUN)
    smoke.attempt("tiny online", smoke.online, TINY_RUN)
    smoke.attempt("0.5B offline", smoke.offline, QWEN_RUN | {"model": model})
    verdict = smoke.verdict(time.monotonic() - began)
    (folder / "verdict.md").write_text(verdict + "\n")
    print(f"\n{verdict}\n\nwritten to {folder / 'verdict.md'}")
    if not all(check.passed for check in smoke.checks):
        raise typer.Exit(1)


def described_machine() -> Iterator[str]:
    """Yields lines about versions, revision and GPUs."""
    yield ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    yield f"Python {platform.python_version()}, revision {_said('git', 'rev-parse', '--short', 'HEAD') or 'unknown'}"
    query = "--query-gpu=name,memory.total,driver_version"
    gpus = _said("nvidia-smi", query, "--format=csv,noheader")
    yield f"GPU: {gpus or 'none'}; {os.cpu_count()} CPU cores"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _said(*command: str) -> str:
    """Returns the output of a program, empty if it cannot be run."""
    try:
        return "; ".join(subprocess.run(command, capture_output=True, text=True).stdout.split("\n")).strip("; ")
    except OSError:
        return ""


def _near(first: list[float], second: list[float]) -> bool:
    """Whether both are the same numbers, up to the rounding of float32."""
    return len(first) == len(second) and all(map(_same, first, second))


def _same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-6)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file with one on each line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:300]


if __name__ == "__main__":
    run(main)
