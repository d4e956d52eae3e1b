"""`selfplay train-online`: checks the states, runs verl as a child process, monitors it and checks its result."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq

from selfplay_pipeline.config.identity import deciding, differences, flatten, in_words
from selfplay_pipeline.config.online import OnlineConfig
from selfplay_pipeline.convert.parquet import batches, readable
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, locked, write_json, write_lines
from selfplay_pipeline.core.gpus import resolve_device
from selfplay_pipeline.core.reporting import Update, progress
from selfplay_pipeline.core.small_files import check_is_no_pattern, check_regular, parse_json, read_object
from selfplay_pipeline.core.stopping import computing
from selfplay_pipeline.games.base import Game, GameSettings, read_state
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.train.cluster import check_cluster
from selfplay_pipeline.train.loggers import keep_artifacts
from selfplay_pipeline.train.offline import (
    check_checkpoint_remains,
    check_claim,
    check_options,
    claim,
    export_of,
    exported,
    follower,
    hashes_of,
    log_path,
)
from selfplay_pipeline.train.online_figures import to_line
from selfplay_pipeline.train.online_overrides import (
    CONFIG_NAME,
    EXTENSION,
    StatesFile,
    config_folder,
    file_environment,
    held_out_path,
    online_overrides,
    verl_log,
    versions_path,
)
from selfplay_pipeline.train.online_states import MONITOR_SPLIT, SCHEMA, Perspectives
from selfplay_pipeline.train.process import StartSettings, Trainer, TrainError
from selfplay_pipeline.train.saves import (
    METRICS,
    WHOLE,
    NewLines,
    go_back_to_last_logged_save,
    is_whole,
    keep_lines,
    prune,
    read_lines,
    saves,
    seconds_of,
)
from selfplay_pipeline.train.task import Task
from selfplay_pipeline.train.verl_overrides import (
    SET_BY_TRAINERS,
    check_not_set_by,
    check_overrides,
    environment,
    metrics_path,
    state_dir,
)

WRITER = "`selfplay game states` writes it"
"""Advice in messages about files of states that cannot be read."""


@dataclass(frozen=True)
class OnlineResult:
    """Result of an online training; all figures except seconds include the steps of earlier processes."""

    steps: int
    episodes: int
    """Number of episodes of all training steps, groups without training included."""
    before: dict[str, float]
    """Held-out figures before the first step."""
    after: dict[str, float]
    """Held-out figures after the last step."""
    checkpoint: Path
    metrics_path: Path
    seconds_total: float
    seconds_to_first_step: float | None
    """Seconds until the first step began, including the first validation; None if no step was left to do."""
    seconds_per_step: float | None
    """Mean seconds per step of this process, without saving."""


async def run_online(config: OnlineConfig) -> OnlineResult:
    """Train a policy on episodes that it plays during training; an interrupted training continues at its last save.

    Raises:
        UserError: States or options are unusable.
        TrainError: verl failed.
    """
    with progress("training online", "waiting for step 1") as report:
        return await _trained(config, report)


async def _trained(config: OnlineConfig, report: Update) -> OnlineResult:
    began = time.time()
    planned, state, device = config.online.steps, state_dir(config), resolve_device(config.device)
    checkpoint = config.output.resolve() / "checkpoint"
    with computing():
        check_options(config)
        games = _look_at(config)
        if not exported(state, checkpoint):
            check_cluster(
                config, [config.model, config.games / "train.parquet", config.games / "test.parquet"], config.output
            )
    times: list[tuple[float, dict[str, Any]]] = []

    def watch(step: int, line: dict[str, Any]) -> None:
        times.append((time.time(), line))
        played, held_out = (line.get(f"{place}/reward") for place in ("selfplay", "held_out"))
        figures = [f"reward {played:.3f}"] if played is not None else []
        figures += [f"held out {held_out:.3f}"] if held_out is not None else []
        report(step, planned, lambda: "steps, " + ", ".join(figures))

    with locked(config.output / ".train.lock", f"training folder {config.output}"):
        with computing():
            claim(config, _identity(config), "train-online")
            check_checkpoint_remains(config)
        keep_lines(metrics_path(config), planned)  # removes an incomplete last line, left by a killed process
        _absorb(config, read_lines(verl_log(config)))
        _absorb_save(config)
        done = go_back_to_last_logged_save(state, metrics_path(config))
        weights = config.output.glob("server_*_weights.jsonl")
        for path in (metrics_path(config), held_out_path(config), versions_path(config), *weights):
            keep_lines(path, done)
        overrides = online_overrides(config, games, device) if done < planned else []
        if done == planned and _lacks_validation(config, read_lines(metrics_path(config))[-1]):
            overrides = [*online_overrides(config, games, device), "trainer.val_only=true"]
        if overrides or not exported(state, checkpoint):
            task = Task(
                log=log_path(config),
                config=config_folder() / f"{CONFIG_NAME}.yaml",
                overrides=overrides,
                export=export_of(config, device, planned),
                joins_cluster=config.joins_cluster,
            )
            env = environment(config, device, extension=EXTENSION) | file_environment(config)
            keep_artifacts(config.loggers, env)
            verl_log(config).unlink(missing_ok=True)  # already added to metrics.jsonl
            logged = NewLines(verl_log(config))
            with Trainer() as trainer:
                follow = follower(lambda: _absorb(config, logged.read()), done or -1, watch)
                await trainer.run(StartSettings((), env), task, follow)
            write_json(state / "exported.json", {"step": planned})
        lines = read_lines(metrics_path(config))
        if [line["step"] for line in lines] != list(range(planned + 1)):
            raise TrainError(f"verl logged steps {[line['step'] for line in lines]}; see {log_path(config)}")
        prune(state, planned)
    return _result(config, lines, times, began, checkpoint)


def _result(
    config: OnlineConfig,
    lines: list[dict[str, Any]],
    times: list[tuple[float, dict[str, Any]]],
    began: float,
    checkpoint: Path,
) -> OnlineResult:
    steps = [(at, line) for at, line in times if "timing_s/step" in line]
    first = steps[0] if steps else None
    seconds = [seconds_of(line) for _, line in steps]
    return OnlineResult(
        steps=len(lines) - 1,
        episodes=int(sum(line.get("selfplay/episodes", 0) for line in lines)),
        before=_held_out(lines[0]),
        after=_held_out(lines[-1]),
        checkpoint=checkpoint,
        metrics_path=metrics_path(config),
        seconds_total=time.time() - began,
        seconds_to_first_step=first[0] - began - first[1]["timing_s/step"] if first else None,
        seconds_per_step=sum(seconds) / len(seconds) if seconds else None,
    )


def _held_out(line: dict[str, Any]) -> dict[str, float]:
    return {name.removeprefix("held_out/"): value for name, value in line.items() if name.startswith("held_out/")}


SET_BY_TRAINER = {
    "actor_rollout_ref.rollout.n": "generate.episodes_per_state",
    "data.train_batch_size": "online.states_per_step",
    "data.train_files": "`selfplay game states`",
    "data.val_batch_size": "evaluate.monitor_states",
    "data.val_files": "`selfplay game states`",
    "trainer.total_epochs": "online.steps",
    "trainer.total_training_steps": "online.steps",
    "trainer.val_before_train": "online.validate_every",
    "trainer.val_only": "online.validate_every",
    **SET_BY_TRAINERS,
}
"""Keys of verl that an online training sets itself, with what to use in their place."""


def check_steps(config: OnlineConfig, rows_per_episode: int) -> None:
    """Raises UserError unless the training processes can share a step's rows, and verl takes the user's overrides."""
    states, episodes = config.online.states_per_step, config.generate.episodes_per_state
    if states * episodes * rows_per_episode % config.workers:
        raise UserError(
            f"train.nodes × train.gpus_per_node: {config.workers} processes cannot share a step's "
            f"{states * episodes * rows_per_episode} rows "
            f"({states} states × {episodes} episodes × {rows_per_episode} rows) equally; make online.states_per_step "
            f"a multiple of {config.workers}"
        )
    check_not_set_by(SET_BY_TRAINER, config.overrides)
    games = StatesFile(rows=states, rows_per_episode=rows_per_episode)
    overrides = online_overrides(config, games, resolve_device(config.device))
    check_overrides(config, overrides, config_folder() / f"{CONFIG_NAME}.yaml")


def _look_at(config: OnlineConfig) -> StatesFile:
    """Check the files of states, and return the numbers of training states and of rows per episode.

    Raises:
        UserError: A file is missing or not from `selfplay game states`, has fewer states than one step takes, or
            contains validation states from the seed space of `evaluate`.
    """
    (test, validation), (train, first) = (
        read_rows(config.game, config.games / f"{name}.parquet") for name in ("test", "train")
    )
    if test and validation["split"] != MONITOR_SPLIT:
        raise UserError(
            f"{config.games / 'test.parquet'}: its states are not validation states; write the states anew "
            "with `selfplay game states`, and train to a new folder"
        )
    if train < config.online.states_per_step or not test:
        raise UserError(
            f"{config.games}: {train} rows to train on and {test} held out; a step takes "
            f"{config.online.states_per_step} (online.states_per_step); write more with `selfplay game states`"
        )
    players = len(make_game(config.game).roles)
    games = StatesFile(rows=train, rows_per_episode=players if first["perspectives"] == "both" else 1)
    check_steps(config, games.rows_per_episode)
    return games


def check_begun(config: OnlineConfig) -> None:
    """Raises UserError unless the states are usable and the folder holds no other training; writes nothing.

    Raises:
        UserError: The states are unusable, the processes cannot share an update, or the folder holds another training.
    """
    _look_at(config)
    check_claim(config, _identity(config))
    check_checkpoint_remains(config)


def read_rows(config: GameSettings, path: Path) -> tuple[int, dict[str, Any]]:
    """Check each row, and return the number of rows and the first row's `extra_info` (empty without rows).

    Raises:
        UserError: The file is missing, is not from `selfplay game states` or is of another game, or a row is unusable.
    """
    check_regular(path, "`selfplay game states` writes it; without a folder of states new ones are made")
    check_is_no_pattern(path)
    with readable(path, WRITER):
        file = pq.ParquetFile(path)
    if not file.schema_arrow.equals(SCHEMA):
        raise UserError(f"{path}: its columns are not those that `selfplay game states` writes")
    game, first, number = make_game(config), dict[str, Any](), 0
    for row in _read(path, file):
        where, info = f"{path}: row {number}", row["extra_info"] or {}
        if number == 0 or info.get("rules") != first.get("rules"):
            _check_rules(config, where, info.get("rules"))
        first, number = first or info, number + 1
        fault = _fault(game, row, info, first)
        if fault:
            raise UserError(f"{where}: {fault}; write the states anew with `selfplay game states`")
    return number, first


def _read(path: Path, file: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    for batch in batches(path, file, remedy=WRITER):
        with readable(path, WRITER):
            yield from batch.to_pylist()


def _check_rules(config: GameSettings, where: str, written: Any) -> None:
    try:
        rules = parse_json(written)
    except (ValueError, TypeError):
        rules = None
    if not isinstance(rules, dict):
        raise UserError(f"{where}: field 'rules' is damaged; write the states anew with `selfplay game states`")
    found, wanted = (flatten({"game": game}) for game in (rules, config.model_dump(mode="json")))
    differ = differences(found, wanted)
    if differ:
        raise UserError(
            f"{where}: a state of another game than the configuration's: {in_words(differ)}; "
            "give the same --config as to `selfplay game states`"
        )


def _fault(game: Game, row: dict[str, Any], info: dict[str, Any], first: dict[str, Any]) -> str | None:
    """Returns the first fault of a row; None without one.

    Args:
        game: The game of the rows.
        row: The row.
        info: The row's `extra_info`.
        first: The `extra_info` of the file's first row.
    """
    for fields in (row, info):
        missing = [name for name, value in fields.items() if value is None]
        if missing:
            return f"field '{missing[0]}' is missing"
    if info["perspectives"] not in get_args(Perspectives):
        return f"field 'perspectives': {info['perspectives']!r}, expected one of {', '.join(get_args(Perspectives))}"
    if info["perspectives"] != first["perspectives"]:
        return f"field 'perspectives': {info['perspectives']!r}, but {first['perspectives']!r} in row 0"
    if not 0 <= row["seat"] < len(game.roles):
        return f"field 'seat': {row['seat']}, expected 0 to {len(game.roles) - 1}"
    try:
        game.check_fits(read_state(game, row["game_state"]))
    except UserError as error:
        return f"field 'game_state': {error}"
    return None


def _identity(config: OnlineConfig) -> dict[str, Any]:
    """Returns the settings and hashes that identify a training."""
    games = {
        name: hashlib.sha256((config.games / f"{name}.parquet").read_bytes()).hexdigest()[:16]
        for name in ("train", "test")
    }
    return deciding(config, "train-online") | {"games": games} | hashes_of(config)


def _absorb(config: OnlineConfig, logged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the new steps of verl's log to metrics.jsonl, and return their lines.

    A resumed process's log begins with a validation. It is left out, unless an earlier process was stopped in it.
    """
    if not logged:
        return []
    path = metrics_path(config)
    known = read_lines(path)
    last = known[-1]["step"] if known else -1
    held_out = _held_out_by_step(config)
    new = [
        to_line(entry["step"], entry["data"], held_out.get(entry["step"])) for entry in logged if entry["step"] > last
    ]
    if last in held_out and _lacks_validation(config, known[-1]):
        new = [to_line(last, known[-1], held_out[last]), *new]
        write_lines(path, [*known[:-1], *new])  # in one write, so that no stop loses the step's line
    else:
        _append(path, new)
    return new


def _absorb_save(config: OnlineConfig) -> None:
    """Add the step after the last one of metrics.jsonl if it is saved completely.

    verl saves a step, validates, and only then logs it. So it may have been stopped in the validation.
    """
    path, state = metrics_path(config), state_dir(config)
    step = len(read_lines(path))
    folder = saves(state).get(step)
    if not step or folder is None or not is_whole(folder):
        return
    saved = read_object(folder / WHOLE, "selfplay train-online")
    if METRICS in saved:
        _append(path, [to_line(step, saved[METRICS], _held_out_by_step(config).get(step))])


def _append(path: Path, lines: list[dict[str, Any]]) -> None:
    if lines:
        with appending(path) as append:
            append("".join(json.dumps(line) + "\n" for line in lines).encode())


def _held_out_by_step(config: OnlineConfig) -> dict[int, dict[str, float]]:
    return {entry["step"]: entry["figures"] for entry in read_lines(held_out_path(config))}


def _lacks_validation(config: OnlineConfig, line: dict[str, Any]) -> bool:
    """Whether a step's line has no figures of a validation, although there is one after this step."""
    step, every = line["step"], config.online.validate_every or config.online.steps
    return not _held_out(line) and (step % every == 0 or step == config.online.steps)
