"""The training process: verl runs one task after another and exports the checkpoints. `process.py` starts it.

python -m selfplay_pipeline.train.verl.main FOLDER

Each line of standard input is a task (`task.py: Task`). Files in the folder report how it ended.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from selfplay_pipeline.core.links import append_to
from selfplay_pipeline.core.processes import SCRATCH_VARIABLE
from selfplay_pipeline.train.cluster import keep_workers_paths
from selfplay_pipeline.train.stopped import leave_reason
from selfplay_pipeline.train.task import REASON, Task, ended_file

_staying: list[Any] = []
"""The task runner that is kept for further tasks; Ray ends an actor without references."""


def main(folder: Path) -> None:
    """Run the tasks; stop at the first failure."""
    for number, line in enumerate(sys.stdin):
        task = Task.model_validate_json(line)
        write_to(task.log)
        try:
            run(task)
        except Exception as error:
            leave_reason(folder / REASON, error)
            raise
        ended_file(folder, number).touch()


def write_to(log: Path) -> None:
    """Redirect the output of this process and of Ray's processes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with append_to(log) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def run(task: Task) -> None:
    """Train unless all steps are done, then export."""
    if task.overrides:
        overrides = task.overrides
        if not task.joins_cluster:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray keeps one in the home directory
            folder = ray_folder(os.environ[SCRATCH_VARIABLE])
            overrides = [*overrides, f"+ray_kwargs.ray_init._temp_dir={folder}"]
        keep_workers_paths()
        if task.config is None:
            _run_staying(overrides)
        else:
            _run_once(task.config, overrides)
    if task.export is not None:
        from selfplay_pipeline.train.export import export

        export(**task.export.model_dump())


def ray_folder(scratch: str) -> str:
    """Returns a folder for Ray inside a private folder, because Ray makes its own folder writable for all users."""
    return f"{scratch}/ray"


def _run_once(file: Path, overrides: list[str]) -> None:
    """Run a task as verl's own `main_ppo` does, with a runner for this task only."""
    import ray
    from hydra import initialize_config_dir
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    from selfplay_pipeline.train.verl import patches

    with initialize_config_dir(str(file.parent), version_base=None):
        config = _configured(file.stem, overrides)
    if patches.is_enough(config) and config.actor_rollout_ref.rollout.agent.num_workers == 1:
        patches.use_one_process()
        patches.plain(TaskRunnerV1)().run(config)
        return
    try:
        run_ppo(config, TaskRunnerV1)
    finally:
        ray.shutdown()


def _configured(name: str, overrides: list[str]) -> Any:
    """Returns verl's configuration, checked as `main_ppo` does."""
    from hydra import compose
    from verl.trainer.main_ppo import auto_set_device, need_critic, need_reference_policy, validate_config

    config = compose(name, overrides)
    auto_set_device(config)
    validate_config(config, need_reference_policy(config), need_critic(config))
    return config


def _run_staying(overrides: list[str]) -> None:
    """Run a task as `main_ppo` does, with a runner that is kept for further tasks."""
    import ray
    from hydra import initialize_config_module
    from verl.trainer.main_ppo import run_ppo

    from selfplay_pipeline.train.verl import patches
    from selfplay_pipeline.train.verl.runner import Runner

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = _configured("ppo_trainer", overrides)
    if patches.is_enough(config):
        if not _staying:
            patches.use_one_process()
            _staying.append(Runner())
        _staying[0].run(config)
        return

    def runner() -> Any:
        if not _staying:
            _staying.append(ray.remote(Runner).remote())
        return _staying[0]

    run_ppo(config, SimpleNamespace(remote=runner))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
