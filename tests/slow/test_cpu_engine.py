"""verl's engine on a CPU, which computes no logits of prompts: what is read of its outputs is that of verl's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import TINY
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from selfplay_pipeline.train.verl.cpu_engine import TOKENS_AT_A_TIME, CPUEngine, _log_probs

PROMPTS, RESPONSES = (11, 9, 14), (6, 12, 3)


def rows(lengths: list[int], make: Any) -> torch.Tensor:
    return torch.nested.as_nested_tensor([make(length) for length in lengths], layout=torch.jagged)


def computed(engine_class: type, model: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor, int]:
    """Outputs, the gradient of all log-probs of responses, and for how many tokens of a row there were logits."""
    torch.manual_seed(0)
    whole = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    batch = TensorDict(
        {
            "input_ids": rows(whole, lambda length: torch.randint(0, model.config.vocab_size, (length,))),
            "position_ids": rows(whole, torch.arange),
            "response_mask": rows([*RESPONSES], torch.ones),
            "temperature": torch.full((len(whole),), 0.8),
        },
        batch_size=len(whole),
    )
    tu.assign_non_tensor(batch, use_remove_padding=False, calculate_entropy=True)
    engine = object.__new__(engine_class)
    engine.pad_to_length, engine.engine_config = None, SimpleNamespace(entropy_checkpointing=False)
    inputs, arguments = engine.prepare_model_inputs(batch)
    output = model(**inputs, use_cache=False)
    found = engine.prepare_model_outputs(output, arguments, batch, None)
    model.zero_grad()
    sum(part.sum() for part in read(found["log_probs"])).backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    return found, gradient, output.logits.shape[1]


def read(values: torch.Tensor) -> list[torch.Tensor]:
    """Of each row what belongs to its response: what the last token of the prompt predicts, and so on."""
    return [row[prompt - 1 : -1] for row, prompt in zip(values.unbind(), PROMPTS, strict=True)]


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32, attn_implementation="sdpa")


def test_no_logits_of_prompts_give_the_same_log_probs_entropies_and_gradients(model):
    (whole, gradient, tokens), (short, other, fewer) = (
        computed(engine, model) for engine in (FSDPEngineWithLMHead, CPUEngine)
    )
    assert fewer == tokens - (min(PROMPTS) - 1)
    assert whole.keys() == short.keys() == {"log_probs", "entropy"}
    for name in whole:
        for one, two in zip(read(whole[name]), read(short[name]), strict=True):
            torch.testing.assert_close(one, two)
    torch.testing.assert_close(gradient, other)


def test_log_probs_of_bfloat16_logits_are_computed_in_float32():
    torch.manual_seed(0)
    logits = 20 * torch.randn(TOKENS_AT_A_TIME + 5, 300).bfloat16()
    labels = torch.randint(0, 300, (len(logits),))
    expected = logits.float().log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    torch.testing.assert_close(_log_probs(logits, labels), expected)
