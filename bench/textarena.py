"""Six games of TextArena from a warm start to an optimizer step, and one that is learned, with a control.

Run `python -m bench.textarena`. A tiny model for each game imitates `bracketed` (`selfplay model tiny`), plays itself,
and is trained for one step on its episodes. The model of one game then learns for some iterations, with the game's
rewards and with rewards that are permuted within groups. A stopped run continues.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from pydantic import BaseModel

from bench import command
from bench.compared import markdown_table
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.convert.stage import convert_episodes
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import read_episodes
from selfplay_pipeline.generate.seats import seats_for
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast_over_seeds
from selfplay_pipeline.train.offline_stage import train_policy, training_of
from selfplay_pipeline.warm_start.tiny import build_tiny_model

ENVS = (
    "TicTacToe-v0", "KuhnPoker-v0", "IteratedRockPaperScissors-v0", "IteratedMatchingPennies-v0", "ThreePlayerIPD-v0",
    "Secretary-v0",
)  # fmt: skip
LESSON = "short"
ONE_STEP = {
    "generate.num_episodes": 64,
    "generate.temperature": 1.0,
    "train.mini_batches": 1,
    "train.old_log_probs": "step",
    "train.kl_coef": 0.0,
    "train.learning_rate": 3e-4,
    "train.loggers": [],
    "train.dump_rows": True,
}
LEARNED = "Secretary-v0"
LEARNING = {
    "generate.num_episodes": 256,
    "generate.temperature": 1.0,
    "train.train_batch_size": 256,
    "train.kl_coef": 0.0,
    "train.learning_rate": 3e-4,
    "train.loggers": [],
    "iterate.evaluate_every": 0,
}
WARM = "warm start"
ARMS: dict[str, dict[str, Any]] = {"self-play": {}, "rewards permuted": {"convert.placebo": True}}
MODES: tuple[Mode, ...] = ("sampled", "greedy")
Outcomes = dict[int, dict[str, dict[Mode, Totals]]]
"""Evaluations by seed, player and sampling mode."""


class Step(BaseModel):
    """Figures of one game's episodes, rows and optimizer step.

    Attributes:
        imitated: Number of rows that the warm start imitated.
        learned: Number of its optimizer steps.
        illegal: Illegal turns of all seats per episode.
        groups: Number of groups, one for each state and seat.
        signal: Number of groups with different rewards.
        log_prob_gap: Mean |trainer - engine| of the sampled tokens' log-probs in nats.
        advantage_gap: Largest difference of an advantage in verl's batch to that of TextArena's own rewards.
        moved: Largest change of a weight.
    """

    seats: int
    imitated: int
    learned: int
    episodes: int
    illegal: float
    groups: int
    signal: int
    rows: int
    updates: int
    log_prob_gap: float | None
    advantage_gap: float
    moved: float


class Learned(NamedTuple):
    """Trainings of one seed: mean reward of each iteration's episodes, optimizer steps, and evaluations, by player."""

    played: dict[str, list[float]]
    updates: dict[str, int]
    outcomes: dict[str, dict[Mode, Totals]]


class Player(BaseModel):
    """Rewards of a player on held-out states, by sampling mode, with intervals over seeds and states."""

    reward: dict[Mode, Interval]
    over_warm: dict[Mode, Interval] = {}
    over_control: dict[Mode, Interval] = {}
    seeds_over_control: dict[Mode, list[Interval]] = {}


class Results(BaseModel):
    """Contents of `results.json`."""

    steps: dict[str, Step]
    learned: str
    seeds: int
    iterations: int
    states_of_each_seed: int
    best: float
    """Mean reward of the best play on the held-out states."""
    played: dict[str, list[list[float]]]
    """Mean reward in each iteration's training episodes, by arm and seed."""
    updates: dict[str, list[int]]
    players: dict[str, Player]


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1, 2, … of the learned game.")] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Of each training.")] = 10,
    states: Annotated[int, typer.Option(min=2, help="Held-out states of each seed.")] = 1000,
    work: Annotated[Path, typer.Option(help="Gets models, episodes and trainings.")] = Path("data/textarena"),
    output: Annotated[Path, typer.Option(help="Gets results.json and table.md.")] = Path("docs/results/textarena"),
) -> None:
    """Take six games through all stages, learn one of them, and print the tables."""
    steps = {env: one_step(env, work / env) for env in ENVS}
    warm = warm_start(LEARNED, work / LEARNED)
    learned = {seed: learn(seed, iterations, states, warm, work / "learned") for seed in range(1, seeds + 1)}
    outcomes = {seed: found.outcomes for seed, found in learned.items()}
    results = Results(
        steps=steps,
        learned=LEARNED,
        seeds=seeds,
        iterations=iterations,
        states_of_each_seed=states,
        best=best_of(seeds, states),
        played={arm: [found.played[arm] for found in learned.values()] for arm in ARMS},
        updates={arm: [found.updates[arm] for found in learned.values()] for arm in ARMS},
        players={name: player_of(name, outcomes) for name in (WARM, *ARMS)},
    )
    write_text(output / "results.json", results.model_dump_json(indent=1) + "\n")
    write_text(output / "table.md", tables(results))
    print(tables(results))


def configured(env: str, model: Path | None = None, changes: dict[str, Any] | None = None) -> Config:
    """Returns the configuration of a game."""
    given = {"game": f"textarena:{env}", "model": str(model) if model else None}
    return load_config("tiny", given | (changes or {}))


def warm_start(env: str, folder: Path) -> Path:
    """Returns the folder of the tiny model that imitated `bracketed`, which is made unless it exists."""
    model = folder / "model"
    if not (model / "warm_start.json").exists():
        say(f"{env}: warm start")
        stopping.run(build_tiny_model(configured(env), LESSON, model))
    return model


def one_step(env: str, folder: Path) -> Step:
    """Play, convert and train for one step; returns the figures."""
    model = warm_start(env, folder)
    say(f"{env}: one step")
    config, games = configured(env, model, ONE_STEP), folder / "games.jsonl"
    played = asyncio.run(generate_episodes(config, games, seats=seats_for(config, ()))).result()
    rows = convert_episodes(config, games, folder)
    taught = json.loads((model / "warm_start.json").read_text("utf-8"))["stages"][0]
    trained = stopping.run(train_policy(training_of(config, folder / "train.parquet", folder / "training")))
    return Step(
        seats=len(make_game(config.game).roles),
        imitated=taught["rows"],
        learned=taught["steps"],
        episodes=played.episodes or 0,
        illegal=played.illegal_per_episode,
        groups=played.groups,
        signal=played.groups - played.groups_without_signal,
        rows=rows.train_rows,
        updates=trained.updates,
        log_prob_gap=trained.log_prob_gap,
        advantage_gap=advantage_gap(games, folder / "training"),
        moved=moved(model, trained.checkpoint),
    )


def advantage_gap(games: Path, training: Path) -> float:
    """Returns the largest difference of verl's advantages to those of TextArena's own rewards, seat by seat.

    An episode that ended before a seat's first turn is none of this seat's.
    """
    own: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for game in read_episodes(games):
        lost = [-1.0] * len(game.trajectories)
        for side in game.trajectories:
            if side.response_ids:
                rewards_of_game = game.outcome.proposal or lost  # None if a limit ended the episode
                own[game.group_index, side.seat][game.episode] = rewards_of_game[side.seat]
    gaps = []
    for row in map(json.loads, next(training.rglob("trained_rows.jsonl")).read_text("utf-8").splitlines()):
        rewards = own[row["group"], row["seat"]]
        values = np.array([*rewards.values()])
        expected = (rewards[row["episode"]] - values.mean()) / values.std(ddof=1)
        gaps.append(np.abs(np.array(row["advantages"]) - expected).max())
    return float(max(gaps))


def moved(before: Path, after: Path) -> float:
    """Returns the largest change of a weight."""
    from safetensors.torch import load_file

    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    return max(float((new[name].float() - old[name].float()).abs().max()) for name in old)


def learn(seed: int, iterations: int, states: int, warm: Path, work: Path) -> Learned:
    """Train with the game's rewards and with permuted ones, and evaluate both."""
    folder, players, found = work / f"seed_{seed}", {WARM: str(warm)}, Learned({}, {}, {})
    for arm, changes in ARMS.items():
        say(f"{arm}, seed {seed}")
        numbers = {"seed": seed, "iterate.num_iterations": iterations, "iterate.decay_iterations": iterations}
        config = configured(LEARNED, warm, LEARNING | numbers | changes)
        run = stopping.run(run_iterate(config, folder / arm.replace(" ", "_")))
        players[arm] = run.checkpoint(iterations)
        each = range(1, iterations + 1)
        found.played[arm] = [done.mean_reward for number in each if (done := run.state.played(number))]
        found.updates[arm] = sum(step.updates or 0 for number in each if (step := run.state.trained(number)))
    return found._replace(outcomes=asyncio.run(evaluated(seed, players, states, folder)))


async def evaluated(seed: int, players: dict[str, str], states: int, folder: Path) -> dict[str, dict[Mode, Totals]]:
    """Returns the figures of each player on held-out states of the seed's own."""
    config = configured(LEARNED, None, LEARNING)
    held_out, found = held_out_states(make_game(config.game), states, seed), {}
    async with Servers(config, folder) as servers:
        for name, checkpoint in players.items():
            job = EvaluationJob(checkpoint, held_out, folder / f"evaluation_{name.replace(' ', '_')}", episodes=1)
            await run_evaluate(config, job, servers)
            found[name] = {mode: totals_of(config, job, mode).select(["reward"]) for mode in MODES}
    return found


def player_of(name: str, outcomes: Outcomes) -> Player:
    """Returns a player's rewards and their differences to the warm start and to the control."""

    def over(seeds: list[int], *others: str) -> dict[Mode, Interval]:
        terms = zip((1.0, -1.0), (name, *others), strict=False)
        weights = list(terms)
        return {
            mode: contrast_over_seeds([[(by, outcomes[seed][who][mode]) for by, who in weights] for seed in seeds])[
                "reward"
            ]
            for mode in MODES
        }

    every, control = [*outcomes], [*ARMS][1]
    if name == WARM:
        return Player(reward=over(every))
    if name == control:
        return Player(reward=over(every), over_warm=over(every, WARM))
    single = [over([seed], control) for seed in every]
    return Player(
        reward=over(every),
        over_warm=over(every, WARM),
        over_control=over(every, control),
        seeds_over_control={mode: [found[mode] for found in single] for mode in MODES},
    )


def best_of(seeds: int, states: int) -> float:
    """Returns the reward of the best play of Secretary-v0 on the held-out states, for uniform values.

    With r values to come, a highest value so far, x, is accepted if (1/x - 1) + … + (x⁻ʳ - 1)/r is at most 1 (Gilbert
    and Mosteller, "Recognizing the Maximum of a Sequence", 1966).
    """
    game = make_game(configured(LEARNED).game)
    rewards = []
    for seed in range(1, seeds + 1):
        for state in held_out_states(game, states, seed).states:
            session, highest = game.start(state), 0.0
            left = int(game.view(session, 0).read[0].split(" hidden values")[0].split()[-1])
            while session.seats:
                value, left = float(game.view(session, 0).read[-1].rstrip(".").split()[-1]), left - 1
                sure = value >= highest and sum((value**-j - 1) / j for j in range(1, left + 1)) <= 1
                highest = max(highest, value)
                session.step(0, "[accept]" if sure else "[continue]")
            rewards.append(session.outcome().rewards[0])
    return float(np.mean(rewards))


def tables(results: Results) -> str:
    """Returns both tables as Markdown."""
    of_step: dict[str, Callable[[Step], str]] = {
        "seats": lambda step: f"{step.seats}",
        "rows imitated, in steps": lambda step: f"{step.imitated}, {step.learned}",
        "episodes": lambda step: f"{step.episodes}",
        "illegal turns per episode": lambda step: f"{step.illegal:.2f}",
        "groups with a signal": lambda step: f"{step.signal} of {step.groups}",
        "rows": lambda step: f"{step.rows}",
        "optimizer steps": lambda step: f"{step.updates}",
        "log-prob gap (nats)": lambda step: f"{step.log_prob_gap or 0:.1e}",
        "advantage gap": lambda step: f"{step.advantage_gap:.1e}",
        "largest change of a weight": lambda step: f"{step.moved:.1e}",
    }
    rows = {label: [*map(cell, results.steps.values())] for label, cell in of_step.items()}
    players = results.players.values()
    learned = {f"reward, {mode}": [str(player.reward[mode]) for player in players] for mode in MODES}
    for mode in MODES:
        for name, of in (("over the warm start", "over_warm"), ("over the control", "over_control")):
            found = [getattr(player, of) for player in players]
            learned[f"{name}, {mode}"] = [f"{by[mode]:+}" if by else "" for by in found]
        for seed in range(results.seeds):
            each = [player.seeds_over_control for player in players]
            learned[f"seed {seed + 1} alone, {mode}"] = [f"{by[mode][seed]:+}" if by else "" for by in each]
    return f"{markdown_table(results.steps, rows)}\n{markdown_table(results.players, learned)}\n"


if __name__ == "__main__":
    command.run(main)
