"""Measures how new weights reach a server: from the checkpoint's files, as now, and from memory.

python -m bench.weights CHECKPOINT OTHER

Both ways end with a check that the server answers with the new weights, by its log-probs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import load_file

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.pool import open_engine
from selfplay_pipeline.engines.sglang_engine import SGLangEngine

ROUNDS = 5
TEXT = [*range(100, 150)]
"""Token ids whose greedy continuation tells, by its log-probs, which weights a server has."""
SAME = 1e-3
"""Largest difference of log-probs that the same weights give, in nats."""


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a model with model.safetensors.")],
    other: Annotated[Path, typer.Argument(help="Another checkpoint of the same model.")],
) -> None:
    """Print one line of JSON: median wall seconds of each part, the bytes moved, and the load of the machine."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure([checkpoint, other], Path(folder)))))


async def measure(checkpoints: list[Path], folder: Path) -> dict[str, Any]:
    """Load each checkpoint in turn, both ways; returns median seconds.

    `reload` is all of the present way, with `hash`, which names the weights, and `update_from_disk` in it. `share`
    copies the weights to shared memory, and `from_tensor` loads them from there.
    """
    taken: dict[str, list[float]] = {
        name: [] for name in ("hash", "update_from_disk", "reload", "share", "from_tensor")
    }
    config = load_config("tiny", {"model": str(checkpoints[0])})
    async with open_engine(config.engine, "cpu", str(checkpoints[0]), folder / "server.log") as engine:
        assert isinstance(engine, SGLangEngine)
        client = engine.clients[0]
        known = []
        for number in range(2 * ROUNDS):
            checkpoint = checkpoints[(number + 1) % 2]
            for part, work in (
                ("hash", asyncio.to_thread(content_hash, str(checkpoint))),
                ("reload", engine.reload(checkpoint)),
            ):
                os.utime(checkpoint / "model.safetensors")  # else its hash is known
                taken[part].append(await _timed(work))
            update = {"model_path": str(checkpoint.resolve()), "flush_cache": False, "weight_version": client.weights}
            taken["update_from_disk"].append(await _timed(client.call("/update_weights_from_disk", update)))
            known.append(await _log_probs(client))
        assert _apart(known[0], known[1]) > SAME, "the checkpoints do not differ"
        for number in range(2 * ROUNDS):
            read = load_file(checkpoints[(number + 1) % 2] / "model.safetensors")
            weights = {name: tensor.clone() for name, tensor in read.items()}  # else copying would read the file
            began = time.perf_counter()
            body = {"serialized_named_tensors": [shared(weights)], "flush_cache": True}
            taken["share"].append(time.perf_counter() - began)
            taken["from_tensor"].append(await _timed(client.call("/update_weights_from_tensor", body)))
            assert _apart(await _log_probs(client), known[number % 2]) < SAME, "the server has other weights"
    found = {"bytes": sum(tensor.nbytes for tensor in weights.values()), "load": round(os.getloadavg()[0], 1)}
    return found | {name: round(statistics.median(values), 3) for name, values in taken.items()}


def shared(weights: dict[str, torch.Tensor]) -> str:
    """Returns the weights' names and their places in shared memory, as SGLang takes them; copies them there."""
    torch.multiprocessing.set_sharing_strategy("file_system")  # another process's descriptors need its consent
    return base64.b64encode(ForkingPickler.dumps(list(weights.items()))).decode()


async def _timed(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _log_probs(client: Any) -> list[float]:
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    answer = await client.call("/generate", {"input_ids": TEXT, "sampling_params": sampling, "return_logprob": True})
    return [value for value, *_ in answer["meta_info"]["output_token_logprobs"]]


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    command.run(main)
