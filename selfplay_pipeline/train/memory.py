"""Estimates the memory and disk space of a training before anything is loaded. Pure functions of sizes.

Units are bytes; a GB is 10⁹ bytes. `docs/results/memory.md` compares the estimates with measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfplay_pipeline.core.model_sizes import ModelSizes

FULL = 4
"""Size in bytes of a float32 number, the type of master weights, reduced gradients and Adam's two moments."""
ADAM = 2 * FULL
GPU_REST = 3_000_000_000
"""Bytes on each GPU for CUDA's context, NCCL, workspaces and the allocator's waste. Assumed; with one H100 all that a
waiting trainer kept was 1.7 GB (docs/results/gpu.md).
"""
SERVER_REST = 4_000_000_000
"""Bytes on each GPU for a server that has released its memory: its context and CUDA graphs. Assumed; one H100
kept 1.3 GB for a model of 0.5 billion weights.
"""
PROCESS = 4_000_000_000
"""Host memory of a training process or a server on a GPU machine without its tensors, mostly CUDA's libraries.

Assumed.
"""
CPU_PROCESS = 1_000_000_000
"""Host memory of one training process on a CPU and of its parent command, without tensors. Measured."""
RAY = 2_000_000_000
"""Host memory of Ray's services and of the actors that verl starts with them."""
STATE = ("weights", "gradients", "optimizer")
LOGIT_BYTES = 20
"""Bytes of logits per vocabulary entry and token.

In bfloat16, these are the logits, the scaled logits, the logits without padding, their log-softmax in float32, and the
gradients. Reading verl's engine gave about 3 MB per token for a vocabulary of 151,936. In float32 the sum is
the same: three kinds of logits in the forward pass, then their gradients.
"""


@dataclass(frozen=True)
class Setup:
    """Settings that decide how much memory a training takes."""

    processes: int
    """Number of training processes on all nodes. Each has its own GPU; on a CPU they share one memory."""
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
    """Whether a server keeps a part of the GPUs, and the trainer waits in host memory while the server plays."""

    @property
    def bytes(self) -> int:
        """Size in bytes of a number in a forward or backward pass."""
        return FULL // 2 if self.half else FULL


@dataclass(frozen=True)
class Need:
    """Memory that one part of a training needs."""

    what: str
    device: int
    """Bytes on each GPU; on a CPU, in each process."""
    host: int
    """Bytes in the memory of one node."""
    why: str


def trainable(sizes: ModelSizes, setup: Setup) -> int:
    """Returns the number of parameters that have gradients and optimizer states."""
    return sizes.adapter * setup.lora_rank or sizes.parameters


def layer_activations(sizes: ModelSizes, number: int) -> int:
    """Returns the bytes that a layer keeps of one token for its backward pass.

    Autograd saves these tensors in a decoder layer of Qwen2's or Llama's kind (h: hidden size, i: intermediate size):

    - in each of its norms, usually two, the input, the normalised and the scaled output (3h); in bfloat16 the first of
      them takes 4 bytes a number, because a norm computes in float32;
    - in attention the queries, the output, the reordered output (3h), the keys and the values;
    - in the feed-forward part the gate, its activation, the up projection and the product (4i).

    For Qwen2.5-7B this gives 6.5 MB per token for all layers; a measurement gave 6.3 MB. Each expert of a token keeps
    its input, its output and the weighted output (3h).
    """
    hidden = sizes.hidden
    norms = (sizes.norms * hidden + sizes.head_norms) * (FULL + 2 * number)
    attention = 3 * (sizes.queries or hidden) + 2 * sizes.keys
    return norms + number * (attention + 3 * hidden * sizes.experts + 4 * sizes.intermediate)


def activations(sizes: ModelSizes, setup: Setup) -> int:
    """Returns the bytes that a pass keeps for its backward pass, without logits.

    With gradient checkpointing each layer keeps only its input, and one layer at a time is computed again. In addition,
    gradients of the feed-forward part exist during its backward pass (3i).
    """
    layer = layer_activations(sizes, setup.bytes)
    backward = 3 * sizes.intermediate * setup.bytes
    if setup.checkpointing:
        return setup.tokens * (sizes.layers * sizes.hidden * setup.bytes + layer + backward)
    return setup.tokens * (sizes.layers * layer + backward)


def logits(sizes: ModelSizes, setup: Setup) -> int:
    """Returns the bytes of logits, of the tensors computed from them, and of their gradients."""
    return setup.tokens * sizes.vocabulary * LOGIT_BYTES


def packed_mask(sizes: ModelSizes, setup: Setup) -> int:
    """Returns the bytes of the attention mask of packed rows.

    PyTorch's attention takes a mask of tokens × tokens, which it converts to the pass's dtype in each layer and keeps
    for the backward pass. Flash attention needs none; whether it is installed is not known here.
    """
    kept = 1 if setup.checkpointing else sizes.layers
    return setup.tokens**2 * (1 + kept * setup.bytes)


def gathered(sizes: ModelSizes, setup: Setup) -> int:
    """Returns the bytes of unsharded weights that FSDP gathers for a pass.

    verl shards each layer separately, and also embedding and head if they are not tied; tied ones stay gathered to the
    end. Two layers are gathered at a time, since the next is fetched while one computes.
    """
    return setup.bytes * (sizes.embedding + sizes.head + 2 * sizes.layer)


def reduction(sizes: ModelSizes, setup: Setup) -> int:
    """Returns the bytes that FSDP holds while it reduces the largest gradient: the gradient, a buffer and one shard."""
    largest = trainable(sizes, setup) // sizes.layers if setup.lora_rank else max(sizes.embedding, sizes.layer)
    return largest * (setup.bytes + FULL) + largest * FULL // setup.processes


def needs(sizes: ModelSizes, setup: Setup) -> list[Need]:
    """Returns the parts of a training's peak memory: the backward pass of the second step, with optimizer states.

    Full training takes 16 bytes a parameter: verl keeps master weights in float32 (4), their gradients (4) and Adam's
    two moments (8), each split evenly among the processes. verl's `param_offload` and `optimizer_offload` do not change
    the peak, since both are loaded back for a step (`verl/workers/engine/base.py`); `offload_policy` does. With LoRA
    the model's own weights are frozen, in the dtype of the passes, and have neither gradients nor moments.

    Not all parts exist at the same time: a gradient is reduced after the activations are freed. But allocators do not
        return fragmented memory, so the sum is closer to the measured peak than the largest simultaneous use.
    """
    own, frozen = trainable(sizes, setup), sizes.parameters if setup.lora_rank else 0
    count, share = f"{own:,} × ", f" ÷ {setup.processes}" * (setup.processes > 1)
    share += ", in host memory" * setup.offload
    state = [
        (
            "weights",
            FULL * own + setup.bytes * frozen,
            f"{count}4" + f" + {frozen:,} × {setup.bytes}" * bool(frozen),
        ),
        ("gradients", FULL * own, f"{count}4"),
        ("optimizer", ADAM * own, f"{count}8, Adam"),
    ]
    found = [Need(what, 0 if setup.offload else size // setup.processes, 0, why + share) for what, size, why in state]
    with_or_without = "with" if setup.checkpointing else "without"
    found += [
        Need("gathered weights", gathered(sizes, setup), 0, f"{setup.bytes} bytes: embedding, head, two layers"),
        Need("largest gradient", reduction(sizes, setup), 0, "before, while and after it is reduced"),
        Need("activations", activations(sizes, setup), 0,
             f"{setup.tokens:,} tokens {with_or_without} gradient checkpointing"),
        Need("logits", logits(sizes, setup), 0,
             f"{setup.tokens:,} tokens × {sizes.vocabulary:,}"),
    ]  # fmt: skip
    if not setup.cuda:
        return found + _other_needs_on_a_cpu(sizes, setup)
    mask = Need(
        "packed mask", packed_mask(sizes, setup), 0, f"{setup.tokens:,} × {setup.tokens:,}, without flash attention"
    )
    return [*found, mask, *_other_needs_on_gpus(sizes, setup, state)]


def _other_needs_on_gpus(sizes: ModelSizes, setup: Setup, state: list[tuple[str, int, str]]) -> list[Need]:
    """Returns the parts of a GPU node's host memory, and the parts of GPU memory other than tensors."""
    share = min(1.0, setup.processes_per_node / setup.processes)
    weights, gradients, optimizer = (size for _, size, _ in state)
    rounded = pinned(sizes, setup) / (FULL * sizes.parameters)
    waiting = 0.0
    if setup.offload:
        waiting = share * ((weights + gradients) * rounded + optimizer)
    elif setup.shares_gpu:
        waiting = share * (weights + optimizer) * rounded
    reference = share * setup.bytes * sizes.parameters * rounded if setup.reference and not setup.lora_rank else 0.0
    loading = FULL * sizes.parameters * (1 if sizes.head else setup.processes_per_node)
    return [
        Need("CUDA and NCCL", GPU_REST, PROCESS * setup.processes_per_node + RAY, "assumed; 1.7 GB seen with 0.5B"),
        *([Need("waiting server", SERVER_REST, PROCESS, "assumed; 1.3 GB seen with 0.5B")] if setup.shares_gpu else []),
        Need("offloaded" if setup.offload else "waiting trainer", 0, int(waiting), "pinned memory is rounded up"),
        Need("reference model", 0, int(reference), f"{sizes.parameters:,} × {setup.bytes}, for the KL term"),
        Need("loading and saving", 0, loading, "all weights in float32"),
    ]


def _other_needs_on_a_cpu(sizes: ModelSizes, setup: Setup) -> list[Need]:
    reference = FULL * sizes.parameters // setup.processes if setup.reference and not setup.lora_rank else 0
    return [
        Need("reference model", reference, 0, f"{sizes.parameters:,} × 4, for the KL term"),
        Need("libraries", CPU_PROCESS, RAY if setup.processes > 1 else 0, "Python, PyTorch, verl, Ray"),
    ]


def pinned(sizes: ModelSizes, setup: Setup) -> int:
    """Returns the bytes of all parameter shards in pinned host memory, in float32.

    PyTorch's allocator rounds each shard up to a power of two (`aten/src/ATen/core/CachingHostAllocator.h`).
    """
    shards = (FULL * -(-size // setup.processes) for size in sizes.tensors)
    return setup.processes * sum(1 << (shard - 1).bit_length() for shard in shards)


def on_device(found: list[Need]) -> int:
    """Returns the bytes needed on each GPU; on a CPU, in each process."""
    return sum(need.device for need in found)


def in_host(found: list[Need], setup: Setup) -> int:
    """Returns the bytes needed in a node's memory."""
    own = sum(need.host for need in found)
    return own if setup.cuda else own + on_device(found) * setup.processes_per_node


@dataclass(frozen=True)
class Room:
    """Available memory of each GPU and each node; a size is None if it is unknown."""

    gpu: int | None
    """Bytes of each GPU."""
    host: int | None
    """Bytes of each node's memory."""


def lacks(sizes: ModelSizes, setup: Setup, room: Room) -> str | None:
    """Returns a description of the insufficient memory; None if everything fits."""
    found = needs(sizes, setup)
    return _too_small(on_device(found) if setup.cuda else 0, in_host(found, setup), room)


def surely_lacks(sizes: ModelSizes, setup: Setup, room: Room) -> str | None:
    """Returns a description of the memory that is insufficient even without the assumed parts; None if it may suffice.

    The remaining parts are weights, gradients and optimizer; on GPUs also the tensors of a pass, with half of the
    logits.
    """
    found = {need.what: need for need in needs(sizes, setup)}
    state = sum(found[what].device for what in STATE)
    if not setup.cuda:
        return _too_small(0, state * setup.processes_per_node, room)
    state += sum(found[what].device for what in ("gathered weights", "activations")) + logits(sizes, setup) // 2
    return _too_small(state, found["offloaded"].host if setup.offload else 0, room)


def _too_small(device: int, host: int, room: Room) -> str | None:
    if room.gpu is not None and device > room.gpu:
        return f"{gigabytes(device)} of {gigabytes(room.gpu)} on each GPU"
    if room.host is not None and host > room.host:
        return f"{gigabytes(host)} of {gigabytes(room.host)} host memory"
    return None


def remedy(sizes: ModelSizes, setup: Setup, room: Room, longest: int = 1) -> str:
    """Returns advice: the settings that make the training fit, preferring those that cost the least.

    Args:
        sizes: Sizes of the model.
        setup: The current settings.
        room: The available memory.
        longest: Tokens of the longest row, which a pass must hold; only a shorter context makes rows shorter.
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
        if words and lacks(sizes, tried, room) is None:
            return f"set {words}"
    return "take a smaller model, more GPUs, or larger ones"


def _dearer(setup: Setup, cheap: list[tuple[str, Setup]]) -> list[tuple[str, Setup]]:
    """Returns each cheap change combined with one that costs speed or changes the result of training."""
    further: list[tuple[str, Setup]] = []
    if setup.cuda and not setup.offload:
        further += [(f"{words} and train.offload cpu", replace(tried, offload=True)) for words, tried in cheap]
    if not setup.lora_rank:
        further += [(f"{words} and train.lora_rank 32", replace(tried, lora_rank=32)) for words, tried in cheap]
    return [(words.removeprefix(" and "), tried) for words, tried in further]


def gigabytes(size: float) -> str:
    """Returns a size in GB, for messages."""
    return f"{size / 1e9:.1f} GB"


def kv_bytes(sizes: ModelSizes, half: bool) -> int:
    """Returns the bytes of one token's keys and values in all layers."""
    return 2 * sizes.layers * sizes.keys * (2 if half else 4)


@dataclass(frozen=True)
class Disk:
    """Bytes on disk that a training needs."""

    checkpoint: int
    state: int
    """Size of a trainer state: weights and optimizer."""
    saving: int
    """Size of an adapter that verl saves next to a state before it is merged into the checkpoint."""


def disk(sizes: ModelSizes, setup: Setup) -> Disk:
    """Returns the disk space of a training: the checkpoint in the passes' dtype, the trained weights in float32."""
    own = trainable(sizes, setup)
    adapter = FULL * own if setup.lora_rank else 0
    return Disk(checkpoint=setup.bytes * sizes.parameters, state=(FULL + ADAM) * own, saving=adapter)
