"""Options of commands, made from the fields of the configuration.

A command lists the keys that are its options, and loads the configuration with the given values:

    @app.command(cls=taking("seed", "generate", "engine.kind"))
    def play(context: typer.Context) -> None:
        settings = load(context)

Name, type, bounds and help of each option come from the field, so that a new field is written once. Values of options
and of files are checked in one place, with the same messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from selfplay_pipeline.core.command_line import announced
from selfplay_pipeline.core.command_line import options as taken
from selfplay_pipeline.core.shipped import built_in

if TYPE_CHECKING:
    from selfplay_pipeline.config.fields import Key
    from selfplay_pipeline.config.schema import Config

CONFIG = (
    "YAML file, or built-in: {names}; by default tiny_honest without a GPU, one_gpu with one, default with several. "
    "A file changes single keys of the one used by default, or of the built-in that its key `base` names."
)
GAME = (
    "Game: a name, or FILE.py for a game of your own, whose code is run (FILE.py:NAME if the file has several). Stored "
    "files of such a game can be read only with it."
)
METAVARS = {int: "NUMBER", float: "NUMBER", str: "TEXT"}
OF_THE_ROWS = ("train", "model")
"""Command and key whose default is not the configuration's, but what the command's input names."""
GIVEN = "selfplay_pipeline.options"
"""Key in typer's context under which the given values are stored, by option name."""


def taking(*names: str, game: bool = True) -> type[Configured]:
    """Returns a class of commands with the option --config and options for configuration keys.

    Args:
        names: Names of keys, such as `generate.num_episodes`; the name of a section stands for all its keys.
        game: Whether the command has the option --game.
    """
    return type("Configured", (Configured,), {"names": names, "has_game": game})


def load(
    context: typer.Context, further: Mapping[str, Any] = {}, *, gpus: int | None = None, command: str = ""
) -> Config:
    """Returns the configuration of a command's options, and announces its base in one line for later output.

    Args:
        context: Context of the command in typer.
        further: Values of further keys; None means not given.
        gpus: Passed to `load_config`.
        command: Command whose keys are used; by default, the one of the context.

    Raises:
        UserError: A file or a value is wrong.
    """
    from selfplay_pipeline.config.load import load_config

    asked, given = context.command, context.meta[GIVEN]
    assert isinstance(asked, Configured)
    of_options = {key.name: given[name] for name, key in asked.keys.items()}
    options = {key.name: key.option for key in asked.keys.values()}
    own = (param for param in asked.params if isinstance(param, typer.core.TyperOption) and not param.hidden)
    taken.update({str(param.name): param.opts[0] for param in own} | options)
    values = {"game": given["game"], **of_options, **further}
    return load_config(given["config"], values, announced.append, options, gpus, command or str(context.info_name))


def given(context: typer.Context, name: str) -> Any:
    """Returns the value of a configuration option on the command line; None if it was not given."""
    return context.meta[GIVEN][name]


def shared_with(context: typer.Context, command: str) -> dict[str, Any]:
    """Returns the given options that another command accepts as well, with their values."""
    other = context.find_root().command.commands[command]  # type: ignore[attr-defined]
    names = {"config", "game", *other.keys} if isinstance(other, Configured) else set()
    return {name: value for name, value in context.meta[GIVEN].items() if name in names and value is not None}


def chosen_game(context: typer.Context, model: str | None = None) -> dict[str, Any]:
    """Returns the options --config and --game for a suggested command, so that it plays the game of this command.

    The configuration is the given --config, else that of a shipped model, which is --model unless another is named; the
    result is empty without any of these.
    """
    from selfplay_pipeline.config.load import configuration_of

    model = model or given(context, "model")
    config = given(context, "config") or (configuration_of(model) if model else None)
    game = given(context, "game")
    return ({"config": config} if config else {}) | ({"game": game} if game else {})


class OfGames(typer.core.TyperCommand):
    """A command that reads files of any game; its option --game names one that does not come with the package.

    The options are made on first use, which keeps the list of commands fast.
    """

    @cached_property
    def made(self) -> list[Any]:
        """Options that the class adds to those of the command's function."""
        return _as_typer_makes_them({"game": Annotated[str | None, typer.Option("--game", metavar="GAME", help=GAME)]})

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the command's own parameters and the added options."""
        return [*super().get_params(ctx), *self.made]

    def invoke(self, ctx: Any) -> Any:
        """Find the game and run the command; its function finds the added options in the context."""
        given = {option.name: ctx.params.pop(option.name) for option in self.made}
        ctx.meta[GIVEN] = {"game": None} | {
            name: value if value not in ([], ()) else None for name, value in given.items()
        }
        if (game := ctx.meta[GIVEN]["game"]) is not None:
            from selfplay_pipeline.core.errors import UserError
            from selfplay_pipeline.games.registry import find

            try:
                find(game)
            except UserError as error:
                raise UserError(f"--game: {error}") from None
        return super().invoke(ctx)


class Configured(OfGames):
    """A command with options for keys of the configuration."""

    names: Sequence[str] = ()
    has_game = True

    @cached_property
    def keys(self) -> dict[str, Key]:
        """Configuration key of each option, by the option's name in Python."""
        from selfplay_pipeline.config.fields import keys
        from selfplay_pipeline.config.schema import Config

        return {
            key.option.removeprefix("--").replace("-", "_"): key
            for key in keys(Config)
            if any(key.name == name or key.name.startswith(f"{name}.") for name in self.names)
        }

    @cached_property
    def made(self) -> list[Any]:
        """Options made from the configuration."""
        config = Annotated[
            str | None, typer.Option("--config", metavar="FILE", help=CONFIG.format(names=", ".join(built_in())))
        ]
        options = {"config": config} | {name: _option(key) for name, key in self.keys.items()}
        return [*_as_typer_makes_them(options), *(super().made if self.has_game else [])]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's own options, then the options of each configuration section."""
        for title, options in self._in_sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(options)

    def _in_sections(self, ctx: Any) -> dict[str, list[Any]]:
        """Returns the options with their help texts, grouped by the title of their section."""
        from selfplay_pipeline.config.fields import value_of
        from selfplay_pipeline.config.load import load_config

        usual = load_config(None, {})
        found: dict[str, list[Any]] = {}
        for own in typer.core.TyperCommand.get_params(self, ctx):
            if shown := own.get_help_record(ctx):
                found.setdefault(f"{own.param_type_name}s".capitalize(), []).append(shown)
        for option in self.made:
            usage, words = option.get_help_record(ctx)
            title = "Configuration"
            if option.name in self.keys:
                key = self.keys[option.name]
                title += f", section {key.section}" * bool(key.section)
                default = "" if (ctx.info_name, key.name) == OF_THE_ROWS else _default(value_of(usual, key.name))
                further = "; ".join(filter(None, [key.limits, default]))
                words += f"  [{further}]" * bool(further)
            found.setdefault(title, []).append((usage, words))
        return found


def _default(value: Any) -> str:
    """Returns the text of a default value for the help; empty if the default is off, none or empty."""
    if value is None or value is False or value == []:
        return ""
    return f"default: {'on' if value is True else ', '.join(value) if isinstance(value, list) else value}"


def _option(key: Key) -> Any:
    """Returns the parameter type of a key's option. It accepts any text, which the configuration checks."""
    if key.kind is bool:
        return Annotated[bool | None, typer.Option(f"{key.option}/--no-{key.option.removeprefix('--')}", help=key.help)]
    metavar = "|".join(key.choices) or METAVARS[key.kind]
    return Annotated[
        list[str] | None if key.is_list else str | None, typer.Option(key.option, metavar=metavar, help=key.help)
    ]


def _as_typer_makes_them(options: Mapping[str, Any]) -> list[Any]:
    """Returns the options that typer makes of parameters, given the annotation of each by its name."""

    def command() -> None: ...

    setattr(  # noqa: B010
        command,
        "__signature__",
        inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
                for name, kind in options.items()
            ]
        ),
    )
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    return typer.main.get_command(app).params
