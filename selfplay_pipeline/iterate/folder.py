"""Record in a run folder: the settings of the run and its finished stages."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from selfplay_pipeline.config.identity import check_same, contents_of_game, deciding, flatten, portable
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.convert.reward import contents_of
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain, read_model, write_json, write_text
from selfplay_pipeline.core.folders import check_folder, own_folder
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.chat_player import partner_arguments
from selfplay_pipeline.generate.seats import is_checkpoint, weights_of
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.held_out import Evaluated
from selfplay_pipeline.iterate.partners import named_partners, other_players
from selfplay_pipeline.iterate.results import Trained

R = TypeVar("R", bound=BaseModel)
Stage = Literal["generate", "convert", "train", "evaluate"]


class Manifest(BaseModel):
    """Content of `manifest.json`: the settings and versions that reproduce the run."""

    created: datetime
    config: dict[str, Any]
    partner: dict[str, Any] = {}
    """Settings that decide the answers of a chat model as partner; empty for any other partner."""
    weights: dict[str, str] = {}
    """Content hashes at the start of the run: of the model, of partners and of the foreign player."""
    contents: dict[str, str] = {}
    """Content hashes of the user's files that decide the run, such as that of the reward."""
    packages: dict[str, str | None]
    python: str
    git_revision: str | None


RESULTS: dict[Stage, type[BaseModel]] = {
    "generate": Played,
    "convert": Converted,
    "train": Trained,
    "evaluate": Evaluated,
}


class StageRecord(BaseModel):
    """Record of a finished stage: wall-clock seconds of its last attempt, and its result as JSON values."""

    model_config = ConfigDict(extra="forbid")

    seconds: float
    figures: dict[str, Any]
    sizes: dict[str, int] = Field(default={}, exclude_if=lambda sizes: not sizes)
    """Bytes of each file of episodes, by its path in the run folder; a change is noticed without reading the file."""


class RunState(BaseModel):
    """Finished stages by iteration. Iteration 0 evaluates the initial checkpoint; training begins with iteration 1."""

    model_config = ConfigDict(extra="forbid")

    iterations: dict[Annotated[int, Field(ge=0)], dict[Stage, StageRecord]] = {}

    def get(self, iteration: int, stage: Stage) -> StageRecord | None:
        return self.iterations.get(iteration, {}).get(stage)

    def played(self, iteration: int) -> Played | None:
        """Returns the figures of an iteration's training episodes; None until they are played."""
        return self._result(iteration, "generate", Played)

    def converted(self, iteration: int) -> Converted | None:
        """Returns the counts of an iteration's conversion; None until it is done."""
        return self._result(iteration, "convert", Converted)

    def trained(self, iteration: int) -> Trained | None:
        """Returns the result of an iteration's training; None until the training is done."""
        return self._result(iteration, "train", Trained)

    def evaluated(self, iteration: int) -> Evaluated | None:
        """Returns the held-out figures of an iteration's checkpoint; None until it is evaluated."""
        return self._result(iteration, "evaluate", Evaluated)

    def _result(self, iteration: int, stage: Stage, kind: type[R]) -> R | None:
        record = self.get(iteration, stage)
        return None if record is None else kind.model_validate(record.figures)


class RunDirectory:
    """Run folder with manifest.json, state.json and iter_1, iter_2, …"""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = RunState()

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    def iteration(self, number: int) -> Path:
        return self.path / f"iter_{number}"

    def numbers(self) -> list[int]:
        """Returns the numbers of the iterations that have a folder, sorted."""
        found = [re.fullmatch(r"iter_(\d+)", folder.name) for folder in self.path.iterdir() if folder.is_dir()]
        return sorted(int(match.group(1)) for match in found if match)

    def games(self, number: int) -> Path:
        return self.iteration(number) / "selfplay_games.jsonl"

    def rows(self, number: int) -> Path:
        return self.iteration(number) / "train.parquet"

    def checkpoint(self, number: int) -> str:
        """Returns the current path of the checkpoint that a trained iteration made or carried forward.

        Raises:
            ValueError: The iteration is not trained.
        """
        trained = self.state.trained(number)
        if trained is None:
            raise ValueError(f"iteration {number} is not trained")
        for made in range(number, 0, -1):
            earlier = self.state.trained(made)
            if earlier is not None and not earlier.carried:
                return str((self.iteration(made) / "checkpoint").resolve())
        inside = self.path / trained.checkpoint  # the initial model may be inside the run folder
        return str(inside.resolve()) if inside.is_dir() else shipped(trained.checkpoint)

    def open(self, config: Config) -> None:
        """Write the manifest of a new run, or check an existing run's configuration, and load its finished stages.

        Raises:
            UserError: The run was made with another configuration.
        """
        self.check(config)
        own_folder(self.path, "iterate")
        if not self.manifest.exists():
            files = contents_of(config.reward) | contents_of_game(config.game)
            begun = {"partner": _partner(config), "weights": _weights(config), "contents": files}
            write_json(self.manifest, describe(config.model_dump(mode="json")) | begun)

    def check(self, config: Config) -> None:
        """Checks that the run of this configuration may begin or continue in the folder, and loads its finished stages.

        Writes nothing.

        Raises:
            UserError: The folder or the folder of an iteration belongs to another command, or the run was made with
                another configuration.
        """
        check_folder(self.path, "iterate")
        if not self.manifest.exists() and (self.path / "state.json").exists():
            raise UserError(
                f"{self.manifest}: is missing, though it says with which settings the run was begun; put it back, or "
                "give another --output"
            )
        if self.manifest.exists():
            recorded = read_model(self.manifest, Manifest, "selfplay iterate")
            then = flatten({**recorded.config, "weights": recorded.weights}) | recorded.partner | recorded.contents
            now = deciding(config, "iterate") | flatten({"weights": _weights(config)})
            check_same(self.path, then, now | _partner(config) | contents_of(config.reward))
        self.load()
        self._check_episodes()
        for number in range(1, config.iterate.num_iterations + 1):
            if self.state.trained(number) is None:
                check_folder(self.iteration(number), "train")

    def _check_episodes(self) -> None:
        """Raises UserError if a file of episodes changed after its stage; a file that was removed is not needed."""
        for stages in self.state.iterations.values():
            for name, then in (item for record in stages.values() for item in record.sizes.items()):
                file = self.path / name
                if file.exists() and (now := file.stat().st_size) != then:
                    raise UserError(
                        f"{file}: holds other episodes than when they were played ({now:,} bytes in place of "
                        f"{then:,}); restore the file, or begin a new run with --output"
                    )

    def load(self) -> RunState:
        """Returns the finished stages, read from state.json.

        Raises:
            UserError: The file state.json was not written by this program, or is damaged.
        """
        path = self.path / "state.json"
        if path.exists():
            self.state = read_model(path, RunState, "selfplay iterate")
            if "iterations" not in self.state.model_fields_set:
                raise UserError(f"{path}: field 'iterations' is missing; `selfplay iterate` writes this file")
        for number, stages in self.state.iterations.items():
            for stage, record in stages.items():
                try:
                    RESULTS[stage].model_validate(record.figures)
                except ValidationError as error:
                    then = f"remove this entry, and the same command repeats {stage}"
                    if stage == "train":  # the trainer state that it began with is gone
                        then = "restore it, or begin a new run with --output"
                    raise UserError(
                        f"{path}: iteration {number}, {stage}: {explain(error)}; `selfplay iterate` wrote this file; "
                        f"{then}"
                    ) from None
        return self.state

    def finish(self, iteration: int, stage: Stage, record: StageRecord) -> None:
        """Record a finished stage in state.json, with the sizes of its files of episodes."""
        record.figures = portable(record.figures, self.path)
        folder = self.iteration(iteration)
        files = {"generate": [self.games(iteration)], "evaluate": folder.glob("*/*.jsonl")}.get(stage, ())
        record.sizes = {str(file.relative_to(self.path)): file.stat().st_size for file in files if file.exists()}
        self.state.iterations.setdefault(iteration, {})[stage] = record
        write_text(self.path / "state.json", self.state.model_dump_json(indent=2) + "\n")


def newest_checkpoint(path: Path) -> str:
    """Returns the newest checkpoint of a run.

    Raises:
        UserError: The run has trained nothing yet, or its record is damaged.
    """
    run = RunDirectory(path)
    trained = [number for number, stages in run.load().iterations.items() if "train" in stages]
    if not trained:
        raise UserError(f"{path}: this run has not trained an iteration yet; name a checkpoint")
    return run.checkpoint(max(trained))


def member_checkpoint(path: Path, number: int) -> str:
    """Returns the checkpoint that a member of a population made in an iteration.

    Raises:
        UserError: The member has not trained the iteration, or the checkpoint has changed since.
    """
    run = RunDirectory(path)
    trained = run.load().trained(number)
    if trained is None:
        raise UserError(
            f"{path}: iteration {number} is not trained; `selfplay iterate --members` trains all members in turn"
        )
    found = run.checkpoint(number)
    check_unchanged(found, trained)
    return found


def check_unchanged(checkpoint: str, made: Trained) -> None:
    """Raises UserError if a checkpoint of an iteration is missing, or holds other files than those that it made."""
    if made.weights and not made.carried and not Path(checkpoint).is_dir():
        raise UserError(
            f"{checkpoint}: was removed after the iteration had made it; put it back, or begin a new run with --output"
        )
    if made.weights and content_hash(checkpoint) != made.weights:
        raise UserError(
            f"{checkpoint}: holds other files than when the iteration had made it (content hash {made.weights}); "
            "restore them, or begin a new run with --output"
        )


def trained_with(path: Path) -> tuple[str, int] | None:
    """Returns the content hash of the checkpoint that was a run's partner, and the seat of its policy.

    None unless its only partner was a checkpoint.

    Raises:
        UserError: The manifest is damaged.
    """
    manifest = read_model(path / "manifest.json", Manifest, "selfplay iterate")
    partner = manifest.weights.get("partner")
    return (partner, int(manifest.config["iterate"].get("seat", 0))) if partner else None


def rules_of(checkpoint: Path) -> dict[str, Any]:
    """Returns the keys of the game that the run of a checkpoint plays; empty if it is in no run folder."""
    places = (checkpoint, *checkpoint.absolute().parents[:2]) if checkpoint.is_dir() else ()
    for manifest in (place / "manifest.json" for place in places):
        if manifest.exists():
            with suppress(UserError):  # a file of something else
                return flatten({"game": read_model(manifest, Manifest, "selfplay iterate").config.get("game", {})})
    return {}


def describe(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings, package versions and git revision that reproduce a run."""
    packages = ("selfplay-pipeline", "sglang", "verl", "torch", "transformers", "TransferQueue", "ray", "numpy")
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": settings,
        "packages": {name: _version(name) for name in packages},
        "python": platform.python_version(),
        "git_revision": _git_revision(),
    }


def short(path: str) -> str:
    """Returns a path relative to the working directory if it is inside, else the path itself."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _partner(config: Config) -> dict[str, Any]:
    """Returns the settings that decide the answers of a chat model as partner."""
    return partner_arguments(config.partner, make_game(config.game), other_players(config))


def _weights(config: Config) -> dict[str, str]:
    """Returns the content hashes of the initial model, and of partners and a foreign player that are checkpoints."""
    key = "partners.{}" if config.iterate.partners else "partner"
    players = {"model": str(config.model)}
    players |= {key.format(number): name for number, name in enumerate(named_partners(config))}
    players |= {"foreign": config.iterate.foreign} if config.iterate.foreign else {}
    game = make_game(config.game)
    return {key: weights_of(config.engine, name) for key, name in players.items() if is_checkpoint(game, name)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    folder = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
