"""Creates the player of each seat from the names that commands accept, and the engines that the players need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.config.schema import Config, EngineConfig
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import Device, resolve_device
from selfplay_pipeline.core.model_sizes import model_context_length
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.engines.pool import EnginePool
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.generate.chat_model import ChatClient
from selfplay_pipeline.generate.chat_player import chat_player
from selfplay_pipeline.generate.episode import Player
from selfplay_pipeline.generate.players import policy_player, script_player
from selfplay_pipeline.generate.records import CHAT, PERSON, POLICY, PolicyRecord, SeatRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer


@dataclass(frozen=True)
class Backends:
    """What answers for the models among the players, taken from a configuration once."""

    engine: EngineConfig
    device: Device
    partner: PartnerConfig
    """The chat model behind an API, which the player `chat` asks."""

    @classmethod
    def of(cls, config: Config) -> Backends:
        return cls(config.engine, resolve_device(config.device), config.partner)


def self_play(game: Game) -> tuple[str, ...]:
    """Returns the names of self-play: the policy in every seat of the game."""
    return (POLICY,) * len(game.roles)


def seats_for(game: Game, players: Sequence[str]) -> list[str]:
    """Returns the player of each seat: one name holds all seats, and by default the policy does.

    Raises:
        UserError: Another number of players is named.
    """
    everyone = self_play(game)
    seats = [*map(shipped, players or everyone)]
    if len(seats) == 1:
        seats *= len(everyone)
    if len(seats) != len(everyone):
        raise UserError(
            f"--player: given {len(seats)} times, but the game has {len(everyone)} seats; name each once, or one "
            "player for all"
        )
    return seats


def check_seat(game: Game, seat: int, asked_by: str) -> None:
    """Raises UserError unless the game has a seat."""
    last = len(game.roles) - 1
    if seat > last:
        raise UserError(f"{asked_by} {seat}: there is no such seat; the game {game.name} has seats 0 to {last}")


def weights_of(engine: EngineConfig, checkpoint: str) -> str:
    """Returns the content hash of a checkpoint; "" for a hub model on attached servers, whose files are unknown here.

    Such a server has loaded the model itself, so a download here would not show which files play.
    """
    return "" if engine.attached and not Path(checkpoint).is_dir() else content_hash(checkpoint)


def seats_named(game: Game, engine: EngineConfig, names: Sequence[str], policy: PolicyRecord) -> list[SeatRecord]:
    """Returns the record of each seat, given the names of the players."""
    weights = {name: weights_of(engine, name) for name in checkpoints_among(game, names)}
    return [SeatRecord.named(name, policy, weights) for name in names]


def is_checkpoint(game: Game, name: str) -> bool:
    """Whether a name is a checkpoint: not `policy`, `chat`, `person`, or a scripted player of the game."""
    return name not in (POLICY, CHAT, PERSON, *game.players)


def checkpoints_among(game: Game, names: Iterable[str]) -> list[str]:
    """Returns the names that are checkpoints."""
    return [name for name in names if is_checkpoint(game, name)]


def checkpoints_of(game: Game, names: Iterable[str], policy: str) -> list[str]:
    """Returns the checkpoints of the players, without duplicates.

    Args:
        game: The game.
        names: Names of the players.
        policy: Checkpoint of the player `policy`.
    """
    models = (policy if name == POLICY else name for name in names if name == POLICY or is_checkpoint(game, name))
    return list(dict.fromkeys(models))


def check_players(game: Game, names: Iterable[str]) -> None:
    """Raises UserError unless each name is a player of the game or a checkpoint."""
    listed = f"scripted players of the game {game.name}: {', '.join(sorted(game.players))}"
    for name in names:
        if name == PERSON:
            raise UserError("person: a person plays with `selfplay play` only; name another player here")
        if not is_checkpoint(game, name):
            continue
        if "/" not in name and not Path(name).exists():
            raise UserError(
                f"no scripted player or checkpoint {name!r}; {listed}; {CHAT!r} is the chat model of the section "
                "`partner`"
            )
        check_checkpoint(name)


class Servers(EnginePool):
    """An engine pool with the client of a chat model, for commands in which a chat model may hold a seat."""

    def __init__(
        self, backends: Backends, folder: Path, *, at_once: int = 1, shares_gpu: bool = False, alone: bool = False
    ) -> None:
        super().__init__(backends.engine, backends.device, folder, at_once=at_once, shares_gpu=shares_gpu, alone=alone)
        self.backends = backends
        self._chat: ChatClient | None = None

    def chat(self) -> ChatClient:
        """Returns the client of the chat model; the whole command shares one, so that its cap counts all requests.

        Raises:
            UserError: The key is missing, or the address or the cache cannot be used.
        """
        if self._chat is None:
            self._chat = ChatClient(self.backends.partner)
        return self._chat

    async def stop(self) -> None:
        """Stop the engines and close the connections to the chat model; later use starts both again."""
        await super().stop()
        if self._chat is not None:
            await self._chat.close()


@asynccontextmanager
async def given_or_own(
    servers: Servers | None, backends: Backends, folder: Path, at_once: int = 1
) -> AsyncIterator[Servers]:
    """Yields the given servers; without any, yields new ones, and stops them afterwards."""
    if servers is not None:
        yield servers
    else:
        async with Servers(backends, folder, at_once=at_once) as own:
            yield own


async def seat_players(game: Game, seats: Iterable[SeatRecord], servers: Servers) -> dict[str, Player]:
    """Starts the engines of the seats' players and returns the players by name."""
    by_name, players = {seat.name: seat for seat in seats}, dict[str, Player]()
    if CHAT in by_name:  # first, because a missing key should be reported before a slow server start
        players[CHAT] = chat_player(servers.chat(), game)
    checkpoints = {seat.policy.checkpoint for seat in by_name.values() if seat.policy is not None}
    for seat in sorted(by_name.values(), key=lambda seat: (not seat.trained, seat.name)):
        if seat.kind == "script":
            players[seat.name] = script_player(seat.name)
        elif seat.policy is not None:
            players[seat.name] = await _policy_player(seat, seat.policy, servers, checkpoints)
    return players


async def _policy_player(seat: SeatRecord, policy: PolicyRecord, servers: Servers, keep: Collection[str]) -> Player:
    configured = servers.backends.engine
    context_length = model_context_length(policy.checkpoint, configured.context_length)
    chat = ChatTokenizer.load(policy.checkpoint, **policy.template)
    chat.check_belongs_to(policy.checkpoint)
    engine = await servers.serving(policy.checkpoint, keep=keep)
    if weights_of(configured, policy.checkpoint) != policy.weights:
        raise UserError(
            f"{policy.checkpoint}: its files changed while the engine loaded them; run the same command again, when "
            "nothing writes there"
        )
    return policy_player(engine, chat, policy, context_length, seat.kind, seat.name, seat.trained)
