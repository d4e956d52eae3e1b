"""Checks of the machine and the models before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path

from selfplay_pipeline.config.fields import listed
from selfplay_pipeline.config.schema import SWITCHES, EngineConfig
from selfplay_pipeline.core.checkpoints import number_of_weights, weight_files
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import Device, gpu_memory, visible_gpus
from selfplay_pipeline.core.model_sizes import longer_context, model_context_length
from selfplay_pipeline.core.processes import check_open_files
from selfplay_pipeline.engines.compiler import check_compiler
from selfplay_pipeline.engines.pool import plan
from selfplay_pipeline.games.base import Game, State, state_rng
from selfplay_pipeline.generate.records import PolicyRecord
from selfplay_pipeline.generate.seats import Backends
from selfplay_pipeline.generate.trajectory import ChatTokenizer, TrajectoryBuilder

LATENT = "latent_attention"
"""DeepSeek's attention (MLA), whose keys and values are projections of one short vector."""
SLIDING = "sliding_attention"
"""Kind of layers that attend to a window of the last tokens only."""
SAMPLED_STATES = 8
"""Number of game states whose opening prompts are measured."""


def check_play(
    game: Game,
    backends: Backends,
    policy: PolicyRecord,
    models: Iterable[str],
    states: Iterable[State],
    *,
    at_once: int | None = None,
) -> None:
    """Raises UserError unless the models can play the game on this machine.

    Without models, nothing is checked.

    Args:
        game: The game.
        backends: What answers for the models.
        policy: The player `policy`, whose limits of a turn all models share; its weights need not be known.
        models: Checkpoints that will play.
        states: Game states that will be played; the first `SAMPLED_STATES` are read.
        at_once: Largest number of models that play at the same time; by default, all of them.

    Raises:
        UserError: GPUs, attached servers, GPU memory or a compiler for SGLang's kernels are missing, or a model's
            context is too short.
    """
    models = sorted(set(models))
    if not models:
        return
    engine, device = backends.engine, backends.device
    engines = plan(engine, len(models) if at_once is None else at_once)
    if engine.kind == "sglang" and not engine.attached:
        if len(engines) > 1 and device == "cuda":
            for model in models:
                check_room(engines, model)
        check_engine(engine, device)
        if device == "cpu":
            for model in models:
                check_layers(model, model_context_length(model, engine.context_length))
    measured = [*islice(states, SAMPLED_STATES)]
    check_arguments(policy, [check_context(game, engine, policy, model, measured) for model in models])


def training_states(game: Game, seed: int) -> Iterator[State]:
    """Yields the training states of a run in order; each is sampled when it is asked for."""
    return (game.sample_state(state_rng(seed, number)) for number in count())


def check_engine(engine: EngineConfig, device: Device) -> None:
    """Raises UserError unless SGLang can be launched, with the configured number of GPUs."""
    check_open_files()
    shared, copies = engine.tensor_parallel, engine.data_parallel
    if device == "cpu":
        check_not_shared(shared)
    else:
        check_gpus(shared * copies, f"engine.tensor_parallel {shared} × engine.data_parallel {copies}")
        check_compiler()


def check_layers(model: str, context: int) -> None:
    """Raises UserError if SGLang cannot compute a model's layers on a CPU, or computes them otherwise than the trainer.

    The backend `torch_native`, which is SGLang's only one there, attends to all earlier tokens and fails with latent
    attention; layers that are not attention need kernels for GPUs.

    Args:
        model: The checkpoint.
        context: Longest sequence in tokens.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model).get_text_config()
    kinds = {*(getattr(config, "layer_types", None) or ())}
    kinds |= {LATENT} if getattr(config, "kv_lora_rank", None) else set()
    instead = "play on a GPU, or set engine.kind: transformers"
    if other := sorted(kinds - {"full_attention", SLIDING}):
        raise UserError(f"{model}: SGLang computes no layers of the kind {listed(other, 'and')} on a CPU; {instead}")
    window = getattr(config, "sliding_window", None)
    slides = SLIDING in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if window and slides and context > window:
        raise UserError(
            f"{model}: on a CPU, SGLang does not limit attention to the model's window of {window} tokens; set "
            f"engine.context_length to {window} or less, {instead}"
        )


def check_room(engines: Sequence[EngineConfig], model: str) -> None:
    """Raises UserError if a model's weights exceed the GPU memory of one of several servers."""
    gpu, numbers = gpu_memory(), number_of_weights(Path(model))
    if gpu is None or numbers is None:
        return
    stored = sum(file.stat().st_size for file in weight_files(Path(model)))  # less than 2 bytes a weight if quantised
    weights, shared = min(2 * numbers, stored) / engines[0].tensor_parallel, engines[0].memory_fraction * gpu
    if weights > shared:
        raise UserError(
            f"{model}: its weights need {weights / 1e9:.1f} GB of a GPU, and {len(engines)} checkpoints at the same "
            f"time leave {shared / 1e9:.1f} GB for each (engine.memory_fraction / {len(engines)}); set "
            "engine.memory_fraction or engine.tensor_parallel higher, or name fewer checkpoints"
        )


def check_not_shared(tensor_parallel: int) -> None:
    """Raises UserError if tensor parallelism is configured for a CPU."""
    if tensor_parallel > 1:
        raise UserError(
            f"engine.tensor_parallel {tensor_parallel}: a model is shared among GPUs only; leave it at 1 on a CPU "
            "(engine.data_parallel works there)"
        )


def check_gpus(needed: int, what: str) -> None:
    """Raises UserError unless `needed` GPUs are visible; `what` names the settings that need them."""
    visible = visible_gpus()
    if needed > visible:
        raise UserError(
            f"{what}: needs {needed} GPU{'s' if needed > 1 else ''}, visible: {visible}; ask for fewer, or give "
            "--set device=cpu; `nvidia-smi --list-gpus` and CUDA_VISIBLE_DEVICES say which are visible"
        )


def check_arguments(policy: PolicyRecord, chats: Sequence[ChatTokenizer]) -> None:
    """Raises UserError if no player's chat template reads an argument of `generate.template_args`."""
    read = set[str]().union(*(chat.arguments for chat in chats)) - {*SWITCHES}
    for name in policy.template_args:
        if name not in read:
            models = " or ".join(chat.tokenizer.name_or_path for chat in chats)
            raise UserError(
                f"generate.template_args.{name}: the chat template of {models} does not read it; leave it out; it "
                f"reads {listed(sorted(read), 'and') or 'no arguments'}"
            )


def check_context(
    game: Game, engine: EngineConfig, policy: PolicyRecord, model: str, states: Iterable[State]
) -> ChatTokenizer:
    """Returns a model's chat tokenizer, after checking that it is its own and that its context is long enough.

    The context must hold the longest opening and one turn.

    Raises:
        UserError: The context is too short, the model or its tokenizer cannot be loaded, or the tokenizer belongs to
            another model.
    """
    chat = ChatTokenizer.load(model, **policy.template)
    chat.check_belongs_to(model)
    if policy.thinking and model == policy.checkpoint and chat.thought is None:  # partners need not think
        raise UserError(
            f"generate.thinking: the chat template of {model} knows no thoughts; leave it out, or take a model that "
            "thinks, such as Qwen3"
        )
    openings = [
        game.start(state).opening(seat) for state in islice(states, SAMPLED_STATES) for seat in range(len(game.roles))
    ]
    prompt = max(
        len(TrajectoryBuilder(chat, 0, opening.system, [opening.observation]).prompt()) for opening in openings
    )
    turn, context = policy.max_new_tokens, model_context_length(model, engine.context_length)
    if prompt + turn > context:
        raise UserError(
            f"{model}: its context of {context} tokens cannot hold an opening prompt of {prompt} tokens and a turn of "
            f"{turn} (generate.max_new_tokens); {longer_context(model, engine.context_length)}, or take a "
            "smaller game or shorter turns"
        )
    return chat
