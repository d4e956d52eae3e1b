"""Gathers evidence from a machine in one command: `make gpu-evidence` plays and trains at given sizes and measures.

For each size a model with random weights is built. `selfplay doctor` counts its needs, `iterate` does two iterations of
it, and the smoke test checks what was trained on. Peak memory is compared with `train/memory.py`, the seconds of each
stage of the second iteration with `doctor/estimate.py`. All results go into one JSON file and one page.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from bench import qwen
from bench.command import run
from bench.smoke import Smoke, described_machine, read_lines
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import WRITES_ROWS
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import visible_gpus
from selfplay_pipeline.core.model_sizes import KNOWN, sizes_of
from selfplay_pipeline.doctor.estimate import Speed, Stage, Work, iteration
from selfplay_pipeline.doctor.examine import Machine, examine, this_machine, work_of
from selfplay_pipeline.doctor.speed import speed_here
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.train.memory import in_host, needs, on_device

SIZES: dict[str, dict[str, Any]] = {
    "small": {"layers": 2, "tokens": qwen.FEW},
    "0.5B": {},
    "7B": {"config": KNOWN["Qwen/Qwen2.5-7B-Instruct"]},
}
"""Arguments of `qwen.build` for each size."""
RUN: dict[str, Any] = {
    "game": {"size": 2, "max_length": 8, "max_errors": 8, "prompts": "compact"},
    "generate": {"episodes_per_state": 2, "temperature": 1.0},
    # All episodes of random weights may have reward 0: without the entropy term there would be no gradient.
    "train": {
        "keep_zero_signal": True, "loggers": [],
        "overrides": ["actor_rollout_ref.actor.entropy_coeff=0.001", WRITES_ROWS],
    },
    "iterate": {"num_iterations": 2, "evaluate_every": 0},
}  # fmt: skip
"""Configuration of the runs on all devices."""
EPISODES, NEW_TOKENS = {"cpu": 16, "cuda": 256}, {"cpu": 32, "cuda": 256}
TRAINER = "selfplay_pipeline.train.verl.main"
LOOK = 0.5
"""Seconds between two looks at the memory of the trainer's processes."""


def main(
    size: Annotated[
        list[str] | None, typer.Option(help=f"Sizes to run, of {', '.join(SIZES)} [default: 0.5B and 7B].")
    ] = None,
    device: Annotated[str, typer.Option(help="gpu or cpu.")] = "gpu",
    bare: Annotated[bool, typer.Option(help="Play with transformers, on a machine without SGLang.")] = False,
    folder: Annotated[Path, typer.Option(help="Folder for models, runs and logs.")] = Path("data/evidence"),
    output: Annotated[
        Path | None, typer.Option(help="Folder for the JSON file and the page [default: the folder of the run].")
    ] = None,
) -> None:
    """Play, train, check and measure on this machine; exit code 1 if a check fails."""
    size = size or ["0.5B", "7B"]
    if unknown := set(size) - SIZES.keys():
        raise UserError(f"--size: there is no size {min(unknown)!r}; choose from {', '.join(SIZES)}")
    os.environ["TQDM_DISABLE"] = "1"
    began, folder = time.monotonic(), folder / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    smoke = Smoke("cpu" if device == "cpu" else "cuda", folder, [])
    speed, found = speed_here(), dict[str, Any]()
    for name in size:
        model = folder / f"model_{name}"
        qwen.build_apart(model, **SIZES[name])
        config = _configured(smoke.device, model, bare=bare)
        smoke.attempt(name, smoke.doctor, config)
        with peak_memory() as peak:
            smoke.attempt(name, smoke.offline, config)

        def note(name: str, config: dict[str, Any], peak: list[int] = peak) -> None:
            found[name] = measured(smoke, name, speed, peak)

        smoke.attempt(name, note, config)
    seconds = round(time.monotonic() - began)
    result = {
        "machine": [*described_machine()],
        "seconds": seconds,
        "assumed": vars(speed),
        "sizes": found,
        "checks": [vars(check) for check in smoke.checks],
    }
    target = output or folder
    target.mkdir(parents=True, exist_ok=True)
    (target / "evidence.json").write_text(json.dumps(result, indent=1) + "\n")
    (target / "evidence.md").write_text(page(smoke, speed, found, seconds))
    print((target / "evidence.md").read_text() + f"\nwritten to {target}")
    if not all(check.passed for check in smoke.checks):
        raise typer.Exit(1)


def _configured(device: str, model: Path, *, bare: bool) -> dict[str, Any]:
    """Returns the configuration of a size: that of the machine's GPUs, with fewer and shorter episodes on a CPU."""
    config: dict[str, Any] = json.loads(json.dumps(RUN)) | {"model": str(model)}
    config["generate"] |= {"num_episodes": EPISODES[device], "max_new_tokens": NEW_TOKENS[device]}
    if device == "cpu":
        config["base"] = "default"
        config["train"] |= {"train_batch_size": 16, "learning_rate": 1e-5}
    if bare:
        config["engine"] = {"kind": "transformers"}
    return config


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Yields a list that holds, at its end, the largest memory of all trainer processes together, in bytes.

    Memory that several processes share is divided among them.
    """
    peak, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(LOOK):
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    if TRAINER in process.cmdline() or process.name().startswith("ray::"):
                        total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def measured(smoke: Smoke, name: str, speed: Speed, peak: list[int]) -> dict[str, Any]:
    """Returns memory and seconds of a run, each beside what was counted for its own numbers of tokens."""
    folder = smoke.folder / name
    directory = RunDirectory(folder)
    config = load_config(str(smoke.folder / f"{name}.yaml"), {})
    lines = read_lines(folder / "iter_2" / "metrics.jsonl")
    work, largest = _work(config, directory), round(max(line["selfplay/max_tokens_of_a_pass"] for line in lines))
    machine = Machine(visible_gpus(), None, None, None) if smoke.device == "cpu" else this_machine(folder)
    found = examine(config, sizes_of(str(config.model)), machine, speed)
    setup = replace(found.setup, tokens=largest)
    counted = needs(found.sizes, setup)
    if setup.cuda:
        used = max(line["perf/max_memory_reserved_gb"] for line in lines) * 2**30
        memory = {"counted": on_device(counted), "measured": round(used), "of": "a GPU"}
    else:
        memory = {"counted": in_host(counted, setup), "measured": peak[0], "of": "the trainer on a CPU"}
    state = directory.load()
    trained, saving = state.trained(2), sum(line.get("timing_s/save_checkpoint", 0.0) for line in lines)
    seconds = {stage: record.seconds for stage, record in state.iterations[2].items()}
    assert trained is not None
    took = {
        "play": seconds["generate"],
        "convert": seconds["convert"],
        "train: steps": trained.seconds_in_steps,
        "train: save": saving,
        "train: rest": seconds["train"] - trained.seconds_in_steps - saving,
    }
    stages = iteration(found.sizes, setup, found.play, work, speed)
    return {
        "parameters": found.sizes.parameters,
        "used": found.used,
        "work": vars(work),
        "log_prob_gap": trained.log_prob_gap,
        "largest_pass": largest,
        "memory": memory,
        "seconds": took,
        "estimate": _estimate(stages),
    }


def _work(config: Config, directory: RunDirectory) -> Work:
    """Returns the tokens and rows that the second iteration had."""
    import pyarrow.parquet as pq

    state = directory.load()
    played, trained = state.played(2), state.trained(2)
    assert played is not None and trained is not None
    rows = pq.read_table(directory.rows(2), columns=["prompt_ids", "response_ids"]).to_pylist()
    lengths = [len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows]
    return replace(
        work_of(config, max(lengths)),
        rows=trained.rows or 0,
        row=round(statistics.mean(lengths)),
        sampled=round((played.sampled_tokens or 0) / (played.episodes or 1)),
        updates=trained.updates or 0,
    )


def _estimate(stages: list[Stage]) -> dict[str, float]:
    """Returns the estimated seconds by the names of what is measured."""
    found = {stage.what: stage.seconds for stage in stages}
    steps = sum(found.pop(name, 0.0) for name in ("train: passes", "train: optimizer"))
    return {
        "play": found["play"],
        "convert": found["convert"],
        "train: steps": steps,
        "train: save": found["train: save"],
    }


def page(smoke: Smoke, speed: Speed, found: dict[str, Any], seconds: float) -> str:
    """Returns the page: a table of seconds and one of memory for each size, and the checks."""
    lines = ["# What a machine showed", "", f"Speeds: {speed.assumptions()}.", ""]
    for name, size in found.items():
        work, memory = size["work"], size["memory"]
        lines += [
            f"## {name}: {size['parameters']:,} parameters",
            "",
            f"{work['episodes']} episodes, {work['sampled']} sampled tokens each; {work['rows']} rows of {work['row']} "
            f"tokens, updates: {work['updates']}; the largest pass had {size['largest_pass']:,} tokens. Server and "
            f"trainer differ by {size['log_prob_gap']:.2g} nats a token on average.",
            "",
            "| second iteration, s | estimated | measured | estimated / measured |",
            "|---|---|---|---|",
        ]
        for stage, took in size["seconds"].items():
            expected = size["estimate"].get(stage)
            ratio = "" if expected is None or not took else f"{expected / took:.2f}"
            lines += [f"| {stage} | {'' if expected is None else f'{expected:.1f}'} | {took:.1f} | {ratio} |"]
        counted, used = memory["counted"], memory["measured"]
        lines += [
            "",
            f"Peak memory of {memory['of']}: {counted / 1e9:.2f} GB counted, {used / 1e9:.2f} GB measured"
            + (f" ({counted / used:.2f})." if used else "."),
            "",
        ]
    return "\n".join([*lines, smoke.verdict(seconds), ""])


if __name__ == "__main__":
    run(main)
