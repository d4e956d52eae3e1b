"""Reads a configuration: options override a file, and the file overrides a built-in configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from selfplay_pipeline.config.fields import MAPPING, OF_MACHINE, keys, listed
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import key_of
from selfplay_pipeline.config.used_keys import check_set, check_used
from selfplay_pipeline.config.yaml_file import YamlFile, read_value, read_yaml
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import gpu_visible, visible_gpus
from selfplay_pipeline.core.sections import Section
from selfplay_pipeline.core.shipped import as_listed, built_in, shipped
from selfplay_pipeline.core.small_files import check_regular
from selfplay_pipeline.games.registry import FIRST_GAME, file_of, find, known, split

TINY_MODEL = "data/tiny_model"
GPU_MODEL = "Qwen/Qwen2.5-7B-Instruct"
SHOWN = 40
"""Largest number of characters of a text in a message."""
WHOLE, NUMBER, TRUTH = "a whole number", "a number", "true or false"
ADDED = "train.overrides"
"""Key whose values on the command line follow those of the file, since each of them sets a key of its own."""
GONE = {
    "convert.credit": "GRPO compares whole episodes",
    **dict.fromkeys(("iterate.evaluate_states", "online.held_out_states"), "give `evaluate.monitor_states`"),
    "evaluate.num_states": "the option --num-states of evaluate, crossplay and listen sets it",
    "engine.startup_timeout": "a server may take an hour to start; `engine.hang_timeout` ends one that does nothing",
    **{f"reward.{name}": "`reward.path` names a function" for name in ("partner_share", "message_cost", "token_cost")},
    "partner.max_requests": "`partner.max_dollars` ends a command",
    "train.dump_rows": "`train.overrides` takes selfplay.dump_rows=true",
    "train.lora_alpha": "`train.overrides` takes verl's own actor_rollout_ref.model.lora_alpha",
    "train.lora_targets": "`train.overrides` takes verl's own actor_rollout_ref.model.target_modules",
}
"""Keys that there were before the first release, with what to use instead."""
KINDS = {
    "int_type": WHOLE, "int_parsing": WHOLE, "int_parsing_size": WHOLE, "int_from_float": WHOLE,
    "float_type": NUMBER, "float_parsing": NUMBER, "bool_type": TRUTH, "bool_parsing": TRUTH,
    "string_type": "a text", "path_type": "a path", "list_type": "a list", "dict_type": MAPPING,
    "model_type": "keys and values",
    "greater_than_equal": "at least {ge:g}", "greater_than": "a number above {gt:g}",
    "less_than_equal": "at most {le:g}", "less_than": "a number below {lt:g}", "literal_error": "{expected}",
}  # fmt: skip
"""Expected value, by pydantic's name of the mistake."""


def read_settings(texts: Iterable[str], options: Mapping[str, str] = {}) -> dict[str, Any]:
    """Returns the values of --set by key.

    Args:
        texts: Values of the option, each KEY=VALUE.
        options: Given options of keys, by key.

    Raises:
        UserError: A text has another form, its key is unknown or given twice, or its value is not YAML.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected KEY=VALUE, such as train.epochs=2")
        _check_key(key)
        if key in found or key in options:
            other = options.get(key, "another --set")
            raise UserError(f"--set {key}: {other} sets this key too; give one of them")
        found[key] = read_value(value, f"--set {key}")
    return found


def _check_key(name: str) -> None:
    """Raises UserError if a key is unknown; the keys of the section `game` are left to the game."""
    known = [key.name for key in keys(Config)]
    if name in ("game.name", "game.path"):
        raise UserError(f"--set {name}: give --game, which also replaces the keys of another game")
    if name in known or name.startswith("game."):
        return
    if any(key.startswith(f"{name}.") for key in known):
        further = ", or --game" if name == "game" else ""
        raise UserError(f"--set {name}: a section; give its keys one by one, as {name}.KEY{further}")
    meant = _meant(name.split("."), Config, {})
    raise UserError(f"--set {name}: there is no such key; {meant}`selfplay config` prints all keys")


def _added(earlier: list[Any], further: list[Any]) -> list[Any]:
    """Returns settings of verl with further ones, which replace those of the same keys."""
    again = {key_of(one) for one in further if isinstance(one, str)}
    return [one for one in earlier if not isinstance(one, str) or key_of(one) not in again] + further


def own_settings(source: str | None) -> dict[str, Any]:
    """Returns the values in a user's own configuration file, without its base; empty for a built-in configuration."""
    if source is None or (source in built_in() and not Path(source).is_file()):
        return {}
    return _read(source).data


def load_config(
    source: str | None,
    overrides: Mapping[str, Any] = {},
    tell: Callable[[str], None] = lambda line: None,
    options: Mapping[str, str] = {},
    gpus: int | None = None,
    command: str = "",
    settings: Mapping[str, Any] = {},
) -> Config:
    """Read a configuration, apply options on top of it, and return the result.

    A file builds, section by section, on the configuration that would be used without it, or on the built-in one that
    its key `base` names.

    Args:
        source: A YAML file, a built-in name, or None to choose by hardware and model.
        overrides: Values by dotted key (`generate.num_episodes`); None means not given. `game` is the name or the file
            of the game, as the option --game takes it.
        tell: Takes one line that names the base of the configuration and the reason for it.
        options: Options of the command line by the keys that they set, for messages.
        gpus: Number of GPUs of the machine that the configuration is for; by default, of those that are visible.
        command: Command that uses the configuration; it refuses a key that has no effect on it (`UsedBy`).
        settings: Values of --set by dotted key, which `read_settings` returns; None is `null`, as in a file.

    Raises:
        UserError: The file is missing or not valid YAML, or it has an unknown key, a bad value or a key that the
            command does not use; the message names file, line and key.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    if both := settings.keys() & given.keys():
        raise UserError(f"--set {min(both)}: another argument of the command sets this key; give one of them")
    given |= settings
    labels = {key: f"{option}, the option for {key}" for key, option in options.items()}
    labels |= {key: f"--set {key}" for key in settings}
    own: Any = None
    if gpus is None:
        gpus = max(1, visible_gpus()) if gpu_visible() else 0
    if source is None:
        name, why = _base_for(given.get("model"), gpus)
        file = _built_in(name)
        said = f"{name} ({why})"
    elif source in built_in() and not Path(source).is_file():
        file = _built_in(source)
        said = source
    else:
        file = _read(source)
        base, why = file.data.pop("base", None), "as the file says"
        if base is None:
            base, why = _base_for(given.get("model", file.data.get("model")), gpus)
        elif base not in [*built_in()]:
            raise UserError(f"{file.where(['base'])}: there is no base {base!r}; choose one of {', '.join(built_in())}")
        own = file.data.get("train")
        _put_over(file, _built_in(base))
        said = f"{source} on top of {base} ({why})"
    for dotted, value in given.items():
        if isinstance(value, Mapping) and any(key.name.startswith(f"{dotted}.") for key in keys(Config)):
            raise UserError(f"option for {dotted}: {value!r} is a section; give its keys one by one, as {dotted}.KEY")
    chosen = given.pop("game", None)
    if chosen is not None:
        _choose_game(file, chosen)
    for dotted, value in given.items():
        section, _, key = dotted.rpartition(".")
        target = file.data.setdefault(section, {}) if section else file.data
        if isinstance(target, dict):  # else it is refused below
            earlier = target.get(key)
            if dotted == ADDED and isinstance(earlier, list) and isinstance(value, list):
                value = _added(earlier, value)
            target[key] = value
    if command != "train-online":
        _count_rows_if_asked(file, own if isinstance(own, dict) else {}, given)
    _find_game(file)
    _drop_nulls(file)
    try:
        config = Config.model_validate(file.data)
    except ValidationError as error:
        path, what = explain(error, Config, file.data)
        raise UserError(f"{_where(path, what, file, given, labels)}: {what}") from None
    check_set(command, config, settings)
    check_used(command, config, file, given)
    config.reward.path = config.reward.path and os.path.realpath(config.reward.path)
    config.model = shipped(config.model or (GPU_MODEL if gpus else TINY_MODEL))
    config.iterate.partner = shipped(config.iterate.partner)
    config.iterate.foreign = config.iterate.foreign and shipped(config.iterate.foreign)
    if twice := _named_twice([partner.player for partner in config.iterate.partners]):
        where = _where(["iterate", "partners"], "", file, given, labels)
        raise UserError(f"{where}: {' and '.join(twice)} are the same checkpoint; give it one share")
    for partner in config.iterate.partners:
        partner.player = shipped(partner.player)
    _use_all(config, gpus, command)
    if command == "train-online" and config.device != "cpu" and config.train.gpus_per_node < gpus:
        said += f"; {config.train.gpus_per_node} of {gpus} GPUs"
    tell(f"configuration: {said}")
    return config


def _where(path: list[str], what: str, file: YamlFile, given: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Returns the place of a mistake: the options that set its keys, else file, line and key.

    Args:
        path: Sections and key; only the section, if the mistake is that several of its keys exclude each other.
        what: Explanation of the mistake, with a colon after each of these keys.
        labels: Options as a message names them, by key.
    """
    key = ".".join(path)
    among = [one for one in given if one.startswith(f"{key}.") and re.search(rf"\b{one.rpartition('.')[2]}: ", what)]
    found = [key] if key in given else among
    said = [labels.get(one, f"option for {one}") for one in found]
    return " and ".join(said) or file.where(path)


def _named_twice(names: list[str]) -> list[str]:
    """Returns the first two of different names that name the same folder; empty if there are none."""
    first: dict[str, str] = {}
    pairs = ([first.setdefault(os.path.realpath(shipped(name)), name), name] for name in names)
    return next((pair for pair in pairs if pair[0] != pair[1]), [])


def _use_all(config: Config, gpus: int, command: str) -> None:
    """Use all GPUs of the machine to play and to train, unless the configuration gives their number.

    These numbers count as not given, so that `selfplay config` does not write them into a file for another machine.
    """
    train, engine, generate = config.train, config.engine, config.generate
    if config.device != "cpu":
        if "gpus_per_node" not in train.model_fields_set:
            train.gpus_per_node = max(1, _sharing_a_step(config, gpus) if command == "train-online" else gpus)
            train.model_fields_set.discard("gpus_per_node")
        launched = engine.kind == "sglang" and not engine.server_url
        # `train-online` serves copies of the model on the GPUs that it trains on.
        if "data_parallel" not in engine.model_fields_set and launched and command != "train-online":
            engine.data_parallel = max(1, gpus // engine.tensor_parallel)
            engine.model_fields_set.discard("data_parallel")
    if "max_concurrency" not in generate.model_fields_set:
        generate.max_concurrency *= len(engine.server_url) or engine.data_parallel
        generate.model_fields_set.discard("max_concurrency")


def _sharing_a_step(config: Config, gpus: int) -> int:
    """Returns the largest number of a node's GPUs that can share the rows of a step of `train-online` equally."""
    episodes = config.online.states_per_step * config.generate.episodes_per_state
    shares = [
        number
        for number in range(1, gpus + 1)
        if episodes % (config.train.nodes * number) == 0 and number % config.engine.tensor_parallel == 0
    ]
    return shares[-1] if shares else gpus


def _drop_nulls(file: YamlFile) -> None:
    """Remove the numbers that the machine decides if the file leaves them to it (`null`)."""
    for key in OF_MACHINE:
        above, _, name = key.rpartition(".")
        section = file.data.get(above)
        if isinstance(section, dict) and section.get(name, 0) is None:
            del section[name]


def _choose_game(file: YamlFile, chosen: str) -> None:
    """Replaces the section `game` by the defaults of the game that --game names, unless it is of that game already."""
    _find_game(file)
    try:
        kind, variant = find(chosen), split(chosen)[1]
    except UserError as error:
        raise UserError(f"--game: {error}") from None
    game = file.data.get("game")
    if not isinstance(game, dict) or game.get("name", FIRST_GAME) != kind.name:
        file.data["game"] = game = {"name": kind.name}
    game |= variant


def _find_game(file: YamlFile) -> None:
    """Finds the game that a configuration names, and completes the game's name and the path of its file."""
    game = file.data.get("game")
    if not isinstance(game, dict):
        return  # the first game's defaults, or a value that is refused later
    name, path = game.get("name"), game.get("path")
    try:
        if isinstance(path, str):
            if ".py:" in path:
                raise UserError(f"{path!r}: write the file as `path`, and the name of one of its games as `name`")
            place = os.path.realpath(path)
            game["name"] = find(f"{place}:{name}" if isinstance(name, str) else place).name
            game["path"] = place
        elif isinstance(name, str):
            if name.endswith(".py"):
                raise UserError(f"{name!r} is a file; name it with the key `path`")
            if file_of_game := file_of(find(name)):
                game["path"] = file_of_game
    except UserError as error:
        raise UserError(f"{file.where(['game', 'path' if isinstance(path, str) else 'name'])}: {error}") from None


def configuration_of(model: str) -> str | None:
    """Returns the built-in configuration made for a model, found by the model's name or path; None if there is none."""
    made_for = {named: name for name in built_in() if (named := _packaged(name).data.get("model"))}
    path = os.path.normpath(model)
    with suppress(OSError, ValueError):  # the name is not a valid path, which is reported elsewhere
        return made_for.get(path, made_for.get(as_listed(os.path.realpath(path))))
    return None


def _base_for(model: Any, gpus: int) -> tuple[str, str]:
    """Returns the default base of a configuration, and the reason for it."""
    if name := configuration_of(str(model)):
        return name, f"the model is {model}"
    if gpus == 0:
        return "tiny_honest", "no GPU is visible"
    return ("one_gpu", "for a machine with one GPU") if gpus == 1 else ("default", f"for a machine with {gpus} GPUs")


def _built_in(name: str) -> YamlFile:
    """Returns a copy of a built-in configuration on top of its base."""
    file = _packaged(name)
    return replace(file, data=deepcopy(file.data))


@cache  # All of them are read to find the one made for a model, and the files do not change.
def _packaged(name: str) -> YamlFile:
    file = read_yaml(built_in()[name], name)
    base = file.data.pop("base", None)
    if base is not None:
        _put_over(file, _built_in(base))
    return file


def _count_rows_if_asked(file: YamlFile, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Remove a built-in limit of tokens in a pass if the user gives a number of rows, which it would replace.

    Args:
        file: The file on top of the built-in configuration.
        own: The user's section `train` without the built-in one.
        given: Options by dotted key.
    """
    rows, tokens = (key in own or f"train.{key}" in given for key in ("micro_batch_size", "max_tokens_per_pass"))
    section = file.data.get("train")
    if rows and not tokens and isinstance(section, dict):  # other values are refused later
        section.pop("max_tokens_per_pass", None)


def _put_over(file: YamlFile, base: YamlFile) -> None:
    file.data, file.base = _merged(base.data, file.data), base


def _read(source: str) -> YamlFile:
    path = Path(source)
    with suppress(OSError):  # for example, the name is too long, which is reported below
        if not path.exists():
            names = ", ".join(built_in())
            raise UserError(f"--config: no built-in configuration or file {source!r}; built-in: {names}")
    check_regular(path, "give a YAML file to --config")
    return read_yaml(path)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Returns `base` with the values of `over`; merges sections key by key, and replaces lists."""
    # A section whose keys are all commented out is None, and so is a model that is commented out.
    over = {
        key: value
        for key, value in over.items()
        if value is not None or not (isinstance(base.get(key, {}), dict) or key == "model")
    }
    merged = base | over
    for key in base.keys() & over.keys():
        if isinstance(base[key], dict) and isinstance(over[key], dict):
            merged[key] = (
                over[key] if key == "game" and _other_game(base[key], over[key]) else _merged(base[key], over[key])
            )
    return merged


def _other_game(base: dict[str, Any], over: dict[str, Any]) -> bool:
    """Whether a section `game` is of another game than that of the base, so that none of the base's keys applies."""
    usual = base.get("name", FIRST_GAME)
    return over.get("path") is not None or (over.get("name") or usual) != usual


def explain(error: ValidationError, section: type[Section], given: Mapping[str, Any]) -> tuple[list[str], str]:
    """Returns the position (sections and key) and the explanation of the first mistake.

    Args:
        section: Class of the section that could not be read.
        given: Values that it was read from.
    """
    first = error.errors()[0]
    path = [str(part) for part in takewhile(lambda part: isinstance(part, str), first["loc"])]
    entry = first["loc"][len(path) :]
    if len(entry) > 1:  # a key of an entry in a list, which has no line of its own
        what = "there is no such key" if first["type"] == "extra_forbidden" else mistake(first)
        return path, f"entry {int(entry[0]) + 1}, {'.'.join(map(str, entry[1:]))}: {what}"
    if first["type"] == "extra_forbidden":
        return path, f"there is no such key; {_meant(path, section, given)}`selfplay config` prints all keys"
    return path, mistake(first)


def mistake(error: ErrorDetails) -> str:
    """Returns the expected and the found value of one mistake."""
    kind, found = error["type"], error["input"]
    if kind not in KINDS:
        return str(error["msg"]).removeprefix("Value error, ")
    expected = KINDS[kind].format(**error.get("ctx", {})).replace("'", "")
    remedy = "; write it in brackets" if kind == "list_type" and isinstance(found, str | int | float) else ""
    shown = str(found) if kind.startswith(("greater", "less")) else _described(found)
    return f"expected {expected}, found {shown}{remedy}"


def _meant(path: list[str], section: type[Section], given: Mapping[str, Any]) -> str:
    """Returns a hint at the intended key: a similar name in the same section, or the same name in another; else ""."""
    if instead := GONE.get(".".join(path)):
        return f"{instead}; "
    above = "".join(f"{part}." for part in path[:-1])
    everything = [key.name for key in keys(section)]
    if path[0] == "game":  # the game defines the keys of this section
        everything += [key.name for key in keys(known(given["game"].get("name", FIRST_GAME)).settings, above)]
    siblings = {name.removeprefix(above).split(".")[0] for name in everything if name.startswith(above)}
    near = get_close_matches(path[-1], sorted(siblings), n=1)
    elsewhere = [name for name in everything if name.rpartition(".")[2] == path[-1]]
    meant = listed([f"`{name}`" for name in near or elsewhere])
    return f"did you mean {meant}? " if meant else ""


def _described(value: Any) -> str:
    """Returns a description of a value for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {value if len(value) <= SHOWN else value[:SHOWN] + '…'!r}"
    return "a list" if isinstance(value, list) else "keys and values" if isinstance(value, dict) else str(value)
