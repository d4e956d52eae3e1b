"""Compares the needs of a configuration with a machine, and names the settings to change."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import Device, resolve_device, visible_gpus
from selfplay_pipeline.core.model_sizes import ModelSizes
from selfplay_pipeline.doctor.estimate import ROW_SHARE, SAMPLED_SHARE, Play, Speed, Stage, Work, iteration
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.partners import at_once, trained_seats
from selfplay_pipeline.iterate.schedule import saves_state
from selfplay_pipeline.train.memory import (
    SERVER_REST,
    Disk,
    Need,
    Room,
    Setup,
    disk,
    gigabytes,
    in_host,
    kv_bytes,
    lacks,
    needs,
    on_device,
    remedy,
    surely_lacks,
)
from selfplay_pipeline.train.memory_check import resolve_offload, room_here, setup_of, tokens_of_pass
from selfplay_pipeline.train.verl_overrides import resolve_dtype


@dataclass(frozen=True)
class Machine:
    """The machine to examine: one node, or several equal ones. Sizes are in bytes, None if unknown."""

    gpus: int
    """GPUs of each node."""
    gpu: int | None
    """Memory of each GPU."""
    host: int | None
    """Memory of each node."""
    disk: int | None
    """Free disk space of the folder for results."""
    nodes: int = 1
    here: bool = True
    """Whether this is the current machine, so that further checks are possible."""

    @property
    def room(self) -> Room:
        return Room(self.gpu, self.host)

    def in_words(self) -> str:
        parts = [f"{self.nodes} nodes of"] if self.nodes > 1 else []
        size = f" of {gigabytes(self.gpu)}" if self.gpu else ""
        parts += [f"{self.gpus} GPU{'s' * (self.gpus != 1)}{size}" if self.gpus else "no GPU"]
        further = [f"{gigabytes(self.host)} host memory"] if self.host else []
        further += [f"{gigabytes(self.disk)} of disk free"] if self.disk is not None else []
        return ", ".join([" ".join(parts), *further])


def this_machine(output: Path) -> Machine:
    """Returns the current machine.

    Args:
        output: Folder for results.
    """
    gpus = visible_gpus()
    room = room_here("cuda" if gpus else "cpu")
    folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    return Machine(gpus, room.gpu, room.host, disk=shutil.disk_usage(folder).free)


@dataclass(frozen=True)
class Serving:
    """Memory that SGLang's server uses on each GPU, and the number of tokens in its cache."""

    memory: int
    """Bytes that the server takes."""
    weights: int
    cache: int
    """Bytes left for keys and values; below 0 if the weights do not fit."""
    tokens: int
    """Number of tokens in the key-value cache of one copy of the model."""


@dataclass(frozen=True)
class Examination:
    """Result of the comparison."""

    model: str
    sizes: ModelSizes
    machine: Machine
    setup: Setup
    training: list[Need]
    serving: Serving | None
    """The server's part of each GPU; None without GPUs, or if attached servers play."""
    disk: Disk
    disk_peak: int
    """Bytes that a whole run of `iterate` takes at its peak, in addition to its episodes."""
    used: dict[str, object]
    """Values that `iterate` uses, by keys of the configuration, with `auto` and the machine's numbers filled in."""
    play: Play
    """Settings that decide how fast episodes are played."""
    stages: list[Stage]
    """Estimated time of each stage of an iteration."""
    speed: Speed
    """Speeds that the estimate assumes."""
    faults: list[str]
    """Problems, each with the setting to change."""
    advice: list[str]
    """Possible improvements."""
    not_here: str = ""
    """Reason for examining an assumed machine instead of this one; "" for this machine or one that the user described.
    """

    @property
    def device_total(self) -> int:
        return on_device(self.training)

    @property
    def host_total(self) -> int:
        return in_host(self.training, self.setup)


def needs_gpu(config: Config, sizes: ModelSizes, machine: Machine) -> str:
    """Returns the reason why a machine without a GPU cannot train the model.

    The reason is "" if training may work, or if the configuration demands the CPU.
    """
    if machine.gpus or config.device == "cpu":
        return ""
    missing = surely_lacks(sizes, setup_of(config.train, "cpu"), machine.room)
    if config.device == "auto" and missing is None:
        return ""
    on_cpu = f", and training on its CPU needs at least {missing}" if missing else ""
    return f"no GPU is visible on this machine{on_cpu}"


def examine(
    config: Config, sizes: ModelSizes, machine: Machine, speed: Speed, row_tokens: int | None = None
) -> Examination:
    """Returns the needs of a configuration, and the problems that it has on a machine.

    Args:
        config: The configuration, with a model.
        sizes: Sizes of the model.
        machine: The machine.
        speed: Speeds of the machine.
        row_tokens: Tokens of the longest row; by default the context length.

    Raises:
        UserError: A row would be longer than the context.
    """
    device = resolve_device(config.device)
    context = min(sizes.context, config.engine.context_length or sizes.context)
    if row_tokens is not None and row_tokens > context:
        raise UserError(
            f"--row-tokens {row_tokens}: every row ends at the context of {context} tokens; give at most so many, or a "
            "longer engine.context_length if the model has one"
        )
    row = row_tokens or context
    tokens = tokens_of_pass(config.train, row)
    shares = config.iterate.keep_processes and not config.engine.server_url
    setup = setup_of(config.train, device, tokens=tokens, shares_gpu=shares)
    offload = resolve_offload(config.train, sizes, setup, machine.room)
    setup = replace(setup, offload=offload == "cpu" and device == "cuda")
    serving = _serving(config, sizes, machine) if device == "cuda" and not config.engine.server_url else None
    written = disk(sizes, setup)
    peak = _disk_peak(config, written)
    play = _play(config, setup, serving)
    stages = iteration(sizes, setup, play, work_of(config, row), speed)
    found = Examination(
        str(config.model), sizes, machine, setup, needs(sizes, setup), serving, written, peak,
        _used(config, setup, device), play, stages, speed, [], [],
    )  # fmt: skip
    found.faults.extend(_faults(config, found, row, context))
    found.advice.extend(_advice(config, found))
    return found


def work_of(config: Config, row: int) -> Work:
    """Returns the assumed tokens and rows of one iteration of `iterate`.

    Args:
        config: The configuration.
        row: Tokens of the longest row.
    """
    train, mean = config.train, max(1, int(ROW_SHARE * row))
    episodes = config.generate.num_groups * config.generate.episodes_per_state
    rows = round(train.epochs * episodes * trained_seats(config))
    old_log_probs = (
        train.imitated is None and train.old_log_probs == "step" and (train.mini_batches > 1 or train.writes_rows)
    )
    every = config.iterate.evaluate_every
    numbers = range(1, config.iterate.num_iterations + 1)
    saved = [saves_state(config.iterate, number) for number in numbers]
    return Work(
        episodes=episodes,
        seats=len(make_game(config.game).roles),
        rows=rows,
        row=mean,
        sampled=int(SAMPLED_SHARE * mean),
        updates=-(-rows // train.train_batch_size) * train.mini_batches,
        forward_only=old_log_probs + train.has_reference,
        evaluated=config.evaluate.monitor_states * _evaluated(config) if every else 0,
        evaluations=1 / every if every else 0.0,
        states=sum(saved) / len(saved),
        repeated=max((len([*group]) for saves, group in groupby(saved) if not saves), default=0),
    )


def _evaluated(config: Config) -> int:
    """Returns the number of episodes of each state in an evaluation of `iterate`.

    Sampled and greedy, and both again with swapped messages, each with a counterfactual episode of every hearer, of
    which one is counted; then sampled with the foreign player, in each seat in turn.
    """
    swapped = 2 * config.evaluate.swap_messages
    foreign = len(make_game(config.game).roles) if config.iterate.foreign else 0
    return 2 * (1 + swapped) + foreign


def _play(config: Config, setup: Setup, serving: Serving | None) -> Play:
    engine = config.engine
    copies = len(engine.server_url) or engine.data_parallel
    cached = None if serving is None else serving.tokens
    return Play(copies, engine.tensor_parallel, config.generate.max_concurrency, cached, half=setup.cuda)


def _used(config: Config, setup: Setup, device: Device) -> dict[str, object]:
    """Returns the values of the keys that depend on the machine or decide about memory and speed."""
    train, engine = config.train, config.engine
    values: dict[str, object] = {
        "device": device,
        "train.nodes": train.nodes,
        "train.gpus_per_node": train.gpus_per_node,
        "train.dtype": resolve_dtype(train, device),
        "train.lora_rank": train.lora_rank,
        "train.offload": "cpu" if setup.offload else "none",
        "train.gradient_checkpointing": train.gradient_checkpointing,
        "train.max_tokens_per_pass": train.max_tokens_per_pass,
        "engine.server_url": engine.server_url,
        "engine.data_parallel": engine.data_parallel,
        "engine.tensor_parallel": engine.tensor_parallel,
        "engine.memory_fraction": engine.memory_fraction,
        "engine.context_length": engine.context_length,
        "generate.num_episodes": config.generate.num_episodes,
        "generate.max_concurrency": config.generate.max_concurrency,
    }
    return {key: value for key, value in values.items() if value not in (None, [])}


def _serving(config: Config, sizes: ModelSizes, machine: Machine) -> Serving | None:
    """Returns SGLang's use of its share of a GPU, `engine.memory_fraction`.

    Weights are in bfloat16, split among `engine.tensor_parallel` GPUs; keys and values take the rest. If a checkpoint
    is a partner, it has a server of its own, and the two share the memory equally.
    """
    if machine.gpu is None:
        return None
    shared = config.engine.tensor_parallel
    memory, weights = int(config.engine.memory_fraction / at_once(config) * machine.gpu), 2 * sizes.parameters // shared
    cache = memory - weights - SERVER_REST
    return Serving(memory, weights, cache, int(max(0, cache) * shared / kv_bytes(sizes, half=True)))


def _disk_peak(config: Config, written: Disk) -> int:
    """Returns the peak size of all saves: a training saves its state before it removes the previous one.

    All checkpoints are kept.
    """
    iterations = config.iterate.num_iterations
    return min(2, iterations) * written.state + written.saving + iterations * written.checkpoint


def _faults(config: Config, found: Examination, row: int, context: int) -> list[str]:
    sizes, setup, machine, faults = found.sizes, found.setup, found.machine, []
    missing = lacks(sizes, setup, machine.room)
    if missing:
        faults.append(
            f"training needs {missing} with rows of {row:,} tokens: {remedy(sizes, setup, machine.room, row)}"
        )
    if setup.cuda and setup.processes_per_node > machine.gpus:
        faults.append(f"train.gpus_per_node is {setup.processes_per_node}, GPUs are {machine.gpus}: ask for fewer")
    if found.serving is not None and found.serving.tokens < context:
        faults.append(
            f"the server has room for {found.serving.tokens:,} tokens of keys and values, the context has {context:,}: "
            "set engine.memory_fraction or engine.tensor_parallel higher, or engine.context_length lower"
        )
    if machine.disk is not None and found.disk_peak > machine.disk:
        faults.append(
            f"{config.iterate.num_iterations} iterations take {gigabytes(found.disk_peak)} of disk, "
            f"{gigabytes(machine.disk)} are free: give another --output, or set iterate.num_iterations lower"
        )
    return faults


def _advice(config: Config, found: Examination) -> list[str]:
    machine, setup, advice = found.machine, found.setup, []
    if not setup.cuda:
        return []
    if setup.processes_per_node < machine.gpus:
        uses = f"{machine.gpus} GPUs are there, the trainer uses {setup.processes_per_node}"
        advice.append(f"{uses}: train.gpus_per_node")
    served = config.engine.tensor_parallel * config.engine.data_parallel
    if found.serving is not None and served < machine.gpus:
        advice.append(f"{machine.gpus} GPUs are there, the server uses {served}: engine.data_parallel")
    if config.generate.history == "rendered":
        advice.append(
            "generate.history is rendered: each turn is a row, which repeats what stood before it; not counted"
        )
    if setup.offload:
        advice.append(
            "weights, gradients and optimizer are in host memory (train.offload): each pass fetches the weights, and "
            "the optimizer works on the CPU; train.lora_rank 32 keeps all on the GPU"
        )
    return advice
