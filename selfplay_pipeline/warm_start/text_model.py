"""Writes the language model inside a vision model as a model of its own.

The games are text. Played and trained without its images, a vision model needs neither the memory of the parts that see
nor an image processor, and every version of SGLang and verl finds its weights by the usual names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.files import filling
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.hub import any_config_of
from selfplay_pipeline.core.reporting import waiting

SAME_AS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Model types of language models that transformers has no class for, and of text models that compute the same of text.

They count positions in three directions, which are equal in text.
"""
SENTENCE = "Two players see different parts of one table, and have to tell each other what they know."
"""Text whose logits are compared."""
LARGEST_GAP = {4: 1e-3, 2: 5e-2}
"""Largest difference of two logits, as a share of the largest logit, by the number of bytes of a weight."""


def write_text_model(model: str, out: Path) -> None:
    """Write the language model of a vision model to `out`, with its tokenizer and chat template.

    The vision model is loaded into memory once, in the dtype of its weights. The written model is loaded again, and
    must give the same logits for a sentence.

    Args:
        model: Folder or hub name of the vision model.
        out: Folder to write.

    Raises:
        UserError: The model cannot be loaded, is a text model already, or has no text model that computes the same; or
            the folder belongs to another command.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    check_folder(out, "model")
    if getattr(any_config_of(model), "vision_config", None) is None:
        raise UserError(f"model {model}: no vision model; a text model needs no such step")
    try:
        with waiting(f"reading {model}"):
            tokenizer = AutoTokenizer.from_pretrained(model)
            whole = AutoModelForImageTextToText.from_pretrained(model, dtype="auto").eval()
    except Exception as error:  # of whichever class the configuration names
        raise UserError(f"model {model}: cannot be loaded as a vision model ({first_line(error)})") from None
    if tokenizer.chat_template is None:
        tokenizer.chat_template = _template_apart(model)
    ids = torch.tensor([tokenizer.encode(SENTENCE, add_special_tokens=False)])
    with torch.no_grad(), filling(out) as new:
        expected = whole(input_ids=ids).logits
        head = whole.get_output_embeddings().weight
        tied = head is whole.get_input_embeddings().weight
        config = _text_config(model, whole.config, tied)
        ends = (getattr(whole.config, "eos_token_id", None), whole.generation_config.eos_token_id, config.eos_token_id)
        config.eos_token_id = next((end for end in ends if end is not None), None)
        with torch.device("meta"):
            text = AutoModelForCausalLM.from_config(config, dtype=whole.dtype)
        weights = {f"{text.base_model_prefix}.{name}": one for name, one in whole.get_decoder().state_dict().items()}
        weights["lm_head.weight"] = head
        given, wanted = ({(name, one.shape) for name, one in of.items()} for of in (weights, text.state_dict()))
        if other := given ^ wanted:
            raise UserError(
                f"model {model}: its language model and {type(text).__name__} have other weights ({min(other)[0]}); "
                "take another model"
            )
        text.load_state_dict(weights, assign=True)
        text.generation_config = whole.generation_config
        text.save_pretrained(new)
        tokenizer.save_pretrained(new)
        del whole, text, weights, head
        found = AutoModelForCausalLM.from_pretrained(new, dtype="auto").eval()(input_ids=ids).logits
        gap = ((found - expected).abs().max() / expected.abs().max()).item()
        if not gap <= LARGEST_GAP.get(expected.dtype.itemsize, 1e-3):
            raise UserError(
                f"model {model}: as {config.model_type}, its language model gives other logits (by {gap:.1%}); take "
                "another model"
            )


def _text_config(model: str, config: Any, tied: bool) -> Any:
    """Returns the configuration of a vision model's language model as a text model.

    Raises:
        UserError: transformers has no such text model.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    own = config.get_text_config()
    kind = SAME_AS.get(own.model_type, own.model_type)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(f"model {model}: transformers has no text model for {own.model_type}; take another model")
    if kind != own.model_type:
        known = CONFIG_MAPPING[kind]().to_dict().keys() - {"model_type", "architectures"}
        positions = {name: value for name, value in own.rope_parameters.items() if not name.startswith("mrope")}
        settings = {name: value for name, value in own.to_dict().items() if name in known}
        own = CONFIG_MAPPING[kind](**settings | {"rope_parameters": positions})
    own.tie_word_embeddings = tied
    return own


def _template_apart(model: str) -> str | None:
    """Returns the chat template of a model that keeps it in a file of the processor; None without one."""
    from transformers.utils import cached_file

    file = cached_file(model, "chat_template.json", _raise_exceptions_for_missing_entries=False)
    return json.loads(Path(file).read_text("utf-8")).get("chat_template") if file else None
