"""Options of commands for keys of the configuration.

A command names the keys that have an option of their own; every other key is set by `--set KEY=VALUE`:

    @app.command(cls=taking("seed", "generate.num_episodes"))
    def play(context: typer.Context) -> None:
        settings = load(context)

Name, type, bounds and help of such an option come from the field. Values of options, of --set and of files are checked
in one place, with the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from selfplay_pipeline.core.reporting import announce
from selfplay_pipeline.core.shipped import built_in

if TYPE_CHECKING:
    from selfplay_pipeline.config.fields import Key
    from selfplay_pipeline.config.schema import Config

CONFIG = (
    "YAML file, or built-in: {names}; by default tiny_honest without a GPU, one_gpu with one, default with several. "
    "A file changes single keys of the one used by default, or of the built-in that its key `base` names."
)
SET = (
    "Set any key of the configuration, such as train.mini_batches=4. VALUE is read like a value in a YAML file. Repeat "
    "the option for more keys; `selfplay config` prints all keys."
)
GAME = (
    "Game: a name, or FILE.py for a game of your own, whose code is run (FILE.py:NAME if the file has several). Stored "
    "files of such a game can be read only with it."
)
METAVARS = {int: "NUMBER", float: "NUMBER", str: "TEXT"}
GROUPS = {
    "": "Configuration", "game": "Play", "engine": "Play", "generate": "Play", "partner": "Play",
    "convert": "Rows and rewards", "reward": "Rows and rewards", "train": "Training", "imitate": "Training",
    "online": "Training", "iterate": "The loop", "evaluate": "Held-out states",
}  # fmt: skip
"""Heading in the help of a command for the options of each section of the configuration."""
OF_THE_ROWS = ("train", "model")
"""Command and key whose default is not the configuration's, but what the command's input names."""
GIVEN = "selfplay_pipeline.options"
"""Key in typer's context under which the given values are stored."""
LABELS = "selfplay_pipeline.labels"
"""Key in typer's context under which the options for messages are stored, by the key or parameter that each sets."""


@dataclass(frozen=True)
class Given:
    """Values on a command line that concern the configuration; None if they were not given.

    Attributes:
        options: Values of options, by the key that each sets.
        settings: Values of --set, by key.
    """

    config: str | None = None
    game: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """Returns the value of --config, of --game, or of a key; None if it was not given."""
        if name in ("config", "game"):
            return getattr(self, name)
        return self.options.get(name, self.settings.get(name))

    @property
    def keys(self) -> dict[str, Any]:
        """Values of all given keys."""
        return {**self.options, **self.settings}


def taking(*names: str, game: bool = True) -> type[Configured]:
    """Returns a class of commands with the options --config, --set and those of some configuration keys.

    Args:
        names: Names of the keys, such as `generate.num_episodes`.
        game: Whether the command has the option --game.
    """
    return type("Configured", (Configured,), {"names": names, "has_game": game})


def load(
    context: typer.Context,
    further: Mapping[str, Any] = {},
    *,
    gpus: int | None = None,
    tell: Callable[[str], None] = announce,
) -> Config:
    """Returns the configuration of a command's options, and announces its base in one line for later output.

    Args:
        context: Context of the command in typer.
        further: Values of further keys; None means not given.
        gpus: Passed to `load_config`.
        tell: Takes the line about the base.

    Raises:
        UserError: A file or a value is wrong.
    """
    from selfplay_pipeline.config.load import load_config

    asked, given = context.command, context.meta[GIVEN]
    assert isinstance(asked, Configured)
    options = {key.name: key.option for key in asked.keys.values()}
    own = (param for param in asked.params if isinstance(param, typer.core.TyperOption) and not param.hidden)
    labels = {str(param.name): param.opts[0] for param in own} | options | dict.fromkeys(given.settings, "--set")
    context.meta.setdefault(LABELS, {}).update(labels)
    values = {"game": given.game, **given.options, **further}
    return load_config(given.config, values, tell, options, gpus, name_of(context), given.settings)


def given(context: typer.Context, name: str) -> Any:
    """Returns the value of --config, of --game or of a configuration key on the command line; None if not given."""
    return context.meta[GIVEN].value(name)


def shared_with(context: typer.Context, command: str) -> dict[str, Any]:
    """Returns the given values that another command uses too, as options of that command for `suggest`."""
    from selfplay_pipeline.config.fields import keys
    from selfplay_pipeline.config.schema import Config

    other, given = context.find_root().command.commands[command], context.meta[GIVEN]  # type: ignore[attr-defined]
    found = {name: given.value(name) for name in ("config", "game") if given.value(name) is not None}
    if not isinstance(other, Configured):
        return {"game": found["game"]} if "game" in found else {}
    own = {key.name: name for name, key in other.keys.items()}
    used = {key.name for key in keys(Config) if key.is_used_by(command) and key.name != "model"}
    settings = []
    for key, value in given.keys.items():
        if key in own and value is not None:
            found[own[key]] = value
        elif key in used or (key in given.settings and key.startswith("game.")):
            settings.append(as_setting(key, value))
    return found | ({"set": settings} if settings else {})


def chosen_game(context: typer.Context, model: str | None = None) -> dict[str, Any]:
    """Returns the options for a suggested command with which it plays the game of this command.

    The configuration is the given --config, else that of a shipped model, which is --model unless another is named; the
    result is empty without any of these.
    """
    from selfplay_pipeline.config.load import configuration_of

    model = model or given(context, "model")
    config = given(context, "config") or (configuration_of(model) if model else None)
    game = given(context, "game")
    settings = [as_setting(key, value) for key, value in context.meta[GIVEN].keys.items() if key.startswith("game.")]
    found = {"config": config, "game": game, "set": settings}
    return {name: value for name, value in found.items() if value}


def as_setting(key: str, value: Any) -> str:
    """Returns KEY=VALUE, from which --set reads this value."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    text = text.rstrip().removesuffix("...").rstrip()  # YAML ends a document that is a single word by dots
    return f"{key}={text}"


def name_of(context: Any) -> str:
    """Returns the name of the command that runs, with that of its group."""
    within = "" if context.parent is None or context.parent.parent is None else f"{name_of(context.parent)} "
    return f"{within}{context.info_name}"


class OfGames(typer.core.TyperCommand):
    """A command that reads files of any game; its option --game names one that does not come with the package.

    The options are made on first use, which keeps the list of commands fast.
    """

    @cached_property
    def made(self) -> list[Any]:
        """Options that the class adds to those of the command's function."""
        return [_made()["game"]]

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the command's own parameters and the added options."""
        return [*super().get_params(ctx), *self.made]

    def invoke(self, ctx: Any) -> Any:
        """Check --game and run the command, which reads the added options from the context."""
        values = {option.name: ctx.params.pop(option.name) for option in self.made}
        given = {name: value for name, value in values.items() if value not in (None, [], ())}
        if (game := given.get("game")) is not None:
            from selfplay_pipeline.core.errors import UserError
            from selfplay_pipeline.games.registry import find

            try:
                find(game)
            except UserError as error:
                raise UserError(f"--game: {error}") from None
        ctx.meta[GIVEN] = self.read(given)
        return super().invoke(ctx)

    def read(self, given: dict[str, Any]) -> Given:
        """Returns the given values of the added options."""
        return Given(game=given.get("game"))


class Configured(OfGames):
    """A command with options for keys of the configuration."""

    names: Sequence[str] = ()
    has_game = True

    @cached_property
    def keys(self) -> dict[str, Key]:
        """Configuration key of each option, by the option's name in Python."""
        from selfplay_pipeline.config.fields import keys
        from selfplay_pipeline.config.schema import Config

        known = {key.name: key for key in keys(Config)}
        return {known[name].option.removeprefix("--").replace("-", "_"): known[name] for name in self.names}

    @cached_property
    def made(self) -> list[Any]:
        """Options made from the configuration."""
        games = super().made if self.has_game else []
        return [_made()["config"], _made()["settings"], *games, *map(_option_of, self.keys.values())]

    def read(self, given: dict[str, Any]) -> Given:
        """Returns the given values of the added options.

        Raises:
            UserError: A value of --set cannot be read, or a key is given twice.
        """
        from selfplay_pipeline.config.load import read_settings

        options = {key.name: given[name] for name, key in self.keys.items() if name in given}
        labels = {key.name: key.option for key in self.keys.values() if key.name in options}
        settings = read_settings(given.get("settings", ()), labels)
        return Given(given.get("config"), given.get("game"), options, settings)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's own options, then the options of the configuration in groups."""
        for title, options in self._in_groups(ctx).items():
            with formatter.section(title):
                formatter.write_dl(options)

    def _in_groups(self, ctx: Any) -> dict[str, list[Any]]:
        """Returns the options with their help texts, by the heading above them."""
        from selfplay_pipeline.config.fields import value_of
        from selfplay_pipeline.config.load import load_config

        usual = load_config(None, {})
        found: dict[str, list[Any]] = {}
        for own in typer.core.TyperCommand.get_params(self, ctx):
            if shown := own.get_help_record(ctx):
                found.setdefault(f"{own.param_type_name}s".capitalize(), []).append(shown)
        for option in self.made:
            usage, words = option.get_help_record(ctx)
            key = self.keys.get(option.name)
            if key is not None:
                default = "" if (ctx.info_name, key.name) == OF_THE_ROWS else _default(value_of(usual, key.name))
                further = "; ".join(filter(None, [key.limits, default]))
                words += f"  [{further}]" * bool(further)
            found.setdefault(GROUPS[key.section if key else ""], []).append((usage, words))
        return found


def _default(value: Any) -> str:
    """Returns the text of a default value for the help; empty if the default is off, none or empty."""
    if value is None or value is False or value == []:
        return ""
    return f"default: {'on' if value is True else ', '.join(value) if isinstance(value, list) else value}"


def _patterns(
    config: Annotated[str | None, typer.Option("--config", metavar="FILE")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET)] = None,
    game: Annotated[str | None, typer.Option("--game", metavar="GAME", help=GAME)] = None,
    text: Annotated[str | None, typer.Option("--text")] = None,
    texts: Annotated[list[str] | None, typer.Option("--texts")] = None,
    switch: Annotated[bool | None, typer.Option("--switch/--no-switch")] = None,
) -> None:
    """The added options: --config, --set, --game, and a pattern of the options of each kind of keys."""


@cache
def _made() -> dict[str, Any]:
    """Returns the options in `_patterns`, by name."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(_patterns)
    made: dict[str, Any] = {str(option.name): option for option in typer.main.get_command(app).params}
    made["config"].help = CONFIG.format(names=", ".join(built_in()))
    return made


def _option_of(key: Key) -> Any:
    """Returns the option of a key. It accepts any text, which the configuration checks."""
    made = copy(_made()["switch" if key.kind is bool else "texts" if key.is_list else "text"])
    word = key.option.removeprefix("--")
    made.name, made.opts, made.help = word.replace("-", "_"), [key.option], key.help
    if key.kind is bool:
        made.secondary_opts = [f"--no-{word}"]
    else:
        made.metavar = "|".join(key.choices) or METAVARS[key.kind]
    return made
