"""TextArena's environments as games: `game: {name: textarena, env: "SimpleNegotiation-v0"}`.

The environment is used without its wrappers: each seat reads what the environment tells it, once, and the seat's own
turns are not told again. A turn that TextArena calls invalid is illegal. Its author repeats it, or loses it, as
TextArena says; usually a second one in a row is a loss.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Lesson
from selfplay_pipeline.games.seeded import (
    SeededGame,
    SeededSession,
    SeededSettings,
    SeededState,
    fewest,
    finite_reward,
    unusable,
)
from selfplay_pipeline.games.textarena.teacher import Bracketed, lessons_of

RAW = "-raw"
"""Ending of the registered names of environments without wrappers."""
WORDS = ("corpora/words", "taggers/averaged_perceptron_tagger_eng")
"""NLTK's data that environments would download."""
NEEDS_WORDS = re.compile(r"\bnltk\b|\bEnglishDictionary\b")
INVALID_MOVE = -1.0
"""TextArena's reward of an invalid move. Some of its environments put the reason in the reward's place."""


class TextArenaSettings(SeededSettings):
    """Environment, number of players and limits."""

    name: Literal["textarena"] = "textarena"
    """Name of the game."""

    env: str = "SimpleNegotiation-v0"
    """Name of the environment in TextArena, without `-raw` or `-train`."""


class TextArenaSession(SeededSession):
    """Episode of a TextArena environment."""

    def make(self) -> None:
        """Make the environment and reset it with the state's seed."""
        self._env = _made(self.state.env)
        self._env.reset(num_players=self.state.players, seed=self.state.seed)
        self._over = False

    def take(self, text: str) -> str | None:
        """Take a step; returns TextArena's answer if the same player has to repeat the turn, or loses it."""
        state, seat = self._env.state, self._env.state.current_player_id
        state.game_info[seat]["invalid_move"] = False  # TextArena leaves it set in a game that goes on
        self._over, _ = self._env.step(text)
        if state.game_info[seat]["invalid_move"]:
            return f"This move is invalid, and the game {'is over' if self._over else 'goes on without it'}."
        if not self._over and getattr(state, "error_count", None) and state.current_player_id == seat:
            return self.unread(int(seat)) or "This move is invalid."
        return None

    def acting(self) -> int | None:
        """Returns TextArena's current player."""
        return None if self._over else int(self._env.state.current_player_id)

    def unread(self, seat: int) -> str:
        """Returns the seat's new observations, a line each, in the form that TextArena shows to language models."""
        from textarena import GAME_ID, ObservationType

        state = self._env.state
        if seat == state.current_player_id:
            _, found = self._env.get_observation()
        else:
            found, state.observations[seat] = state.observations[seat], []
        lines: list[str] = []
        for sender, message, kind in found:
            if sender != seat or kind != ObservationType.PLAYER_ACTION:
                name = "GAME" if sender == GAME_ID else state.role_mapping.get(sender, f"Player {sender}")
                lines.append(f"[{name}] {message}")
        return "\n".join(lines)

    def final(self) -> list[float]:
        """Returns TextArena's rewards; a seat without one, or with a reason in its place, lost by an invalid move."""
        rewards = self._env.state.rewards or {}
        return [self._reward(seat, rewards.get(seat)) for seat in range(self.state.players)]

    def _reward(self, seat: int, value: Any) -> float:
        if value is None or isinstance(value, str):
            return INVALID_MOVE
        return min(1.0, max(-1.0, finite_reward(self.state.env, f"seat {seat}", value)))


class TextArena(SeededGame):
    """TextArena under one `TextArenaSettings`."""

    name = "textarena"
    settings = TextArenaSettings
    players = {"bracketed": Bracketed()}

    @cached_property
    def lessons(self) -> Mapping[str, Lesson]:
        """The warm starts for `selfplay model tiny`."""
        return lessons_of(self)

    def fewest_players(self) -> int:
        """Returns the smallest number of players with which the environment can be reset."""
        return _fewest(self.config.env)

    def start(self, state: SeededState) -> TextArenaSession:
        """Returns the session of a new episode."""
        return TextArenaSession(self, state)


GAME = TextArena


@cache
def _registry() -> dict[str, Any]:
    """Returns TextArena's registered environments by name."""
    if find_spec("textarena") is None:
        raise UserError("game.name: textarena is not installed; pip install textarena==0.7.4 nltk")
    with redirect_stdout(io.StringIO()):
        found: dict[str, Any] = import_module("textarena.envs.registration").ENV_REGISTRY
    return found


@cache
def _checked(env: str) -> None:
    """Imports the module of an environment.

    Raises:
        UserError: The environment does not exist, needs a download, or has a module that cannot be imported.
    """
    registry = _registry()
    if f"{env}{RAW}" not in registry:
        names = [name for name in registry if f"{name}{RAW}" in registry]
        near = difflib.get_close_matches(env, names, 3, 0.3) or names[:3]
        others = f"{', '.join(near)}, or another one of its {len(names)}"
        raise UserError(f"game.env: TextArena has no {env!r}; try {others}")
    entry = registry[f"{env}{RAW}"].entry_point
    if not isinstance(entry, str):
        return
    try:
        spec = find_spec(entry.split(":")[0])
        if spec is not None and spec.origin and NEEDS_WORDS.search(Path(spec.origin).read_text("utf-8")):
            _check_words(env)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            import_module(entry.split(":")[0])
    except UserError:
        raise
    except Exception as error:
        raise unusable(env, error) from None


def _check_words(env: str) -> None:
    """Raises UserError unless NLTK's word lists are on this machine; the environment would download them unasked."""
    from nltk import data

    for place in WORDS:
        try:
            data.find(place)
        except LookupError:
            names = " ".join(place.split("/")[1] for place in WORDS)
            raise UserError(
                f"game.env: {env} needs NLTK's word lists, and nothing is downloaded unasked; run "
                f"`python -m nltk.downloader {names}`, or choose another environment"
            ) from None


def _made(env: str) -> Any:
    _checked(env)
    from textarena import make

    return make(f"{env}{RAW}")


@cache
def _fewest(env: str) -> int:
    _checked(env)

    return fewest(env, lambda number: _made(env).reset(num_players=number, seed=0))
