"""Stages as calls that wait for their result, in scripts and in notebooks.

The commands call the same coroutines (`generate_episodes`, `train_policy`, `run_evaluate`), which are for programs with
an event loop of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from selfplay_pipeline.config.schema import SELF, Config
from selfplay_pipeline.core.small_files import File
from selfplay_pipeline.evaluate.run import Evaluation, job_of, run_evaluate
from selfplay_pipeline.evaluate.states import StateSet
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import find, make_game
from selfplay_pipeline.generate.seats import seats_for
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.train.offline import TrainResult
from selfplay_pipeline.train.offline_stage import train_policy, training_of

T = TypeVar("T")


def load_game(name: str) -> type[Game]:
    """Import a game of your own, as the option `--game` does, so that files of its episodes can be read; returns it.

    Args:
        name: File of the game, `FILE.py`, or the name under which an installed package offers it. Its code is run.

    Raises:
        UserError: No game has this name, or the file cannot be imported.
    """
    return find(name)


def play_episodes(config: Config, output: File, players: Sequence[str] = (), *, first_state: int = 0) -> Played:
    """Play the episodes that are missing from a file, as `selfplay generate` does; returns the file's figures.

    Args:
        config: The configuration, as `load_config` returns it. A game of your own is named there, by its file:
            `load_config("tiny", {"game": "my_game.py"})`.
        output: JSONL file of the episodes.
        players: Who holds the seats: `policy`, a scripted player, `chat`, or a checkpoint; one name holds all seats. By
            default, the policy does.
        first_state: Number of the first game state.

    Raises:
        UserError: A player is unknown, or the file holds other episodes.
    """
    seats = seats_for(make_game(config.game), players)
    return _wait(generate_episodes(config, Path(output), first_state=first_state, seats=seats)).result()


def train_model(config: Config, rows: File, output: File) -> TrainResult:
    """Train the configured model on converted episodes, as `selfplay train` does; returns the result with checkpoint.

    Args:
        config: The configuration, whose model sampled the rows.
        rows: train.parquet of `convert_episodes`.
        output: Folder of the training.

    Raises:
        UserError: The rows or the model are unusable, or the folder holds another training.
    """
    return _wait(train_policy(training_of(config, Path(rows), Path(output))))


def evaluate_player(
    config: Config,
    player: str,
    output: File,
    *,
    partner: str = SELF,
    states: StateSet | None = None,
    episodes: int = 2,
    seat: int | None = None,
) -> Evaluation:
    """Play held-out states, as `selfplay evaluate` does; returns figures with 95 % intervals.

    Args:
        config: The configuration; `evaluate.swap_messages` also measures what words are worth. With `reward.path`, the
            figure `trained_reward` is the reward of this file, and `reward` stays the game's own.
        player: The evaluated player: a checkpoint, a scripted player, or `chat`.
        output: Folder of the episodes and of evaluation.json.
        partner: Who holds the other seats; `self` is the player.
        states: States to play, as `sample_held_out` returns them; by default 500.
        episodes: Sampled episodes of each state; a checkpoint also plays one greedily.
        seat: Seat of the player in all episodes; None for each seat in turn.

    Raises:
        UserError: A player is unknown, or the folder holds another evaluation.
    """
    job = job_of(config, player, Path(output), partner=partner, states=states, episodes=episodes, seat=seat)
    return _wait(run_evaluate(config, job))


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in a thread of its own where a loop already runs, such as a notebook's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    done: list[T] = []
    failed: list[BaseException] = []
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)

    def run() -> None:
        try:
            done.append(loop.run_until_complete(task))
        except BaseException as error:
            failed.append(error)
        finally:
            loop.close()

    thread = Thread(target=copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if failed:
        raise failed[0]
    return done[0]
