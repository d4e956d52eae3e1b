"""Which games there are: all that the program is told of a game outside of its folder is one line here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag, TypeAdapter

from selfplay_pipeline.games.base import Game, GameSettings

NAMES = [
    "matching",
    "bargaining",
]
"""The folders of the games; `game.py` in each says with `GAME` which class it is."""


def _made(name: str) -> Game:
    kind: type[Game] = import_module(f"{__package__}.{name}.game").GAME
    return kind()


_GAMES = {name: _made(name) for name in NAMES}
FIRST_GAME = NAMES[0]
"""The game of files from before there were several games, which name none."""
SCRIPTED = frozenset(name for game in _GAMES.values() for name in game.players)
"""Names of the scripted players of all games."""


def _name_in(data: Any) -> Any:
    """The game's name, which files from before there were several games do not have, nor most files of people."""
    return data.get("name", FIRST_GAME) if isinstance(data, dict) else getattr(data, "name", None)


if TYPE_CHECKING:
    GameConfig = GameSettings
else:
    GameConfig = Annotated[
        Union[tuple(Annotated[type(game.config), Tag(name)] for name, game in _GAMES.items())],  # noqa: UP007
        Discriminator(
            _name_in,
            custom_error_type="game",
            custom_error_message=f"game.name must be one of {', '.join(NAMES)}",
        ),
    ]
    """The section `game` of a configuration; its key `name` says which game it is about."""
_GAME_CONFIG: TypeAdapter[GameConfig] = TypeAdapter(GameConfig)


def parse_game_config(data: Any) -> GameConfig:
    """Read a game's configuration from JSON text or from what JSON holds.

    Raises:
        ValidationError: it is none.
    """
    return _GAME_CONFIG.validate_json(data) if isinstance(data, str | bytes) else _GAME_CONFIG.validate_python(data)


def first_game_config() -> GameConfig:
    """Configuration of the game that is played where none is named."""
    return parse_game_config({})


def make_game(config: GameConfig) -> Game:
    """The rules for a configuration."""
    return type(game_named(config.name))(config)


def partner_prompts() -> dict[str, Path]:
    """System prompts for a chat model that is a partner, by name: `GAME/prompts/partners/NAME.j2`."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*/prompts/partners/*.j2"))}


def all_games() -> tuple[Game, ...]:
    """Each game under its default configuration."""
    return tuple(_GAMES.values())


def game_named(name: str) -> Game:
    """A game by its name, under its default configuration: enough to read its states.

    Raises:
        ValueError: there is none.
    """
    if name not in _GAMES:
        raise ValueError(f"{name!r}, but the games are {', '.join(NAMES)}")
    return _GAMES[name]
