"""A game of selfplay-pipeline as an OpenEnv environment: the client holds one seat, a player of ours all others.

    python -m selfplay_openenv --config tiny --partner sharing

The game, its prompts, its rules and its rewards are those of the package; `selfplay evaluate` plays the same held-out
states.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
import uvicorn
from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import FinishReason
from selfplay_pipeline.games.base import HELD_OUT, state_rng
from selfplay_pipeline.games.registry import find, make_game
from selfplay_pipeline.generate.control_tokens import after_thought
from selfplay_pipeline.generate.episode import Episode, Player, Reply
from selfplay_pipeline.generate.seats import Backends, Servers, is_checkpoint, seat_players, seats_named, weights_of
from selfplay_pipeline.generate.stage import check_seats, policy_record
from selfplay_pipeline.generate.text_player import TextSeat, text_player

CLIENT = text_player("client")
LOOPBACK = "127.0.0.1"
"""The only address that is served: OpenEnv has no keys. Reach it from elsewhere through an SSH tunnel or a proxy."""


class Turn(Action):
    """One turn of the client's seat."""

    text: str
    cut: bool = False
    """Whether the token limit cut the turn; it is then illegal."""


class Heard(Observation):
    """What the client's seat has read. `reward` is None until the episode is over."""

    text: str = ""
    """The texts since the seat's last turn; after `reset` the rules and the seat's private view."""
    messages: list[dict[str, str]] = Field(default_factory=list)
    """The whole dialogue as a chat: system, user, assistant, user, …"""
    action: str | None = None
    """Action that the last turn was read as."""
    error: str | None = None
    """Kind of error of an illegal turn, which keeps the turn; `text` says what was wrong."""
    status: str | None = None
    """How the episode ended."""


class SeatEnvironment(Environment[Turn, Heard, State]):
    """Episodes of one game, one after the other. Each session of a server has an environment of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, config: Config, partner: Player, seat: int, numbers: Iterator[int], played: Iterator[int]
    ) -> None:
        """Args:
        config: The configuration of the game and its states.
        partner: Player of all seats but the client's.
        seat: The client's seat.
        numbers: Numbers of the states for resets without a seed; all sessions share them.
        played: Numbers of the episodes of training; all sessions share them.
        """
        super().__init__()
        self._config, self._game = config, make_game(config.game)
        self._partner, self._seat, self._numbers, self._played = partner, seat, numbers, played
        self._episode: Episode | None = None
        self._state = State()

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, held_out: bool = False, **others: Any
    ) -> Heard:
        """Begin an episode.

        Args:
            seed: Number of the state; equal numbers give equal states. By default the next unused number.
            episode_id: Name of the episode.
            held_out: Whether to play the held-out states of `selfplay evaluate`, and not those of training.
        """
        number = next(self._numbers) if seed is None else seed
        config = self._config
        rng = state_rng(config.evaluate.state_seed, number, HELD_OUT) if held_out else state_rng(config.seed, number)
        players = [CLIENT if seat == self._seat else self._partner for seat, _ in enumerate(self._game.roles)]
        # Random partners act differently in the episodes of a state, as in `selfplay generate`.
        played = 0 if held_out else next(self._played)
        name, place = episode_id or f"g{number:06d}-p{played}", (config.seed, number, played)
        self._episode = Episode(self._game, self._game.sample_state(rng), players, name, place)
        self._state = State(episode_id=name, step_count=0)
        return await self._heard()

    async def step_async(self, action: Turn, timeout_s: float | None = None, **others: Any) -> Heard:
        """Take the client's turn, and let the others play until it is the client's turn again."""
        episode = self._episode
        if episode is None or not episode.session.seats:
            raise ValueError("no episode is under way; reset the environment first")
        text, whole = after_thought(action.text)
        cut = action.cut or not whole
        self._client.say(text)
        episode.take_turn(self._seat, Reply(text, cut, FinishReason.LENGTH if cut else FinishReason.STOP))
        self._state.step_count += 1
        turn = episode.turns[-1]
        return await self._heard(action=str(turn.action), error=turn.error_kind)

    def reset(self, *given: Any, **named: Any) -> Heard:
        """Run `reset_async` for callers without an event loop."""
        return asyncio.run(self.reset_async(*given, **named))

    def step(self, *given: Any, **named: Any) -> Heard:
        """Run `step_async` for callers without an event loop."""
        return asyncio.run(self.step_async(*given, **named))

    @property
    def state(self) -> State:
        """Name of the episode, and the number of the client's turns."""
        return self._state

    @property
    def _client(self) -> TextSeat:
        assert self._episode is not None
        seated = self._episode.seats[self._seat]
        assert isinstance(seated, TextSeat)
        return seated

    async def _heard(self, **about: Any) -> Heard:
        """Let the others play; returns what the client's seat has read since its last turn."""
        episode = self._episode
        assert episode is not None
        await episode.run(until=self._seat)
        if episode.lost_to is not None:
            raise RuntimeError(f"the episode is lost to the partner: {episode.lost_to}")
        messages = [message.model_dump() for message in self._client.context()]
        spoken = max((place for place, one in enumerate(messages, 1) if one["role"] == "assistant"), default=0)
        status = episode.session.status
        return Heard(
            text="\n".join(filter(None, (one["content"] for one in messages[spoken:]))),
            messages=messages,
            status=None if status is None else str(status),
            done=status is not None,
            reward=None if status is None else episode.session.outcome().rewards[self._seat],
            **about,
        )


@asynccontextmanager
async def environment(config: Config, partner: str, seat: int, sessions: int) -> AsyncIterator[FastAPI]:
    """Yields the app of an environment server; its partner's engine runs meanwhile.

    Args:
        config: The configuration.
        partner: Who holds the other seats, as `selfplay generate --player` names it: a scripted player, a checkpoint,
            or `chat`.
        seat: The client's seat.
        sessions: Largest number of sessions at the same time.

    Raises:
        UserError: The game has no such seat, or the partner cannot play it here.
    """
    game, engine = make_game(config.game), config.engine
    if not 0 <= seat < len(game.roles):
        raise UserError(f"--seat {seat}: the game has the seats 0 to {len(game.roles) - 1}")
    checkpoint = partner if is_checkpoint(game, partner) else str(config.model)
    check_seats(config, checkpoint, [partner])
    weights = weights_of(engine, partner) if is_checkpoint(game, partner) else ""
    records = seats_named(game, engine, [partner], policy_record(config, checkpoint, weights))
    with TemporaryDirectory() as logs:
        async with Servers(Backends.of(config), Path(logs)) as servers:
            players = await seat_players(game, records, servers)
            numbers, played = itertools.count(), itertools.count()
            yield create_fastapi_app(
                lambda: SeatEnvironment(config, players[partner], seat, numbers, played),
                Turn,
                Heard,
                max_concurrent_envs=sessions,
            )


def main(
    config: Annotated[str, typer.Option(help="Built-in configuration or YAML file.")] = "tiny",
    partner: Annotated[
        str, typer.Option(help="Who holds the other seats: a scripted player, a checkpoint, or chat.")
    ] = "sharing",
    seat: Annotated[int, typer.Option(help="The client's seat.")] = 0,
    game: Annotated[str | None, typer.Option(help="Game: a name, or FILE.py, whose code is run.")] = None,
    sessions: Annotated[int, typer.Option(help="Largest number of sessions at the same time.")] = 64,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
) -> None:
    """Serve a game as an OpenEnv environment, in which the client holds one seat."""

    async def serve() -> None:
        settings: dict[str, Any] = {}
        if game is not None:
            find(game)
            settings["game"] = game
        async with environment(load_config(config, settings), partner, seat, sessions) as app:
            await uvicorn.Server(uvicorn.Config(app, host=LOOPBACK, port=port, log_level="warning")).serve()

    try:
        asyncio.run(serve())
    except UserError as error:
        print(f"selfplay_openenv: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    typer.run(main)
