"""An AEC environment of PettingZoo as a game: `game: {name: pettingzoo, env: "my_env.py:env"}`.

Observations and actions must be texts (`gymnasium.spaces.Text`). Seats are the environment's `possible_agents`, in
their order. The file or module is code. It is imported only for the `env` of a configuration or an option: no stored
state names what is imported.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.registry import imported, importing
from selfplay_pipeline.games.seeded import (
    SeededGame,
    SeededSession,
    SeededSettings,
    SeededState,
    finite_reward,
    unusable,
)

OUTSIDE = "This turn is outside of the action space."


class PettingZooSettings(SeededSettings):
    """Environment, range of its rewards, and limits."""

    name: Literal["pettingzoo"] = "pettingzoo"
    """Name of the game."""

    env: str = ""
    """Function without arguments that returns the AEC environment: `FILE.py:FUNCTION` or `MODULE:FUNCTION`."""
    lowest: Annotated[float, Field(allow_inf_nan=False)] = -1.0
    """Sum of an agent's rewards in an episode that is rewarded with 0; smaller sums are too."""
    highest: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Sum of an agent's rewards in an episode that is rewarded with 1; larger sums are too."""
    _stored: bool = PrivateAttr(default=False)
    """Whether these rules are those of a stored file, whose `env` is not imported."""

    def code(self) -> dict[str, str]:
        """Returns the file of the environment, if it is in a file."""
        file = self.env.rpartition(":")[0]
        return {"env": file} if file.endswith(".py") else {}

    def as_stored(self) -> PettingZooSettings:
        stored = self.model_copy()
        stored._stored = True
        return stored

    @model_validator(mode="after")
    def _is_range(self) -> PettingZooSettings:
        if self.lowest >= self.highest:
            raise ValueError(f"lowest: {self.lowest:g} is not below highest, {self.highest:g}; give a range of rewards")
        return self


class PettingZooSession(SeededSession):
    """Episode of an AEC environment."""

    def make(self) -> None:
        """Make the environment and reset it with the state's seed."""
        self._env = _made(self.game.config.env)
        self._env.reset(seed=self.state.seed)
        self._agents = list(self._env.possible_agents)
        self._sums = dict.fromkeys(self._agents, 0.0)

    def take(self, text: str) -> str | None:
        """Take a step and add up the rewards; returns why the text is no action, or None."""
        env = self._env
        if not env.action_space(env.agent_selection).contains(text):
            return OUTSIDE
        env.step(text)
        for agent, reward in env.rewards.items():
            self._sums[agent] += finite_reward(self.state.env, agent, reward)
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # what PettingZoo asks of agents whose episode has ended
        return None

    def acting(self) -> int | None:
        """Returns the seat of the environment's `agent_selection`."""
        return self._agents.index(self._env.agent_selection) if self._env.agents else None

    def unread(self, seat: int) -> str:
        """Returns the agent's observation, also if it has not changed; "" for an agent that has left."""
        agent = self._agents[seat]
        if agent not in self._env.agents:
            return ""
        found = self._env.observe(agent)
        if not isinstance(found, str):
            raise unusable(self.state.env, TypeError(f"observes a {type(found).__name__}, but only texts can be read"))
        return found

    def final(self) -> list[float]:
        """Returns the sum of each agent's rewards, scaled so that `lowest` is -1 and `highest` 1, and cut off there."""
        low, high = self.game.config.lowest, self.game.config.highest
        return [min(1.0, max(-1.0, 2 * (self._sums[agent] - low) / (high - low) - 1)) for agent in self._agents]


class PettingZoo(SeededGame):
    """An AEC environment under one `PettingZooSettings`."""

    name = "pettingzoo"
    settings = PettingZooSettings

    def fewest_players(self) -> int:
        """Returns the number of the environment's possible agents."""
        self._check_named()
        return _seats(self.config.env)

    def start(self, state: SeededState) -> PettingZooSession:
        """Returns the session of a new episode.

        Raises:
            UserError: The state is of another environment than the configured one, whose code would be run, or the
                configuration has another number of players than the environment.
        """
        self._check_named()
        self.check_fits(state)
        agents, players = self.fewest_players(), len(self.roles)
        if players != agents:
            raise UserError(f"game.players: {players}, but {self.config.env} has {agents} agents; leave the key out")
        return PettingZooSession(self, state)

    def _check_named(self) -> None:
        """Raises UserError if only a stored file names the environment, whose code would be run."""
        if self.config._stored:
            raise UserError(
                f"game.env: {self.config.env} is code that a stored file names, and is not run; if you trust it, give "
                "a configuration with this env (--config)"
            )


GAME = PettingZoo


def _made(env: str) -> Any:
    """Returns a new environment, after importing its file or module if necessary."""
    place, _, name = env.rpartition(":")
    if not place:
        raise UserError(f"game.env: {env!r} names no environment; give FILE.py:FUNCTION or MODULE:FUNCTION")
    if find_spec("pettingzoo") is None:
        raise UserError("game.name: pettingzoo is not installed; pip install pettingzoo gymnasium")
    if place.endswith(".py") and not os.path.isfile(place):  # noqa: PTH113
        raise UserError(f"game.env: {place}: there is no such file; name the file of an environment")
    if place.endswith(".py"):
        module: Any = imported(place)
    else:
        with importing(place):
            module = import_module(place)
    if not callable(make := getattr(module, name, None)):
        raise UserError(f"game.env: {place} has no function {name!r}; name the one that returns the environment")
    return make()


@cache
def _seats(env: str) -> int:
    from gymnasium.spaces import Text

    try:
        made = _made(env)
        agents = list(made.possible_agents)
        for agent in agents:
            for space in (made.observation_space(agent), made.action_space(agent)):
                if not isinstance(space, Text):
                    raise TypeError(f"agent {agent} has the space {space}, but observations and actions must be Text")
    except UserError:
        raise
    except Exception as error:
        raise unusable(env, error) from None
    return len(agents)
