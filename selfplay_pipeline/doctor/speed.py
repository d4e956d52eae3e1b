"""Speeds of this machine: of its GPU by name, of its CPU by a short measurement."""

from __future__ import annotations

import time
from collections.abc import Callable

from selfplay_pipeline.core.gpus import gpu_name, gpu_visible
from selfplay_pipeline.doctor.estimate import Speed, gpu_speed
from selfplay_pipeline.train.verl_overrides import named_threads, worker_threads

SIZE = 1024
"""Rows and columns of the matrices whose multiplication is timed."""
LARGE = 1 << 26
"""Number of weights, in float32, whose reading is timed; more than a CPU's cache holds."""
TRIES = 5
STEP, TOKEN = 0.010, 0.0003
"""Seconds that a server on a CPU needs for a decoding step and for each token in it besides the model.

Measured with the tiny model: 90 ms for 256 tokens.
"""


def speed_here() -> Speed:
    """Returns the speeds of this machine; measuring a CPU takes about a second."""
    return gpu_speed(gpu_name()) if gpu_visible() else cpu_speed()


def cpu_speed() -> Speed:
    """Returns the measured speeds of this machine's CPU with a trainer's threads and with a server's."""
    import torch

    before = torch.get_num_threads()
    threads = worker_threads(1)
    try:
        torch.set_num_threads(threads)
        training, host = _operations(), _memory()
        torch.set_num_threads(named_threads() or 1)
        prompts, memory = _operations(), _memory()
    finally:
        torch.set_num_threads(before)
    return Speed(f"this CPU, {threads} threads", training, prompts, memory, host, host, host, 1e9, 1e9, STEP, TOKEN)


def _operations() -> float:
    """Returns the operations of a matrix multiplication in a second."""
    import torch

    matrix = torch.ones(SIZE, SIZE)
    return 2 * SIZE**3 / _seconds(lambda: matrix @ matrix)


def _memory() -> float:
    """Returns the bytes of weights that one sequence reads in a second."""
    import torch

    weights, one = torch.ones(SIZE, LARGE // SIZE), torch.ones(LARGE // SIZE)
    return int(weights.nbytes) / _seconds(lambda: weights @ one)


def _seconds(do: Callable[[], object]) -> float:
    """Returns the shortest of several times, since other programs can only lengthen one."""
    found = []
    for _ in range(TRIES):
        began = time.perf_counter()
        do()
        found.append(time.perf_counter() - began)
    return min(found)
