"""verl's supervised loss, and its PPO loss without a pass for old log-probs, for one optimizer step per batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.losses import sft_loss
from verl.workers.utils.padding import response_from_nested

from selfplay_pipeline.convert.rows import WEIGHT

ONE_UPDATE = "one_update"
"""Key that marks a batch with a single optimizer step; its value is the upper bound of the importance weights."""

PPOLoss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


def one_update_loss(
    ppo_loss: PPOLoss, model_output: dict[str, torch.Tensor], data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns `ppo_loss` of a batch with a single optimizer step, using the current log-probs as the old ones.

    A separate pass for old log-probs is unnecessary: it would use the same weights and give the same log-probs. So
    PPO's ratio is 1, and the importance weights are computed here.

    Args:
        ppo_loss: verl's loss.
        model_output: `log_probs`, nested (rows, tokens of prompt and response).
        data: A micro-batch. Its `old_log_probs` are the engine's, stored while playing, nested (rows, tokens of the
            response).
        dp_group: verl's data-parallel group.

    Returns:
        The loss, and metrics by the names that verl uses when it computes old log-probs in a separate pass. The entropy
        is an estimate: the mean negative log-prob of the sampled tokens, whose expectation is the entropy.
    """
    bound = tu.get_non_tensor_data(data=data, key=ONE_UPDATE, default=None)
    if bound is None:
        return ppo_loss(model_output=model_output, data=data, dp_group=dp_group)
    own = response_from_nested(model_output["log_probs"].detach(), data["response_mask"])
    old, played = own.to_padded_tensor(0.0), data["old_log_probs"].to_padded_tensor(0.0)
    mask = data["response_mask"].to_padded_tensor(0)
    share = mask.sum().item() * data["dp_size"] / data["batch_num_tokens"]
    if not share:  # only padding rows: verl refuses an empty mask
        mask = torch.ones_like(mask)
    weights, _, found = compute_rollout_correction_and_rejection_mask(
        old, played, mask, rollout_is="token", rollout_is_threshold=bound
    )
    data["old_log_probs"] = own
    data["rollout_is_weights"] = weights.batch["rollout_is_weights"]
    loss, metrics = ppo_loss(model_output=model_output, data=data, dp_group=dp_group)
    own_tokens = mask.bool()
    gaps = (old - played)[own_tokens].abs()
    found |= {
        "entropy": -old[own_tokens].mean().item(),
        "selfplay/log_prob_gap/mean": gaps.mean().item(),
        "selfplay/log_prob_gap/max": gaps.max().item(),
    }
    return loss, metrics | {name: _metric(name, value, share) for name, value in found.items()}


def imitation_loss(
    model_output: dict[str, torch.Tensor], data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns verl's `sft_loss`: the mean negative log-prob of all imitated tokens of the update, weighted by row.

    Args:
        model_output: `log_probs`, nested (rows, tokens of prompt and response).
        data: A micro-batch. `loss_mask` is 1 at imitated tokens, nested (rows, tokens of the response); verl's loss
            needs it extended by the prompt. `weight`, if rows have one, has the shape (rows, 1).
        dp_group: verl's data-parallel group.
    """
    lengths = model_output["log_probs"].offsets().diff().tolist()
    masks = [mask.float() for mask in data["loss_mask"].unbind()]
    if WEIGHT in data:
        masks = [mask * weight for mask, weight in zip(masks, data[WEIGHT].unbind(), strict=True)]
    whole = [pad(mask, (length - len(mask), 0)) for mask, length in zip(masks, lengths, strict=True)]
    data["loss_mask"] = torch.nested.as_nested_tensor(whole, layout=torch.jagged)
    found: tuple[torch.Tensor, dict[str, Any]] = sft_loss(None, model_output, data, dp_group)
    return found


def _metric(name: str, value: float, share: float) -> Metric:
    """Returns a micro-batch's contribution to a metric of the batch.

    Args:
        name: Name of the metric; "max" or "min" in it selects that aggregation instead of a sum.
        value: The metric's value in the micro-batch.
        share: Tokens of the micro-batch divided by the tokens of the batch; one of padding rows alone has none, and
            gives no extreme.
    """
    for extreme, none in ((AggregationType.MAX, -math.inf), (AggregationType.MIN, math.inf)):
        if extreme.value in name:
            return Metric(extreme, value if share else none)
    return Metric(AggregationType.SUM, value * share)
