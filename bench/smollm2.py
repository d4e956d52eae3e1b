"""Trains SmolLM2-135M-Instruct on a CPU: legal actions, agreement and reward before, between and after.

python -m bench.smollm2

The model first imitates scripted players that speak English but never use the partner's facts in their plans, and then
learns by self-play, with GRPO and with filtered behaviour cloning. A stopped run continues; the table has all finished
parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from bench import command
from bench.arms import MODES, WARM
from bench.compared import Figures, markdown_table
from selfplay_pipeline.cli.show.evaluation import references_in_words
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.convert.imitation import Source
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, held_out_states, references
from selfplay_pipeline.games.registry import all_games, make_game
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.iterate.folder import RunState
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast_over_seeds
from selfplay_pipeline.metrics.figures import figures_of
from selfplay_pipeline.train.imitation import imitate_episodes
from selfplay_pipeline.warm_start.smollm2 import build_smollm2

CONFIG = "bench/smollm2.yaml"
GRPO, CLONING = "grpo", "filtered-bc"
BEFORE = "before"
CLONING_RATE = 5e-4
TEACHER = "speaking-teacher"
SHOWN = ("legal", "agreed", "reward")
Outcomes = Mapping[int, Mapping[str, Mapping[Mode, Totals]]]
"""Evaluations by seed, player and sampling mode."""


class Budget(BaseModel):
    """Effort of the trainings of an arm, as means over seeds."""

    episodes: float
    rows: float
    own_tokens: float
    updates: float
    minutes: float


class Player(BaseModel):
    """Results of a player over its seeds: figures, and their rise over the warm start.

    Attributes:
        seeds: Number of its seeds.
        rise: Rise with intervals over seeds and states, which are wide with few seeds.
        rise_of_seeds: Rise of each seed alone, with intervals over its states.
        budget: Mean effort of its self-play over seeds; None for a player without self-play.
    """

    seeds: int
    figures: Figures
    rise: Figures
    rise_of_seeds: list[Figures]
    budget: Budget | None


class Results(BaseModel):
    """Contents of `results.json`."""

    teacher: str
    teacher_episodes: int
    iterations: int
    states_of_each_seed: int
    episodes_of_each_state: int
    references: dict[str, Interval]
    players: dict[str, Player]


@dataclass(frozen=True)
class Study:
    """Length of the trainings, their evaluation, and their folder.

    Attributes:
        source: Name or file of the configuration.
        states: Number of held-out states per seed.
        episodes: Number of sampled episodes per state; one more is played greedily.
    """

    source: str
    iterations: int
    states: int
    episodes: int
    work: Path

    def config(self, seed: int, changes: Mapping[str, Any] = {}) -> Config:
        fixed = {"seed": seed, "iterate.num_iterations": self.iterations, "iterate.evaluate_every": 0}
        return load_config(self.source, fixed | dict(changes))

    def folder(self, seed: int, arm: str) -> Path:
        return self.work / f"seed_{seed}" / arm.replace(" ", "_")

    def held_out(self, seed: int) -> StateSet:
        return held_out_states(make_game(self.config(seed).game), self.states, seed)

    async def evaluate(self, seed: int, checkpoints: Mapping[str, str]) -> dict[str, dict[Mode, Totals]]:
        """Returns the figures of each checkpoint on held-out states of the seed's own."""
        found: dict[str, dict[Mode, Totals]] = {}
        config = self.config(seed)
        states = self.held_out(seed)
        async with Servers(config, self.work) as servers:
            for name, checkpoint in checkpoints.items():
                folder = self.folder(seed, name) / f"evaluation_after_{self.iterations}"
                job = EvaluationJob(checkpoint, states, folder, episodes=self.episodes)
                await run_evaluate(config, job, servers)
                found[name] = {mode: totals_of(config, job, mode) for mode in MODES}
        return found


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1, 2, … of self-play.")] = 2,
    iterations: Annotated[int, typer.Option(min=1, help="Of each self-play.")] = 2,
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = CONFIG,
    model: Annotated[Path | None, typer.Option(help="Another chat model's folder in place of SmolLM2.")] = None,
    teacher: Annotated[str, typer.Option(help="The scripted player that the warm start imitates.")] = TEACHER,
    teacher_episodes: Annotated[int, typer.Option(min=1, help="Episodes of it.")] = 240,
    states: Annotated[int, typer.Option(min=2, help="Held-out states of each seed.")] = 60,
    episodes: Annotated[int, typer.Option(min=1, help="Sampled episodes of each state.")] = 1,
    work: Annotated[Path, typer.Option(help="Gets models, runs and episodes.")] = Path("data/learn_smollm2"),
    output: Annotated[Path, typer.Option(help="Gets results.json and table.md.")] = Path("docs/results/smollm2"),
) -> None:
    """Make the warm start, train with both methods from it, and print one table."""
    study = Study(config, iterations, states, episodes, work)
    arms = {GRPO: {}, CLONING: cloning(study.config(1), CLONING_RATE, 1)}
    model = model or smollm2(work / "model")
    warm = warm_start(study, model, teacher, teacher_episodes)
    outcomes: dict[int, dict[str, dict[Mode, Totals]]] = {}
    budgets: dict[str, list[Budget]] = {arm: [] for arm in arms}

    def show() -> None:
        results = Results(
            teacher=teacher,
            teacher_episodes=teacher_episodes,
            iterations=iterations,
            states_of_each_seed=states,
            episodes_of_each_state=episodes,
            references=lines(study, outcomes),
            players={name: player_of(name, outcomes, budgets.get(name, [])) for name in outcomes[1]},
        )
        write_text(output / "results.json", results.model_dump_json(indent=1) + "\n")
        write_text(output / "table.md", table(results))

    for seed in range(1, seeds + 1):
        outcomes[seed] = asyncio.run(study.evaluate(seed, {WARM: warm}))
        show()
        for arm, changes in arms.items():
            say(f"{arm}, seed {seed} of {seeds}")
            run = stopping.run(
                run_iterate(study.config(seed, changes | {"model": warm}), study.folder(seed, arm) / "run")
            )
            budgets[arm].append(budget_of(run.state, iterations))
            outcomes[seed] |= asyncio.run(study.evaluate(seed, {arm: run.checkpoint(iterations)}))
            show()
    # The untrained model is the same for all seeds, and slowest to play, because it rambles.
    outcomes[1] = asyncio.run(study.evaluate(1, {BEFORE: str(model)})) | outcomes[1]
    show()
    print((output / "table.md").read_text())


def smollm2(folder: Path) -> Path:
    """Returns the folder of SmolLM2-135M-Instruct, which is unpacked unless it exists."""
    if not folder.exists():
        build_smollm2(folder)
    return folder


def warm_start(study: Study, model: Path, teacher: str, episodes: int) -> str:
    """Returns the checkpoint of a model that has imitated episodes of a scripted player.

    It is trained in bfloat16 if the CPU computes in it, which takes two thirds of the time. Self-play is not: the
    engine plays in float32, and the log-probs of both should be equal.
    """
    played = {"generate.num_episodes": episodes, "generate.episodes_per_state": 1}
    trained = {"train.dtype": "bfloat16" if computes_in_bfloat16() else "float32"}
    config = load_config(study.source, {"model": str(model)} | played | trained)
    file, output = study.work / "teacher.jsonl", study.work / "warm_start"
    asyncio.run(generate_episodes(config, file, seats=[teacher] * len(make_game(config.game).roles)))
    stopping.run(imitate_episodes(config, [Source(file)], output))
    return str(output / "checkpoint")


def computes_in_bfloat16() -> bool:
    """Whether the CPU has bfloat16 instructions; without them bfloat16 is slower than float32."""
    from torch import cpu

    return bool(cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())


def lines(study: Study, seeds: Iterable[int]) -> dict[str, Interval]:
    """Returns the reference lines on the held-out states of these seeds."""
    game = make_game(study.config(1).game)
    every = (state for seed in seeds for state in held_out_states(game, study.states, seed).states)
    return references(game, StateSet("of all seeds", tuple(every)))


def cloning(config: Config, rate: float, best: int) -> dict[str, Any]:
    """Returns the configuration changes that give filtered behaviour cloning as many optimizer steps as GRPO.

    A batch of GRPO has all rows of its groups; a batch of cloning has those of the best episodes of as many groups.
    """
    rows = config.train.train_batch_size * best // config.generate.episodes_per_state
    return {
        "train.method": "filtered-bc",
        "train.best_of_group": best,
        "train.learning_rate": rate,
        "train.train_batch_size": rows,
    }


def budget_of(state: RunState, iterations: int) -> Budget:
    """Returns the effort of the first iterations of a run."""
    numbers = range(1, iterations + 1)
    trained = [training for number in numbers if (training := state.trained(number))]
    played = [playing for number in numbers if (playing := state.played(number))]
    return Budget(
        episodes=sum(found.episodes or 0 for found in played),
        rows=sum(found.rows or 0 for found in trained),
        own_tokens=sum(found.own_tokens or 0 for found in trained),
        updates=sum(found.updates or 0 for found in trained),
        minutes=sum(stage.seconds for number in numbers for stage in state.iterations[number].values()) / 60,
    )


def mean_of(budgets: Sequence[Budget]) -> Budget:
    """Returns the mean effort over seeds."""
    means = {name: sum(getattr(budget, name) for budget in budgets) / len(budgets) for name in Budget.model_fields}
    return Budget(**means)


def player_of(name: str, outcomes: Outcomes, budgets: Sequence[Budget]) -> Player:
    """Returns a player's figures over the seeds that it was evaluated on."""
    every = [by_player for by_player in outcomes.values() if name in by_player]

    def over(seeds: Sequence[Mapping[str, Mapping[Mode, Totals]]], terms: Mapping[str, float]) -> Figures:
        return {
            mode: contrast_over_seeds(
                [[(weight, found[who][mode].select(SHOWN)) for who, weight in terms.items()] for found in seeds]
            )
            for mode in MODES
        }

    rising = {name: 1.0, WARM: -1.0}
    return Player(
        seeds=len(every),
        figures=over(every, {name: 1.0}),
        rise=over(every, rising) if budgets else {},
        rise_of_seeds=[over([seed], rising) for seed in every] if budgets else [],
        budget=mean_of(budgets) if budgets else None,
    )


def table(results: Results) -> str:
    """Returns Markdown with a row per figure and sampling mode and a column per player; then the reference lines."""
    players, labels = results.players, figures_of(*all_games())
    rows = {"seeds": [str(player.seeds) for player in players.values()]}
    for name in SHOWN:
        for mode in MODES:
            found = [str(player.figures[mode][name]) for player in players.values()]
            rows[f"{labels[name].label}, {mode}"] = found
    for mode in MODES:
        rows[f"rise of the reward, {mode}"] = [
            f"{player.rise[mode]['reward']:+}" if player.rise else "" for player in players.values()
        ]
        for number in range(max(len(player.rise_of_seeds) for player in players.values())):
            rows[f"seed {number + 1} alone, {mode}"] = [
                f"{player.rise_of_seeds[number][mode]['reward']:+}" if number < len(player.rise_of_seeds) else ""
                for player in players.values()
            ]
    for name in ("episodes", "own_tokens", "updates", "minutes"):
        rows[f"{name.replace('_', ' ')} a seed"] = [
            f"{getattr(player.budget, name):,.0f}" if player.budget else "" for player in players.values()
        ]
    lines = references_in_words(results.references)
    return f"{markdown_table(players, rows)}\n{lines[0].upper()}{lines[1:]}.\n"


if __name__ == "__main__":
    command.run(main)
