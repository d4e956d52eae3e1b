"""`selfplay train` for a configuration."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.config import Config
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.terminal.progress import progress
from selfplay_pipeline.train.config import TrainConfig
from selfplay_pipeline.train.run import Progress, TrainResult, run_train


def train_policy(
    config: Config,
    data: Path,
    output: Path,
    *,
    checkpoint: str,
    seed: int,
    initial_trainer_state: Path | None = None,
    reference_model: str | None = None,
) -> TrainResult:
    """Train `checkpoint` on one parquet file, or continue a training that was cut."""
    check_folder(output, "train")
    options = config.train.model_dump()
    job = TrainConfig(
        **options,
        model=checkpoint,
        data=data,
        output=output,
        seed=seed,
        initial_trainer_state=initial_trainer_state,
        reference_model=reference_model,
    )
    with progress(f"training on {data.name}", "verl is starting") as report:

        def on_progress(step: Progress) -> None:
            loss, norm = step.metrics.get("actor/pg_loss", 0.0), step.metrics.get("actor/grad_norm", 0.0)
            report(step.step, step.planned_steps, lambda: f"steps, loss {loss:+.4f}, gradient norm {norm:.3f}")

        return run_train(job, on_progress)
