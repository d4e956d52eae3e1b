"""Checks that slime can run the experiment on this machine: version, modules, GPU, configuration, data.

`tests/unit/test_slime_contract.py` checks that slime's classes and calls fit our hooks.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import gpu_visible
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import all_games, make_game
from selfplay_pipeline.generate.records import CHAT
from selfplay_pipeline.slime.config import DEFAULT, RolloutConfig
from selfplay_pipeline.slime.data import check_data

VERSION = "0.3.1"
"""Version of slime that this package was written for and tested with."""
CONTRACT = "tests/unit/test_slime_contract.py"
"""Test that shows whether another version fits; it needs this project's folder and slime's on PYTHONPATH."""


@dataclass(frozen=True)
class Item:
    """One requirement of the experiment.

    Attributes:
        ok: Whether the requirement is met.
        what: Name of the requirement.
        found: Description of the present state.
        remedy: Instruction for a requirement that is not met.
    """

    ok: bool
    what: str
    found: str
    remedy: str = ""


def check_all(slime: Path | None, config: Path | None, data: Sequence[Path] = ()) -> list[Item]:
    """Returns all requirements, in the order in which to fix them.

    Args:
        slime: Folder of slime's source; by default the package that Python would import.
        config: File for `--custom-config-path`; by default the package's own.
        data: Files of prompt data; by default none is read.
    """
    items = [check_version(slime)]
    items += [_module("megatron", "slime trains with Megatron-LM; take slime's image or set PYTHONPATH to its folder")]
    items += [_module("sglang", "slime plays with SGLang; take slime's image"), _module("ray", "pip install ray")]
    items += [Item(gpu_visible(), "GPU", "visible" if gpu_visible() else "none", "slime trains on GPUs only")]
    items += [_attempt("our hooks", _hooks), *check_config(config or DEFAULT)]
    return items + [item for path in data for item in check_rows(path, config or DEFAULT)]


def check_version(folder: Path | None) -> Item:
    """Returns the check that slime exists; another version than the tested one is mentioned but accepted."""
    spec = find_spec("slime") if folder is None else None
    root = Path(spec.origin).parents[1] if spec is not None and spec.origin else folder
    if root is None or not (root / "slime" / "__init__.py").is_file():
        remedy = f"install slime {VERSION} (its docs/en/get_started) or name its folder with --slime"
        return Item(False, "slime", "not found", remedy)
    version = _version(root)
    other = "" if version == VERSION else f"; tested was {VERSION}, and {CONTRACT} says whether this one fits"
    return Item(True, "slime", f"{version} in {root}{other}")


def _version(root: Path) -> str:
    """Returns the version in setup.py, else the installed package's, else "unknown version"."""
    setup = root / "setup.py"
    named = re.search(r"version=\"([^\"]+)\"", setup.read_text(errors="replace")) if setup.is_file() else None
    with suppress(importlib.metadata.PackageNotFoundError):
        return named[1] if named else importlib.metadata.version("slime")
    return "unknown version"


def check_config(path: Path) -> list[Item]:
    """Returns the checks that the configuration is valid and its partner can be called."""
    try:
        config = RolloutConfig.read(path)
    except UserError as error:
        return [Item(False, "configuration", str(error), "fix the file")]
    found = f"{path.name}: max_turns {config.max_turns}, partner {config.selfplay.partner}"
    return [Item(True, "configuration", found), _attempt("partner", lambda: _partner(config, [*all_games()]))]


def _hooks() -> str:
    for name in ("rollout", "hooks"):
        import_module(f"selfplay_pipeline.slime.{name}")
    return "can be imported"


def _partner(config: RolloutConfig, games: Sequence[Game]) -> str:
    section = config.selfplay
    if section.partner == CHAT:
        import_module("openai")
    # without its cache, whose file would be created here
    looked_at = section.model_copy(update={"chat": section.chat.model_copy(update={"cache": None})})
    return f"{config.model_copy(update={'selfplay': looked_at}).player(*games).record.name} can be called"


def check_rows(path: Path, config: Path) -> list[Item]:
    """Returns the checks that the rows can be played, by the partner too, and promise no more turns than there are."""
    try:
        rules = check_data(path)
    except UserError as error:
        return [Item(False, "prompt data", str(error), "fix what it says")]
    games = ", ".join(sorted({make_game(rule).describe() for rule in rules}))
    items = [Item(True, "prompt data", f"{path}: {games}")]
    with suppress(UserError):  # the check of the configuration reports this error
        rollout = RolloutConfig.read(config)
        for game in map(make_game, rules):
            partner = _attempt("partner", partial(_partner, rollout, [game]))
            if not partner.ok:
                items.append(replace(partner, found=f"{path}: {game.name}: {partner.found}"))
        longest = max(rules, key=lambda rule: rule.max_length)
        turns, promised = len(make_game(longest).roles) * rollout.max_turns, longest.max_length
        if promised > turns:
            found = f"{path}: the rows promise {promised} turns, an episode gets {turns}"
            remedy = f"write them with --max-length {turns}, or raise max_turns of {config.name}"
            items.append(Item(False, "turns", found, remedy))
    return items


def _attempt(what: str, find: Callable[[], str]) -> Item:
    try:
        return Item(True, what, find())
    except UserError as error:
        return Item(False, what, str(error), "fix what it says")
    except ModuleNotFoundError as error:
        return Item(False, what, f"needs the module {error.name}", f"pip install {error.name}")
    except ImportError as error:
        return Item(False, what, f"cannot be imported: {' '.join(str(error).split())}", "fix the installation")


def _module(name: str, remedy: str) -> Item:
    found = find_spec(name) is not None
    return Item(found, name, "found" if found else "not found", remedy)
