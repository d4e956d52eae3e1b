"""slime's other hooks: group-normalised rewards without failed samples, and a log of how dialogues went."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.asking.records import FILE_NAME, DialogueRecord, append_dialogues, read_dialogues
from selfplay_pipeline.files import write_text
from selfplay_pipeline.games.questions import asking
from selfplay_pipeline.games.types import ActionKind
from selfplay_pipeline.slime.config import RolloutConfig
from selfplay_pipeline.slime.data import game_of
from selfplay_pipeline.slime.env import DIALOGUE, POLICY_SEAT

GROUP_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
STD_NORMALISED = ("grpo", "gspo", "cispo")
"""As in `_post_process_rewards` of slime 0.3.1."""
AVERAGED = ("reward", "turns", "messages", "questions", "specific", "pairs", "repeated", "learned", "leaks")


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """slime's `--custom-reward-post-process-path`: its own normalisation, over the samples that were played.

    A sample that was lost (`remove_sample`) gets 0, and changes nothing for its group. Its raw reward, which slime only
    logs, is its group's mean.

    Returns:
        Raw and normalised rewards, in the samples' order.
    """
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
    """slime's `--custom-rollout-log-function-path`: one line a dialogue, mean figures into slime's own metrics.

    A step that is played again, after slime was killed and resumed, takes the place of its former lines.

    Returns:
        False, so that slime's own logging goes on.
    """
    records = dialogues_of(samples, rollout_id)
    log_dir = RolloutConfig.of(args).log_dir(args)
    _forget_from(log_dir, rollout_id)
    append_dialogues(log_dir, records)
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update(_named("rollout", figures_of(samples, records)))
    return False


def log_eval_rollout(
    rollout_id: int, args: Any, data: dict[str, dict[str, Any]], extra_metrics: dict[str, Any] | None
) -> bool:
    """slime's `--custom-eval-rollout-log-function-path`: the same, in a folder for each evaluation set."""
    figures: dict[str, float] = {}
    for name, results in data.items():
        samples = results.get("samples") or []
        records = dialogues_of(samples, rollout_id)
        log_dir = RolloutConfig.of(args).log_dir(args) / f"eval-{name}"
        _forget_from(log_dir, rollout_id)
        append_dialogues(log_dir, records)
        figures |= _named(f"eval/{name}", figures_of(samples, records))
    if extra_metrics is not None:
        extra_metrics.update(figures)
    else:
        _log_with_slime(args, rollout_id, figures)
    return False


def dialogues_of(samples: Iterable[Any], step: int) -> list[DialogueRecord]:
    """The record of each dialogue that was played to an end; lost ones are left out."""
    return [
        record_of(sample, step)
        for sample in samples
        if not sample.remove_sample and (sample.metadata.get(DIALOGUE) or {}).get("status")
    ]


def record_of(sample: Any, step: int) -> DialogueRecord:
    """What a sample's dialogue was like."""
    _, state = game_of(sample.metadata)
    dialogue = sample.metadata[DIALOGUE]
    game_id = str(sample.metadata.get("game_id", sample.group_index))
    turns = [_Turn(turn["player"], turn["text"], ActionKind(turn["action"])) for turn in dialogue["turns"]]
    return DialogueRecord(
        step=step,
        game_id=game_id,
        # slime counts a state that comes again in a later epoch as a new group; to statistics it is the same one.
        group=zlib.crc32(game_id.encode()),
        reward=float(sample.reward),
        status=dialogue["status"],
        turns=len(turns),
        **asdict(asking(turns, state, POLICY_SEAT)),
    )


@dataclass(frozen=True)
class _Turn:
    player: int
    text: str
    action: ActionKind


def figures_of(samples: Sequence[Any], records: Sequence[DialogueRecord]) -> dict[str, float]:
    """Means over the dialogues, the share of samples that were lost, and what the partner cost in all."""
    figures = {"lost": sum(bool(sample.remove_sample) for sample in samples) / max(len(samples), 1)}
    usages = [usage for sample in samples if (usage := (sample.metadata.get(DIALOGUE) or {}).get("usage"))]
    if usages:
        figures |= {name: float(sum(usage[name] for usage in usages)) for name in ("requests", "dollars")}
    if records:
        figures |= {name: float(np.mean([getattr(record, name) for record in records])) for name in AVERAGED}
        figures["agreed"] = float(np.mean([record.status == "agreed" for record in records]))
    return figures


def _named(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/dialogue/{name}": value for name, value in figures.items()}


def _forget_from(log_dir: Path, step: int) -> None:
    path = log_dir / FILE_NAME
    if not path.exists() or _last_step(path) < step:
        return
    kept = [record for record in read_dialogues(path) if record.step < step]
    write_text(path, "".join(record.model_dump_json() + "\n" for record in kept))


def _last_step(path: Path) -> int:
    """Of the last whole line; the end of the file is enough to find it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError, KeyError):
                return int(json.loads(line)["step"])
    return -1


def _log_with_slime(args: Any, rollout_id: int, figures: dict[str, float]) -> None:
    # slime hands over no metrics to add to after most evaluations, so they go where it logs its own.
    with suppress(ImportError):
        from slime.observability import logging_utils
        from slime.observability.metric_utils import compute_rollout_step

        step = {"eval/step": compute_rollout_step(args, rollout_id)}
        logging_utils.log(args, figures | step, step_key="eval/step")
