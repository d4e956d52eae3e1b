"""Bad output folders: each small file of them damaged, and folders of other commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from chaos.inputs.base import Input, Prepare
from chaos.inputs.damage import JSON_FILES, Damage, as_text, changed, edited_json, without, wrong_type
from chaos.inputs.good import Good, copy, copy_folder

KIND = "run folders"
ITERATE = ("iterate", "--dry-run", "--config", "tiny", "--output", "run")
GENERATE = (
    "generate",
    "--player",
    "random",
    "--player",
    "random",
    "--num-episodes",
    "16",
    "--output",
    "run/games.jsonl",
)
EVALUATE = ("evaluate", "own-view", "--num-states", "4", "--output", "run")
COMPARE = ("evaluate", "own-view", "--num-states", "4", "--compare", "run", "--output", "out")
CROSSPLAY = ("crossplay", "random", "quiet", "--num-states", "4", "--output", "run")
TRAIN = ("train", "train.parquet", "--output", "run")
ONLINE = ("train-online", "games", "--output", "run")
REPORT = ("report", "run", "--output", "out.html")


def _iterations(folder: Path, good: Good) -> None:
    copy_folder(good.iterations, folder / "run")


def _scripted(folder: Path, good: Good) -> None:
    copy_folder(good.scripted.parent, folder / "run")


def _evaluation(folder: Path, good: Good) -> None:
    copy_folder(good.evaluation, folder / "run")


def _crossplay(folder: Path, good: Good) -> None:
    copy_folder(good.crossplay, folder / "run")


def _training(folder: Path, good: Good) -> None:
    """Copy a training whose data keep their place, and update its recorded paths."""
    copy(good.parquet, folder / "train.parquet")
    copy_folder(good.training, folder / "run")
    _noted(folder / "run", folder / "train.parquet", folder)


def _online(folder: Path, good: Good) -> None:
    copy_folder(good.online_games, folder / "games")
    copy_folder(good.online_training, folder / "run")
    _noted(folder / "run", None, folder)


def _noted(run: Path, data: Path | None, folder: Path) -> None:
    path = run / "trainer_state" / "training.json"
    noted = json.loads(path.read_text())
    path.write_text(json.dumps(noted | ({"data": str(data.resolve())} if data else {}), indent=2))


GOOD: tuple[tuple[str, tuple[str, ...], Prepare], ...] = (
    ("iterate again", ITERATE, _iterations), ("report of a run", REPORT, _iterations),
    ("questions of a run", ("questions", "run", "--output", "out"), _iterations),
    ("generate again", GENERATE, _scripted), ("evaluate again", EVALUATE, _evaluation),
    ("report of an evaluation", REPORT, _evaluation), ("compare", COMPARE, _evaluation),
    ("crossplay again", CROSSPLAY, _crossplay), ("train again", TRAIN, _training),
    ("train-online again", ONLINE, _online),
)  # fmt: skip
"""Cases of reading each folder, by the command that wrote it and by others."""


def damaged(make: Prepare, name: str, damage: Damage) -> Prepare:
    """Returns a function that prepares the folder with one of its files damaged."""

    def prepare(folder: Path, good: Good) -> None:
        make(folder, good)
        damage(folder / "run" / name)

    return prepare


def instead(data: Any, record: Any) -> Any:
    """Returns the given record in place of the file's."""
    return record


def inputs(rng: Random) -> Iterator[Input]:
    """Yields each file of each folder with several kinds of JSON damage; then by field; then by command."""
    files: tuple[tuple[str, tuple[str, ...], Prepare], ...] = (
        ("manifest.json", ITERATE, _iterations), ("state.json", ITERATE, _iterations),
        ("manifest.json", REPORT, _iterations), ("state.json", REPORT, _iterations),
        ("games.args.json", GENERATE, _scripted), ("scripted.args.json", EVALUATE, _evaluation),
        ("evaluation.json", REPORT, _evaluation), ("scripted.args.json", COMPARE, _evaluation),
        ("0-1.args.json", CROSSPLAY, _crossplay),
        ("trainer_state/training.json", TRAIN, _training), ("trainer_state/training.json", ONLINE, _online),
    )  # fmt: skip
    for file, command, make in files:
        for name in rng.sample(sorted(JSON_FILES), 6 if command in (ITERATE, TRAIN) else 3):
            says = Path(file).name.replace(".", r"\.")
            what = f"{command[0]}, {Path(file).name} is {name}" + (" compared" if command is COMPARE else "")
            yield Input(KIND, what, command, says, damaged(make, file, JSON_FILES[name]))
    yield from _manifests(rng)
    yield from _metrics()
    yield from rng.sample(list(_of_others()), 20)


def _manifests(rng: Random) -> Iterator[Input]:
    def case(
        what: str, change: Callable[[Any], Any], file: str = "manifest.json", command: tuple[str, ...] = ITERATE
    ) -> Input:
        says = file.replace(".", r"\.") + "|was begun with"
        make = {"manifest.json": _iterations, "state.json": _iterations}.get(
            file, _training if "train" in file else _scripted
        )
        place = f"trainer_state/{file}" if file == "training.json" else file
        return Input(KIND, f"{command[0]}, {file} {what}", command, says, damaged(make, place, edited_json(change)))

    for path in (("config",), ("config", "game"), ("config", "game", "size"), ("partner",)):
        wrong = wrong_type(1, rng)
        yield case(f"{'.'.join(path)} of another type", partial(changed, path=path, value=wrong))
    for path in (("config",), ("packages",)):
        command = REPORT if path == ("packages",) else ITERATE
        yield case(f"{path[0]} missing", partial(without, path=path), command=command)
    nan = float("nan")
    records: dict[str, Any] = {
        "an iteration of text": {"iterations": {"one": {}}},
        "a negative iteration": {"iterations": {"-1": {}}},
        "an unknown stage": {"iterations": {"1": {"sing": {"seconds": 1, "figures": {}}}}},
        "a stage without figures": {"iterations": {"1": {"train": {"seconds": 1}}}},
        "a training without a checkpoint": {"iterations": {"1": {"train": {"seconds": 1, "figures": {}}}}},
        "a checkpoint that is a list": {"iterations": {"1": {"train": {"seconds": 1, "figures": {"checkpoint": [1]}}}}},
        "seconds not a number": {"iterations": {"1": {"generate": {"seconds": nan, "figures": {}}}}},
        "an unknown key": {"iterations": {}, "colour": "red"},
        "an unknown key with an escape": {"iterations": {}, "\x1b[31m": "red"},
    }
    for name, record in records.items():
        yield case(f"has {name}", partial(instead, record=record), "state.json")
    for field in ("seed", "num_groups", "policy.temperature", "game.size"):
        yield case(f"{field} is another", partial(changed, path=(field,), value=77), "games.args.json", GENERATE)
    yield case("has an escape", lambda data: {**data, "\x1b[31mred": 1}, "games.args.json", GENERATE)
    for field in ("rows", "seed", "model"):
        yield case(f"{field} is another", partial(changed, path=(field,), value=77), "training.json", TRAIN)


def _metrics() -> Iterator[Input]:
    lines = {
        "no JSON": "{step: 1}\n", "a list": "[1]\n", "a number": "7\n", "a step of text": '{"step": "one"}\n',
        "no step": '{"loss": 1}\n', "binary": "\x00\x01\x02\n", "deep": "[" * 50_000 + "]" * 50_000 + "\n",
        "torn in the middle": '{"step": 1, "lo\n{"step": 2}\n',
    }  # fmt: skip
    for number, (name, text) in enumerate(lines.items()):
        yield Input(
            KIND, f"report, metrics.jsonl is {name}", REPORT, r"metrics\.jsonl",
            damaged(_iterations, "iter_1/metrics.jsonl", as_text(text)),
        )  # fmt: skip
        command, make = ((TRAIN, _training), (ONLINE, _online))[number % 2]
        yield Input(
            KIND, f"{command[0]}, metrics.jsonl is {name}", command, r"metrics\.jsonl",
            damaged(make, "metrics.jsonl", as_text(text)),
        )  # fmt: skip
    for name in ("folder", "pipe", "device"):

        def damage(path: Path, name: str = name) -> None:
            path.write_text("")
            JSON_FILES[name](path)

        yield Input(
            KIND,
            f"train, metrics.jsonl is {name}",
            TRAIN,
            r"metrics\.jsonl",
            damaged(_training, "metrics.jsonl", damage),
        )


def _of_others() -> Iterator[Input]:
    """Yields commands that are pointed at another command's output."""
    makers: dict[str, Prepare] = {
        "iterate": _iterations, "evaluate": _evaluation, "crossplay": _crossplay, "train": _training,
        "train-online": _online, "generate": _scripted,
    }  # fmt: skip
    commands = {
        "iterate": ITERATE, "evaluate": EVALUATE, "crossplay": CROSSPLAY, "train": TRAIN, "train-online": ONLINE,
        "generate": (*GENERATE[:-1], "run/games.jsonl"),
        "games": ("games", "--num-train", "4", "--num-test", "2", "--output", "run"),
        "convert": ("convert", "games.jsonl", "--output", "run"),
    }  # fmt: skip
    stages = {"generate", "convert", "train"}

    def with_inputs(make: Prepare) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            make(folder, good)
            copy(good.games, folder / "games.jsonl")
            copy(good.parquet, folder / "train.parquet")
            copy_folder(good.online_games, folder / "games")

        return prepare

    for maker, make in makers.items():
        for name, command in commands.items():
            if name != maker and not {name, maker} <= stages:
                yield Input(KIND, f"{name} into the folder of {maker}", command, r"run holds|run: ", with_inputs(make))
