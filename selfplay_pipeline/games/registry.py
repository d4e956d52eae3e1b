"""Which games there are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag, TypeAdapter

from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.bargaining.rules import BargainingConfig
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig

GAMES = (MatchingGame, BargainingGame)
"""A new game is one more here, and its configuration one more in `GameConfig` and `AnyConfig`."""
AnyConfig = MatchingConfig | BargainingConfig
FIRST_GAME = MatchingGame.name
"""That of files from before there were several games, which name none."""
MOST_SEATS = max(game.num_seats for game in GAMES)
"""Of any game."""
SCRIPTED = frozenset(name for game in GAMES for name in game.players)
"""Names of scripted players, of any game."""


def _name_in(data: Any) -> Any:
    """The game's name, which files from before there were several games do not have, nor most files of people."""
    return data.get("name", FIRST_GAME) if isinstance(data, dict) else getattr(data, "name", None)


GameConfig = Annotated[
    Annotated[MatchingConfig, Tag(MatchingGame.name)] | Annotated[BargainingConfig, Tag(BargainingGame.name)],
    Discriminator(
        _name_in,
        custom_error_type="game",
        custom_error_message=f"game.name must be one of {', '.join(game.name for game in GAMES)}",
    ),
]
"""The section `game` of a configuration; its key `name` says which game it is about."""
_GAME_CONFIG: TypeAdapter[AnyConfig] = TypeAdapter(GameConfig)


def parse_game_config(data: Any) -> GameConfig:
    """Read a game's configuration from JSON text or from what JSON holds.

    Raises:
        ValidationError: it is none.
    """
    return _GAME_CONFIG.validate_json(data) if isinstance(data, str | bytes) else _GAME_CONFIG.validate_python(data)


def first_game_config() -> GameConfig:
    """That of the game that is played where none is named."""
    return parse_game_config({})


def make_game(config: GameConfig) -> Game:
    """The rules for a configuration."""
    kind = next(game for game in GAMES if isinstance(config, game.config_type))
    return kind(config)  # type: ignore[arg-type]  # the one that this configuration is of


def partner_prompts() -> dict[str, Path]:
    """System prompts for a chat model that is a partner, by name: `GAME/prompts/partners/NAME.j2`."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*/prompts/partners/*.j2"))}


def all_games() -> tuple[Game, ...]:
    """Each game under its default configuration."""
    return tuple(game_named(game.name) for game in GAMES)


@cache
def game_named(name: str) -> Game:
    """A game by its name, under its default configuration: enough to read its states.

    Raises:
        ValueError: there is none.
    """
    for game in GAMES:
        if game.name == name:
            return game()
    raise ValueError(f"{name!r}, but the games are {', '.join(game.name for game in GAMES)}")
