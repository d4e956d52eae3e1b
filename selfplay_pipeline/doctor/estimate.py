"""Estimates the time of an iteration of `iterate` by stage. Pure functions of sizes, speeds and numbers of tokens.

Units are bytes, seconds and floating-point operations. `docs/results/memory.md` compares an estimate with a
measurement on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfplay_pipeline.core.model_sizes import ModelSizes
from selfplay_pipeline.train.memory import ADAM, FULL, Setup, disk, kv_bytes, trainable

ROW_SHARE = 3 / 8
"""Tokens of a mean row, as a share of the longest: about 3,000 of 8,192. Assumed."""
SAMPLED_SHARE = 2 / 3
"""Tokens that all seats sample in an episode, as a share of a mean row: about 2,000. Assumed."""
OPTIMIZER = 2 * (FULL + ADAM) + FULL
"""Bytes that AdamW reads and writes for each weight: weight and moments twice, the gradient once."""
CONVERTED = 500_000
"""Tokens of rows that `convert` writes in a second; measured on one core."""


@dataclass(frozen=True)
class Speed:
    """Speeds that a machine reaches. Those of GPUs are assumed shares of the vendor's figures."""

    name: str
    training: float
    """Operations per second of one device in a pass of the trainer."""
    prompts: float
    """Operations per second of one device that reads prompts."""
    memory: float
    """Bytes per second that one device reads from its memory."""
    host: float
    """Bytes per second that the optimizer reads in host memory, all processes of a node together."""
    bus: float
    """Bytes per second between host memory and one device."""
    link: float
    """Bytes per second that one device receives from the others of its node."""
    network: float
    """Bytes per second between two nodes."""
    disk: float
    """Bytes per second that a node writes or reads."""
    step: float
    """Seconds that a server spends on each decoding step besides the model."""
    token: float = 0.0
    """Seconds that a server spends on each sampled token besides the model."""

    def assumptions(self) -> str:
        """Returns the speeds as one line."""
        return (
            f"{self.name}: {self.training / 1e12:.3g} TFLOP/s in training, {self.prompts / 1e12:.3g} in prompts; GB/s: "
            f"memory {self.memory / 1e9:.4g}, host {self.host / 1e9:.3g}, bus {self.bus / 1e9:.3g}, "
            f"link {self.link / 1e9:.3g}, network {self.network / 1e9:.3g}, disk {self.disk / 1e9:.3g}; "
            f"{1000 * self.step:.3g} ms a decoding step"
        )


PEAKS = {"H100": (989e12, 3.35e12), "H200": (989e12, 4.8e12), "A100": (312e12, 2.0e12)}
"""Dense bfloat16 operations per second and memory bandwidth of a GPU, from the vendor's data sheets."""


def gpu_speed(name: str) -> Speed:
    """Returns the assumed speeds of a GPU by its name; an unknown one is taken for an H100."""
    known = next((kind for kind in PEAKS if kind in name), "H100")
    operations, memory = PEAKS[known]
    return Speed(
        name=known if known in name else f"{name} (as an H100)" if name else "H100 (assumed)",
        training=0.4 * operations,
        prompts=0.5 * operations,
        memory=0.7 * memory,
        host=50e9,
        bus=25e9,
        link=300e9,
        network=50e9,
        disk=1e9,
        step=0.005,
    )


@dataclass(frozen=True)
class Work:
    """Tokens and rows of one iteration."""

    episodes: int
    seats: int
    """Number of players of an episode, each with a context of its own."""
    rows: int
    """Number of rows that are trained on, once for each epoch."""
    row: int
    """Tokens of a mean row."""
    sampled: int
    """Tokens that all seats sample in an episode."""
    updates: int
    """Number of optimizer steps."""
    forward_only: int
    """Number of passes without a backward pass over all rows: for old log-probs, for the reference model."""
    evaluated: int = 0
    """Number of episodes of one evaluation in all modes, counterfactual ones included."""
    evaluations: float = 0.0
    """Number of evaluations in each iteration."""
    states: float = 1.0
    """Share of the iterations that save the trainer's state."""
    repeated: int = 0
    """Largest number of iterations that are trained again after a kill, because no state was saved since."""


@dataclass(frozen=True)
class Play:
    """Settings that decide how fast episodes are played."""

    copies: int
    """Number of copies of the model."""
    gpus_per_copy: int = 1
    at_once: int = 256
    """Number of episodes that are played at the same time."""
    cached: int | None = None
    """Number of tokens in the key-value cache of a copy; None if it does not limit the number of episodes."""
    half: bool = True


@dataclass(frozen=True)
class Stage:
    """Estimated time of one stage."""

    what: str
    seconds: float
    why: str


def operations(sizes: ModelSizes) -> int:
    """Returns the operations of a forward pass for one token, without attention to other tokens."""
    return 2 * (sizes.parameters - (sizes.embedding if sizes.head else 0))


def playing(sizes: ModelSizes, play: Play, work: Work, speed: Speed, episodes: int) -> float:
    """Returns the seconds to play a number of episodes.

    One seat of an episode speaks at a time, so each episode is one sequence of a decoding step. The time of a step is
    the longer of two: reading all weights and the keys and values of the sequences, or computing. Prompts are computed
    once, since later turns find them in the cache.
    """
    each = -(-episodes // play.copies)
    together = min(each, -(-play.at_once // play.copies))
    if play.cached is not None:
        together = max(1, min(together, play.cached // work.row))
    number = 2 if play.half else FULL
    read = number * sizes.parameters + together * work.row // 2 * kv_bytes(sizes, play.half)
    step = max(read / speed.memory, together * operations(sizes) / speed.prompts) / play.gpus_per_copy
    decoding = each * work.sampled / together * (step + speed.step + together * speed.token)
    heard = work.seats * work.row - work.sampled
    return decoding + each * heard * operations(sizes) / (speed.prompts * play.gpus_per_copy)


def training(sizes: ModelSizes, setup: Setup, work: Work, speed: Speed) -> float:
    """Returns the seconds of all passes of a training.

    A backward pass takes twice the operations of a forward pass, once with LoRA, and gradient checkpointing adds a
    forward pass. Packed rows without flash attention attend to all tokens of their pass. While a layer computes, FSDP
    gathers the next one, so that the slower of both counts.
    """
    tokens = work.rows * work.row / setup.processes
    of_a_pass = min(setup.tokens, max(work.row, tokens / work.updates))
    context = of_a_pass if setup.cuda else work.row / 2
    forward = operations(sizes) + 4 * sizes.layers * sizes.hidden * context
    backward = forward * ((1 if setup.lora_rank else 2) + setup.checkpointing)
    passes = tokens / of_a_pass
    both = max(of_a_pass * (forward + backward) / speed.training, _moved(sizes, setup, speed, backward=True))
    alone = max(of_a_pass * forward / speed.training, _moved(sizes, setup, speed, backward=False))
    return passes * (both + work.forward_only * alone)


def _moved(sizes: ModelSizes, setup: Setup, speed: Speed, *, backward: bool) -> float:
    """Returns the seconds that FSDP needs to move weights and gradients for one pass.

    Weights are gathered for the forward pass and again for the backward pass, after which gradients are reduced. If
    they are in host memory, each process also fetches its share in float32 and returns the gradients.
    """
    gathers, own = 1 + backward, trainable(sizes, setup) * backward
    seconds = 0.0
    if setup.processes > 1:
        slowest = speed.link if setup.processes == setup.processes_per_node else min(speed.link, speed.network)
        seconds += (gathers * setup.bytes * sizes.parameters + FULL * own) / slowest
    if setup.offload:
        seconds += FULL * (gathers * sizes.parameters + own) / setup.processes / speed.bus
    return seconds


def optimizing(sizes: ModelSizes, setup: Setup, work: Work, speed: Speed) -> float:
    """Returns the seconds of all optimizer steps, which read and write each trained weight and its moments."""
    moved = OPTIMIZER * trainable(sizes, setup) / setup.processes
    on_host = setup.offload or not setup.cuda
    rate = speed.host / setup.processes_per_node if on_host else speed.memory
    return work.updates * moved / rate


def exchanging(sizes: ModelSizes, setup: Setup, speed: Speed) -> float:
    """Returns the seconds that the trainer needs to leave shared GPUs and to enter them again."""
    if not setup.shares_gpu or setup.offload:
        return 0.0
    own = trainable(sizes, setup)
    kept = ADAM * own + FULL * (own + (sizes.parameters if setup.lora_rank else 0))
    return 2 * kept / setup.processes / speed.bus


def iteration(sizes: ModelSizes, setup: Setup, play: Play, work: Work, speed: Speed) -> list[Stage]:
    """Returns the stages of an iteration after the first, which also starts server and trainer."""
    written = disk(sizes, setup)
    checkpoint, saved = written.checkpoint, work.states * written.state + written.checkpoint
    passes, updates = training(sizes, setup, work, speed), optimizing(sizes, setup, work, speed)
    said = f"{saved / 1e9:.1f} GB are written"
    if work.repeated:  # each loads a state, and saves one
        again = passes + updates + (2 * written.state + checkpoint) / speed.disk
        said += f" on average; a kill repeats at most {work.repeated} trainings of {again / 60:.1f} min"
    each = playing(sizes, play, work, speed, work.evaluated) if work.evaluated else 0.0
    stages = [
        Stage("play", playing(sizes, play, work, speed, work.episodes),
              f"{work.episodes:,} episodes, {work.sampled:,} sampled tokens each, {play.copies} copies"),
        Stage("convert", work.rows * work.row / CONVERTED, f"{work.rows:,} rows of {work.row:,} tokens"),
        Stage("train: passes", passes, f"{work.rows * work.row:,} tokens, {setup.processes} processes"),
        Stage("train: optimizer", updates, f"{work.updates:,} updates"),
        Stage("train: save", saved / speed.disk, said),
        Stage("exchange", exchanging(sizes, setup, speed) + 2 * checkpoint / speed.disk,
              "trainer leaves and enters the GPUs, the new weights are hashed and loaded into the server"),
        Stage("evaluate", work.evaluations * each, f"{work.evaluated:,} episodes"),
    ]  # fmt: skip
    return [stage for stage in stages if stage.seconds > 0]
