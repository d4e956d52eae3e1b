"""Hooks of slime other than the rollout: group-normalised rewards without lost samples, and a log of episodes."""

from __future__ import annotations

import logging
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Said, Status
from selfplay_pipeline.slime.config import TRACKING, RolloutConfig
from selfplay_pipeline.slime.data import game_of
from selfplay_pipeline.slime.env import EPISODE, POLICY_SEAT
from selfplay_pipeline.slime.questions.records import FIGURES, AskingRecord, log_step, parts_of

GROUP_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
STD_NORMALISED = ("grpo", "gspo", "cispo")
"""Advantage estimators whose rewards slime also divides by the standard deviation, as in `_post_process_rewards` of
slime 0.3.1.
"""
logger = logging.getLogger(__name__)
_trained: set[Path] = set()
"""Log folders of runs that this process has logged; slime logs a whole run in one process."""


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Normalise rewards as slime does, over the samples that were played: slime's `--custom-reward-post-process-path`.

    A lost sample (`remove_sample`) gets the normalised reward 0 and does not affect its group. As its raw reward, which
    slime only logs, it gets its group's mean.

    Returns:
        Raw and normalised rewards, in the samples' order.

    Raises:
        UserError: All samples are lost, so that there is nothing to train on.
    """
    if samples and all(sample.remove_sample for sample in samples):
        reasons = [(sample.metadata.get(EPISODE) or {}).get("failure") for sample in samples]
        last = next((reason for reason in reversed(reasons) if reason), "")
        why = f"the partner gave no answer; the last reason: {last}" if last else "the engine broke them off"
        raise UserError(
            f"not one of the step's {len(samples)} episodes was played: {why}; fix it and start the same command "
            "again, which continues from the last save"
        )
    groups: dict[Any, list[int]] = defaultdict(list)
    for position, sample in enumerate(samples):
        groups[sample.group_index].append(position)
    raw, normalised = np.zeros(len(samples)), np.zeros(len(samples))
    normalise = args.advantage_estimator in GROUP_NORMALISED and args.rewards_normalization
    for positions in groups.values():
        played = [position for position in positions if not samples[position].remove_sample]
        if not played:
            continue
        rewards = np.array([float(samples[position].reward) for position in played])
        raw[positions] = rewards.mean()
        raw[played] = rewards
        normalised[played] = _within_group(args, rewards) if normalise else rewards
    return raw.tolist(), normalised.tolist()


def _within_group(args: Any, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = rewards - rewards.mean()
    if args.advantage_estimator in STD_NORMALISED and args.grpo_std_normalization and len(rewards) > 1:
        centred /= rewards.std(ddof=1) + 1e-6
    return centred


def log_rollout(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    rollout_extra_metrics: dict[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Log one line per episode and add mean figures to slime's metrics: slime's `--custom-rollout-log-function-path`.

    A step that is played again after a resume replaces its former lines.

    Returns:
        False, so that slime's own logging continues.
    """
    if _replayed(args):
        return False
    records = records_of(samples, rollout_id)
    log_dir = RolloutConfig.of(args).log_dir(args)
    log_step(log_dir, rollout_id, records)
    _trained.add(log_dir)
    _show(args, rollout_id, "rollout", _named("rollout", figures_of(samples, records)), rollout_extra_metrics)
    return False


def log_eval_rollout(
    rollout_id: int, args: Any, data: dict[str, dict[str, Any]], extra_metrics: dict[str, Any] | None
) -> bool:
    """slime's hook `--custom-eval-rollout-log-function-path`: log each evaluation data set to its own folder.

    The step is the number of updates of the policy so far: slime evaluates rollout 0 once before the first update and,
    with an interval of 1, once after it. Lost samples are left out of slime's own means.

    Returns:
        False, so that slime's own logging continues.
    """
    if _replayed(args):
        return False
    figures: dict[str, float] = {}
    run = RolloutConfig.of(args).log_dir(args)
    step = rollout_id + 1 if rollout_id or run in _trained else 0
    for name, results in data.items():
        samples = results.get("samples") or []
        records = records_of(samples, step)
        log_step(run / f"eval-{name}", step, records)
        figures |= _named(f"eval/{name}", figures_of(samples, records))
        # slime's pass rate needs whole groups.
        if not getattr(args, "log_passrate", False):
            _drop_lost(results)
    _show(args, rollout_id, "eval", figures, extra_metrics)
    return False


def _replayed(args: Any) -> bool:
    """Whether slime trains on the dump of another run, which has its own log."""
    return bool(getattr(args, "load_debug_rollout_data", None))


def _drop_lost(results: dict[str, Any]) -> None:
    """Remove lost samples, unless all are lost, since slime divides by the number of samples."""
    samples = results.get("samples") or []
    kept = [position for position, sample in enumerate(samples) if not sample.remove_sample]
    for name in ("rewards", "truncated", "samples"):
        if kept and name in results:
            results[name] = [results[name][position] for position in kept]


def records_of(samples: Iterable[Any], step: int) -> list[AskingRecord]:
    """Returns the record of each finished episode; lost ones are left out."""
    return [
        record_of(sample, step)
        for sample in samples
        if not sample.remove_sample and (sample.metadata.get(EPISODE) or {}).get("status")
    ]


def record_of(sample: Any, step: int) -> AskingRecord:
    """Returns the record of the questions and answers in a sample's episode."""
    game, state = game_of(sample.metadata)
    episode = sample.metadata[EPISODE]
    state_id = str(sample.metadata.get("state_id") or sample.group_index)
    turns = [Said(turn["seat"], turn["text"], turn["action"]) for turn in episode["turns"]]
    return AskingRecord(
        step=step,
        episode_id=state_id,
        # slime counts a state that is repeated in a later epoch as a new group; for statistics it is the same group.
        group=zlib.crc32(state_id.encode()),
        reward=float(sample.reward),
        status=episode["status"],
        turns=len(turns),
        people_played=bool(game.known_lines()),
        **asdict(game.asking(state, turns, POLICY_SEAT)),
    )


def figures_of(samples: Sequence[Any], records: Sequence[AskingRecord]) -> dict[str, float]:
    """Returns the figures of `selfplay slime questions`, the share of lost samples, and the partner's total cost."""
    figures = {"lost": sum(bool(sample.remove_sample) for sample in samples) / max(len(samples), 1)}
    usages = [usage for sample in samples if (usage := (sample.metadata.get(EPISODE) or {}).get("usage"))]
    if usages:
        figures |= {name: float(sum(usage[name] for usage in usages)) for name in ("requests", "dollars")}
    if records:
        sums = {name: [part.sum() for part in parts_of(records, name)] for name in FIGURES}
        figures |= {name: float(above / below) for name, (above, below) in sums.items() if below}
        figures["agreed"] = float(np.mean([record.status not in tuple(Status) for record in records]))
    return figures


def _named(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/episode/{name}": value for name, value in figures.items()}


def _show(args: Any, rollout_id: int, kind: str, figures: dict[str, float], metrics: dict[str, Any] | None) -> None:
    """Add figures to slime's metrics, and log them too, since slime shows metrics only on wandb and TensorBoard."""
    logger.info("%s %d: %s", kind, rollout_id, figures)
    if metrics is not None:
        metrics.update(figures)
        return
    # After evaluations slime passes no metrics to add to, so the figures go to slime's own logging.
    missing = []
    for package in TRACKING:
        try:
            tracker, steps = (import_module(f"{package}.{name}") for name in ("logging_utils", "metric_utils"))
        except ImportError as error:
            missing.append(str(error))
            continue
        step = {f"{kind}/step": steps.compute_rollout_step(args, rollout_id)}
        tracker.log(args, figures | step, step_key=f"{kind}/step")
        return
    logger.warning(
        "the figures above are in this log and in questions.jsonl, but not on TensorBoard or wandb (%s); this slime "
        "has its logging elsewhere than slime 0.3.1",
        "; ".join(missing),
    )
