"""Compares greedy plans of tiny models by what seat 1 reads; see `studies.common.planner.Exam`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from studies.common.planner import Board, Exam, model_at


def main(
    models: Annotated[list[str], typer.Argument(help="Folders of models that play this board.")],
    config: Annotated[
        str, typer.Option(help="Built-in name or YAML file of an honest board.")
    ] = "studies/planner/4x4.yaml",
    code: Annotated[
        int | None, typer.Option(help="Messages are in this code of `studies.common.planner --code`.")
    ] = None,
    in_words: Annotated[bool, typer.Option("--in-words", help="Messages tell scores in number words.")] = False,
    states: Annotated[int, typer.Option(min=1, help="New honest states.")] = 2_000,
    seed: Annotated[int, typer.Option(help="Draws the states.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Gets the rewards as JSON.")] = None,
) -> None:
    """Print the mean rewards of each model and of silence on the same states."""
    rewards = examine(models, config, code=code, in_words=in_words, states=states, seed=seed)
    if output is not None:
        asked = {"config": config, "code": code, "in_words": in_words, "states": states, "seed": seed}
        write_text(output, json.dumps(asked | {"rewards": rewards}, indent=1) + "\n")


def examine(
    models: Sequence[str], config: str, *, code: int | None = None, in_words: bool = False, states: int, seed: int = 1
) -> dict[str, dict[str, float]]:
    """Print the mean rewards of each model and of silence on the same states, and return them by model.

    Args:
        models: Folders of models with one tokenizer.
        config: Built-in name or YAML file of an honest board.
        code: Number of the code of the messages, None for none.
        in_words: Whether messages tell scores in number words.
        states: Number of new states.
        seed: Seed of the states.
    """
    for name in models:
        check_checkpoint(model_at(name))
    torch.manual_seed(seed)
    tokenizer = ChatTokenizer.load(model_at(models[0])).tokenizer
    board = Board.of(load_config(config, {}).game, tokenizer, torch.device("cpu"), code=code, in_words=in_words)
    exam, rewards = Exam.of(board, states), dict[str, dict[str, float]]()
    for name in models:
        model = AutoModelForCausalLM.from_pretrained(model_at(name), dtype=torch.float32)
        rewards[name] = exam.take(model, board)
        say(f"{name}: {json.dumps(rewards[name])}")
    return rewards


if __name__ == "__main__":
    command.run(main)
