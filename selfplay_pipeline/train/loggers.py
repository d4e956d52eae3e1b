"""Loggers of figures: the clients of verl's `Tracking`, checked before any work, and opened for our own figures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from selfplay_pipeline.core.command_line import program
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.processes import environment_set
from selfplay_pipeline.core.reporting import logger

MORE = ("trackio", "mlflow", "swanlab", "clearml")
"""Loggers that `selfplay setup NAME` installs; the others come with the packages for training."""
PROJECT = "selfplay"
"""Project of all runs, in the loggers that have projects."""
Row = dict[str, str | int | float]
"""Row of a table: its cells by the names of their columns, which are the same in all rows of a table."""

WANDB_LOGIN = "run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline to write to files alone"
SWANLAB_LOGIN = "run `swanlab login`, or set SWANLAB_API_KEY, or SWANLAB_MODE=offline to write to files alone"
CLEARML_LOGIN = (
    "run `clearml-init`, or set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or CLEARML_OFFLINE_MODE=1 to write "
    "to files alone"
)
WANDB_PATIENCE = 10.0
"""Seconds to wait for the end of the service of Weights & Biases before it is killed."""
MLFLOW_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Settings that end the search for MLflow's store within seconds."""


def logging_environment(output: Path) -> dict[str, str]:
    """Returns the environment variables that say where a training, or a run's iterations, log their figures.

    All trainings of a run share its MLflow store. Trackio keeps its own place, where `trackio show` finds it. Groups,
    stores and folders that the user's environment names are kept, except for the first two keys.

    Args:
        output: Folder of the training or of the run.
    """
    output = output.resolve()
    run = output.parent if output.name.startswith("iter_") else output
    return {
        "TENSORBOARD_DIR": str(output / "tensorboard"),
        "WANDB_DIR": str(output),
        "WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP", output.parent.name),
        "MLFLOW_TRACKING_URI": os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{run / 'mlflow.db'}"),
        "MLFLOW_DISABLE_TELEMETRY": os.environ.get("MLFLOW_DISABLE_TELEMETRY", "true"),
        "SWANLAB_LOG_DIR": os.environ.get("SWANLAB_LOG_DIR", str(run / "swanlog")),
    }


def name_of_run(output: Path) -> str:
    """Returns the name of a training in the loggers: its folder, and the folder around it."""
    output = output.resolve()
    return "-".join(name for name in (output.parent.name, output.name) if name)


@dataclass(frozen=True)
class Table:
    """Rows of a table that a run writes step by step.

    Attributes:
        rows: Rows of this step; at least one.
        so_far: Rows of this and all earlier steps.
        about: Sentence about the table, for loggers that have a place for it.
    """

    name: str
    step: int
    rows: Sequence[Row]
    so_far: Sequence[Row]
    about: str

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [*self.rows[0]]


@dataclass
class Tracked:
    """Open loggers of one run.

    Attributes:
        clients: verl's `Tracking`.
        context: Context in which the loggers were opened: Trackio finds its run in a variable of it, and a stage may be
            a task of its own.
    """

    clients: Any
    context: Context
    _rows: dict[str, list[Row]] = field(default_factory=dict)
    """All rows that were written to a table so far, by its name."""

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        self.context.run(self.clients.log, dict(figures), step)

    def table(self, name: str, step: int, rows: Sequence[Row], about: str) -> None:
        """Write rows of a table; a logger that cannot take them gets a warning, since its figures are more important.

        Args:
            name: Name of the table.
            step: Number of the step.
            rows: Rows of this step.
            about: Sentence about the table.
        """
        if not rows:
            return
        so_far = self._rows[name] = [*self._rows.get(name, ()), *rows]
        table = Table(name, step, rows, so_far, about)
        for client, write in TABLES.items():
            if client in self.clients.logger:
                try:
                    with redirect_stdout(sys.stderr):
                        self.context.run(write, self.clients.logger[client], table)
                except Exception as error:  # each client has its own
                    what = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
                    logger.warning(f"train.loggers: {client}: {name} of step {step} was not written: {what}")

    def charts(self, charts: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Arrange figures as curves in common charts, where the logger keeps such a layout (TensorBoard).

        Args:
            charts: Names of the figures by chart, by the heading above the charts.
        """
        if "tensorboard" in self.clients.logger:
            layout = {
                heading: {chart: ["Multiline", [*names]] for chart, names in group.items()}
                for heading, group in charts.items()
            }
            self.clients.logger["tensorboard"].writer.add_custom_scalars(layout)


def _table_of_wandb(wandb: Any, table: Table) -> None:
    """Log all rows so far, because Weights & Biases shows only the newest table of a run."""
    wandb.log({table.name: wandb.Table(columns=table.columns, data=_cells(table, table.so_far))}, step=table.step)


def _table_of_trackio(client: Any, table: Table) -> None:
    """Log all rows so far, because Trackio shows one table of a run at a time."""
    trackio = client.trackio
    trackio.log({table.name: trackio.Table(columns=table.columns, data=_cells(table, table.so_far))}, step=table.step)


def _table_of_mlflow(client: Any, table: Table) -> None:
    """Append rows to the table of the run, an artifact that MLflow shows among its evaluations."""
    import mlflow

    columns = {column: [row[column] for row in table.rows] for column in table.columns}
    mlflow.log_table(columns, f"{table.name}.json")


def _table_of_swanlab(swanlab: Any, table: Table) -> None:
    found = swanlab.echarts.Table()
    found.add(headers=table.columns, rows=_cells(table, table.rows))
    swanlab.log({table.name: found}, step=table.step)


def _table_of_clearml(client: Any, table: Table) -> None:
    import clearml
    import pandas as pd

    title, _, series = table.name.partition("/")
    log = clearml.Task.current_task().get_logger()
    log.report_table(title=title, series=series, table_plot=pd.DataFrame(table.rows), iteration=table.step)


def _text_of_tensorboard(client: Any, table: Table) -> None:
    """Write a step's rows as text: long cells as blocks of code, since a cell of a Markdown table is one line."""
    client.writer.add_text(table.name, in_markdown(table.rows, table.about), table.step)
    client.writer.flush()


def _cells(table: Table, rows: Sequence[Row]) -> list[list[str | int | float]]:
    return [[row.get(column, "") for column in table.columns] for row in rows]


def in_markdown(rows: Sequence[Row], about: str) -> str:
    """Returns rows as Markdown: the short columns of each row in one line, then each long one as a block of code. Pure.

    Args:
        rows: Rows with the same columns.
        about: First sentence.
    """
    shown = [
        {name: f"{cell:.3f}" if isinstance(cell, float) else str(cell) for name, cell in row.items()} for row in rows
    ]
    long = {name for row in shown for name, cell in row.items() if len(cell) > SHORT_CELL or "\n" in cell}
    parts = [about]
    for row in shown:
        parts.append("**" + ", ".join(f"{name}: {cell}" for name, cell in row.items() if name not in long) + "**")
        for name in (name for name in row if name in long):
            parts += [f"{name}:", "\n".join(f"    {line}" for line in row[name].splitlines())]
    return "\n\n".join(parts)


TABLES: Mapping[str, Callable[[Any, Table], None]] = {
    "wandb": _table_of_wandb,
    "trackio": _table_of_trackio,
    "mlflow": _table_of_mlflow,
    "swanlab": _table_of_swanlab,
    "clearml": _table_of_clearml,
    "tensorboard": _text_of_tensorboard,
}
"""Functions that write rows of a table, by logger."""
SHORT_CELL = 40
"""Largest number of characters of a cell in a line; a column with a longer cell gets blocks of its own in a text."""


@contextmanager
def tracking(
    names: Sequence[str], name: str, environment: Mapping[str, str], settings: Mapping[str, Any]
) -> Iterator[Tracked]:
    """Open loggers with verl's `Tracking`, and yield them.

    Args:
        names: Loggers, as `train.loggers` names them.
        name: Name of the run.
        environment: Environment variables that say where to log.
        settings: Settings of the run, for loggers that record them.

    Raises:
        UserError: A logger refuses the run.
    """
    # Clients announce themselves on standard output, which belongs to the caller's results.
    keep_artifacts(names, environment)
    with environment_set(environment), redirect_stdout(sys.stderr):
        try:
            tracked = _verls_tracking()(PROJECT, name, list(names), {"trainer": {}, **settings})
        except Exception as error:  # each client has its own
            what = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
            raise UserError(f"train.loggers: {' '.join(names)}: {what}{_advice(names)}") from error
    if lost := [one for one in names if one not in tracked.logger]:
        raise UserError(f"train.loggers: {lost[0]}: the run could not be opened there{_advice(lost)}")
    context = copy_context()
    exit_code = 1
    try:
        yield Tracked(tracked, context)
        exit_code = 0
    finally:
        with redirect_stdout(sys.stderr):
            context.run(tracked.finish, exit_code)


def keep_artifacts(names: Iterable[str], environment: Mapping[str, str]) -> None:
    """Let MLflow keep tables beside a store of ours; by default it would put them into the working directory.

    Args:
        names: Loggers.
        environment: Environment variables that say where to log.
    """
    if "mlflow" not in names or "MLFLOW_TRACKING_URI" in os.environ:
        return
    with environment_set(environment), redirect_stdout(sys.stderr):
        import mlflow

        store = environment["MLFLOW_TRACKING_URI"]
        client = mlflow.MlflowClient(store)
        if client.get_experiment_by_name(PROJECT) is None:
            folder = Path(store.removeprefix("sqlite:///")).with_name("mlflow_artifacts")
            client.create_experiment(PROJECT, artifact_location=folder.as_uri())


@cache
def _verls_tracking() -> Any:
    """Returns verl's class `Tracking`, from its file alone: the package would load torch, Ray and transformers."""
    verl = find_spec("verl")
    if verl is None or verl.origin is None:
        raise UserError("train.loggers: iterations are logged through the package verl, which is not installed")
    spec = spec_from_file_location("verl_tracking", Path(verl.origin).parent / "utils" / "tracking.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.Tracking


def check_loggers(names: Iterable[str]) -> None:
    """Raises UserError unless the loggers are installed, and logged in where figures leave the machine."""
    wanted = [name for name in names if name != "console"]
    for name in wanted:
        if find_spec(name) is None:
            what = name if name in MORE else "cpu (or gpu)"
            raise UserError(
                f"train.loggers: {name} needs a package that is not installed; run `{program()} setup {what}`"
            )
    for name in wanted:
        if name in CHECKS:
            CHECKS[name]()


def _check_wandb() -> None:
    """Raises UserError unless Weights & Biases has an API key or writes offline.

    The key is not sent anywhere. verl's process fails without a key, since it has no terminal to ask for one.
    """
    import wandb

    if wandb.run is not None:  # `iterate` already writes to a run
        return
    try:
        online = wandb.setup().settings.mode in ("online", "run", "shared")
        if not online or wandb.login(prompt=False, verify=False):
            return
        reason = "no API key is there"
    except wandb.errors.Error as error:
        reason = first_line(error).rstrip(".")
    finally:
        _end_wandb_service()
    raise UserError(f"train.loggers: wandb: {reason}; {WANDB_LOGIN}")


def _end_wandb_service() -> None:
    """End the service of Weights & Biases, which verl's process would use otherwise.

    `wandb.teardown` waits for its process, which sometimes never ends by itself.
    """
    import wandb

    def end() -> None:
        with suppress(SystemExit):  # with the exit code of the service, if it was killed
            wandb.teardown()

    ending = Thread(target=end, daemon=True)
    ending.start()
    ending.join(WANDB_PATIENCE)
    if ending.is_alive():
        for child in psutil.Process().children():
            if child.name().startswith("wandb"):
                child.kill()
        ending.join(WANDB_PATIENCE)


def _check_mlflow() -> None:
    """Raises UserError unless MLflow's store answers; verl would go on without it."""
    store = os.environ.get("MLFLOW_TRACKING_URI")
    if store is None:  # a file of ours
        return
    with environment_set(MLFLOW_PATIENCE):
        import mlflow

        try:
            mlflow.MlflowClient(store).search_experiments(max_results=1)
        except Exception as error:  # of its many stores
            raise UserError(
                f"train.loggers: mlflow: MLFLOW_TRACKING_URI {store}: {first_line(error).rstrip('.')}"
            ) from None


def _check_swanlab() -> None:
    """Raises UserError unless SwanLab has an API key or writes to files; verl's process cannot ask for a key."""
    if os.environ.get("SWANLAB_MODE", "cloud") not in ("cloud", "online"):
        return
    import swanlab

    if not swanlab.Settings().api_key:
        raise UserError(f"train.loggers: swanlab: no API key is there; {SWANLAB_LOGIN}")


def _check_clearml() -> None:
    """Raises UserError unless ClearML has credentials or writes to files."""
    from clearml.backend_api.session.defs import ENV_ACCESS_KEY, ENV_AUTH_TOKEN, ENV_OFFLINE_MODE
    from clearml.config import config_obj

    if ENV_OFFLINE_MODE.get() or ENV_AUTH_TOKEN.get() or ENV_ACCESS_KEY.get():
        return
    if not config_obj.get("api.credentials.access_key", None):
        raise UserError(f"train.loggers: clearml: no credentials are there; {CLEARML_LOGIN}")


CHECKS = {"wandb": _check_wandb, "mlflow": _check_mlflow, "swanlab": _check_swanlab, "clearml": _check_clearml}
"""Checks of the loggers whose figures may leave the machine."""
LOGINS = {"wandb": WANDB_LOGIN, "swanlab": SWANLAB_LOGIN, "clearml": CLEARML_LOGIN}
"""Advice in messages about a missing login."""


def _advice(names: Iterable[str]) -> str:
    return "".join(f"; {LOGINS[name]}" for name in names if name in LOGINS)
