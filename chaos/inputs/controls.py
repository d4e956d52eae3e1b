"""Good inputs, the originals of the bad ones: they must be accepted, because otherwise a refusal proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from chaos.inputs import chat, configuration, folders, games, models, options, parquet, prompts, slime, states
from chaos.inputs.base import Input, Prepare
from chaos.inputs.good import MODEL, Good, copy, copy_folder

KIND = "controls"


def inputs(rng: Random) -> Iterator[Input]:
    """Yields a good input for each command and each file that is damaged elsewhere."""

    def case(what: str, command: tuple[str, ...], prepare: Prepare = options.ready, *, begins: bool = False) -> Input:
        return Input(KIND, what, command, prepare=prepare, good=True, begins=begins)

    for name, command in options.COMMANDS.items():
        if name not in ("model tiny", "slime check"):
            yield case(name, command, begins=name in ("train", "train-online"))
    for name, command in games.READERS.items():
        yield case(f"{name} of games", command, lambda folder, good: copy(good.games, folder / games.FILE))
    for name, command in parquet.READERS.items():
        begins = name == "train"
        yield case(
            f"{name} of rows", command, lambda folder, good: copy(good.parquet, folder / parquet.FILE), begins=begins
        )
    for name, command in states.COMMANDS.items():
        yield case(f"{name} of states", command, lambda folder, good: copy(good.states, folder / states.FILE))
    for name, command in models.COMMANDS.items():
        yield case(f"{name} of a model", command, lambda folder, good: copy_folder(MODEL, folder / "bad_model"))
    yield case("configuration file", ("config", "--config", configuration.FILE), configuration.written("seed: 1\n"))

    def own_prompts(folder: Path, good: Good) -> None:
        copy_folder(prompts.SETS / "compact", folder / prompts.FOLDER)
        (folder / "own.yaml").write_text(f"game: {{prompts: {prompts.FOLDER}}}\n")

    yield case("prompts of one's own", prompts.GAME, own_prompts)
    yield case("chat partner", (*chat.COMMAND, "--dry-run"), chat.configured(base_url=chat.CLOSED))
    for name, command, make in folders.GOOD:
        yield case(name, command, make, begins=command[0].startswith("train"))

    def logged(folder: Path, good: Good) -> None:
        (folder / "log").mkdir()
        copy(good.asked, folder / "log")

    yield case("questions of logged episodes", slime.ANALYZE, logged)
