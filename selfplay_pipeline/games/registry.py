"""Finds games by name, and imports a game only when it is named.

`find` takes the name that a user gives on the command line or in a configuration; it may import a file or a module.
`known` takes the name in a stored file, and returns only games that come with the package or that `find` has already
found. So a stored file never decides which code runs here.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, TypeAdapter
from pydantic_core import PydanticCustomError

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.games.base import Game, GameSettings

NAMES = [
    "matching",
    "bargaining",
]
"""Folders of the games that come with the package; `GAME` in each folder's `game.py` is the game's class."""
FIRST_GAME = NAMES[0]
"""Default game of configurations, and the game of stored files that name none."""
ENTRY_POINTS = "selfplay_pipeline.games"
"""Entry-point group in which an installed package offers games: `name = module:CLASS`."""
REMEDY = "`selfplay --game NAME …` reads files of another one, by its name or FILE.py:CLASS"
OWN = "FILE.py:CLASS or MODULE:CLASS for a game of your own"

_found: dict[str, tuple[type[Game], str]] = {}
"""Games found so far, by their own names; each with the name by which `find` found it."""


def find(name: str) -> type[Game]:
    """Returns the game that a user names; imports it if necessary.

    Args:
        name: Name of a game in this package or in an installed one, `FILE.py:CLASS`, or `MODULE:CLASS`.

    Raises:
        UserError: No game has this name, the game cannot be imported, or the class is no game.
    """
    if name in NAMES or name in _found:
        return known(name)
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        place = os.path.realpath(place)
        name = f"{place}:{attribute}"
    offered = entry_points(group=ENTRY_POINTS, name=name) if not place else ()
    if place:
        module = _module(name, place)
        kind = getattr(module, attribute, None)
        if kind is None:
            there = ", ".join(_games_in(module)) or "none"
            raise UserError(f"{name}: there is no such class; the games in {place}: {there}")
    elif offered:
        with _importing(name):
            kind = next(iter(offered)).load()
    else:
        raise UserError(f"there is no game {name!r}; give one of {', '.join([*NAMES, *_offered()])}, or {OWN}")
    return _registered(name, kind)


def known(name: str) -> type[Game]:
    """Returns the game with this name in stored files; imports only games that come with the package.

    Raises:
        ValueError: No game has this name, or this process has not found the game yet.
    """
    if name in NAMES and name not in _found:
        _found[name] = import_module(f"{__package__}.{name}.game").GAME, name
    if not isinstance(name, str) or name not in _found:
        raise ValueError(f"{name!r}, but the games are {', '.join([*NAMES, *sorted(_found.keys() - NAMES)])}; {REMEDY}")
    return _found[name][0]


def asked_by(config: GameSettings) -> str:
    """Returns a name with which `find` finds a configuration's game from any folder: `/FOLDER/FILE.py:CLASS`."""
    return _found[config.name][1]


def own_games() -> list[str]:
    """Returns names for `find` of all games found so far that do not come with the package."""
    return [place for name, (_, place) in _found.items() if name not in NAMES]


def make_game(config: GameSettings) -> Game:
    """Returns the game of a configuration."""
    return known(config.name)(config)


@cache
def _usual(kind: type[Game]) -> Game:
    return kind()


def game_named(name: str) -> Game:
    """Returns the game that stored files call by this name, with its default configuration; good enough for reading
    states.

    Raises:
        ValueError: No game has this name, or this process has not found the game yet.
    """
    return _usual(known(name))


def all_games() -> tuple[Game, ...]:
    """Returns the games that come with the package and all found games, each under its default configuration."""
    return tuple(map(game_named, dict.fromkeys([*NAMES, *_found])))


def _settings(data: Any) -> Any:
    """Returns the section `game`, parsed with the settings class of the game that its key `name` selects."""
    if not isinstance(data, dict):
        return data  # pydantic refuses it, unless it is a settings object already
    try:
        kind = known(data.get("name", FIRST_GAME))
    except ValueError as error:
        raise PydanticCustomError("game", "game.name: {what}", {"what": str(error)}) from None
    return kind.settings.model_validate(data)


GameConfig = Annotated[SerializeAsAny[GameSettings], BeforeValidator(_settings)]
"""Section `game` of a configuration; its key `name` selects the game."""


def parse_game_config(data: Any) -> GameSettings:
    """Returns a game's configuration from JSON text or JSON data.

    Raises:
        ValidationError: The data is no configuration of a game.
    """
    kind: TypeAdapter[GameSettings] = TypeAdapter(GameConfig)
    return kind.validate_json(data) if isinstance(data, str | bytes) else kind.validate_python(data)


def first_game_config() -> GameSettings:
    """Returns the default configuration of the game that is played if none is named."""
    return parse_game_config({})


def partner_prompts(*games: Game) -> dict[str, Path]:
    """Returns the system prompts for chat models as partners, by name: `prompts/partners/NAME.j2` in each game's
    folder."""
    return {path.stem: path for game in games for path in sorted(game.folder.glob("prompts/partners/*.j2"))}


def _module(name: str, place: str) -> ModuleType:
    """Returns the module before the colon of a name, after importing it if necessary."""
    if not place.endswith(".py"):
        with _importing(name):
            return import_module(place)
    if not Path(place).is_file():
        raise UserError(f"{name}: there is no such file; give {OWN}")
    if place not in sys.modules:
        spec = spec_from_file_location(place, place)
        assert spec is not None and spec.loader is not None
        sys.modules[place] = module = module_from_spec(spec)
        try:
            with _importing(name):
                spec.loader.exec_module(module)
        except UserError:
            del sys.modules[place]
            raise
    return sys.modules[place]


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Turn any error in imported code of a user into a UserError of one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "importlib" not in frame.filename]
        frames = [frame for frame in frames if frame.filename != __file__]
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{name}: cannot be imported: {what}{where}") from None


def _registered(name: str, kind: Any) -> type[Game]:
    """Register a class as a game under its own name, and return it.

    Raises:
        UserError: The class is no game, lacks a required member, or has the name of another game.
    """
    if not (isclass(kind) and issubclass(kind, Game)):
        raise UserError(f"{name} is no game; a game is a class derived from selfplay_pipeline.games.base.Game")
    missing = sorted(kind.__abstractmethods__) + ["name"] * (not isinstance(getattr(kind, "name", None), str))
    if missing:
        raise UserError(f"{name} is no game yet, it lacks {', '.join(missing)}; see docs/adding-a-game.md")
    before, earlier = _found.get(kind.name, (kind, name))
    if kind.name in NAMES or before is not kind:
        other = "a game that comes with the package" if kind.name in NAMES else earlier
        raise UserError(f"{name}: its name {kind.name!r} belongs to {other}; give it another name")
    _found[kind.name] = kind, name
    return kind


def _games_in(module: ModuleType) -> list[str]:
    """Returns the names of the game classes that a module defines."""
    return [
        name for name, found in vars(module).items()
        if isclass(found) and issubclass(found, Game) and found.__module__ == module.__name__
    ]  # fmt: skip


def _offered() -> list[str]:
    """Returns the names of the games that installed packages register as entry points."""
    return sorted(point.name for point in entry_points(group=ENTRY_POINTS))
