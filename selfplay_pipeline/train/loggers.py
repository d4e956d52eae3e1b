"""Loggers of figures: the clients of verl's `Tracking`, checked before any work, and opened for our own figures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import copy_context
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from selfplay_pipeline.core.command_line import program
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.processes import environment_set

MORE = ("trackio", "mlflow", "swanlab", "clearml")
"""Loggers that `selfplay setup NAME` installs; the others come with the packages for training."""
PROJECT = "selfplay"
"""Project of all runs, in the loggers that have projects."""
Write = Callable[[int, dict[str, float]], None]
"""Function that writes the figures of a step, given its number."""

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


@contextmanager
def tracking(
    names: Sequence[str], name: str, environment: Mapping[str, str], settings: Mapping[str, Any]
) -> Iterator[Write]:
    """Open loggers with verl's `Tracking`, and yield a function that writes to all of them.

    Args:
        names: Loggers, as `train.loggers` names them.
        name: Name of the run.
        environment: Environment variables that say where to log.
        settings: Settings of the run, for loggers that record them.

    Raises:
        UserError: A logger refuses the run.
    """
    # Clients announce themselves on standard output, which belongs to the caller's results.
    with environment_set(environment), redirect_stdout(sys.stderr):
        try:
            tracked = _verls_tracking()(PROJECT, name, list(names), {"trainer": {}, **settings})
        except Exception as error:  # each client has its own
            what = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
            raise UserError(f"train.loggers: {' '.join(names)}: {what}{_advice(names)}") from error
    if lost := [one for one in names if one not in tracked.logger]:
        raise UserError(f"train.loggers: {lost[0]}: the run could not be opened there{_advice(lost)}")
    # Trackio finds its run in a variable of the context that opened it, and a stage may be a task of its own.
    context = copy_context()
    exit_code = 1
    try:
        yield lambda step, figures: context.run(tracked.log, figures, step)
        exit_code = 0
    finally:
        with redirect_stdout(sys.stderr):
            context.run(tracked.finish, exit_code)


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
