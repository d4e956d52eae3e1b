"""Any of our games as an AEC environment of PettingZoo: `aec.env(registry.find("bargaining")())`.

Observations and actions are texts. An agent observes what its seat has not read yet, first of all the rules and its
private view, and acts with the text of a turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Text
from pettingzoo import AECEnv

from selfplay_pipeline.games.base import Game, Session, Status

MAX_LENGTH = 100_000
"""Largest number of characters of an observation or an action."""
SAMPLED = "abcdefghijklmnopqrstuvwxyz0123456789[] "
"""Characters of random actions; other texts are actions too."""


class AnyText(Text):  # type: ignore[misc]
    """Space of all texts; a sample has a few characters of `SAMPLED`."""

    def __init__(self) -> None:
        """Make a space of short samples."""
        super().__init__(max_length=40, min_length=0, charset=SAMPLED)

    def contains(self, x: Any) -> bool:
        """Whether a value is a text of at most `MAX_LENGTH` characters."""
        return isinstance(x, str) and len(x) <= MAX_LENGTH


class GameEnv(AECEnv):  # type: ignore[misc]
    """One game as an environment: agents `seat_0`, `seat_1`, … take turns in the game's order.

    An agent's reward is its seat's, given when the episode ends, and 0 before. An episode that reached the game's goal
    terminates all agents; one that ended by a limit truncates them. `infos` has the last action's name and, if it was
    illegal, its error.
    """

    def __init__(self, game: Game) -> None:
        """Store the game, with its configuration."""
        super().__init__()
        self.game = game
        self.metadata = {"name": game.name, "is_parallelizable": False, "render_modes": []}
        self.possible_agents = [f"seat_{seat}" for seat in range(len(game.roles))]
        self.agents: list[str] = []
        self._observed = {agent: AnyText() for agent in self.possible_agents}
        self._acted = {agent: AnyText() for agent in self.possible_agents}
        self._states = np.random.default_rng()

    def observation_space(self, agent: str) -> Text:
        """Returns the space of an agent's observations."""
        return self._observed[agent]

    def action_space(self, agent: str) -> Text:
        """Returns the space of an agent's actions."""
        return self._acted[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode.

        Args:
            seed: Seed of the states of this episode and of later ones without a seed.
            options: `{"state": DATA}` plays this state, in the form of `Game.state_to_json`.
        """
        if seed is not None:
            self._states = np.random.default_rng(seed)
        given = (options or {}).get("state")
        state = self.game.sample_state(self._states) if given is None else self.game.state_from_json(given)
        self._session: Session = self.game.start(state)
        self.agents = [*self.possible_agents]
        openings = [self._session.opening(seat) for seat, _ in enumerate(self.agents)]
        self._unread = {
            agent: [opening.system, opening.observation] for agent, opening in zip(self.agents, openings, strict=True)
        }
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.possible_agents[self._session.seats[0]]

    def observe(self, agent: str) -> str:
        """Returns the texts that an agent got since its last action."""
        return "\n".join(filter(None, self._unread[agent]))

    def step(self, action: str | None) -> None:
        """Take the turn of `agent_selection`; None after the end of its episode."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        step = self._session.step(self.possible_agents.index(agent), str(action))
        self._unread[agent] = []
        for other, text in zip(self.possible_agents, step.observations, strict=True):
            self._unread[other].append(text)
        self.infos[agent] = {"action": step.action} | ({"error": step.error} if step.error else {})
        self._clear_rewards()
        if self._session.status is None:
            self.agent_selection = self.possible_agents[self._session.seats[0]]
        else:
            self._end()
        self._accumulate_rewards()

    def _end(self) -> None:
        outcome = self._session.outcome()
        ended = self.truncations if outcome.status in tuple(Status) else self.terminations
        for agent, reward in zip(self.possible_agents, outcome.rewards, strict=True):
            self.rewards[agent] = reward
            ended[agent] = True
            self.infos[agent] = self.infos[agent] | {"status": outcome.status}

    def render(self) -> None:
        """Draws nothing: what an agent observes is text."""

    def close(self) -> None:
        """Does nothing: a game holds no resources."""


def env(game: Game) -> GameEnv:
    """Returns an environment of a game."""
    return GameEnv(game)
