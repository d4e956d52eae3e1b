"""What a training takes of memory and disk, counted before anything is loaded. Pure functions of sizes.

Units are bytes; a GB is 10⁹ bytes. `docs/gpus-and-clusters.md` compares the figures with measured ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfplay_pipeline.core.shapes import Shapes

FULL = 4
"""Bytes of a float32 number: master weights, gradients after their reduction, each of Adam's two moments."""
ADAM = 2 * FULL
GPU_REST = 3_000_000_000
"""On each GPU for CUDA's context, NCCL, workspaces and what the allocator cannot use. Assumed, never measured here."""
SERVER_REST = 4_000_000_000
"""On each GPU for a server that has given its memory back: its context and CUDA graphs. Assumed, too."""
PROCESS = 4_000_000_000
"""Host memory of a training process or a server on a GPU machine beside tensors: libraries of CUDA. Assumed."""
CPU_PROCESS = 1_000_000_000
"""Host memory of one training process on a CPU, and of the command that starts it, beside tensors; measured."""
RAY = 2_000_000_000
"""Host memory of Ray's services and of what verl starts with them."""
STATE = ("weights", "gradients", "optimizer")
LOGIT_BYTES = 20
"""For each number of the vocabulary and each token. In bfloat16: the logits, scaled, without padding, their log-softmax
in float32, and gradients of these; the audit of verl's engine found about 3 MB a token of 151,936 numbers. In float32
as many: logits, scaled and without padding together in the forward pass, and then their gradients."""


@dataclass(frozen=True)
class Setup:
    """What decides how much memory a training takes."""

    processes: int
    """Training processes over all nodes; a GPU each, or on a CPU shares of one memory."""
    tokens: int
    """Tokens of one forward and backward pass on one device, padding included."""
    processes_per_node: int = 1
    cuda: bool = True
    half: bool = True
    """Whether forward and backward passes are in bfloat16."""
    checkpointing: bool = False
    offload: bool = False
    """Whether weights, gradients and optimizer stay in host memory."""
    lora_rank: int = 0
    reference: bool = False
    """Whether there is a KL term, whose reference model is in host memory."""
    shares_gpu: bool = False
    """Whether a server keeps a part of the GPUs, and the trainer waits in host memory while it plays."""

    @property
    def bytes(self) -> int:
        """Bytes of a number in a pass."""
        return FULL // 2 if self.half else FULL


@dataclass(frozen=True)
class Need:
    """What one thing takes."""

    what: str
    device: int
    """Bytes on each GPU; on a CPU, in each process."""
    host: int
    """Bytes in the memory of one node."""
    why: str


def trainable(shapes: Shapes, setup: Setup) -> int:
    """Parameters that have gradients and optimizer states."""
    return shapes.adapter * setup.lora_rank or shapes.parameters


def layer_activations(shapes: Shapes, number: int) -> int:
    """Bytes that a layer keeps of one token for its backward pass.

    What autograd saves in a decoder layer of Qwen2's or Llama's kind, in numbers: of each of two norms its input, the
    normalised and the scaled output (3h); queries, attention's output and that in the order of the output projection
    (3h), keys and values; in the feed-forward part gate, its activation, up and the product (4i). In bfloat16 a norm
    computes in float32, so that the first of its three takes 4 bytes. At the sizes of Qwen2.5-7B this is 6.5 MB a
    token for all layers; the audit measured 6.3 MB. A test compares it with what autograd saves.
    """
    hidden = shapes.hidden
    norms = 2 * hidden * (FULL + 2 * number)
    return norms + number * (3 * hidden + 2 * shapes.keys + 4 * shapes.intermediate)


def activations(shapes: Shapes, setup: Setup) -> int:
    """Bytes of all that a pass keeps for its backward pass, but for logits.

    With gradient checkpointing each layer keeps its input alone, and one layer at a time is computed again. Beside it,
    gradients of the feed-forward part are there while it is gone back through (3i).
    """
    layer = layer_activations(shapes, setup.bytes)
    backward = 3 * shapes.intermediate * setup.bytes
    if setup.checkpointing:
        return setup.tokens * (shapes.layers * shapes.hidden * setup.bytes + layer + backward)
    return setup.tokens * (shapes.layers * layer + backward)


def logits(shapes: Shapes, setup: Setup) -> int:
    """Bytes of logits, what is computed of them, and their gradients."""
    return setup.tokens * shapes.vocabulary * LOGIT_BYTES


def gathered(shapes: Shapes, setup: Setup) -> int:
    """Bytes of whole weights that FSDP gathers for a pass.

    verl wraps each layer, and where they are not tied embedding and head; what is tied stays gathered to the end. Two
    layers are there at a time, since the next is fetched while one computes.
    """
    return setup.bytes * (shapes.embedding + shapes.head + 2 * shapes.layer)


def reduction(shapes: Shapes, setup: Setup) -> int:
    """Bytes of the largest gradient's copies while FSDP reduces it: before, the buffer, and a process's share."""
    largest = trainable(shapes, setup) // shapes.layers if setup.lora_rank else max(shapes.embedding, shapes.layer)
    return largest * (setup.bytes + FULL) + largest * FULL // setup.processes


def needs(shapes: Shapes, setup: Setup) -> list[Need]:
    """All that a training holds at its peak, the backward pass of a second step, when the optimizer has its states.

    Full training takes 16 bytes a parameter: verl keeps master weights in float32 (4), their gradients (4) and Adam's
    two moments (8), each split evenly among the processes. verl's `param_offload` and `optimizer_offload` do not
    change the peak, since both are loaded back for a step (`verl/workers/engine/base.py`); `offload_policy` does.
    With LoRA the model's own weights are frozen, in float32 too, and have neither gradients nor moments.

    Not all of it is there at one moment: a gradient is reduced when the activations are gone. But allocators do not
    give back what is in pieces, so that the sum is nearer to what was measured than the largest moment.
    """
    own, frozen = trainable(shapes, setup), shapes.parameters if setup.lora_rank else 0
    count, share = f"{own:,} × ", f" ÷ {setup.processes}" * (setup.processes > 1)
    share += ", in host memory" * setup.offload
    state = [
        ("weights", FULL * (own + frozen), f"{count}4" + f" + {frozen:,} × 4" * bool(frozen)),
        ("gradients", FULL * own, f"{count}4"),
        ("optimizer", ADAM * own, f"{count}8, Adam"),
    ]
    found = [Need(what, 0 if setup.offload else size // setup.processes, 0, why + share) for what, size, why in state]
    with_or_without = "with" if setup.checkpointing else "without"
    found += [
        Need("gathered weights", gathered(shapes, setup), 0, f"{setup.bytes} bytes: embedding, head, two layers"),
        Need("largest gradient", reduction(shapes, setup), 0, "before, while and after it is reduced"),
        Need("activations", activations(shapes, setup), 0,
             f"{setup.tokens:,} tokens {with_or_without} gradient checkpointing"),
        Need("logits", logits(shapes, setup), 0,
             f"{setup.tokens:,} tokens × {shapes.vocabulary:,}"),
    ]  # fmt: skip
    return found + (_beside_on_gpus(shapes, setup, state) if setup.cuda else _beside_on_a_cpu(shapes, setup))


def _beside_on_gpus(shapes: Shapes, setup: Setup, state: list[tuple[str, int, str]]) -> list[Need]:
    """What a node's host memory holds, and what is on a GPU beside tensors."""
    share = min(1.0, setup.processes_per_node / setup.processes)
    weights, gradients, optimizer = (size for _, size, _ in state)
    rounded = pinned(shapes, setup) / (FULL * shapes.parameters)
    waiting = 0.0
    if setup.offload:
        waiting = share * ((weights + gradients) * rounded + optimizer)
    elif setup.shares_gpu:
        waiting = share * (weights + optimizer) * rounded
    reference = share * setup.bytes * shapes.parameters * rounded if setup.reference and not setup.lora_rank else 0.0
    loading = FULL * shapes.parameters * (1 if shapes.head else setup.processes_per_node)
    return [
        Need("CUDA and NCCL", GPU_REST, PROCESS * setup.processes_per_node + RAY, "assumed, not measured"),
        *([Need("waiting server", SERVER_REST, PROCESS, "assumed, not measured")] if setup.shares_gpu else []),
        Need("offloaded" if setup.offload else "waiting trainer", 0, int(waiting), "pinned memory is rounded up"),
        Need("reference model", 0, int(reference), f"{shapes.parameters:,} × {setup.bytes}, for the KL term"),
        Need("loading and saving", 0, loading, "all weights in float32"),
    ]


def _beside_on_a_cpu(shapes: Shapes, setup: Setup) -> list[Need]:
    reference = FULL * shapes.parameters // setup.processes if setup.reference and not setup.lora_rank else 0
    return [
        Need("reference model", reference, 0, f"{shapes.parameters:,} × 4, for the KL term"),
        Need("libraries", CPU_PROCESS, RAY if setup.processes > 1 else 0, "Python, PyTorch, verl, Ray"),
    ]


def pinned(shapes: Shapes, setup: Setup) -> int:
    """Bytes of the parameters' shards in pinned host memory, all together, in float32.

    PyTorch's allocator rounds each up to a power of two (`aten/src/ATen/core/CachingHostAllocator.h`).
    """
    shards = (FULL * -(-size // setup.processes) for size in shapes.tensors)
    return setup.processes * sum(1 << (shard - 1).bit_length() for shard in shards)


def on_device(found: list[Need]) -> int:
    """Bytes on each GPU; on a CPU, in each process."""
    return sum(need.device for need in found)


def in_host(found: list[Need], setup: Setup) -> int:
    """Bytes of a node's memory."""
    own = sum(need.host for need in found)
    return own if setup.cuda else own + on_device(found) * setup.processes_per_node


@dataclass(frozen=True)
class Room:
    """What is there; None where that is not known."""

    gpu: int | None
    """Bytes of each GPU."""
    host: int | None
    """Bytes of each node's memory."""


def lacks(shapes: Shapes, setup: Setup, room: Room) -> str | None:
    """What does not fit, in words; None if all does."""
    found = needs(shapes, setup)
    if setup.cuda and room.gpu is not None and on_device(found) > room.gpu:
        return f"{gigabytes(on_device(found))} of {gigabytes(room.gpu)} on each GPU"
    if room.host is not None and in_host(found, setup) > room.host:
        return f"{gigabytes(in_host(found, setup))} of {gigabytes(room.host)} host memory"
    return None


def surely_lacks(shapes: Shapes, setup: Setup, room: Room) -> str | None:
    """What cannot fit whatever is assumed here, in words; None where it may fit.

    On a CPU these are weights, gradients and optimizer alone; on GPUs also what a pass holds, with half of the logits.
    """
    found = {need.what: need for need in needs(shapes, setup)}
    state = sum(found[what].device for what in STATE)
    if not setup.cuda:
        host = state * setup.processes_per_node
    else:
        state += sum(found[what].device for what in ("gathered weights", "activations")) + logits(shapes, setup) // 2
        host = found["offloaded"].host if setup.offload else 0
        if room.gpu is not None and state > room.gpu:
            return f"{gigabytes(state)} of {gigabytes(room.gpu)} on each GPU"
    if room.host is not None and host > room.host:
        return f"{gigabytes(host)} of {gigabytes(room.host)} host memory"
    return None


def remedy(shapes: Shapes, setup: Setup, room: Room, longest: int = 1) -> str:
    """Which settings would make it fit, in words; the first that do, of those which cost little first.

    Args:
        longest: tokens of the longest row, which a pass must hold; shorter ones need a shorter context.
    """
    cheap: list[tuple[str, Setup]] = [("", setup)]
    if not setup.checkpointing:
        cheap.append(("train.gradient_checkpointing true", replace(setup, checkpointing=True)))
    words, last = cheap[-1]
    for tokens in (8192, 4096, 2048):
        if tokens < last.tokens:
            shorter = f"engine.context_length {tokens}" if tokens < longest else None
            said = " and ".join(filter(None, [words, f"train.max_tokens_per_pass {tokens}", shorter]))
            cheap.append((said, replace(last, tokens=tokens)))
    for words, tried in [*cheap, *_dearer(setup, cheap)]:
        if words and lacks(shapes, tried, room) is None:
            return f"set {words}"
    return "take a smaller model, more GPUs, or larger ones"


def _dearer(setup: Setup, cheap: list[tuple[str, Setup]]) -> list[tuple[str, Setup]]:
    """Each of the cheap changes with one that changes the speed or what is learned."""
    further: list[tuple[str, Setup]] = []
    if setup.cuda and not setup.offload:
        further += [(f"{words} and train.offload cpu", replace(tried, offload=True)) for words, tried in cheap]
    if not setup.lora_rank:
        further += [(f"{words} and train.lora_rank 32", replace(tried, lora_rank=32)) for words, tried in cheap]
    return [(words.removeprefix(" and "), tried) for words, tried in further]


def gigabytes(size: float) -> str:
    """A size for people."""
    return f"{size / 1e9:.1f} GB"


def kv_bytes(shapes: Shapes, half: bool) -> int:
    """Bytes of one token's keys and values in all layers."""
    return 2 * shapes.layers * shapes.keys * (2 if half else 4)


@dataclass(frozen=True)
class Disk:
    """Bytes of what a training leaves."""

    checkpoint: int
    state: int
    """A trainer state: weights and optimizer."""
    saving: int
    """What verl writes beside a state, in float32, until the checkpoint is exported."""


def disk(shapes: Shapes, setup: Setup) -> Disk:
    """What is written: the checkpoint in the dtype of the passes; what is trained, with Adam's moments, in a state."""
    own = trainable(shapes, setup)
    return Disk(checkpoint=setup.bytes * shapes.parameters, state=(FULL + ADAM) * own, saving=FULL * own)
