"""One line of figures per iteration, what counts as a collapse, and which iteration is the best. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.iterate.manifest import RunState
from selfplay_pipeline.metrics.figures import summarised


class CollapseError(RuntimeError):
    """The run collapsed and was told to stop then."""


Line = dict[str, Any]

EPISODE_FIGURES = ("reward_standard_error", "distinct_messages", *summarised())

MIN_ENTROPY = 1e-3
"""Nats per sampled token; below it the policy is as good as deterministic."""
MAX_FLAT_GROUPS = 0.95
"""Share of groups without signal from which on there is nothing to learn from."""
MAX_REPEATED = 0.5
"""Share of messages that repeat an earlier one of their episode."""
MAX_SILENT = 0.9
"""Share of episodes whose first proposal comes before any message, …"""
TALKATIVE = 0.5
"""… where it was below this at first."""
MAX_LOG_PROB_GAP = 0.1
"""Mean difference in nats between the engine's and the trainer's log-probs at the first step."""

_HEALTHY = {
    "token_entropy": 1.0,
    "groups_without_signal": 0.0,
    "repeated_messages": 0.0,
    "proposed_without_message": 0.0,
    "log_prob_gap": 0.0,
}
"""Stands for a figure that was not taken."""


def history_of(state: RunState) -> list[Line]:
    """A line for each iteration that was evaluated or trained; 0 is the checkpoint that the run began with.

    Figures of episodes are of the episodes that the iteration trained on, hence of the checkpoint it began with;
    `held_out_…` are of the checkpoint that it made.
    """
    lines = []
    for number, stages in sorted(state.iterations.items()):
        line: Line = {"iteration": number}
        played, trained, evaluated = state.played(number), state.trained(number), state.evaluated(number)
        if played and trained:
            line |= played.model_dump(include=set(EPISODE_FIGURES), exclude_none=True)
            line["groups_without_signal"] = played.groups_without_signal / max(1, played.groups)
            line |= {"steps": trained.steps, "checkpoint": trained.checkpoint, "log_prob_gap": trained.log_prob_gap}
        elif number:
            continue
        if evaluated:
            line |= evaluated.model_dump(exclude_unset=True)
        line["seconds"] = {stage: round(record.seconds, 1) for stage, record in stages.items()}
        lines.append(line)
    return lines


def in_words(line: Line) -> str:
    """An iteration's figures in one line."""
    parts = []
    if "mean_reward" in line:
        parts += [
            f"reward {line['mean_reward']:.3f} ± {line['reward_standard_error']:.3f}",
            f"agreed {line['agreement_rate']:.1%}",
            f"illegal {line['illegal_per_episode']:.3f}",
            f"{line['steps']} steps",
        ]
        if "questions_per_episode" in line:
            parts.append(f"{line['questions_per_episode']:.2f} questions")
    for name, label in (("held_out_reward", "held out"), ("held_out_greedy_reward", "greedy")):
        if name in line:
            parts.append(f"{label} {line[name]['value']:.3f} [{line[name]['low']:.3f}, {line[name]['high']:.3f}]")
    return ", ".join(parts)


def best_iteration(history: Sequence[Line]) -> Line | None:
    """The evaluated iteration with the highest held-out reward, None if none was evaluated."""
    evaluated = [line for line in history if "held_out_reward" in line]
    if not evaluated:
        return None
    best = max(evaluated, key=lambda line: line["held_out_reward"]["value"])
    return {key: best[key] for key in ("iteration", "checkpoint", "held_out_reward", "held_out_greedy_reward")}


def collapse_reason(history: Sequence[Line]) -> str | None:
    """Why the newest line shows a collapse, None if it does not."""
    trained = [line for line in history if "mean_reward" in line]
    if not trained:
        return None
    first, last = (
        {name: healthy if line.get(name) is None else line[name] for name, healthy in _HEALTHY.items()}
        for line in (trained[0], trained[-1])
    )
    reasons = {
        f"the policy is as good as deterministic: {last['token_entropy']:.1e} nats a token": (
            last["token_entropy"] < MIN_ENTROPY
        ),
        f"{last['groups_without_signal']:.0%} of the groups carry no signal": (
            last["groups_without_signal"] >= MAX_FLAT_GROUPS
        ),
        f"{last['repeated_messages']:.0%} of the messages repeat an earlier one": (
            last["repeated_messages"] > MAX_REPEATED
        ),
        f"{last['proposed_without_message']:.0%} of the episodes propose before any message": (
            last["proposed_without_message"] > MAX_SILENT and first["proposed_without_message"] < TALKATIVE
        ),
        f"engine and trainer disagree by {last['log_prob_gap']:.2f} nats a token": (
            last["log_prob_gap"] > MAX_LOG_PROB_GAP
        ),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    return "; ".join(found + _fallen(history)) or None


def _fallen(history: Sequence[Line]) -> list[str]:
    """A newest held-out reward whose interval lies below that of the best."""
    evaluated, last = [line for line in history if "held_out_reward" in line], history[-1]
    if last not in evaluated:
        return []
    best = max(evaluated, key=lambda line: line["held_out_reward"]["value"])
    if last["held_out_reward"]["high"] >= best["held_out_reward"]["low"]:
        return []
    return [
        f"held-out reward fell from {best['held_out_reward']['value']:.3f} after iteration {best['iteration']} "
        f"to {last['held_out_reward']['value']:.3f}"
    ]
