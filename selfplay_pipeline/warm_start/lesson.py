"""Warm starts for machines without a model hub: a tiny Qwen2 of about a million parameters, or SmolLM2, learns a game.

It imitates the game's own scripted players, which speak its language but play poorly (`Game.lessons`), so that
self-play can still improve. It is built with `generate` and `imitate`, like any other warm start.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from selfplay_pipeline.config.schema import Config, ImitateConfig
from selfplay_pipeline.config.training import Schedule
from selfplay_pipeline.convert.imitation import Source, muted
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import filling
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.shipped import as_listed
from selfplay_pipeline.core.stopping import computing
from selfplay_pipeline.games.base import Lesson, Stage
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.train.imitation import imitate_episodes
from selfplay_pipeline.train.offline import TrainResult
from selfplay_pipeline.train.process import Trainer
from selfplay_pipeline.warm_start.smollm2 import build_smollm2

OPTIMIZER = ["actor_rollout_ref.actor.optim.betas=[0.9,0.98]", "actor_rollout_ref.actor.optim.weight_decay=0.01"]
"""Overrides of AdamW's settings; the second beta suits trainings of fewer than a thousand steps."""
SAVE_EVERY = 20
HELD_OUT = 0.02
FIRST_STATE = 1_000_000
"""Distance between the first states of two stages: stage n begins at n times this number, self-play at 0."""


async def build_warm_start(
    config: Config, lesson: str | None, out: Path | None = None, *, smollm2: bool = False
) -> Path:
    """Build the untrained model and teach it a lesson; an interrupted call continues.

    Args:
        config: Configuration with the game to learn, and the seed of weights, episodes and batches.
        lesson: A name in `Game.lessons`, by default that of the configuration's model, or `self-play`.
        out: The folder for the Hugging Face checkpoint, by default the lesson's. At the end, `warm_start.json` in it
            records the settings; until then, the folder holds episodes and trainings.
        smollm2: Whether SmolLM2 is taught, which has lessons of its own, and not the tiny model.

    Returns:
        The folder.

    Raises:
        UserError: The game has no such lesson for the model, the folder is in use, or SmolLM2 is not installed.
        TrainError: verl failed.
    """
    lesson, taught, out = _taught(config, lesson, out, smollm2=smollm2)
    making = (out / "making").resolve()  # absolute, so that all calls give it one name, wherever they are started
    with computing():
        model, results = _untrained(taught, config.seed, making / "untrained"), list[TrainResult]()
    with Trainer() as trainer:
        for number, stage in enumerate(taught.stages, start=1):
            own, last = _settings(config, model, stage), stage is taught.stages[-1]
            results.append(await _imitate(own, stage, number, making, trainer, last=last))
            model = results[-1].checkpoint
    made = {
        "lesson": lesson,
        "seed": config.seed,
        "game": config.game.model_dump(),
        "stages": [
            asdict(stage) | {"rows": done.rows, "steps": done.steps, "held_out_losses": done.held_out_losses}
            for stage, done in zip(taught.stages, results, strict=True)
        ],
    }
    with filling(out) as new:
        shutil.copytree(model, new, dirs_exist_ok=True)
        (new / "model.safetensors").chmod(0o644)
        (new / "warm_start.json").write_text(json.dumps(made, indent=2) + "\n", "utf-8")
    shutil.rmtree(making)
    return out


def _taught(config: Config, name: str | None, out: Path | None, *, smollm2: bool) -> tuple[str, Lesson, Path]:
    """Returns the name of a lesson, the lesson, and the output folder of the model."""
    game = make_game(config.game)
    game.need("lessons", f"model {'smollm2' if smollm2 else 'tiny'}")
    lessons = {name: one for name, one in game.lessons.items() if (one.words is None) == smollm2}
    usual = (name for name, one in lessons.items() if str(one.folder) == as_listed(config.model or ""))
    name = name or next(usual, "self-play")
    if name not in lessons:
        there = ", ".join(lessons) or "none"
        raise UserError(f"no lesson {name!r} of the game {config.game.name}; there are: {there}")
    taught = lessons[name]
    out = out or taught.folder
    check_folder(out, "model")
    return name, taught, out


def _untrained(lesson: Lesson, seed: int, folder: Path) -> Path:
    """Write tokenizer and weights unless an earlier call has; returns their folder."""
    if (folder / "config.json").exists():  # written last
        return folder
    if lesson.words is None:
        build_smollm2(folder)
    else:
        import torch

        from selfplay_pipeline.warm_start.tiny_model import build_tokenizer, new_model

        torch.manual_seed(seed)
        tokenizer = build_tokenizer(lesson.words)
        with filling(folder) as new:
            tokenizer.save_pretrained(new)
            new_model(tokenizer).save_pretrained(new)
    return folder


def _settings(config: Config, model: Path, stage: Stage) -> Config:
    """Returns the configuration of a stage of the lesson."""
    imitated = ImitateConfig(
        learning_rate=stage.learning_rate,
        held_out=HELD_OUT,
        train_batch_size=stage.batch_size,
    )
    trained = config.train.model_copy(
        update={
            "best_of_group": 0,
            "epochs": stage.epochs,
            "save_every": SAVE_EVERY,
            "overrides": [*OPTIMIZER, *config.train.overrides],
        }
    )
    changed = {"model": str(model), "imitate": imitated, "train": trained}
    return config.model_copy(update=changed)


async def _imitate(
    config: Config, stage: Stage, number: int, making: Path, trainer: Trainer, *, last: bool
) -> TrainResult:
    """Play the episodes of a stage, train the model on them, and return the result of the training.

    The learning rate falls only in the last stage.
    """
    folder, first, sources = making / f"stage_{number}", number * FIRST_STATE, list[Source]()
    for part, play in enumerate(stage.plays, start=1):
        games = folder / f"games_{part}.jsonl"
        played = config.generate.model_copy(update={"num_episodes": play.episodes, "episodes_per_state": 1})
        own = config.model_copy(update={"generate": played, "game": muted(config.game) if play.mute else config.game})
        await generate_episodes(own, games, first_state=first, seats=play.players)
        first += play.episodes
        sources.append(Source(games, seats=play.seats, first_tokens=play.first_tokens, mute=play.mute))
    schedule: Schedule = "cosine" if last else "constant"
    return await imitate_episodes(config, sources, folder / "training", trainer, schedule=schedule)
