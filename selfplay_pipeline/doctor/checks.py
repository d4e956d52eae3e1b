"""Checks of this machine, except for its memory. Each check returns its finding, or the fault."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import check_is_folder
from selfplay_pipeline.core.gpus import gpu_driver
from selfplay_pipeline.core.hub import HubUnreachableError
from selfplay_pipeline.core.loopback import ADDRESS
from selfplay_pipeline.core.shipped import PACKAGE
from selfplay_pipeline.engines.compiler import check_compiler
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.preflight import check_arguments, check_context, training_states
from selfplay_pipeline.generate.stage import policy_record

DRIVER = 580
"""Oldest driver branch that supports CUDA 13, which the locked version of PyTorch needs."""
LOCKED = ("torch", "transformers", "sglang", "verl", "ray", "TransferQueue", "kernels", "tokenizers")
"""Packages whose versions depend on each other."""


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    what: str
    found: str
    good: bool | None
    """Whether the check passed; None if it was impossible."""

    @property
    def sign(self) -> str:
        """Sign at the start of the check's line."""
        return {True: "ok", False: "NO", None: "?"}[self.good].ljust(3)


def look(config: Config, device: str, output: Path) -> list[Check]:
    """Run all checks and return their results.

    Args:
        config: The configuration.
        device: Device of training and play, cuda or cpu.
        output: Folder for results.
    """
    checks: dict[str, Callable[[], str]] = {
        "versions": lambda: _versions(config, device),
        "chat template": lambda: _template(config),
        "ports": _ports,
        "folders": lambda: _folders(config, output),
    }
    if device == "cuda":
        checks = {"driver": _driver, "compiler": _compiler} | checks
    return [_checked(what, check) for what, check in checks.items()]


def _checked(what: str, check: Callable[[], str]) -> Check:
    try:
        return Check(what, check(), True)
    except UserError as error:
        return Check(what, str(error), None if isinstance(error, HubUnreachableError) else False)


def _driver() -> str:
    found = gpu_driver()
    if found is None:
        raise UserError("nvidia-smi shows no driver; install one for CUDA 13")
    if int(found.partition(".")[0]) < DRIVER:
        raise UserError(f"{found} is too old for CUDA 13; install {DRIVER} or newer")
    return found


def _compiler() -> str:
    check_compiler()
    return "nvcc and the C++ compiler make a kernel"


def _versions(config: Config, device: str) -> str:
    lock = PACKAGE.parent / "requirements" / ("gpu.txt" if device == "cuda" else "cpu.txt")
    if not lock.is_file():
        return "not compared: no lock lies beside the package"
    pins = {
        name.lower(): pin for name, pin in re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock.read_text("utf-8"), re.MULTILINE)
    }
    differ = []
    for name in LOCKED:
        wanted = pins.get(name.lower())
        if wanted is None or (name == "sglang" and config.engine.kind == "transformers"):
            continue
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            found = "missing"
        if found != wanted:
            differ.append(f"{name} {found} (locked: {wanted})")
    if differ:
        raise UserError(f"{', '.join(differ)}; `make setup` installs what {lock.name} says")
    return f"as in {lock.name}"


def _template(config: Config) -> str:
    model = str(config.model)
    game = make_game(config.game)
    policy, states = policy_record(config, model, ""), training_states(game, config.seed)
    chat = check_context(game, config.engine, policy, model, states)
    check_arguments(policy, [chat])
    dated = f", the date is {policy.date} (generate.date)" if chat.is_dated else ""
    return f"a turn ends with {chat.tokenizer.convert_ids_to_tokens(chat.end_of_turn)} ({chat.end_of_turn}){dated}"


def _ports() -> str:
    with closing(socket.socket()) as probe:
        try:
            probe.bind((ADDRESS, 0))
        except OSError as error:
            raise UserError(f"none can be taken on {ADDRESS} ({error.strerror})") from None
    return f"free ones on {ADDRESS}"


def _folders(config: Config, output: Path) -> str:
    check_is_folder(output)
    nearest = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        raise UserError(f"{nearest} cannot be written; give another --output")
    model = Path(str(config.model))
    return f"{nearest} can be written" + (f", {model} is there" if model.is_dir() else "")
