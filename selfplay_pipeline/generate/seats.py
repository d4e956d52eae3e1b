"""Creates the player of each seat from the names that commands accept, and the engines that the players need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.model_sizes import model_context_length
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.engines.pool import EnginePool
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.chat_model import ChatClient
from selfplay_pipeline.generate.chat_player import chat_player, partner_arguments
from selfplay_pipeline.generate.episode import Player
from selfplay_pipeline.generate.players import policy_player, script_player
from selfplay_pipeline.generate.preflight import check_play
from selfplay_pipeline.generate.records import CHAT, PERSON, POLICY, PolicyRecord, SeatRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer


def self_play(config: Config) -> tuple[str, ...]:
    """Returns the names of self-play: the policy in every seat of the configured game."""
    return (POLICY,) * len(make_game(config.game).roles)


def seats_for(config: Config, players: Sequence[str]) -> list[str]:
    """Returns the player of each seat: one name holds all seats, and by default the policy does.

    Raises:
        UserError: Another number of players is named.
    """
    everyone = self_play(config)
    seats = [*map(shipped, players or everyone)]
    if len(seats) == 1:
        seats *= len(everyone)
    if len(seats) != len(everyone):
        raise UserError(
            f"--player: given {len(seats)} times, but the game has {len(everyone)} seats; name each once, or one "
            "player for all"
        )
    return seats


def check_seat(config: Config, seat: int, asked_by: str) -> None:
    """Raises UserError unless the configured game has a seat."""
    last = len(self_play(config)) - 1
    if seat > last:
        raise UserError(f"{asked_by} {seat}: there is no such seat; the game {config.game.name} has seats 0 to {last}")


def weights_of(config: Config, checkpoint: str) -> str:
    """Returns the content hash of a checkpoint; "" for a hub model on attached servers, whose files are unknown here.

    Such a server has loaded the model itself, so a download here would not show which files play.
    """
    attached = config.engine.kind == "sglang" and config.engine.server_url
    return "" if attached and not Path(checkpoint).is_dir() else content_hash(checkpoint)


def seats_named(config: Config, names: Sequence[str], policy: PolicyRecord) -> list[SeatRecord]:
    """Returns the record of each seat, given the names of the players."""
    weights = {name: weights_of(config, name) for name in checkpoints_among(config, names)}
    return [SeatRecord.named(name, policy, weights) for name in names]


def is_checkpoint(config: Config, name: str) -> bool:
    """Whether a name is a checkpoint: not `policy`, `chat`, `person`, or a scripted player of the configured game."""
    return name not in (POLICY, CHAT, PERSON, *make_game(config.game).players)


def checkpoints_among(config: Config, names: Iterable[str]) -> list[str]:
    """Returns the names that are checkpoints."""
    return [name for name in names if is_checkpoint(config, name)]


def checkpoints_of(config: Config, names: Iterable[str], policy: str) -> list[str]:
    """Returns the checkpoints of the players, without duplicates.

    Args:
        config: The configuration.
        names: Names of the players.
        policy: Checkpoint of the player `policy`.
    """
    models = (policy if name == POLICY else name for name in names if name == POLICY or is_checkpoint(config, name))
    return list(dict.fromkeys(models))


def check_players(config: Config, names: Iterable[str]) -> None:
    """Raises UserError unless each name is a player of the configured game or a checkpoint."""
    own = make_game(config.game).players
    listed = f"scripted players of the game {config.game.name}: {', '.join(sorted(own))}"
    for name in names:
        if name == PERSON:
            raise UserError("person: a person plays with `selfplay play` only; name another player here")
        if not is_checkpoint(config, name):
            continue
        if "/" not in name and not Path(name).exists():
            raise UserError(
                f"no scripted player or checkpoint {name!r}; {listed}; {CHAT!r} is the chat model of the section "
                "`partner`"
            )
        check_checkpoint(name)


def check_seats(config: Config, checkpoint: str, seats: Iterable[str], *, at_once: int | None = None) -> None:
    """Raises UserError unless all players exist and can play the configured game on this machine.

    The chat model is not asked, but its key and its prompt must be given.

    Args:
        config: The configuration.
        checkpoint: Checkpoint of the player `policy`.
        seats: Name of the player of each seat.
        at_once: Largest number of checkpoints that play at the same time; by default, all of them.
    """
    seats = list(seats)
    check_players(config, seats)
    if CHAT in seats:
        config.partner.key()
        partner_arguments(config, seats)
    models = checkpoints_of(config, seats, checkpoint)
    for model in models:
        check_checkpoint(model)
    check_play(config, models, at_once=at_once)


class Servers(EnginePool):
    """An engine pool with the client of a chat model, for commands in which a chat model may hold a seat."""

    _chat: ChatClient | None = None

    def chat(self, config: PartnerConfig) -> ChatClient:
        """Returns the client of the chat model; the whole command shares one, so that its cap counts all requests.

        Raises:
            UserError: The key is missing, or the address or the cache cannot be used.
        """
        if self._chat is None:
            self._chat = ChatClient(config)
        return self._chat

    async def stop(self) -> None:
        """Stop the engines and close the connections to the chat model; later use starts both again."""
        await super().stop()
        if self._chat is not None:
            await self._chat.close()


@asynccontextmanager
async def given_or_own(
    servers: Servers | None, config: Config, folder: Path, at_once: int = 1
) -> AsyncIterator[Servers]:
    """Yields the given servers; without any, yields new ones, and stops them afterwards."""
    if servers is not None:
        yield servers
    else:
        async with Servers(config, folder, at_once=at_once) as own:
            yield own


async def seat_players(config: Config, seats: Iterable[SeatRecord], servers: Servers) -> dict[str, Player]:
    """Starts the engines of the seats' players and returns the players by name."""
    by_name, players = {seat.name: seat for seat in seats}, dict[str, Player]()
    if CHAT in by_name:  # first, because a missing key should be reported before a slow server start
        players[CHAT] = chat_player(servers.chat(config.partner), make_game(config.game))
    checkpoints = {seat.policy.checkpoint for seat in by_name.values() if seat.policy is not None}
    for seat in sorted(by_name.values(), key=lambda seat: (not seat.trained, seat.name)):
        if seat.kind == "script":
            players[seat.name] = script_player(seat.name)
        elif seat.policy is not None:
            players[seat.name] = await _policy_player(config, seat, seat.policy, servers, checkpoints)
    return players


async def _policy_player(
    config: Config, seat: SeatRecord, policy: PolicyRecord, servers: Servers, keep: Collection[str]
) -> Player:
    context_length = model_context_length(policy.checkpoint, config.engine.context_length)
    chat = ChatTokenizer.load(policy.checkpoint, thinking=policy.thinking)
    chat.check_belongs_to(policy.checkpoint)
    engine = await servers.serving(policy.checkpoint, keep=keep)
    if weights_of(config, policy.checkpoint) != policy.weights:
        raise UserError(
            f"{policy.checkpoint}: its files changed while the engine loaded them; run the same command again, when "
            "nothing writes there"
        )
    return policy_player(engine, chat, policy, context_length, seat.kind, seat.name, seat.trained)
