"""Reads a configuration: a built-in one, a file on top of it, and options on top of both."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfplay_pipeline.config.mistakes import explain
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.uses import check_used
from selfplay_pipeline.config.yaml_file import YamlFile, read_yaml
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import as_listed, built_in, shipped
from selfplay_pipeline.core.small_files import check_regular
from selfplay_pipeline.games.registry import FIRST_GAME, find

TINY_MODEL = "data/tiny_model"
GPU_MODEL = "Qwen/Qwen2.5-7B-Instruct"


def gpu_visible() -> bool:
    """Whether an NVIDIA GPU is visible, without importing torch. An empty CUDA_VISIBLE_DEVICES hides all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return Path("/dev/nvidiactl").exists() and shutil.which("nvidia-smi") is not None


def own_settings(source: str | None) -> dict[str, Any]:
    """Returns what a user's own configuration file sets, without its base; nothing for a built-in configuration."""
    if source is None or (source in built_in() and not Path(source).is_file()):
        return {}
    return _read(source).data


def load_config(
    source: str | None,
    overrides: Mapping[str, Any],
    tell: Callable[[str], None] = lambda line: None,
    options: Mapping[str, str] = {},
    gpu: bool | None = None,
    command: str = "",
) -> Config:
    """Read a configuration and put options over it.

    A file builds on what would be used without it, section by section, or on the built-in that its key `base` names.

    Args:
        source: a YAML file, a built-in name, or None to choose by hardware and model.
        overrides: dotted keys (`generate.num_episodes`) to values; None means not given.
        tell: takes one line that says what the configuration builds on, and why.
        options: the options of the command line that give overrides, by their keys; for messages.
        gpu: whether it is for a machine with a GPU; by default, whether one is visible here.
        command: the command that asks, which refuses a key that would have no effect on it (`UsedBy`).

    Raises:
        UserError: no such file, bad YAML, an unknown key, a bad value or a key that the command does not use; names
            file, line and key.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    gpu = gpu_visible() if gpu is None else gpu
    if source is None:
        name, why = _base_for(given.get("model"), gpu)
        file = _built_in(name)
        said = f"{name} ({why})"
    elif source in built_in() and not Path(source).is_file():
        file = _built_in(source)
        said = source
    else:
        file = _read(source)
        base, why = file.data.pop("base", None), "as the file says"
        if base is None:
            base, why = _base_for(given.get("model", file.data.get("model")), gpu)
        elif base not in [*built_in()]:
            raise UserError(f"{file.where(['base'])}: there is no base {base!r}; choose one of {', '.join(built_in())}")
        _put_over(file, _built_in(base))
        said = f"{source} on top of {base} ({why})"
    for dotted, value in given.items():
        section, _, key = dotted.rpartition(".")
        target = file.data.setdefault(section, {}) if section else file.data
        if isinstance(target, dict):  # else it is refused below
            target[key] = value
    _find_game(file)
    try:
        config = Config.model_validate(file.data)
    except ValidationError as error:
        path, what = explain(error, Config, file.data)
        key = ".".join(path)
        where = f"{options[key]}, the option for {key}" if key in options else f"option for {key}"
        raise UserError(f"{where if key in given else file.where(path)}: {what}") from None
    check_used(command, config, file, given)
    config.model = shipped(config.model or (GPU_MODEL if gpu else TINY_MODEL))
    config.iterate.partner = shipped(config.iterate.partner)
    tell(f"configuration: {said}")
    return config


def _find_game(file: YamlFile) -> None:
    """Finds the game that a configuration names, and puts the game's own name in place of `FILE.py:CLASS`."""
    game = file.data.get("game")
    if isinstance(game, dict) and isinstance(name := game.get("name"), str):
        try:
            game["name"] = find(name).name
        except UserError as error:
            raise UserError(f"{file.where(['game', 'name'])}: {error}") from None


def configuration_of(model: str) -> str | None:
    """The built-in configuration that a model was made for, by its name in it or by the place where it lies."""
    made_for = {named: name for name in built_in() if (named := _built_in(name).data.get("model"))}
    path = os.path.normpath(model)
    with suppress(OSError, ValueError):  # of a name that cannot be, which is told elsewhere
        return made_for.get(path, made_for.get(as_listed(os.path.realpath(path))))
    return None


def _base_for(model: Any, gpu: bool) -> tuple[str, str]:
    """The built-in configuration that is used where none is named, and why."""
    if name := configuration_of(str(model)):
        return name, f"the model is {model}"
    return ("default", "for a machine with a GPU") if gpu else ("tiny_honest", "no GPU is visible")


def _built_in(name: str) -> YamlFile:
    """A built-in configuration, with what it builds on."""
    file = read_yaml(built_in()[name], name)
    base = file.data.pop("base", None)
    if base is not None:
        _put_over(file, _built_in(base))
    return file


def _put_over(file: YamlFile, base: YamlFile) -> None:
    file.data, file.base = _merged(base.data, file.data), base


def _read(source: str) -> YamlFile:
    path = Path(source)
    with suppress(OSError):  # of a name that is too long, say, which is told below
        if not path.exists():
            names = ", ".join(built_in())
            raise UserError(f"--config: no built-in configuration or file {source!r}; built-in: {names}")
    check_regular(path, "give a YAML file to --config")
    return read_yaml(path)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`; sections are merged key by key, lists are replaced."""
    # A section of which all keys are commented out is None.
    over = {key: value for key, value in over.items() if value is not None or not isinstance(base.get(key, {}), dict)}
    if base.get("name", FIRST_GAME) != over.get("name", base.get("name", FIRST_GAME)):  # its section has other keys
        return over
    merged = base | over
    for key in base.keys() & over.keys():
        if isinstance(base[key], dict) and isinstance(over[key], dict):
            merged[key] = _merged(base[key], over[key])
    return merged
