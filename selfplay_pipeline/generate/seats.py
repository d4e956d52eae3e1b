"""Who holds which seat: from the names that commands take to players."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from selfplay_pipeline.config import Config
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.content import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.open import model_context_length
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.players import Player, PolicyPlayer, Scripted
from selfplay_pipeline.generate.records import CHAT, POLICY, PolicyRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.partners.player import ChatPartner
from selfplay_pipeline.preflight import check_play
from selfplay_pipeline.servers import PolicyServer, Servers


def self_play(config: Config) -> tuple[str, ...]:
    """The policy in every seat of the configuration's game."""
    return (POLICY,) * len(make_game(config.game).roles)


def opposite(config: Config, first: str, others: str) -> tuple[str, ...]:
    """One player in seat 0, and another in every further seat."""
    return (first, *(others for _ in self_play(config)[1:]))


def is_checkpoint(config: Config, name: str) -> bool:
    """Whether a player's name is neither `policy`, nor `chat`, nor a scripted player's of the configured game."""
    return name not in (POLICY, CHAT, *make_game(config.game).players)


def checkpoints_among(config: Config, names: Iterable[str]) -> list[str]:
    """Returns the names of players that are checkpoints."""
    return [name for name in names if is_checkpoint(config, name)]


def weights_of(config: Config, name: str) -> str:
    """Returns the content hash of the checkpoint of this name; an empty text for any other player."""
    return content_hash(name) if is_checkpoint(config, name) else ""


def check_players(config: Config, names: Iterable[str]) -> None:
    """Whether each name is one of a player.

    Raises:
        UserError: it names neither a partner nor what could be a checkpoint.
    """
    own = make_game(config.game).players
    listed = f"scripted players of the game {config.game.name}: {', '.join(sorted(own))}"
    for name in names:
        if not is_checkpoint(config, name):
            continue
        if "/" not in name and not Path(name).exists():
            raise UserError(
                f"no scripted player or checkpoint {name!r}; {listed}; {CHAT!r} is the chat model of the section "
                "`partner`"
            )
        check_checkpoint(name)


def check_seats(config: Config, checkpoint: str, seats: Iterable[str]) -> None:
    """Whether these players are there and can play the configured game on this machine.

    Args:
        checkpoint: of `policy`.

    Raises:
        UserError: somebody cannot.
    """
    check_players(config, seats)
    models = [checkpoint if name == POLICY else name for name in seats if name == POLICY or is_checkpoint(config, name)]
    if len(set(models)) > 2:
        raise UserError(
            f"{', '.join(dict.fromkeys(models))}: at most two different checkpoints can play with each other"
        )
    for model in models:
        check_checkpoint(model)
    check_play(config, models)


async def seat_players(
    config: Config, names: Iterable[str], policy: PolicyRecord, servers: Servers
) -> dict[str, Player]:
    """The players of these names, with their engines running and serving them.

    Args:
        names: `policy`, a scripted partner, `chat`, or another checkpoint; there are servers for two checkpoints.
        policy: the checkpoint of `policy`; another checkpoint samples in the same way.
    """
    names, players = set(names), dict[str, Player]()
    if CHAT in names:  # before a server is started, which takes long, a missing key can be noticed
        players[CHAT] = ChatPartner.of(servers.chat(config.partner), make_game(config.game))
    free = [servers.policy, servers.partner]
    for name in sorted(names - {CHAT}, key=lambda name: name != POLICY):
        if name in make_game(config.game).players:
            players[name] = Scripted(name)
            continue
        other = {} if name == POLICY else {"checkpoint": name, "weights": weights_of(config, name)}
        record = policy.model_copy(update=other)
        players[name] = await _policy_player(config, record, free.pop(0), name)
    return players


async def _policy_player(config: Config, policy: PolicyRecord, server: PolicyServer, name: str) -> PolicyPlayer:
    context_length = model_context_length(policy.checkpoint, config.engine.context_length)
    chat = ChatTokenizer.load(policy.checkpoint, thinking=policy.thinking)
    chat.check_belongs_to(policy.checkpoint)
    engine = await server.serve(policy.checkpoint)
    if content_hash(policy.checkpoint) != policy.weights:
        raise UserError(
            f"{policy.checkpoint}: its files changed while the engine loaded them; give the same command again, once "
            "nothing writes there"
        )
    return PolicyPlayer(engine, chat, policy, context_length, name)
