"""Does held-out reward rise? The default tiny set-up from its warm start, and what muting costs before and after.

It cannot show that messages are the reason: no control is trained muted or on permuted rewards, the best play without
messages is not measured beside it, and all seeds are compared with one evaluation of the warm start.

For each seed: train, then evaluate the last checkpoint beside the warm start on the same states, which no training
seed draws from. Writes data and a plot; everything is resumable, so that a stopped benchmark continues.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import command
from selfplay_pipeline.config import Config, load_config
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.core.small_files import read_json
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import (
    StateSet,
    count_shared,
    held_out_states,
    references,
    states_in,
)
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.run import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast
from selfplay_pipeline.servers import Servers

CROSSPLAY_STATES = 250
STATE_SEED = 1
"""The set-up was tuned on held-out states of seed 0."""
MOST_ILLEGAL = 0.01
"""Rise of illegal actions an episode that its interval must exclude."""
NOT_SHOWN = f"that the policy learned to cooperate by talking: {MatchingGame.about_lines}"


@dataclass(frozen=True)
class Plan:
    """What is measured, and where it goes."""

    config: Config
    work: Path
    seeds: int
    iterations: int
    states: StateSet
    episodes: int

    def run_dir(self, seed: int) -> Path:
        return self.work / f"seed_{seed}"

    def trained(self, seed: int) -> str:
        state = read_json(self.run_dir(seed) / "state.json")
        return str(state["iterations"][str(self.iterations)]["train"]["figures"]["checkpoint"])

    def job(self, name: str, checkpoint: str, *, mute: bool) -> tuple[Config, EvaluationJob]:
        """One evaluation; muted ones play half as often."""
        config = self.config.model_copy(update={"game": self.config.game.model_copy(update={"mute": mute})})
        folder = self.work / f"evaluation_{name}{'_mute' if mute else ''}"
        episodes = self.episodes // 2 if mute else self.episodes
        return config, EvaluationJob(checkpoint, self.states, folder, episodes=episodes, greedy=not mute)

    def totals(self, name: str, checkpoint: str, mode: Mode, *, mute: bool = False) -> Totals:
        return totals_of(*self.job(name, checkpoint, mute=mute), mode)


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 1, 2, …")] = 3,
    iterations: Annotated[int, typer.Option(min=1)] = 8,
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = "tiny",
    model: Annotated[str | None, typer.Option(help="The warm start [default: the configuration's].")] = None,
    states: Annotated[int, typer.Option(min=2, help="Held-out states.")] = 500,
    episodes: Annotated[int, typer.Option(min=2, help="Sampled episodes of each state.")] = 4,
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/learn"),
    output: Annotated[Path, typer.Option(help="Gets results.json and the plot.")] = Path("docs/results/learn"),
) -> None:
    """Train with several seeds and say whether held-out reward rose; exit status 1 if that was not shown.

    A rise is no evidence that the policy learned to cooperate by talking.
    """
    settings = load_config(config, {"model": model, "iterate.num_iterations": iterations})
    held_out = held_out_states(make_game(settings.game), states, STATE_SEED)
    plan = Plan(settings, work, seeds, iterations, held_out, episodes)
    seconds = {seed: _train(plan, seed) for seed in range(1, seeds + 1)}
    asyncio.run(_evaluate(plan))
    results = _results(plan, seconds)
    write_json(output / "results.json", results)
    _plot(results, output / "learning.png")
    print(json.dumps(_closing_line(results)))
    raise typer.Exit(0 if all(results["criteria"].values()) else 1)


def _train(plan: Plan, seed: int) -> float:
    """Seconds of all stages; of a stage that was killed, those of its last attempt."""
    run = run_iterate(plan.config.model_copy(update={"seed": seed}), plan.run_dir(seed))
    return sum(record.seconds for stages in run.state.iterations.values() for record in stages.values())


async def _evaluate(plan: Plan) -> None:
    """The warm start and each seed's last checkpoint, muted and not, on one server; then cross-play."""
    async with Servers(plan.config.engine, plan.work) as servers:
        for name, checkpoint in _checkpoints(plan).items():
            for mute in (False, True):
                config, job = plan.job(name, checkpoint, mute=mute)
                await run_evaluate(config, job, servers)
    names = [str(plan.config.model)]
    for number in range(2, plan.iterations + 1, 2):
        state = read_json(plan.run_dir(1) / "state.json")
        names.append(state["iterations"][str(number)]["train"]["figures"]["checkpoint"])
    some = plan.states.states[:CROSSPLAY_STATES]
    fewer = StateSet(f"the first {len(some)} of {plan.states.name}", some)
    await run_crossplay(plan.config, [*dict.fromkeys(names), "sharing"], fewer, 1, plan.work / "crossplay")


def _checkpoints(plan: Plan) -> dict[str, str]:
    trained = {f"seed_{seed}": plan.trained(seed) for seed in range(1, plan.seeds + 1)}
    return {"before": str(plan.config.model)} | trained


def _results(plan: Plan, seconds: dict[int, float]) -> dict[str, Any]:
    game = make_game(plan.config.game)
    before = {mode: plan.totals("before", str(plan.config.model), mode) for mode in ("sampled", "greedy")}
    muted_before = plan.totals("before", str(plan.config.model), "sampled", mute=True)
    per_seed = {}
    for seed in range(1, plan.seeds + 1):
        name, checkpoint = f"seed_{seed}", plan.trained(seed)
        after = {mode: plan.totals(name, checkpoint, mode) for mode in ("sampled", "greedy")}
        muted = plan.totals(name, checkpoint, "sampled", mute=True)
        games = [plan.run_dir(seed) / f"iter_{n}" / "selfplay_games.jsonl" for n in range(1, plan.iterations + 1)]
        played = set[str]().union(*(states_in(game, path) for path in games))
        per_seed[str(seed)] = {
            "after": {mode: _dump(totals.intervals()) for mode, totals in after.items()},
            "difference": {mode: _dump(contrast([(1, after[mode]), (-1, before[mode])])) for mode in after},
            "cost_of_muting_after": _dump(contrast([(1, after["sampled"]), (-1, muted)])),
            "cost_of_muting_rise": _dump(
                contrast([(1, after["sampled"]), (-1, muted), (-1, before["sampled"]), (1, muted_before)])
            ),
            "states_shared_with_training": count_shared(game, plan.states, played),
            "seconds": round(seconds[seed], 1),
            "curve": _curve(plan.run_dir(seed) / "metrics.jsonl"),
        }
    shown = {seed: _shown(entry, before["sampled"]) for seed, entry in per_seed.items()}
    return {
        "command": shlex.join(["python", "-m", "bench.learn", *sys.argv[1:]]),
        "config": plan.config.model_dump(mode="json", exclude={"engine", "seed"}),
        "states": plan.states.name,
        "episodes": plan.episodes,
        "references": _dump(references(game, plan.states)),
        "before": {mode: _dump(totals.intervals()) for mode, totals in before.items()},
        "cost_of_muting_before": _dump(contrast([(1, before["sampled"]), (-1, muted_before)])),
        "seeds": per_seed,
        "crossplay": _crossplay(plan),
        "not_shown": NOT_SHOWN,
        "criteria": {name: all(found[name] for found in shown.values()) for name in next(iter(shown.values()))},
    }


def _shown(entry: dict[str, Any], before: Totals) -> dict[str, bool]:
    """What a seed must show; every rise is paired by state, and its 95 % interval must lie above 0."""
    sampled, greedy = entry["difference"]["sampled"], entry["difference"]["greedy"]
    return {
        "warm_start_agrees_in_95_percent": (before.intervals()["agreed"].value or 0) >= 0.95,
        "sampled_reward_rises": sampled["reward"]["low"] > 0,
        "reward_given_agreement_rises": sampled["reward_if_agreed"]["low"] > 0,
        "greedy_reward_rises": greedy["reward"]["low"] > 0,
        "illegal_actions_do_not_rise_by_0.01": sampled["illegal"]["high"] < MOST_ILLEGAL,
        "muting_costs_more": entry["cost_of_muting_rise"]["reward"]["low"] > 0,
        "at_most_25_minutes": entry["seconds"] <= 25 * 60,
        "no_state_was_trained_on": entry["states_shared_with_training"] == 0,
    }


def _closing_line(results: dict[str, Any]) -> dict[str, Any]:
    """The criteria, what they do not show, means over seeds, and the outermost ends of the seeds' intervals."""
    line: dict[str, Any] = {"benchmark": "learn", "seeds": len(results["seeds"]), **results["criteria"]}
    for mode, figure in (
        ("sampled", "reward"), ("sampled", "reward_if_agreed"), ("greedy", "reward"), ("sampled", "illegal"),
    ):  # fmt: skip
        found = [entry["difference"][mode][figure] for entry in results["seeds"].values()]
        line[f"{mode}_{figure}"] = {
            "before": round(results["before"][mode][figure]["value"], 4),
            "rise": round(float(np.mean([interval["value"] for interval in found])), 4),
            "low": round(min(interval["low"] for interval in found), 4),
            "high": round(max(interval["high"] for interval in found), 4),
        }
    muting = [entry["cost_of_muting_rise"]["reward"] for entry in results["seeds"].values()]
    line["cost_of_muting"] = {
        "before": round(results["cost_of_muting_before"]["reward"]["value"], 4),
        "rise": round(float(np.mean([interval["value"] for interval in muting])), 4),
        "low": round(min(interval["low"] for interval in muting), 4),
        "high": round(max(interval["high"] for interval in muting), 4),
    }
    line["not_shown"] = NOT_SHOWN
    line["minutes_a_seed"] = [round(entry["seconds"] / 60, 1) for entry in results["seeds"].values()]
    return line


def _plot(results: dict[str, Any], path: Path) -> None:
    """Held-out reward by iteration, one line a seed, the closing evaluations, and the reference lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    watched = f"{results['config']['iterate']['evaluate_states']} states, mean of seeds"
    all_states = f"{results['states'].split()[0]} other states, 95 %"
    figure, axes = plt.subplots(figsize=(7, 4.2), constrained_layout=True)
    styles = {"held_out_reward": ("#0072b2", "o", "sampled"), "held_out_greedy_reward": ("#d55e00", "s", "greedy")}
    for key, (colour, marker, label) in styles.items():
        curves = []
        for entry in results["seeds"].values():
            points = [(line["iteration"], line[key]["value"]) for line in entry["curve"] if key in line]
            curves.append(points)
            axes.plot(*zip(*points, strict=True), color=colour, alpha=0.35, linewidth=1)
        mean = np.mean([[value for _, value in points] for points in curves], axis=0)
        axes.plot([number for number, _ in curves[0]], mean, color=colour, marker=marker, label=f"{label}, {watched}")
        ends = [(-0.3, results["before"][label]["reward"])]
        after = [entry["after"][label]["reward"] for entry in results["seeds"].values()]
        ends += [(len(mean) - 0.7 + 0.15 * number, interval) for number, interval in enumerate(after)]
        axes.errorbar(
            [x for x, _ in ends],
            [interval["value"] for _, interval in ends],
            [[abs(interval["value"] - interval[end]) for _, interval in ends] for end in ("low", "high")],
            color=colour, fmt=marker, fillstyle="none", capsize=3, linewidth=1, label=f"{label}, {all_states}",
        )  # fmt: skip
    for name, interval in results["references"].items():
        axes.axhline(interval["value"], color="0.4", linewidth=0.8, linestyle=":")
        axes.annotate(
            name.replace("_", " "), (1, interval["value"]), xycoords=("axes fraction", "data"), xytext=(-4, 2),
            textcoords="offset points", ha="right", fontsize=8, color="0.3",
        )  # fmt: skip
    axes.set_xlabel("iterations of self-play")
    axes.set_ylabel("normalised reward on held-out states")
    axes.legend(loc="lower right", bbox_to_anchor=(0.98, 0.2), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _dump(intervals: dict[str, Interval]) -> dict[str, Any]:
    return {
        name: {key: None if value is None else round(value, 5) for key, value in interval.model_dump().items()}
        for name, interval in intervals.items()
    }


def _curve(metrics: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "checkpoint"} for line in lines]


def _crossplay(plan: Plan) -> dict[str, Any]:
    """The matrix, with iterations in place of folders."""
    result: dict[str, Any] = read_json(plan.work / "crossplay" / "crossplay.json")
    numbers = [name.split("iter_")[1].split("/")[0] if "iter_" in name else name for name in result["players"]]
    players = [f"iteration {number}" if number.isdigit() else number for number in numbers]
    return result | {"players": ["warm start", *players[1:]]}


if __name__ == "__main__":
    command.run(main)
