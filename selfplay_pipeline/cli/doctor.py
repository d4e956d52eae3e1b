"""Commands for a machine: doctor and setup."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from selfplay_pipeline.command_parts.options import given, load, taking
from selfplay_pipeline.command_parts.shared import RUNS
from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.terminal.harmless import one_line

app = typer.Typer()
GPU_MEMORY = 80 * 10**9
"""Default memory of a described GPU, in bytes."""


@app.command(cls=taking("model", "device", "generate.num_episodes"))
def doctor(
    context: typer.Context,
    gpus: Annotated[
        int | None, typer.Option(min=0, max=LARGEST, help="Describe another machine: its GPUs [default: this machine].")
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=1, max=LARGEST, help="Its memory of each GPU, in GB [default: 80].")
    ] = None,
    host_memory: Annotated[
        float | None, typer.Option(min=1, max=LARGEST, help="Its host memory, in GB [default: not compared].")
    ] = None,
    disk: Annotated[
        float | None, typer.Option(min=0, max=LARGEST, help="Its free disk, in GB [default: not compared].")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=LARGEST, help="How many such machines there are.")] = 1,
    row_tokens: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Tokens of the longest row [default: those of the context].")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where results would go.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with sizes in bytes.")] = False,
) -> None:
    """Check whether model, configuration and machine fit together, and name the settings to change if they do not.

    Memory of training and serving, disk space and the minutes of an iteration are estimated from the model's
    config.json. If there are weights, their files are checked, but not loaded. The values that `iterate` would use
    are listed. The exit code is 0 if everything fits, else 2. If a model needs a GPU and this machine has none, the
    estimate is for a machine with GPUs. To describe another machine: selfplay doctor --gpus 8 --gpu-memory 80 --nodes 2
    """
    if gpus == 0 and gpu_memory:
        raise UserError("doctor: --gpu-memory: with --gpus 0 there is no GPU; leave one of them out")
    if gpus is None and (gpu_memory or nodes > 1 or host_memory or disk is not None):
        raise UserError(
            "doctor: --gpu-memory, --nodes, --host-memory and --disk describe another machine; give --gpus, its number "
            "of GPUs"
        )
    device = "cuda" if gpus else "cpu"
    if gpus is not None and (asked := given(context, "device")) not in (None, "auto", device):
        raise UserError(
            f"doctor: --gpus {gpus} describes a machine for --device {device}, not {asked}; give one of them"
        )
    described: dict[str, Any] = {"device": device} if gpus is not None else {}
    if nodes > 1:
        described["train.nodes"] = nodes
    told: list[str] = []
    settings = load(context, described, gpus=gpus, tell=told.append)
    from selfplay_pipeline.cli.show.doctor import as_object, show, verdict
    from selfplay_pipeline.core.checkpoints import check_checkpoint, holds_weights
    from selfplay_pipeline.core.gpus import resolve_device
    from selfplay_pipeline.core.model_sizes import sizes_of
    from selfplay_pipeline.doctor.checks import look
    from selfplay_pipeline.doctor.estimate import gpu_speed
    from selfplay_pipeline.doctor.examine import Machine, examine, needs_gpu, this_machine
    from selfplay_pipeline.doctor.speed import speed_here

    if holds_weights(Path(str(settings.model))):  # a config.json alone suffices for the estimate
        check_checkpoint(str(settings.model))
    sizes, here, not_here = sizes_of(str(settings.model)), settings, ""
    if gpus is None:
        machine = this_machine(output)
        not_here = needs_gpu(settings, sizes, machine)
        if not_here:
            settings = load(context, {"device": "cuda"}, gpus=1, tell=told.append)
            machine = Machine(settings.train.gpus_per_node, GPU_MEMORY, None, None, here=False)
    else:
        memory, host, free = (None if size is None else int(size * 1e9) for size in (gpu_memory, host_memory, disk))
        memory = memory or GPU_MEMORY
        machine = Machine(gpus, memory if gpus else None, host, free, nodes, here=False)
    terminal.say(told[-1])
    speed = gpu_speed("") if machine.gpus and not machine.here else speed_here()
    found = replace(examine(settings, sizes, machine, speed, row_tokens), not_here=not_here)
    checks = look(here, "cpu" if not_here else resolve_device(here.device), output) if gpus is None else []
    if as_json:
        terminal.result(json.dumps(as_object(found, checks), indent=2))
    else:
        show(found, checks)
    if verdict(found, checks) != ["fits"]:
        raise typer.Exit(2)


@app.command()
def setup(
    what: Annotated[
        list[str],
        typer.Argument(help="cpu or gpu: all that plays and trains; trackio, mlflow, swanlab, clearml: a logger."),
    ],
) -> None:
    """Install further packages into this environment, in their tested versions.

    The lists of versions are complete, so that nothing is resolved. Without `setup`,
    scripted players, chat models and people play.
    """
    import shlex

    from selfplay_pipeline.doctor.install import install, install_commands

    for command in install_commands(what):
        terminal.say(one_line(shlex.join(command)))
        install([command])
    terminal.result(one_line(f"installed: {', '.join(what)}"))
