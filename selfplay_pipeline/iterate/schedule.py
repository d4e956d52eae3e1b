"""Order of the stages of a run, and the iteration whose checkpoint each stage uses. Pure functions of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from selfplay_pipeline.config.schema import IterateConfig
from selfplay_pipeline.iterate.folder import Stage
from selfplay_pipeline.iterate.partners import MEMBER

PLAY_AND_LEARN: tuple[Stage, ...] = ("generate", "convert", "train")
"""Stages of every iteration."""

Lane = tuple[tuple[int, Stage], ...]
"""Stages, each with the number of its iteration, that run one after the other."""


@dataclass(frozen=True)
class Round:
    """Lanes that run at the same time; the next round begins when all are done.

    Attributes:
        lanes: The lanes. Those of one round that play use the same checkpoint, so a server loads each checkpoint once.
        completes: Number of the iteration whose last stage is in this round.
    """

    lanes: tuple[Lane, ...]
    completes: int | None = None


def stages_of(options: IterateConfig, number: int) -> tuple[Stage, ...]:
    """Returns the stages of an iteration in order; iteration 0 evaluates the initial checkpoint."""
    every = options.evaluate_every
    evaluates = every > 0 and (number % every == 0 or number == options.num_iterations)
    return (*(PLAY_AND_LEARN if number else ()), *(("evaluate",) if evaluates else ()))


def saves_state(options: IterateConfig, number: int) -> bool:
    """Whether the training of an iteration saves the trainer's state (`iterate.state_every`).

    Without it, the next training needs the process that has the state in memory. A process that stops after each
    training, or trains other members of a population in between, always saves it.
    """
    stays = options.keep_processes and not any(MEMBER.fullmatch(one.player) for one in options.partners)
    return not stays or number % options.state_every == 0 or number == options.num_iterations


def rounds_of(options: IterateConfig) -> Iterator[Round]:
    """Returns the rounds of a run in order.

    With `ahead: 0` each iteration is one round of one lane. With `ahead: 1` the round of iteration k trains it, while
    the checkpoint that the training begins with plays iteration k + 1 and is evaluated.
    """
    last = options.num_iterations
    if not options.ahead:
        for number in range(last + 1):
            yield Round((tuple((number, stage) for stage in stages_of(options, number)),), number)
        return
    yield Round((_plays(1),))
    for number in range(1, last + 1):
        beside = (*(_plays(number + 1) if number < last else ()), *_evaluates(options, number - 1))
        yield Round((((number, "train"),), beside), number - 1)
    yield Round((_evaluates(options, last),), last)


def _plays(number: int) -> Lane:
    return (number, "generate"), (number, "convert")


def _evaluates(options: IterateConfig, number: int) -> Lane:
    return ((number, "evaluate"),) if "evaluate" in stages_of(options, number) else ()


def source_of(options: IterateConfig, number: int, stage: Stage) -> int:
    """Returns the number of the iteration that makes the checkpoint of a stage; 0 stands for the initial model."""
    if stage == "evaluate":
        return number
    if stage in ("generate", "convert"):
        return source_of_games(number, options.ahead)
    return max(0, number - 1)


def source_of_games(number: int, ahead: int) -> int:
    """Returns the iteration whose checkpoint plays the episodes of iteration `number` (`iterate.ahead`)."""
    return max(0, number - 1 - ahead)
