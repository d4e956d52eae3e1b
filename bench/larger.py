"""Builds a deeper model with the same output, to measure how cost grows with the model: `python -m bench.larger`.

The output of the additional layers is multiplied by zero, so that they add nothing at first; training changes that.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated

import typer

from bench import command


def main(
    output: Annotated[Path, typer.Argument(help="Folder of the new model.")],
    model: Annotated[Path, typer.Option(help="Folder of the model to begin with.")] = Path("data/tiny_model"),
    times: Annotated[int, typer.Option(min=2, help="Layers of the new model for each of the old one.")] = 4,
) -> None:
    """Write a model that is several times as deep and gives the same log-probs."""
    deepen(model, output, times)


def deepen(model: Path, output: Path, times: int) -> None:
    """Write the model; arguments as for the command.

    In the additional layers the output projections of attention and MLP, which add to the residual stream, are zero.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    old = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = copy.deepcopy(old.config)
    config.num_hidden_layers *= times
    config.layer_types = list(config.layer_types) * times
    torch.manual_seed(0)
    new = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    new.load_state_dict(old.state_dict(), strict=False)
    for layer in new.model.layers[old.config.num_hidden_layers :]:
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            torch.nn.init.zeros_(projection.weight)
    new.save_pretrained(output)
    AutoTokenizer.from_pretrained(model).save_pretrained(output)


if __name__ == "__main__":
    command.run(main)
