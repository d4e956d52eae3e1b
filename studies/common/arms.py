"""Trainings that `studies.common.learn` compares: self-play and its controls, from the same warm start.

Each seed trains all arms, and evaluates them and the warm start on held-out states of its own, so that seeds are
independent. Finished parts are not repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.convert.imitation import Source
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import read_model
from selfplay_pipeline.evaluate.listen import LISTENING_FILE, Listening, run_listen
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, count_shared, held_out_states, states_in
from selfplay_pipeline.games.base import GameSettings
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode_wrappers import Swap
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.metrics.bootstrap import Totals
from selfplay_pipeline.train.imitation import imitate_episodes

WARM = "warm start"
SELF_PLAY, MUTED, PLACEBO, NOISE = "self-play", "muted", "placebo", "noise"
SILENT_TEACHER = "own-view"
"""The scripted player that the muted arm imitates first, unless its warm start met muted play: it plays nearly the
silence line."""
NOISE_REWARD = "studies/code/noise_reward.py"
TAUGHT = {
    "generate.num_episodes": 16384,
    "generate.episodes_per_state": 1,
    "imitate.held_out": 0.0,
    "imitate.learning_rate": 1.0e-3,
}
"""Configuration of this imitation."""
MONITOR_SEEDS = 1000
"""Added to a seed to draw the states that are evaluated while it trains."""
MODES: tuple[Mode, ...] = ("sampled", "greedy")


class Arm(NamedTuple):
    """A training: its description, and the configuration keys in which it differs from self-play."""

    about: str
    changes: dict[str, Any] = {}

    @property
    def mute(self) -> bool:
        """Whether messages are muted in the training, so that its figures as trained are those of muted play."""
        return bool(self.changes.get("game.mute", False))


ARMS = {
    SELF_PLAY: Arm("as configured"),
    MUTED: Arm(
        "no message reaches its reader, neither while it imitates play without words nor while it plays itself",
        {"game.mute": True, "train.learning_rate": 1.0e-4},
    ),
    PLACEBO: Arm("rewards are permuted within groups before it trains", {"convert.placebo": True}),
    NOISE: Arm("the reward of an agreement is noise; without one it is 0", {"reward.path": NOISE_REWARD}),
}


class Played(NamedTuple):
    """An evaluated player, and the treatment of its messages.

    Attributes:
        swapped: Whether each heard message was replaced by a message of a state resampled given the hearer's view.
    """

    player: str
    mute: bool
    swapped: bool = False


Outcomes = dict[Played, dict[int, dict[Mode, Totals]]]
"""Figures of each finished evaluation by player, seed and sampling mode."""
Hearing = dict[str, dict[int, dict[str, Totals]]]
"""Decisions of each player after altered messages, by player, seed and kind of alteration."""


class Effort(BaseModel):
    """Effort of a training: minutes of all its stages, and its amounts of play and learning.

    Attributes:
        sampled_tokens: Number of tokens that the policy sampled.
        updates: Number of optimizer steps; None if the training did not count them.
        shared: Number of held-out states that were also trained on.
    """

    model_config = ConfigDict(extra="forbid")

    minutes: float
    episodes: int
    sampled_tokens: int
    updates: int | None
    shared: int


class Point(BaseModel):
    """Held-out rewards after an iteration, measured by `iterate` on a few states; muted if the arm trains muted."""

    model_config = ConfigDict(extra="forbid")

    iteration: int
    rewards: dict[Mode, float]


@dataclass(frozen=True)
class Study:
    """Scope of the comparison, and its folder.

    Attributes:
        source: Name or file of the configuration.
        model: The warm start, None for the configuration's. `{seed}` in it stands for the seed.
        iterations: Number of iterations of each training.
        states: Number of held-out states per seed.
        episodes: Number of sampled episodes per state; one more is played greedily.
        work: Folder for the trainings and the evaluations.
        met_silence: Whether the warm start met muted play. Then the muted arm imitates nothing, and trains at the rate
            of the other arms.
        silent: The scripted player that plays the silence line; it plays the held-out states too. None for none.
    """

    source: str
    model: str | None
    iterations: int
    states: int
    episodes: int
    work: Path
    met_silence: bool = False
    silent: str | None = None

    def config(self, seed: int, changes: dict[str, Any] | None = None) -> Config:
        """Returns the configuration of self-play with a seed.

        The states evaluated during the training differ from the held-out states of the comparison.
        """
        given = {
            "model": self.model and self.model.replace("{seed}", str(seed)),
            "seed": seed,
            "evaluate.state_seed": MONITOR_SEEDS + seed,
            "iterate.num_iterations": self.iterations,
            "iterate.decay_iterations": self.iterations,
            "iterate.evaluate_every": 4,
        }
        return load_config(self.source, given | (changes or {}))

    def run_directory(self, arm: str, seed: int) -> RunDirectory:
        """Returns the run directory of a training, loaded."""
        directory = RunDirectory(self.work / arm / f"seed_{seed}")
        directory.load()
        return directory

    def train(self, arm: str, seed: int) -> None:
        """Run the unfinished parts of a training.

        Raises:
            UserError: `iterate` or `imitate` refuses the training.
        """
        config = self.config(seed, self._changes(arm, seed))
        stopping.run(run_iterate(config, self.work / arm / f"seed_{seed}"))

    def _changes(self, arm: str, seed: int) -> dict[str, Any]:
        """Returns the keys in which an arm differs from self-play."""
        if not ARMS[arm].mute:
            return ARMS[arm].changes
        return {"game.mute": True} if self.met_silence else ARMS[arm].changes | {"model": self._used_to_silence(seed)}

    def _used_to_silence(self, seed: int) -> str:
        """Returns the model that the muted arm begins with: the warm start after it imitated play without words.

        The warm start never met a prompt without words, so that self-play alone stays below the silence line. Seeds
        with one warm start share the imitation.

        Raises:
            UserError: The folder holds an imitation by another model.
        """
        each = "{seed}" in (self.model or "")
        folder = self.work / MUTED / (f"teaching_{seed}" if each else "teaching")
        return teach_silence(self.config(seed if each else 1, {"game.mute": True} | TAUGHT), folder)

    def _checkpoint(self, player: str, seed: int) -> str:
        if player == self.silent:
            return player
        if player == WARM:
            return str(self.config(seed).model)
        return self.run_directory(player, seed).checkpoint(self.iterations)

    async def evaluate(self, seed: int, arms: Sequence[str]) -> None:
        """Evaluate the warm start and the last checkpoints of these arms.

        Each plays with original, swapped and muted messages, and is tested on altered messages if the game can alter
        them.

        Raises:
            UserError: The game has no scripted player `silent`.
        """
        config = self.config(seed)
        altering = make_game(config.game).has("alter")
        async with Servers(Backends.of(config), self.work) as servers:
            if self.silent:
                await run_evaluate(*self._job(Played(self.silent, False), seed), servers)
            for player in (WARM, *arms):
                for mute in (False, True):
                    await run_evaluate(*self._job(Played(player, mute), seed), servers)
                folder = self._hearing(player, seed)
                if altering and not (folder / LISTENING_FILE).exists():
                    job = EvaluationJob(self._checkpoint(player, seed), self.held_out(seed), folder)
                    await run_listen(config, job, servers)

    def outcomes(self, seeds: Sequence[int]) -> Outcomes:
        """Returns all finished evaluations, including those of earlier calls."""
        found: Outcomes = {}
        for player in (WARM, *ARMS):
            for mute, seed in product((False, True), seeds):
                if (self._folder(Played(player, mute), seed) / "evaluation.json").exists():
                    config, job = self._job(Played(player, mute), seed)
                    for swap in (None, *job.swaps):
                        by_mode = {mode: totals_of(config, job, mode, swap) for mode in MODES}
                        found.setdefault(Played(player, mute, swap is not None), {})[seed] = by_mode
        if self.silent:
            silent = Played(self.silent, False)
            for seed in seeds:
                config, job = self._job(silent, seed)
                if job.file("scripted").exists():
                    found.setdefault(silent, {})[seed] = dict.fromkeys(MODES, totals_of(config, job, "scripted"))
        return found

    def heard(self, seeds: Sequence[int]) -> Hearing:
        """Returns all finished listening tests."""
        found: Hearing = {}
        for player in (WARM, *ARMS):
            for seed in seeds:
                file = self._hearing(player, seed) / LISTENING_FILE
                if file.exists():
                    tested = read_model(file, Listening, "python -m studies.common.learn")
                    found.setdefault(player, {})[seed] = {kind: tested.totals(kind) for kind in tested.kinds}
        return found

    def held_out(self, seed: int) -> StateSet:
        return _held_out(self.config(seed).game, self.states, seed)

    def effort(self, arm: str, seed: int) -> Effort:
        """Returns the effort of a finished training."""
        run, game = self.run_directory(arm, seed), make_game(self.config(seed).game)
        numbers = range(1, self.iterations + 1)
        played = [found for number in numbers if (found := run.state.played(number))]
        updates = [trained.updates for number in numbers if (trained := run.state.trained(number))]
        stages = [record for number in numbers for record in run.state.iterations[number].values()]
        trained_on = set[str]().union(*(states_in(game, run.games(number)) for number in numbers))
        return Effort(
            minutes=round(sum(record.seconds for record in stages) / 60, 1),
            episodes=sum(found.episodes or 0 for found in played),
            sampled_tokens=sum(found.sampled_tokens or 0 for found in played),
            updates=None if None in updates else sum(filter(None, updates)),
            shared=count_shared(game, self.held_out(seed), trained_on),
        )

    def curve(self, arm: str, seed: int) -> list[Point]:
        """Returns the held-out rewards that `iterate` measured during a training."""
        state = self.run_directory(arm, seed).state
        numbers = range(self.iterations + 1)
        found = {number: evaluated for number in numbers if (evaluated := state.evaluated(number))}
        return [
            Point(
                iteration=number,
                rewards={"sampled": one.reward.value, "greedy": one.greedy_reward.value},
            )
            for number, one in found.items()
        ]

    def _job(self, played: Played, seed: int) -> tuple[Config, EvaluationJob]:
        config = self.config(seed, {"game.mute": played.mute})
        checkpoint, folder = self._checkpoint(played.player, seed), self._folder(played, seed)
        swaps: tuple[Swap, ...] = ("swapped",)
        if played.mute or played.player == self.silent or not make_game(config.game).has("redraw"):
            swaps = ()
        return config, EvaluationJob(checkpoint, self.held_out(seed), folder, episodes=self.episodes, swaps=swaps)

    def _folder(self, played: Played, seed: int) -> Path:
        name = played.player.replace(" ", "_") + ("_mute" if played.mute else "")
        return self.work / "evaluations" / f"seed_{seed}" / name

    def _hearing(self, player: str, seed: int) -> Path:
        return self.work / "listening" / f"seed_{seed}" / player.replace(" ", "_")


def teach_silence(config: Config, folder: Path) -> str:
    """Returns the checkpoint of the configuration's model after it imitated play without words, in `folder`."""
    seats = [SILENT_TEACHER] * len(make_game(config.game).roles)
    episodes = folder / "episodes" / "teacher.jsonl"
    asyncio.run(generate_episodes(config, episodes, seats=seats))
    return str(stopping.run(imitate_episodes(config, [Source(episodes)], folder / "training")).checkpoint)


@lru_cache(maxsize=16)
def _held_out(rules: GameSettings, states: int, seed: int) -> StateSet:
    """Returns held-out states, which are drawn once: 300 boards that pass DialOp's filter take 20 seconds."""
    return held_out_states(make_game(rules), states, seed)
