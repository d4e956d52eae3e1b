"""Prints the result of `selfplay doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.doctor.checks import Check
from selfplay_pipeline.doctor.examine import Examination
from selfplay_pipeline.train.memory import STATE, gigabytes


def show(found: Examination, checks: Sequence[Check]) -> None:
    """Print tables of memory and disk, the checks, and a verdict."""
    console = Terminal()
    if found.not_here:
        described = f"--gpus {found.machine.gpus} --gpu-memory {(found.machine.gpu or 0) / 1e9:g}"
        console.print(one_line(f"{found.not_here}. Counted for another machine, as with {described}:"), soft_wrap=True)
    console.print(one_line(f"model:   {found.model}, {found.sizes.parameters:,} parameters"), soft_wrap=True)
    console.print(one_line(f"machine: {found.machine.in_words()}"), soft_wrap=True)
    console.print(_used(found))
    console.print(_training(found))
    console.print(_further(found))
    console.print(_stages(found))
    console.print(one_line(f"assumed: {found.speed.assumptions()}"), soft_wrap=True)
    for check in checks:
        console.print(one_line(f"{check.sign} {check.what}: {check.found}"), soft_wrap=True)
    if not found.machine.here:
        parts = ["driver", "compiler"] if checks else ["driver", "compiler", "versions", "chat template", "folders"]
        console.print(f"not looked at: {', '.join(parts)} (the machine is described)")
    for line in found.advice:
        console.print(one_line(f"could be better: {line}"), soft_wrap=True)
    for line in verdict(found, checks):
        console.print(one_line(line), soft_wrap=True)


def verdict(found: Examination, checks: Sequence[Check]) -> list[str]:
    """Returns the last lines of the output: the problems that were found, or "fits"."""
    faults = [*found.faults, *(f"{check.what}: {check.found}" for check in checks if check.good is False)]
    lines = [f"does not fit: {fault}" for fault in faults]
    if found.not_here:
        lines = [f"does not fit here: {found.not_here}", *(lines or [f"fits on {found.machine.in_words()}"])]
    if found.sizes.uncounted:
        kinds = ", ".join(found.sizes.uncounted)
        lines.append(f"not counted: {kinds}; whether the memory suffices is not known, so try it with few episodes")
    unknown = [f"could not be asked: {check.what}: {check.found}" for check in checks if check.good is None]
    return [*lines, *unknown] or ["fits"]


def _used(found: Examination) -> Table:
    table = Table(title="values that iterate uses here", box=None, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for key, value in found.used.items():
        table.add_row(key, one_line(str(value).lower() if isinstance(value, bool) else str(value)))
    return table


def _table(title: str, numbers: Sequence[str], reasons: str = "") -> Table:
    """Returns an empty table: a column for the names of the rows, columns of numbers, and a column of reasons."""
    table = Table(title=title, box=None)
    table.add_column("")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(reasons, overflow="fold")
    return table


def _stages(found: Examination) -> Table:
    table = _table("an iteration after the first, estimated", ["minutes"])
    for stage in found.stages:
        table.add_row(stage.what, f"{stage.seconds / 60:.1f}", stage.why)
    table.add_row("together", f"{sum(stage.seconds for stage in found.stages) / 60:.1f}", "", style="bold")
    return table


def _training(found: Examination) -> Table:
    setup, cuda = found.setup, found.setup.cuda
    each = "each GPU" if cuda else "each process"
    title = f"training, {setup.processes} process{'es' * (setup.processes > 1)}"
    table = _table(title, [each, "host memory" if cuda else "this machine"], "how it is counted")
    for need in found.training:
        if not need.device + need.host and need.what not in STATE:
            continue
        host = need.host if cuda else need.host + need.device * setup.processes_per_node
        table.add_row(need.what, _size(need.device), _size(host), need.why)
    table.add_row("together", gigabytes(found.device_total), gigabytes(found.host_total), "", style="bold")
    room = found.machine.room
    table.add_row("there", _size(room.gpu) if cuda else "", _size(room.host), "")
    return table


def _further(found: Examination) -> Table:
    table = _table("serving and disk", [""])
    if found.serving is not None:
        serving = found.serving
        table.add_row("server", _size(serving.memory), "engine.memory_fraction of each GPU, while it plays")
        table.add_row("its weights", _size(serving.weights), "bfloat16")
        table.add_row("its keys and values", _size(serving.cache), f"{serving.tokens:,} tokens a copy of the model")
    table.add_row("checkpoint", _size(found.disk.checkpoint), "on disk, each iteration")
    table.add_row("trainer state", _size(found.disk.state), "on disk, weights and optimizer")
    table.add_row("a whole run", _size(found.disk_peak), "on disk, at its peak, beside episodes")
    return table


def _size(size: int | None) -> str:
    return "" if not size else gigabytes(size)


def as_object(found: Examination, checks: Sequence[Check]) -> dict[str, Any]:
    """Returns the result as an object for programs; sizes in bytes."""
    closing = verdict(found, checks)
    return {
        "model": found.model,
        "parameters": found.sizes.parameters,
        "training": {need.what: {"device": need.device, "host": need.host} for need in found.training},
        "device_total": found.device_total,
        "host_total": found.host_total,
        "serving": None if found.serving is None else vars(found.serving),
        "disk": vars(found.disk) | {"peak": found.disk_peak},
        "configuration": found.used,
        "seconds": {stage.what: stage.seconds for stage in found.stages},
        "assumed": vars(found.speed),
        "checks": {check.what: {"good": check.good, "found": check.found} for check in checks},
        "advice": found.advice,
        "verdict": closing,
        "fits": closing == ["fits"],
    }
