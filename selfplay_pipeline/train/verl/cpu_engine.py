"""verl's FSDP engine on a CPU. verl imports this module when it builds a model (`model.external_lib`)."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.nn.functional import pad
from verl.utils import torch_functional
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

TOKENS_AT_A_TIME = 1024


def _unpinned(pin_memory: bool = False) -> CPUOffloadPolicy:
    """Returns the offload policy without pinned memory, which would need an accelerator's driver.

    verl asks for pinned memory when it offloads the reference model.
    """
    return CPUOffloadPolicy(pin_memory=False)


def _log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns log-probs as verl's `logprobs_from_logits_v2` does, in blocks of tokens instead of one token at a time.

    On a CPU verl's loop took a tenth of a step. The log-probs are computed in float32, as in verl: in bfloat16 a
    log-prob is rounded to an eighth of a nat where logits are large.

    Args:
        logits: Logits, shape (tokens, vocabulary), float32 or bfloat16.
        labels: Token ids, shape (tokens,).

    Returns:
        Log-probs of the labels, shape (tokens,), float32.
    """
    parts = zip(map(torch.Tensor.float, logits.split(TOKENS_AT_A_TIME)), labels.split(TOKENS_AT_A_TIME), strict=True)
    return torch.cat([part.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - part.logsumexp(-1) for part, chosen in parts])


class CPUEngine(transformer_impl.FSDPEngineWithLMHead):  # type: ignore[misc]
    """verl's engine without the logits of prompts: nothing reads them, and a large vocabulary makes them expensive."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        first, labels = _first_predicted(micro_batch), arguments["input_ids_rmpad_rolled"]
        rows = torch.nested.nested_tensor_from_jagged(labels, micro_batch["input_ids"].offsets()).unbind()
        arguments |= {"first": first, "input_ids_rmpad_rolled": torch.cat([row[first:] for row in rows])}
        return inputs | {"logits_to_keep": inputs["input_ids"].shape[1] - first}, arguments

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Compute verl's outputs for rows without their first tokens, and pad the results with zeros in their place."""
        first, whole, short = output_args["first"], micro_batch["input_ids"], micro_batch.copy()
        short["input_ids"] = torch.nested.as_nested_tensor([row[first:] for row in whole.unbind()], layout=torch.jagged)
        found = super().prepare_model_outputs(output, output_args, short, logits_processor_func)
        return {
            name: torch.nested.nested_tensor_from_jagged(
                torch.cat([pad(row, (first, 0)) for row in values.unbind()]), whole.offsets()
            )
            for name, values in found.items()
        }


def _first_predicted(micro_batch: Any) -> int:
    """Returns the first position whose prediction is needed: the last token of the shortest prompt."""
    whole = micro_batch["input_ids"].offsets().diff()
    return int((whole - micro_batch["response_mask"].offsets().diff()).min()) - 1


if "cpu" not in EngineRegistry._engines["language_model"]["fsdp2"]:
    EngineRegistry.register("language_model", backend="fsdp2", device="cpu")(CPUEngine)
    transformer_impl.CPUOffloadPolicy = _unpinned
    torch_functional.logprobs_from_logits_v2 = _log_probs
