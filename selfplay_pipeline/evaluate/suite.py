"""The suite of `selfplay benchmark`, which `games/benchmark.yaml` defines: its tasks, with their fixed states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import GAMES, shipped
from selfplay_pipeline.evaluate.states import StateSet, first_of, held_out_states, read_states
from selfplay_pipeline.games.base import GameSettings
from selfplay_pipeline.games.registry import make_game, parse_game_config


class States(BaseModel):
    """States of a game under one configuration.

    Attributes:
        game: Section `game` of the configuration, without the protocol.
        protocols: Rules of turns under which the states are played.
        states: Number of states.
        file: File of the states; "" for drawn states.
        sha256: Hash of the states (`StateSet.fingerprint`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    game: dict[str, Any]
    protocols: tuple[Literal["fixed", "free"], ...]
    states: int
    file: str = ""
    sha256: str


class Suite(BaseModel):
    """Content of `benchmark.yaml`: sets of states by name, and the seed of those that are drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: str
    version: int
    seed: int
    sets: dict[str, States]


@cache
def suite() -> Suite:
    """Returns the suite."""
    return Suite.model_validate(yaml.safe_load((GAMES / "benchmark.yaml").read_text("utf-8")))


@dataclass(frozen=True)
class Task:
    """A set of states with a protocol."""

    of: str
    protocol: Literal["fixed", "free"]

    @property
    def name(self) -> str:
        return f"{self.of}-{self.protocol}"

    @property
    def given(self) -> States:
        return suite().sets[self.of]

    @property
    def game(self) -> str:
        return str(self.given.game["name"])

    def config(self, prompts: str = "default") -> GameSettings:
        """Returns the configuration of the game, with these prompts, which are the player's own affair."""
        return parse_game_config({**self.given.game, "protocol": self.protocol, "prompts": prompts})

    def states(self, most: int | None = None) -> StateSet:
        """Returns the states, or the first `most` of them.

        Raises:
            UserError: The states differ from the published ones.
        """
        game, given = make_game(self.config()), self.given
        count = min(given.states, most or given.states)
        found = (
            read_states(Path(shipped(given.file)), game) if given.file else held_out_states(game, count, suite().seed)
        )
        if len(found) == given.states and found.fingerprint != given.sha256:
            raise UserError(
                f"benchmark: the states of {self.of} are not those of version {suite().version} (SHA-256 "
                f"{found.fingerprint[:12]}…, published {given.sha256[:12]}…); install the package and numpy anew"
            )
        return first_of(game, found, count)


def all_tasks() -> list[Task]:
    """Returns all tasks of the suite, in display order."""
    return [Task(name, protocol) for name, given in suite().sets.items() for protocol in given.protocols]


def tasks_for(player: str, names: Sequence[str] = ()) -> list[Task]:
    """Returns the tasks that a player plays; a scripted player plays only games that have it.

    Args:
        player: The player.
        names: Names of games and tasks; empty for all.

    Raises:
        UserError: A name is unknown, or no chosen game has the scripted player.
    """
    known = dict.fromkeys(name for task in all_tasks() for name in (task.game, task.name))
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--games: no game or task {unknown[0]!r}; choose among {', '.join(known)}")
    asked = [task for task in all_tasks() if not names or {task.game, task.name} & {*names}]
    scripted = [task.name for task in all_tasks() if player in make_game(task.config()).players]
    found = [task for task in asked if task.name in scripted or not scripted]
    if not found:
        raise UserError(f"--games: the scripted player {player} plays only {', '.join(scripted)}")
    return found
