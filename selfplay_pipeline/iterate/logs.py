"""Logging of iterations' figures to TensorBoard and Weights & Biases, next to verl's step metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import flatten
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.iterate.history import Iteration
from selfplay_pipeline.train.offline import WANDB_LOGIN

Write = Callable[[int, dict[str, float]], None]
"""Function that writes the figures of an iteration, given its number."""


@dataclass
class PipelineLog:
    """Writer of each iteration's figures to `config.train.loggers`. A run without work does not open it."""

    config: Config
    path: Path
    stack: ExitStack = field(default_factory=ExitStack)
    writers: list[Write] | None = None
    written: set[int] = field(default_factory=set)

    def __enter__(self) -> PipelineLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def open(self) -> None:
        """Open the loggers, unless they are open.

        Raises:
            UserError: Weights & Biases refuses the run; `check_training` has checked packages and login before.
        """
        if self.writers is None:
            makers = {"tensorboard": _tensorboard, "wandb": _wandb}
            wanted = [maker for name, maker in makers.items() if name in self.config.train.loggers]
            self.writers = [self.stack.enter_context(maker(self.config, self.path)) for maker in wanted]

    def write(self, history: Sequence[Iteration]) -> None:
        """Write the iterations that this process has not written yet, if the loggers are open."""
        for iteration in history if self.writers else ():
            if iteration.number not in self.written:
                self.written.add(iteration.number)
                for writer in self.writers or ():
                    writer(iteration.number, numbers_of(iteration))


def numbers_of(iteration: Iteration) -> dict[str, float]:
    """Returns an iteration's figures by flat names: `selfplay/held_out_reward/value`, `selfplay/seconds/train`, …"""
    return {
        f"selfplay/{name.replace('.', '/')}": float(value)
        for name, value in flatten(iteration.to_line()).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


@contextmanager
def _tensorboard(config: Config, path: Path) -> Iterator[Write]:
    from torch.utils.tensorboard import SummaryWriter

    # A continued run writes all its iterations again, and hides the figures of earlier processes.
    with SummaryWriter(str(path / "tensorboard"), purge_step=0) as writer:

        def write(iteration: int, figures: dict[str, float]) -> None:
            for name, value in figures.items():
                writer.add_scalar(name, value, iteration)
            writer.flush()

        yield write


@contextmanager
def _wandb(config: Config, path: Path) -> Iterator[Write]:
    import wandb

    settings: dict[str, Any] = config.model_dump(mode="json")
    group = path.resolve().name
    try:
        run = wandb.init(project="selfplay", group=group, name="iterations", dir=str(path), config=settings)
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"--logger wandb: {reason}; {WANDB_LOGIN}") from None
    with run:
        yield lambda iteration, figures: run.log(figures, step=iteration)
