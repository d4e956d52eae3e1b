"""Failures of commands: an exit code and one line of text."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer
import typer.core

from selfplay_pipeline.command_parts.options import LABELS, name_of
from selfplay_pipeline.core import stopping, terminal
from selfplay_pipeline.core.command_line import program
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.terminal.harmless import one_line

UsageError: Any = typer.BadParameter.__base__
"""Error class for a mistyped option, which typer does not export."""

ALIKE = {"--num-states": {"--states-per-task"}, "--states-per-task": {"--num-states"}}
"""Names of options that other commands have for the same thing."""


class Commands(typer.core.TyperGroup):
    """Group of commands with exit code 2 and one line for a user's mistake, 1 for a failure, 130 for Ctrl-C."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the options before the name of the command."""
        _check_arguments(args)
        with _in_one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run a command and exit with one line if it fails."""
        try:
            with _stopped_first(), _in_one_line(), _reports_shown():
                result = super().invoke(ctx)
            terminal.flush()  # a full disk can still be reported in one line here
            return result
        except UserError as error:
            _fail(error.naming(ctx.meta.get(LABELS, {})), 2)
        except BaseExceptionGroup as group:
            _fail_group(group, ctx.meta.get(LABELS, {}))
        except OSError as error:
            if error.errno == errno.EIO and stopping.leave_closed_terminal():
                sys.exit(stopping.STOPPED_CODE)
            if error.errno == errno.EPIPE or os.environ.get("SELFPLAY_DEBUG"):
                raise  # typer ends quietly on a closed pipe
            _fail_system(error)
        except (typer.Exit, UsageError):
            raise  # before the slow imports of expected errors, which --help does not need
        except Exception as error:
            if os.environ.get("SELFPLAY_DEBUG"):
                raise
            if not _expected(error):
                _fail_if_of_user(error)
                raise
            _fail(str(error), 1)


def fail_if_lost(episodes: int) -> None:
    """Exit with code 1 if the number of missing episodes is above 0, even if the command showed a result."""
    if episodes:
        again = shlex.join(sys.argv[1:])
        _fail(f"{episodes} episodes are missing, lost to the engine or the partner; `selfplay {again}` plays them", 1)


def check_directory() -> None:
    """Exit with code 2 if the working directory has been deleted, since paths then have no meaning."""
    try:
        Path.cwd()
    except OSError as error:
        terminal.say(f"selfplay: the working directory: {error.strerror}; change to a folder that exists (cd)")
        sys.exit(2)


def _check_arguments(arguments: list[str]) -> None:
    """Exit with code 2 if an argument is not UTF-8 or empty.

    Values of verl's own keys, after `--`, may be empty.
    """
    for argument in arguments:
        if not argument.isprintable() and any("\ud800" <= character <= "\udfff" for character in argument):
            _fail(f"{argument}: holds a byte that is not UTF-8; rename the file or folder, or give another one", 2)
    for before, argument in zip(["an argument", *arguments], arguments, strict=False):
        if argument == "--":
            return
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            option = argument or before
            what = f"{option}: an empty value is given; leave it out, or give one"
            _fail(what if option.startswith("--") else "an argument is empty; name a file, a folder or a player", 2)


@contextlib.contextmanager
def _stopped_first() -> Iterator[None]:
    """Replace any failure after a signal by KeyboardInterrupt, since the signal may have caused it."""
    try:
        yield
    except BaseException:
        stopping.stop.check()
        raise


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """Exit with code 2 and one line for a usage error; typer would print three."""
    try:
        yield
    except UsageError as error:
        if type(error).show is not UsageError.show:  # a subclass, raised without a command, shows the help
            raise
        message = one_line(_nearest_first(error) or error.format_message().rstrip("."))
        joined = " " if message.endswith("?") else "; "
        command = error.ctx.command_path if error.ctx else program()
        _fail(f"{message[:1].lower()}{message[1:]}{joined}`{command} --help` lists all options", 2)


@contextlib.contextmanager
def _reports_shown() -> Iterator[None]:
    from selfplay_pipeline.core.terminal.progress import shown

    with shown():
        yield


def _nearest_first(error: Any) -> str | None:
    """Returns the message for a mistyped option, with the most similar options first; typer sorts them by name."""
    if key := _key_of(error):
        return f"{error.message}; give --set {key}=VALUE"
    near = [*_alike(error), *(getattr(error, "possibilities", None) or ())]
    if not near:
        return None
    others = f" (or {', '.join(near[1:])})" if near[1:] else ""
    return f"{error.message}; did you mean {near[0]}{others}?"


def _key_of(error: Any) -> str | None:
    """Returns the configuration key that a mistyped option stands for, if the command uses it and takes --set."""
    from selfplay_pipeline.config.fields import keys
    from selfplay_pipeline.config.schema import Config

    name = str(getattr(error, "option_name", "")).replace("--no-", "--", 1)
    if error.ctx is None or not any("--set" in param.opts for param in error.ctx.command.get_params(error.ctx)):
        return None
    found = (key for key in keys(Config) if key.name != "model" and key.option == name)
    return next((key.name for key in found if key.is_used_by(name_of(error.ctx))), None)


def _alike(error: Any) -> list[str]:
    """Returns the options of the command that other commands call by the mistyped name."""
    known = [option for parameter in error.ctx.command.params for option in parameter.opts] if error.ctx else []
    return [*{*known} & ALIKE.get(getattr(error, "option_name", ""), set())]


def _expected(error: BaseException) -> bool:
    from selfplay_pipeline.core.files import FileChangedError
    from selfplay_pipeline.engines.types import EngineError
    from selfplay_pipeline.generate.run import NoTurnsError
    from selfplay_pipeline.train.process import TrainError

    return isinstance(error, EngineError | FileChangedError | NoTurnsError | TrainError | UserError)


def _fail_if_of_user(error: BaseException) -> None:
    """Exit with one line if code of a user's game raised the error."""
    from selfplay_pipeline.games.registry import fault_of_user

    fault = fault_of_user(error)
    if fault is not None:
        _fail(fault, 2)


def _fail_group(group: BaseExceptionGroup[BaseException], options: Mapping[str, str]) -> NoReturn:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if os.environ.get("SELFPLAY_DEBUG"):
        raise group
    if not (_expected(first) or isinstance(first, OSError)):
        _fail_if_of_user(first)
        raise group
    if isinstance(first, OSError):
        _fail_system(first)
    if isinstance(first, UserError):
        _fail(first.naming(options), 2)
    _fail(str(first), 1)


def _fail_system(error: OSError) -> NoReturn:
    """Exit with one line about an error of the operating system."""
    from selfplay_pipeline.core.files import TOO_MANY_OPEN

    reason = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    if error.errno in TOO_MANY_OPEN:
        _fail("too many open files; raise the limit, for example with `ulimit -n 1024`, and give the command again", 1)
    if error.filename is not None:
        _fail(f"{os.fsdecode(error.filename)}: {reason}; give another file or folder, or fix this one", 2)
    if error.errno == errno.ENOSPC:  # else the interpreter tries to write the rest at its exit, and fails again
        terminal.give_up_stdout()
    _fail(f"the system refused an operation: {reason.splitlines()[0]}; what was finished is kept", 1)


def _fail(message: str, code: int) -> NoReturn:
    message = message.replace("`selfplay ", f"`{program()} ")
    if code == 1:
        terminal.say_failure(message)
    else:
        terminal.say(f"selfplay: {message}")
    sys.exit(code)
