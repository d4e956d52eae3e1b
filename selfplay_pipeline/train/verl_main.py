"""The training process: verl's `main_ppo`, then the export of the checkpoint. `run.py` starts it under a supervisor.

python -m selfplay_pipeline.train.verl_main LAUNCH.json
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.processes import SCRATCH_VARIABLE
from selfplay_pipeline.train.stopped import leave_reason


def main(launch_file: Path) -> None:
    """Train unless all steps are done, then export; what goes wrong is said in one line in the file for it."""
    launch = json.loads(launch_file.read_text())
    try:
        _run(launch)
    except Exception as error:
        leave_reason(Path(launch["reason"]), error)
        raise


def _run(launch: dict[str, Any]) -> None:
    if launch["train"]:
        _train(launch.get("arguments", []) + launch["overrides"], os.environ[SCRATCH_VARIABLE])
    from selfplay_pipeline.train.export import export

    export(**launch["export"])


def ray_folder(scratch: str) -> str:
    """A folder for Ray inside a private one, because Ray lets everybody write into its own."""
    return f"{scratch}/ray"


def _train(arguments: list[str], scratch: str) -> None:
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray keeps one in the home directory
    import ray
    from verl.trainer.main_ppo import main as main_ppo

    sys.argv = ["main_ppo", *arguments, f"+ray_kwargs.ray_init._temp_dir={ray_folder(scratch)}"]
    try:
        main_ppo()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
