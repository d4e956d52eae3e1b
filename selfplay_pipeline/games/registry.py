"""Finds games by name, and imports a game only when a user names it.

`find` takes what a user gives on the command line or in a configuration: a name or a file, whose code it runs. `known`
takes the name in a stored file, and returns only games that come with the package or that `find` has already found. So
a stored file never decides which code runs here.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import getfile, isclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from selfplay_pipeline.core.content_hash import bytes_hash
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.files import explain
from selfplay_pipeline.games.base import Game, GameSettings

NAMES = [
    "matching",
    "bargaining",
    "mediation",
    "planning",
]
"""Folders of the games that come with the package; `GAME` in each folder's `game.py` is the game's class."""
ADAPTERS = [
    "pettingzoo",
    "textarena",
]
"""Folders of the games that come with the package and play another library's environments, which an extra installs."""
SHIPPED = (*NAMES, *ADAPTERS)
"""Folders of all games that come with the package."""
FIRST_GAME = NAMES[0]
"""Default game of configurations, and the game of stored files that name none."""
ENTRY_POINTS = "selfplay_pipeline.games"
"""Entry-point group in which an installed package offers games: `name = module:CLASS`."""
REMEDY = "give the option --game with its file or name"
MEMBERS = "docs/game-reference.md lists the members"
TOGETHER = {"renamed": ("draw_names", "retold"), "alter": ("alterations",)}
"""Members that a game defines only together with others."""

CONTENTS = "__contents__"
"""Name, in the module of a user's file, of the content hash that the file had when it was imported."""
_found: dict[str, type[Game]] = {}
"""Games found so far, by their names."""


class UnknownGameError(ValueError):
    """A stored file names a game that this process does not know."""


def find(name: str) -> type[Game]:
    """Returns the game that a user names; imports it if necessary.

    Args:
        name: Name of a game in this package or in an installed one; a file, `FILE.py`; `FILE.py:NAME`, one of several
            games in a file; or `NAME:VALUE`, a game with a value of its `variant`.

    Raises:
        UserError: No game has this name, the game cannot be imported, or the class is not a game.
    """
    name, _ = split(name)
    file, wanted = (name, "") if name.endswith(".py") else name.rpartition(":")[::2]
    if file.endswith(".py"):
        return register(_in_file(file, wanted), file)
    if name in SHIPPED or name in _found:
        return known(name)
    offered = entry_points(group=ENTRY_POINTS, name=name)
    if not offered:
        names = ", ".join([*SHIPPED, *_offered()])
        raise UserError(f"there is no game {name!r}; give one of {names}, or the file of a game of your own, FILE.py")
    point = next(iter(offered))
    with importing(f"{name} ({point.value})"):
        kind = point.load()
    if register(kind, point.value).name != name:
        raise UserError(
            f"{point.value}: its name is {kind.name!r}, but its package offers it as {name!r}; give it that"
        )
    return known(name)


def split(name: str) -> tuple[str, dict[str, str]]:
    """Returns the name or file in what a user names, and the key of the section `game` that `NAME:VALUE` sets.

    Raises:
        UserError: The game takes no value.
    """
    head, colon, value = name.partition(":")
    if not colon or head.endswith(".py") or os.sep in head:
        return name, {}
    if not (key := find(head).variant):
        raise UserError(f"{name!r}: {head} takes no value after the colon; give {head} alone")
    return head, {key: value}


def register(kind: Any, place: str = "") -> type[Game]:
    """Make a class known as a game by its own name, for the rest of the process, and return it.

    Args:
        kind: The class.
        place: File or module of the class, for messages.

    Raises:
        UserError: The class is not a game, lacks a required member, or has the name of another game.
    """
    if not (isclass(kind) and issubclass(kind, Game)):
        raise UserError(
            f"{place or kind}: is not a game; a game is a class derived from selfplay_pipeline.games.base.Game"
        )
    here = f"{place or kind.__module__}: {kind.__name__}"
    missing = ["name"] * (not isinstance(getattr(kind, "name", None), str)) + sorted(kind.__abstractmethods__)
    as_json = Game.state_to_json, Game.state_from_json
    if not hasattr(kind, "state") and {kind.state_to_json, kind.state_from_json} & {*as_json}:
        missing.append("state")
    if missing:
        near = [
            f"{one} (is {like[0]} meant to be it?)" if (like := get_close_matches(one, vars(kind))) else one
            for one in missing
        ]
        raise UserError(f"{here}: lacks {', '.join(near)}; {MEMBERS}")
    for member in dir(Game):
        if isinstance(getattr(Game, member), property) and member in vars(kind) and callable(getattr(kind, member)):
            raise UserError(f"{here}.{member}: is a method, but has to be a property or a value; {MEMBERS}")
        if member[0] != "_" and callable(getattr(Game, member)) and not callable(getattr(kind, member)):
            raise UserError(
                f"{here}.{member}: is no method; to do without it set {member} = Game.{member} in the class; {MEMBERS}"
            )
    for member in ("has", "need"):
        if getattr(kind, member) is not getattr(Game, member):
            raise UserError(f"{here}.{member}: is the package's own; give yours another name")
    for member, others in TOGETHER.items():
        without = [one for one in others if getattr(kind, one) is getattr(Game, one)]
        if without and getattr(kind, member) is not getattr(Game, member):
            raise UserError(f"{here}: has {member}, but not {', '.join(without)}; {MEMBERS}")
    if kind.name in SHIPPED:
        raise UserError(
            f"{here}: its name {kind.name!r} belongs to a game that comes with the package; give it another name"
        )
    if (earlier := _found.get(kind.name, kind)) is not kind:
        raise UserError(f"{here}: its name {kind.name!r} belongs to {place_of(earlier)}; give it another name")
    try:
        kind()
    except ValidationError as error:
        remedy = ""
        if error.errors()[0]["loc"] == ("name",):
            remedy = f'; give it `settings`, a class of its own with `name: Literal["{kind.name}"] = "{kind.name}"`'
        raise UserError(f"{here}: cannot be made with its default configuration: {explain(error)}{remedy}") from None
    except Exception as error:
        raise UserError(f"{here}: cannot be made with its default configuration: {where_raised(error)}") from None
    _found[kind.name] = kind
    return kind


def known(name: str) -> type[Game]:
    """Returns the game with this name in stored files; imports only games that come with the package.

    Raises:
        UnknownGameError: No game has this name, or this process has not found the game yet.
    """
    if name in SHIPPED and name not in _found:
        _found[name] = import_module(f"{__package__}.{name}.game").GAME
    if not isinstance(name, str) or name not in _found:
        names = ", ".join([*NAMES, *sorted(_found.keys() - NAMES)])
        raise UnknownGameError(f"{name!r}, but the games are {names}; {REMEDY}")
    return _found[name]


def file_of(kind: type[Game]) -> str | None:
    """Returns the user's file that defines a game; None for a game of a package."""
    return kind.__module__ if kind.__module__.endswith(".py") else None


def place_of(kind: type[Game]) -> str:
    """Returns what `find` takes to find a game from any folder: `FILE.py`, `FILE.py:NAME` or its name."""
    file = file_of(kind)
    if file is None:
        return kind.name
    return file if len(_games_in(imported(file))) == 1 else f"{file}:{kind.name}"


def own_games() -> list[str]:
    """Returns what the option --game takes to find all games found so far that do not come with the package."""
    return [place_of(kind) for name, kind in _found.items() if name not in SHIPPED]


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


def game_of(name: str, state: Any) -> Game:
    """Returns the game under which a stored state is read; see `Game.of_state`.

    Raises:
        ValueError: No game has this name, or this process has not found the game yet.
    """
    return game_named(name).of_state(state)


def all_games() -> tuple[Game, ...]:
    """Returns the games that come with the package and all found games, each under its default configuration.

    Those of `ADAPTERS` are left out: their seats and their rows' source depend on the environment.
    """
    return tuple(game_named(name) for name in dict.fromkeys([*NAMES, *_found]) if name not in ADAPTERS)


def _settings(data: Any) -> Any:
    """Returns the section `game`, parsed with the settings class of the game that its key `name` selects."""
    if not isinstance(data, dict):
        return data  # pydantic refuses it, unless it is a settings object already
    try:
        kind = known(data.get("name", FIRST_GAME))
    except UnknownGameError as error:
        raise PydanticCustomError("game", "game.name: {what}", {"what": str(error)}) from None
    return kind.settings.model_validate(data)


GameConfig = Annotated[SerializeAsAny[GameSettings], BeforeValidator(_settings)]
"""Section `game` of a configuration; its key `name` selects the game."""


def shipped_games() -> list[type[Game]]:
    """Returns the games that come with the package, those that play another library's environments too."""
    return [known(name) for name in SHIPPED]


def parse_game_config(data: Any) -> GameSettings:
    """Returns a game's configuration from JSON text or JSON data.

    Raises:
        ValidationError: The data is not a game's configuration.
    """
    kind: TypeAdapter[GameSettings] = TypeAdapter(GameConfig)
    return kind.validate_json(data) if isinstance(data, str | bytes) else kind.validate_python(data)


def stored_game_config(data: Any) -> GameSettings:
    """Returns the rules that a stored file holds; `parse_game_config` is for rules that a user names.

    Raises:
        ValidationError: The data is not a game's configuration.
    """
    return parse_game_config(data).as_stored()


def first_game_config() -> GameSettings:
    """Returns the default configuration of the game that is played if none is named."""
    return parse_game_config({})


def partner_prompts(*games: Game) -> dict[str, Path]:
    """Returns the system prompts for chat models as partners, by name.

    There are `plain`, which only gives the rules, and `prompts/partners/NAME.j2` in the folders of each game and of the
    games that its class derives from.
    """
    own = {
        path.stem: path
        for game in games
        for kind in reversed(type(game).__mro__)
        if issubclass(kind, Game)
        for path in sorted(Path(getfile(kind)).parent.glob("prompts/partners/*.j2"))
    }
    return {"plain": Path(__file__).parent / "partners" / "plain.j2"} | own


def _in_file(file: str, wanted: str) -> type[Game]:
    """Returns the game that a file defines, after importing the file if necessary.

    Args:
        file: The file.
        wanted: Name of the game; "" if the file has only one.
    """
    path = os.path.realpath(file)
    if not Path(path).is_file():
        raise UserError(f"{file}: there is no such file; name the file of a game")
    games = _games_in(imported(path))
    if not games:
        raise UserError(f"{file}: defines no game, that is, no class derived from selfplay_pipeline.games.base.Game")
    names = [str(getattr(kind, "name", kind.__name__)) for kind in games]
    if wanted:
        games = [kind for kind, name in zip(games, names, strict=True) if name == wanted]
    if len(games) != 1:
        what = f"defines no game {wanted!r}, but" if wanted else "defines several games:"
        raise UserError(f"{file}: {what} {', '.join(names)}; name one of them as {file}:NAME")
    return games[0]


def _games_in(file: ModuleType) -> list[type[Game]]:
    """Returns the games that a user's file defines, without base classes of other games."""
    kinds = [one for one in dict.fromkeys(filter(isclass, vars(file).values())) if one.__module__ == file.__name__]
    games = [kind for kind in kinds if issubclass(kind, Game)]
    return [kind for kind in games if hasattr(kind, "name")] or games


def imported(file: str) -> ModuleType:
    """Returns the module of a user's file, after importing it if necessary; its name is its real path.

    A caller that records what it did hashes the file with `config.identity.contents`, which refuses a file that has
    changed since.

    Raises:
        UserError: The file cannot be imported, with its line in the message.
    """
    path = os.path.realpath(file)
    if path not in sys.modules:
        sys.modules[path] = module = ModuleType(path)
        try:
            with importing(path):
                code = Path(path).read_bytes()  # read once: Python's own loader might run an older file from its cache
                vars(module).update({"__file__": path, CONTENTS: bytes_hash(code)})
                exec(compile(code, path, "exec", dont_inherit=True), vars(module))  # not this file's __future__
        except UserError:
            del sys.modules[path]
            raise
    return sys.modules[path]


def check_as_imported(path: str, contents: str) -> None:
    """Raises UserError if a user's file was imported with other contents: records would name code that did not run.

    Args:
        contents: Content hash of the file now.
    """
    if vars(sys.modules.get(path, sys)).get(CONTENTS, contents) != contents:
        raise UserError(
            f"{path}: has changed since it was read; restore it, or start again (in a notebook, the kernel)"
        )


@contextmanager
def importing(place: str) -> Iterator[None]:
    """Turn any error in imported code of a user into a UserError of one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UserError(f"{place}: cannot be imported: {where_raised(error)}") from None


def fault_of_user(error: BaseException) -> str | None:
    """Returns an error that a game of a user raised, in one line with file, line and member; None for other errors."""
    own = {getfile(kind) for name, kind in _found.items() if name not in SHIPPED}
    places = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [(code, line) for code, line in places if code.co_filename in own]
    if not places:
        return None
    code, line = places[-1]
    where = f"{code.co_filename}:{line}: {code.co_qualname}"
    return (
        f"{where}: {type(error).__name__}: {first_line(error)}; `selfplay game check {code.co_filename}` tests the game"
    )


def where_raised(error: BaseException) -> str:
    """Returns an error of a user's code in one line, with the place of its last line that is not of the package."""
    frames = [*traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


def _offered() -> list[str]:
    """Returns the names of the games that installed packages register as entry points."""
    return sorted(point.name for point in entry_points(group=ENTRY_POINTS))
