"""The advantages and the loss of examples/nano.py are verl's own on the same rows.

verl gets its tensors from the lists of the rows, aligned with the responses; nano has whole rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from nano_file import load_nano
from torch.nn.utils.rnn import pad_sequence

EPISODES = 8


class Found(NamedTuple):
    """What is compared: one advantage per row, and the loss of the rows in groups with a signal."""

    advantages: torch.Tensor
    loss: torch.Tensor


def moved(model: Any) -> Any:
    """Changes the weights so much that some ratios are clipped."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return model


@torch.no_grad()
def of_nano(nano: Any, rows: list[Any], model: Any) -> Found:
    advantage = nano.advantages(rows)
    ids, mask, sampled = (part[advantage != 0] for part in nano.tensors(rows))
    loss = nano.policy_loss(nano.token_log_probs(model, ids), sampled, advantage[advantage != 0, None], mask)
    return Found(advantage, loss)


def padded(lists: list[list[Any]]) -> torch.Tensor:
    return pad_sequence([torch.tensor(values) for values in lists], batch_first=True)


@torch.no_grad()
def of_verl(rows: list[Any], model: Any) -> tuple[Found, dict[str, Any]]:
    """The same by verl with its own defaults, and the metrics of its loss."""
    from hydra import compose, initialize_config_module
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.torch_functional import logprobs_from_logits

    mask = padded([row.mask for row in rows])
    rewards = torch.zeros(mask.shape)
    for row, values in zip(rows, rewards, strict=True):
        values[len(row.mask) - 1] = row.reward
    data = DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_rewards": rewards},
        non_tensors={"uid": np.array([f"uid-{row.group}" for row in rows], dtype=object)},
    )
    seats = [int(row.prompt[0]) for row in rows]
    keys = [f"uid-{row.group}_{row.episode}_{seat}" for row, seat in zip(rows, seats, strict=True)]
    given = compute_advantage_for_multi_trajectories(data, keys, "grpo", num_repeat=EPISODES).batch["advantages"]
    new = []
    for row in rows:
        logits = model(torch.tensor([row.prompt + row.response])).logits[:, len(row.prompt) - 1 : -1]
        new.append(logprobs_from_logits(logits, torch.tensor([row.response]))[0].tolist())
    with initialize_config_module("verl.trainer.config", version_base=None):
        whole = compose("ppo_trainer", ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"])
    kept = given.any(1)
    loss, metrics = compute_policy_loss_vanilla(
        padded([row.log_probs for row in rows])[kept],
        padded(new)[kept],
        given[kept],
        mask[kept],
        config=omega_conf_to_dataclass(whole.actor_rollout_ref.actor),
    )
    first = mask.argmax(1, keepdim=True)
    return Found(given.gather(1, first)[:, 0], loss), metrics


def played(nano: Any, model: Any) -> list[Any]:
    torch.manual_seed(0)
    return nano.play(model, nano.all_states()[0][:40], EPISODES)


@pytest.fixture(scope="module")
def expected() -> Found:
    """verl's advantages and loss of the rows of a batch in which ratios are clipped on every side."""
    nano = load_nano()
    model = nano.new_model(1)
    rows = played(nano, model)
    found, metrics = of_verl(rows, moved(model))
    assert 0 < int((found.advantages == 0).sum()) < len(rows)  # groups without a signal are there too
    assert metrics["actor/pg_clipfrac"] > 0.1 and metrics["actor/pg_clipfrac_lower"] > 0.01
    return found


def differences(expected: Found, right: str = "", wrong: str = "") -> tuple[float, ...]:
    """Largest difference of the advantages, and that of the loss."""
    nano = load_nano(right, wrong)
    model = nano.new_model(1)
    rows = played(nano, model)
    found = of_nano(nano, rows, moved(model))
    return tuple(float((own - verls).abs().max()) for own, verls in zip(found, expected, strict=True))


def test_advantages_and_loss_are_verls_own(expected: Found) -> None:
    assert max(differences(expected)) <= 1e-6


MISTAKES = {
    "advantages are not divided": (" / (moments[row.group][1] + 1e-6)", ""),
    "advantages without the mean": ("(row.reward - moments[row.group][0])", "row.reward"),
    "an episode counts once for each seat": ("[row.episode]", "[row.episode, len(row.prompt)]"),
    "the mask is shifted": ("(len(row.prompt) - 1) + row.mask", "len(row.prompt) + row.mask[:-1]"),
    "what was heard is trained": ("self.mask.append(int(log_prob is not None))", "self.mask.append(1)"),
    "log-probs of the next token": ("ids[:, 1:, None]", "ids[:, :-1, None]"),
    "a wider clip": ("clamp(0.8, 1.2)", "clamp(0.8, 1.3)"),
    "no lower clip": ("-advantage * 3.0", "-advantage * 1e9"),
    "a mean over rows": ("/ mask.sum()", "/ len(mask)"),
}


@pytest.mark.parametrize(("right", "wrong"), MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_is_found(right: str, wrong: str, expected: Found) -> None:
    assert max(differences(expected, right, wrong)) > 1e-3
