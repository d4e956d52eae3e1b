"""What our hooks rely on of slime's `Sample`, so that they are tested where slime is not installed.

`test_slime_contract.py` compares it with the real class wherever that can be imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

from factories import board_state

from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.slime.data import game_row

try:
    from slime.utils.types import Sample as RealSample
except ImportError:
    RealSample = None


@dataclass
class Cached:
    """slime's prefix-cache figures."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    def add(self, meta: dict[str, Any]) -> None:
        self.cached_tokens += meta.get("cached_tokens", 0)
        self.total_prompt_tokens += meta.get("prompt_tokens", 0)


@dataclass
class OldSample:
    """A sample of a version without `append_response_tokens`."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    non_generation_time: float = 0.0


@dataclass
class NewSample(OldSample):
    """A sample that appends tokens itself, as since slime 0.3."""

    prefix_cache_info: Cached = field(default_factory=Cached)

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Any = None,
        log_probs: Any = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        if trainable == (log_probs is None):
            raise ValueError("sampled tokens come with log-probs, other tokens without")
        self.tokens = self.tokens + list(tokens)
        self.response += text or ""
        self.response_length += len(tokens)
        self.loss_mask = (self.loss_mask or []) + [int(trainable)] * len(tokens)
        self.rollout_log_probs = (self.rollout_log_probs or []) + list(log_probs or [0.0] * len(tokens))
        if len(self.rollout_log_probs) != self.response_length:
            raise ValueError("lengths differ")
        if update_terminal_info and "finish_reason" in (meta_info or {}):
            self.prefix_cache_info.add(meta_info)
            if "weight_version" in meta_info:
                self.weight_versions.append(meta_info["weight_version"])
            names = {"length": "TRUNCATED", "abort": "ABORTED", "stop": "COMPLETED"}
            self.status = self.Status[names[meta_info["finish_reason"]["type"]]]


SAMPLES = {"old": OldSample, "new": NewSample} | ({"slime's own": RealSample} if RealSample else {})
"""Every kind of sample that a hook may be given here."""


def sample_of(kind: type, board: MatchingConfig, number: int = 0, **fields: Any) -> Any:
    """The sample that slime makes of a row."""
    game = MatchingGame(board)
    row = game_row(game, board_state(0, number, board), f"train-s0-g{number:06d}")
    return kind(**{"prompt": row["prompt"], "metadata": row["metadata"], "group_index": 0, "index": number} | fields)


def arguments(**given: Any) -> SimpleNamespace:
    """slime's arguments, as far as our hooks read them."""
    defaults = {
        "hf_checkpoint": "data/tiny_model",
        "rollout_seed": 0,
        "rollout_max_context_len": None,
        "eval_max_context_len": None,
        "max_turns": 20,
        "selfplay": {"partner": "sharing", "max_new_tokens": 64},
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "use_wandb": False,
        "use_tensorboard": False,
        "wandb_always_use_train_step": False,
    }
    return SimpleNamespace(**defaults | given)
