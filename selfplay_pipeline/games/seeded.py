"""Games of another library: a state is an environment's name and a seed, and an episode is what the texts make of it.

An adapter derives its game from `SeededGame` and its session from `SeededSession`. Environments draw random numbers
from the global generators. Each session has generators of its own, and puts them in their place while its environment
runs. So the episodes of a process do not disturb each other, and the same texts give the same episode again.
"""

from __future__ import annotations

import io
import math
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.games.base import Game, GameSettings, Opening, ParseError
from selfplay_pipeline.games.turn_session import Move, TurnSession

ENDED = "ended"
"""Goal: the environment ended the episode and gave rewards."""
ACT = "act"
"""Action of a turn that the environment took. It is no `MESSAGE`: talk and moves are one text there."""
REFUSED = "refused"
"""Error kind of a turn that the environment refuses."""
MOST_SEATS = 15
INSTRUCTION = "You play a game in text. Read its rules, and write one turn at a time, in the form that they ask for."
WAIT = "Wait for your turn."
NOTHING_NEW = "It is your turn again."
Seats = Annotated[int, Field(ge=1, le=MOST_SEATS)]


class SeededState(BaseModel):
    """One problem: an environment, its number of players and its seed."""

    model_config = ConfigDict(frozen=True)

    env: Annotated[str, Field(max_length=1000)]
    players: Annotated[Seats, Field(strict=True)]
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)]


class SeededSettings(GameSettings):
    """Environment, number of players and limits."""

    env: str = ""
    """Name of the environment."""
    players: Seats | None = None
    """Number of players; by default the smallest number that the environment takes."""
    max_length: Annotated[int, Field(ge=1)] = 200
    """Maximum number of turns in an episode, counting all players and illegal turns.

    If the environment has not ended the episode by then, all rewards are 0, which is the reward of a loss.
    """

    @field_validator("mute")
    @classmethod
    def _not_muted(cls, mute: bool) -> bool:
        if mute:
            raise ValueError("turns of this game cannot be muted, since messages and moves are one text; leave it out")
        return mute


class SeededGame(Game):
    """Game of another library under one `SeededSettings`.

    The decision of an episode is the list of the environment's rewards by seat, each from -1 (a loss) to 1 (a win).
    """

    state = SeededState
    settings: ClassVar[type[SeededSettings]] = SeededSettings
    variant = "env"
    chance_later = True
    goals = frozenset({ENDED})
    actions = frozenset({ACT})
    error_kinds = (REFUSED,)

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Role of each seat; the environment says how many seats there are, unless the configuration does."""
        return ("",) * (self.config.players or self.fewest_players())

    @property
    def shared_reward(self) -> bool:
        """False with several seats, which may be opponents: rows are compared with rows of their own seat alone."""
        return len(self.roles) == 1

    @property
    def data_source(self) -> str:
        """Value of verl's column `data_source`, with the environment, whose number of seats is its own."""
        return f"{self.name}_{self.config.env}_selfplay"

    @abstractmethod
    def fewest_players(self) -> int:
        """Returns the smallest number of players that the environment takes.

        Raises:
            UserError: The environment cannot be made.
        """

    def sample_state(self, rng: np.random.Generator) -> SeededState:
        """Returns a state with a random seed."""
        return SeededState(env=self.config.env, players=len(self.roles), seed=int(rng.integers(2**32)))

    def of_state(self, data: Any) -> Game:
        """Returns the game of the environment and of the number of players in a state; it makes no environment."""
        state = self.state_from_json(data)
        if state.env == self.config.env:
            return type(self)(self.config.model_copy(update={"players": state.players}))
        return _game_of(type(self), state.env, state.players)

    def check_fits(self, state: SeededState) -> None:
        """Raises UserError unless the state is of the configured environment and number of players."""
        for key, here in (("env", self.config.env), ("players", len(self.roles))):
            if (given := getattr(state, key)) != here:
                raise UserError(
                    f"game state: field '{key}': {given!r}, but the configuration has {here!r}; set game.{key}"
                )

    def check_decision(self, state: SeededState, decision: Any) -> None:
        """Raises ValueError unless the decision has a reward from -1 to 1 for each seat."""
        self.rewards(state, decision)

    def rewards(self, state: SeededState, decision: Any) -> tuple[float, ...]:
        """Returns the reward of each seat: -1, a loss, gives 0; 0, a draw, gives 0.5; and 1, a win, gives 1.

        GRPO's advantages are those of the environment's own rewards, since both differ by a factor and a shift.
        """
        if not isinstance(decision, list) or len(decision) != state.players:
            raise ValueError(f"{decision!r} is not the list of the {state.players} seats' rewards in {state.env}")
        for value in decision:
            if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
                raise ValueError(f"{value!r} is not a reward from -1 to 1")
        return tuple((value + 1) / 2 for value in decision)

    def describe(self) -> str:
        """Returns the environment and the number of its players."""
        return f"{self.name}, {self.config.env}, {len(self.roles)} seats"


@lru_cache(maxsize=256)
def _game_of(kind: type[SeededGame], env: str, players: int) -> SeededGame:
    return kind(kind.settings.model_construct(name=kind.name, env=env, players=players).as_stored())


class Generators:
    """States of Python's and numpy's global random generators, for one environment alone."""

    def __init__(self, seed: int) -> None:
        """Seed both generators."""
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed).get_state()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the generators in the place of the global ones for a while; what is printed meanwhile is dropped."""
        outer = random.getstate(), np.random.get_state()
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            with redirect_stdout(io.StringIO()):
                yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state()
            random.setstate(outer[0])
            np.random.set_state(outer[1])


class SeededSession(TurnSession):
    """Episode of an environment that starts from the seed of a state.

    A subclass says how its library makes an environment, takes a text, and tells what a seat reads. If the library
    raises an exception for a text, the environment is made anew and brought to where it was, and the turn is illegal.
    """

    def __init__(self, game: SeededGame, state: SeededState) -> None:
        """Make the environment.

        Raises:
            UserError: The environment cannot be made, or is not the configured one.
        """
        super().__init__(game, state)
        self._taken: list[str] = []
        """Texts that the environment has taken, refused ones too."""
        self._begin()
        self._openings = [self._told(seat) or WAIT for seat, _ in enumerate(game.roles)]
        self._advance()

    @abstractmethod
    def make(self) -> None:
        """Make the environment and start it from the state's seed."""

    @abstractmethod
    def take(self, text: str) -> str | None:
        """Give the text of the acting seat to the environment; returns why it is illegal, or None."""

    @abstractmethod
    def acting(self) -> int | None:
        """Returns the seat that acts next; None if the episode is over."""

    @abstractmethod
    def unread(self, seat: int) -> str:
        """Returns what a seat has not read yet, and marks it as read."""

    @abstractmethod
    def final(self) -> list[float]:
        """Returns the environment's rewards of an ended episode, by seat, from -1 to 1."""

    def opening(self, seat: int) -> Opening:
        """Returns what the environment tells a seat before the first turn."""
        return Opening(INSTRUCTION, self._openings[seat])

    def about_error(self, seat: int, error: ParseError) -> str:
        """Returns what the environment says of an illegal turn, without further words."""
        return str(error)

    def act(self, seat: int, text: str) -> Move:
        """Give a text to the environment. An illegal text may also end the episode, and then rewards count."""
        try:
            with self._running():
                refusal = self.take(text)
        except UserError:
            raise  # the environment is at fault, not the text
        except Exception as error:
            self._again()
            raise ParseError(REFUSED, f"The game cannot read this turn ({first_line(error)}).") from None
        self._taken.append(text)
        self._advance()
        going_on = self.status is None and (refusal is None or seat not in self.next)
        told = {other: self._told(other) or NOTHING_NEW for other in self.next} if going_on else None
        if refusal is not None:
            raise ParseError(REFUSED, refusal, told)
        return Move(told or {}, ACT, self.decision)

    def _advance(self) -> None:
        """Name the seat that acts next, or end the episode."""
        if (following := self._acting()) is not None:
            self.next = (following,)
            return
        with self._running():
            decision = self.final()
        self.end(ENDED, decision)

    def _begin(self) -> None:
        self._running = Generators(self.state.seed).in_place
        try:
            with self._running():
                self.make()
        except UserError:
            raise
        except Exception as error:
            raise unusable(self.state.env, error) from None

    def _again(self) -> None:
        """Make the environment anew, with all texts that it had taken."""
        self._begin()
        for seat, _ in enumerate(self.game.roles):
            self._told(seat)
        for text in self._taken:
            with self._running():
                self.take(text)
            if (following := self._acting()) is not None:
                self._told(following)

    def _acting(self) -> int | None:
        with self._running():
            return self.acting()

    def _told(self, seat: int) -> str:
        with self._running():
            return self.unread(seat)


def unusable(env: str, error: Exception) -> UserError:
    """Returns an error for an environment that cannot be made."""
    what = " ".join(str(error).replace("*", " ").split())[:200]
    return UserError(f"game.env: {env} cannot be used: {type(error).__name__}: {what}; choose another environment")


def finite_reward(env: str, seat: str, value: Any) -> float:
    """Returns a reward of an environment.

    Raises:
        UserError: The reward is not a finite number. It would silently become a loss or a win.
    """
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if isinstance(value, str | bytes) or not math.isfinite(reward):
        raise unusable(env, ValueError(f"gives {seat} the reward {repr(value)[:60]}, which is not a finite number"))
    return reward


def fewest(env: str, tries: Callable[[int], Any]) -> int:
    """Returns the smallest number of players with which a call succeeds.

    Raises:
        UserError: The call succeeds with none; the message has the first error.
    """
    first: Exception | None = None
    for number in range(1, MOST_SEATS + 1):
        try:
            with Generators(0).in_place():
                tries(number)
        except UserError:
            raise
        except Exception as error:
            first = first if first is not None and not isinstance(first, AssertionError) else error
        else:
            return number
    assert first is not None
    raise unusable(env, first)
