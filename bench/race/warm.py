"""Makes the warm start of the race with SmolLM2-135M, by imitation: `python -m bench.race.warm`.

It takes about half an hour on a core.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.imitation import Source
from selfplay_pipeline.core import stopping
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.train.imitation import imitate_episodes
from selfplay_pipeline.warm_start.smollm2 import build_smollm2

TEACHER = "speaking-teacher"
TAUGHT = {
    "generate.episodes_per_state": 1,
    "imitate.train_batch_size": 4,
    "imitate.learning_rate": 1.0e-3,
    "train.lora_rank": 8,
}


def main(
    output: Annotated[
        Path, typer.Argument(help="Gets the model in `training/checkpoint`; a finished one is kept.")
    ] = Path("data/smollm2_warm"),
    model: Annotated[Path, typer.Option(help="Chat model that imitates; by default SmolLM2, made if missing.")] = Path(
        "data/smollm2"
    ),
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of the scripted player to imitate.")] = 240,
) -> None:
    """Let SmolLM2-135M-Instruct imitate a scripted player of the race's game."""
    if not model.exists():
        build_smollm2(model)
    config = load_config("bench/race/smollm2.yaml", TAUGHT | {"model": str(model), "generate.num_episodes": episodes})
    file = output / "episodes" / "teacher.jsonl"
    asyncio.run(generate_episodes(config, file, seats=[TEACHER] * len(make_game(config.game).roles)))
    stopping.run(imitate_episodes(config, [Source(file)], output / "training"))


if __name__ == "__main__":
    command.run(main)
