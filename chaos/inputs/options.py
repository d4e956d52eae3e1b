"""Bad values for every option of every command, as the command line itself declares them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import typer
import typer.main

from chaos.inputs.base import Input, Prepare
from chaos.inputs.good import MODEL, Good, copy, copy_folder
from selfplay_pipeline.config.fields import keys
from selfplay_pipeline.config.schema import Config

KIND = "options"
LONG = "x" * 300
ESCAPE = "\x1b[31mred"

COMMANDS: dict[str, tuple[str, ...]] = {
    "generate": ("generate", "--dry-run"),
    "humans": ("humans", "--output", "out.jsonl"),
    "convert": ("convert", "games.jsonl", "--output", "out"),
    "train": ("train", "train.parquet", "--output", "out"),
    "imitate": ("imitate", "games.jsonl", "--config", "tiny", "--output", "out"),
    "games": ("games", "--num-train", "4", "--num-test", "2", "--output", "out"),
    "train-online": ("train-online", "states", "--output", "out"),
    "iterate": ("iterate", "--dry-run", "--output", "out"),
    "evaluate": ("evaluate", "random", "--num-states", "4", "--output", "out"),
    "crossplay": ("crossplay", "random", "quiet", "--num-states", "4", "--output", "out"),
    "listen": ("listen", "random", "--num-states", "4", "--output", "out"),
    "silence": ("silence", "--states", "2", "--output", "out.json"),
    "report": ("report", "games.jsonl", "--output", "out.html"),
    "show": ("show", "games.jsonl"),
    "questions": ("questions", "log", "--output", "out"),
    "config": ("config",),
    "doctor": ("doctor",),
    "model tiny": ("model", "tiny", "--output", "out"),
    "slime data": ("slime", "data", "--config", "tiny", "--num-states", "4", "--output", "out.jsonl"),
    "slime check": ("slime", "check"),
}
"""A valid call of each command; one of its options is then replaced or added."""
REALLY = {
    "generate": ("generate", "--player", "random", "--player", "random", "--num-episodes", "8"),
    "iterate": ("iterate",),
}  # fmt: skip
"""Calls for commands whose dry run does not check the place of the output."""
OUTPUT_FILES = {"generate", "humans", "report", "silence", "slime data"}
"""Commands whose output is a file; other commands write a folder."""
NAMES = {
    "engine": "warp", "device": "abacus", "logger": "stone", "partner": "nobody", "lesson": "none", "form": "gif",
    "player": "nobody", "checkpoint": "nobody", "episode": "none",
    "server_url": "nowhere", "config": "none.yaml", "model": "./nowhere", 
    "ray_address": "nowhere", "seat": "left", "method": "magic", "schedule": "none", "credit": "none",
}  # fmt: skip
"""An unknown word for each option that takes words."""
NUMBERS = {key.option: key for key in keys(Config) if key.kind in (int, float)}
"""Numbers of the configuration, by their options."""
FREE = {("slime check", "slime"), ("slime check", "data"), ("slime check", "custom_config")} | {
    ("config", "model"), ("convert", "model"),
}  # fmt: skip
"""Options without a wrong value: reported in a table, which `slime.py` tests, or only echoed."""


def ready(folder: Path, good: Good) -> None:
    """Write good files for all commands."""
    copy(good.games, folder / "games.jsonl")
    copy(good.parquet, folder)
    copy_folder(good.online_games, folder / "states")
    (folder / "log").mkdir()
    copy(good.asked, folder / "log")
    (folder / "file").write_text("a file\n")
    (folder / "folder").mkdir()
    (folder / "folder" / "note.txt").write_text("a file\n")
    os.mkfifo(folder / "pipe")


def commands() -> Iterator[tuple[str, list[Any]]]:
    """Yields all commands by name, including those in groups, with their options as typer declares them."""
    import selfplay_pipeline.cli

    root: Any = typer.main.get_command(selfplay_pipeline.cli.app)
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        for found, path in [(command, name)] if inner is None else [(inner[key], f"{name} {key}") for key in inner]:
            declared = found.get_params(typer.Context(found))
            if not found.hidden:
                yield path, [option for option in declared if option.opts[0].startswith("--") and option.name != "help"]


def inputs(rng: Random) -> Iterator[Input]:
    """Yields an impossible value for each option, two for a path; then contradictions between options."""
    for name, declared in commands():
        if name not in COMMANDS:
            continue
        for option in declared:
            if option.name != "dry_run" and (name, option.name) not in FREE:
                yield from _of_option(name, option, rng)
        yield _input(name, "unknown option", ("--colour", "red"), "--colour")
        yield _input(name, "surplus argument", ("one", "two", "three"), "one|two|three|nowhere")
    yield from _contradictions()


def _of_option(name: str, option: Any, rng: Random) -> Iterator[Input]:
    flag, kind, low, high = option.opts[0], option.type_descriptor.annotation, option.min, option.max
    if kind is str and flag in NUMBERS:  # the command line accepts any text, and the configuration checks it
        kind, low, high = NUMBERS[flag].kind, NUMBERS[flag].bound("ge"), NUMBERS[flag].bound("le")
    key = option.name.replace("_", ".")
    if option.is_flag:
        values = {"with a value": "7"}
    elif kind in (int, float):
        values = {"of text": "many", "empty": "", "with an escape": ESCAPE}
        values |= {"too low": f"{low - 1:g}"} if low is not None else {}
        values |= {"too high": f"{high + 1:g}"} if high is not None else {}
        values |= {"not a number": "nan", "infinite": "inf"} if kind is float else {"with a fraction": "1.5"}
    elif "Path" in str(kind):
        yield from _of_path(name, flag, option.name, rng)
        return
    elif option.name in NAMES:
        values = {"unknown": NAMES[option.name], "empty": "", "with an escape": ESCAPE}
    else:
        raise NotImplementedError(f"{name} {flag}: say in options.py what it cannot be")
    what = rng.choice(sorted(values))
    says = rf"{flag}|{option.name}|{key}|{NAMES.get(option.name, flag)}|red"
    yield _input(name, f"{flag} {what}", (f"{flag}={values[what]}",), says)


def _of_path(name: str, flag: str, option: str, rng: Random) -> Iterator[Input]:
    """Yields paths that cannot be read, or not be written to."""
    if option == "output":
        places = {"below a file": "file/below/it", "below a pipe": "pipe/out", "below a device": "/dev/null/out"}
        places |= {"too long": f"{LONG}/out"}
        places |= {"a folder": "folder"} if name in OUTPUT_FILES else {"a file": "file", "a pipe": "pipe"}
        chosen = rng.sample(sorted(places), 2)
    else:
        places = {"missing": "none", "too long": LONG, "with an escape": ESCAPE, "a pipe": "pipe"}
        places |= {"a folder": "folder", "a device": "/dev/zero"}
        chosen = rng.sample(sorted(places), 2)
    for place in chosen:
        value = places[place]
        says = rf"{flag}|red|xxx|/dev/|{place.split()[-1]}|{'file' if option == 'output' else 'none'}"
        yield _input(name, f"{flag} {place}", (f"{flag}={value}",), says)


def _input(name: str, what: str, further: tuple[str, ...], says: str) -> Input:
    arguments = COMMANDS[name]
    option = further[0].split("=")[0]
    if option == "--output":
        at = arguments.index("--output") if "--output" in arguments else len(arguments)
        arguments = arguments[:at] + arguments[at + 2 :]
        arguments = REALLY.get(name, arguments)
    if option in ("--log-dir", "--num-states") and option in arguments:
        at = arguments.index(option)
        arguments = arguments[:at] + arguments[at + 2 :]
    if (name, option) in (("train", "--data"), ("train-online", "--games")):
        arguments = (arguments[0], *arguments[2:])
    if option == "--check":
        arguments = ("convert",)
    return Input(KIND, f"{name} {what}", (*arguments, *further), says, ready)


def _contradictions() -> Iterator[Input]:
    def case(what: str, arguments: tuple[str, ...], says: str, prepare: Prepare = ready) -> Input:
        return Input(KIND, what, arguments, says, prepare)

    out = ("--output", "out")
    few = ("--num-states", "4", *out)
    yield case("no such command", ("genrate",), "genrate")
    yield case("no such model command", ("model", "huge"), "huge")
    yield case("evaluate without a player", ("evaluate",), "(?i)checkpoint")
    yield case("evaluate the policy", ("evaluate", "policy", *few), "policy")
    yield case("evaluate nobody", ("evaluate", "nobody", *few), "nobody")
    yield case("evaluate an escape", ("evaluate", ESCAPE, *few), "red")
    yield case("evaluate an empty name", ("evaluate", "", *few), "(?i)checkpoint|player|partner")
    yield case("evaluate a file", ("evaluate", "./file", *few), "file")
    yield case("evaluate a hub name that is none", ("evaluate", "no one/no model", *few), "no one/no model")
    yield case("first only with oneself", ("evaluate", "random", "--first-only", *few), "--first-only")
    yield case("compare with nothing", ("evaluate", "random", "--compare", "folder", *few), "folder")
    yield case("crossplay of one", ("crossplay", "random", *few), "crossplay")
    yield case("crossplay of one twice", ("crossplay", "random", "random", *few), "crossplay")
    yield case("crossplay of nobody", ("crossplay",), "(?i)players")
    yield case("convert a folder", ("convert", "folder", *out), "folder")
    yield case("convert a pipe", ("convert", "pipe", *out), "pipe")
    yield case("convert a device", ("convert", "/dev/zero", *out), "/dev/zero")
    yield case("convert parquet", ("convert", "train.parquet", *out), "train.parquet")
    yield case("convert nothing", ("convert", "none.jsonl", *out), "none.jsonl")
    yield case("check games", ("convert", "--check", "games.jsonl"), "games.jsonl")
    yield case("train on games", ("train", "games.jsonl", *out), "games.jsonl")
    yield case("train twice", ("train", "train.parquet", "--data", "train.parquet", *out), "not both")
    yield case("train on two files", ("train", "train.parquet", "file", *out), "one path")
    yield case("train with a key alone", ("train", "train.parquet", *out, "--", "=3"), "=3")
    yield case(
        "train with broken Hydra", ("train", "train.parquet", *out, "--", "trainer.total_epochs=[1"), "total_epochs"
    )
    yield case("train into another's folder", ("train", "train.parquet", "--output", "states"), "states")
    yield case("imitate nothing", ("imitate", "none.jsonl", *out), "none.jsonl")
    yield case("imitate a folder", ("imitate", "folder", *out), "folder")
    yield case("imitate parquet", ("imitate", "train.parquet", *out), "train.parquet")
    yield case("imitate with no weight", ("imitate", "games.jsonl=0", *out), "games.jsonl=0")
    yield case("imitate a seat that is not there", ("imitate", "games.jsonl", "--seat", "7", *out), "seats: 7")
    yield case("imitate another game", ("imitate", "games.jsonl", "--config", "tiny_bargaining", *out), "game")
    yield case(
        "imitate another board",
        ("imitate", "games.jsonl", "--config", "tiny4x4", "--model", str(MODEL), *out),
        "jsonl:1",
    )
    yield case("imitate into another's folder", ("imitate", "games.jsonl", "--output", "states"), "states")
    yield case("train online on a file", ("train-online", "file", *out), "file")
    yield case("train online on another folder", ("train-online", "folder", *out), "folder")
    yield case("train online greedily", ("train-online", "states", "--temperature", "0", *out), "temperature")
    yield case(
        "train online one episode", ("train-online", "states", "--episodes-per-state", "1", *out), "episodes_per_state"
    )
    yield case("iterate greedily", ("iterate", "--dry-run", "--temperature", "0", *out), "temperature")
    yield case("iterate one episode", ("iterate", "--dry-run", "--episodes-per-state", "1", *out), "episodes_per_state")
    yield case("iterate with an argument", ("iterate", "--dry-run", "folder"), "folder")
    yield case("turns beyond the context", ("generate", "--dry-run", "--max-new-tokens", "100000"), "max_new_tokens")
    yield case("more GPUs than there are", ("generate", "--dry-run", "--device", "cuda"), "GPU")
    yield case("more games than fit", ("games", "--num-train", "9" * 400, *out), "--num-train|999")
    yield case("a seed beyond all", ("games", "--num-train", "4", "--seed", "9" * 5000, *out), "--seed|seed")
    yield case("report of nothing", ("report", "folder"), "folder")
    yield case("report of text", ("report", "file", "--output", "out.html"), "file")
    yield case("report of a pipe", ("report", "pipe"), "pipe")
    yield case("report in a picture unknown", ("report", "games.jsonl", "--format", "html,gif"), "gif|--format")
    yield case("report into its games", ("report", "games.jsonl", "--output", "games.jsonl"), "games.jsonl")
    yield case("show a folder", ("show", "folder"), "folder")
    yield case("show a pipe", ("show", "pipe"), "pipe")
    yield case("show no game", ("show", "games.jsonl", "--episode", "none"), "none")
    yield case("show best and worst", ("show", "games.jsonl", "--best", "--worst"), "--best|--worst")
    yield case("questions of nothing", ("questions", "folder", *out), "folder")
    yield case(
        "slime data into games", ("slime", "data", "--output", "games.jsonl", "--num-states", "2"), "games.jsonl"
    )
    yield case("attach to what is no server", ("generate", "--server-url", "http://127.0.0.1:9", *out), "127.0.0.1:9")
    yield case("attach to no address", ("generate", "--server-url", "nowhere", *out), r"nowhere|server.url")
