"""Writes the warm start of SmolLM2-135M that is shipped as an adapter as a whole model: `python -m bench.race.warm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench import command
from bench.smollm2 import smollm2

ADAPTER = "bench/smollm2_adapter"


def main(
    output: Annotated[Path, typer.Argument(help="Folder of the model; one that exists is kept.")] = Path(
        "data/smollm2_warm"
    ),
) -> None:
    """Write SmolLM2-135M-Instruct with the adapter merged into it."""
    if not output.exists():
        merge(smollm2(Path("data/smollm2")), output)


def merge(base: Path, output: Path) -> None:
    """Write the base model with the adapter merged into its weights, and its tokenizer."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from selfplay_pipeline.core.files import filling

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="float32"), ADAPTER)
    with filling(output) as new:
        model.merge_and_unload().save_pretrained(new)
        AutoTokenizer.from_pretrained(base).save_pretrained(new)


if __name__ == "__main__":
    command.run(main)
