"""Bad inputs for the real commands: derived from the configuration, options and records, or hand-written."""

from __future__ import annotations

from random import Random

from chaos.cases import Case
from chaos.inputs import chat, configuration, controls, folders, games, models, options, parquet, prompts, slime, states

SOURCES = (controls, configuration, options, games, parquet, models, folders, states, prompts, chat, slime)


def cases(seed: int) -> list[Case]:
    """Returns all bad inputs, and the controls that show that each command works with a good one."""
    return [tried.case() for source in SOURCES for tried in source.inputs(Random(f"{source.__name__} {seed}"))]
