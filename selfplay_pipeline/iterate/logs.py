"""Logging of iterations' figures and dialogues to the loggers of verl's step metrics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType

from selfplay_pipeline.config.identity import flatten
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.iterate.dialogues import RULE, Dialogues
from selfplay_pipeline.iterate.history import Iteration
from selfplay_pipeline.train.loggers import Row, Tracked, logging_environment, tracking

NAME = "iterations"
"""Name of the log with the figures of iterations; trainings have the names `iter_N`."""
PREFIX = "selfplay/"
"""First part of the names of figures and tables."""
TABLE = f"{PREFIX}dialogues"
"""Name of the table of dialogues."""
SILENCE = "wordless/silence"
CURVES = {
    "Held-out reward": {
        "sampled": ("held_out_reward", "held_out_words/sampled/swapped_reward", SILENCE),
        "greedy": ("held_out_greedy_reward", "held_out_words/greedy/swapped_reward", SILENCE),
    }
}
"""Intervals whose values are curves of one chart, as on the page, by chart; below the heading of the charts."""


@dataclass
class PipelineLog:
    """Writer of each iteration's figures and dialogues to `config.train.loggers`. A run without work does not open it.

    A continued run writes all its iterations again: to a new run of a service, and to new files of TensorBoard.
    """

    config: Config
    path: Path
    stack: ExitStack = field(default_factory=ExitStack)
    loggers: Tracked | None = None
    written: set[int] = field(default_factory=set)

    def __enter__(self) -> PipelineLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.__exit__(kind, error, trace)

    def open(self) -> None:
        """Open the loggers, unless they are open.

        Raises:
            UserError: A logger refuses the run; `check_loggers` has checked packages and logins before.
        """
        names = [name for name in self.config.train.loggers if name != "console"]
        if self.loggers is not None or not names:
            return
        run = self.path.resolve()
        for earlier in (run / "tensorboard").glob("events.out.tfevents.*"):
            earlier.unlink()
        environment = logging_environment(run) | {"WANDB_RUN_GROUP": run.name}
        settings = self.config.model_dump(mode="json")
        self.loggers = self.stack.enter_context(tracking(names, f"{run.name}-{NAME}", environment, settings))
        self.loggers.charts(
            {
                heading: {chart: [f"{PREFIX}{one}/value" for one in curves] for chart, curves in charts.items()}
                for heading, charts in CURVES.items()
            }
        )

    def write(self, history: Sequence[Iteration]) -> None:
        """Write the iterations that this process has not written yet, if the loggers are open."""
        for iteration in history if self.loggers else ():
            number = iteration.number
            if number not in self.written:
                self.written.add(number)
                assert self.loggers is not None
                self.loggers.figures(number, numbers_of(iteration))
                self.loggers.table(TABLE, number, self._rows(number), RULE)

    def _rows(self, number: int) -> list[Row]:
        """Returns the dialogues of an iteration; none, with a warning, if its file of episodes is damaged."""
        try:
            return self._dialogues.rows(number)
        except UserError as error:
            logger.warning(f"train.loggers: dialogues of iteration {number} were not written: {error}")
            return []

    @cached_property
    def _dialogues(self) -> Dialogues:
        return Dialogues(self.config, self.path)


def numbers_of(iteration: Iteration) -> dict[str, float]:
    """Returns an iteration's figures by flat names: `selfplay/held_out_reward/value`, `selfplay/seconds/train`, …"""
    return {
        f"{PREFIX}{name.replace('.', '/')}": float(value)
        for name, value in flatten(iteration.to_line()).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
