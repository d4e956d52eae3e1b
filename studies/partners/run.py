"""Do partners in training, a population or other-play make a policy understood by strangers? Four arms, two controls.

Each policy plays as many episodes in training. It is not trained equally much: in self-play and other-play both seats
of an episode are sampled from the policy and trained, 2 rows an episode; opposite a partner one seat is, so `past` has
at most 1.5 rows an episode and `population` 1.33. Rows, updates and own tokens of each arm are among its results.

- self-play: the policy plays itself;
- past: half of the groups with itself, half with one of its five newest earlier checkpoints;
- population: three members; the first member of each population stands for it, so no two of the compared met;
- other-play: the policy plays itself, each seat with its own random names;
- muted and placebo, the controls: self-play in which no message reaches its reader, and self-play on permuted rewards.

For each arm and seed, on the same held-out states and with messages in every arm: the reward of the policy with itself,
also minus that of the script that plays the silence line, the worth of its words, and in a matrix of all seeds of the
arm and of scripted speakers the cross-seed gap and the partner gap (`evaluate/crossplay_gaps.py`), sampled. The
warm start plays the states too. All intervals are 95 % over seeds and states; those of differences between arms take
the seeds of the arms as independent.

The rule of the verdict, written before the runs:

- with fewer than three seeds there is none;
- an arm talks if the worth of its words lies above 0; of an arm that is not shown to talk, nothing else is said;
- if a control talks, words may be worth something without anyone learning to use them, and the verdict says so;
- self-play, if it talks, has a positive cross-seed gap if this gap lies above 0. A private code makes one, and so do
  seeds of unlike skill, so the gap alone shows no code;
- an arm that talks does better with strangers than self-play if its mean reward with them minus that of self-play lies
  above 0, and worse if the difference lies below 0. Strangers are the other trainings of the arm, or the scripts. The
  gaps only describe: they are small, too, for an arm that plays badly with everyone;
- this costs nothing if the reward with itself minus that of self-play lies above -0.02.

The command runs in parts and resumes: seeds and arms may be given one after the other, and further seeds play only the
pairs that are new.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict

from bench import command
from bench.pictures import BLUE, GREY, ORANGE, drawn
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.crossplay_gaps import (
    Matrix,
    Terms,
    cross_seed_terms,
    gap_terms,
    pair_terms,
    stranger_terms,
)
from selfplay_pipeline.evaluate.figures_by_state import Seating, Tally
from selfplay_pipeline.evaluate.run import EvaluationJob, rewards_of, run_evaluate
from selfplay_pipeline.evaluate.states import StateSet, held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.folder import RunDirectory, describe
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.iterate.population import member_folders, run_population
from selfplay_pipeline.iterate.results import Trained
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast_over_seeds, difference_over_seeds
from selfplay_pipeline.metrics.figures import REWARD, measure_reward
from studies.common.compared import markdown_table

SELF_PLAY, PAST, POPULATION, OTHER_PLAY = "self-play", "past", "population", "other-play"
CONTROLS = MUTED, PLACEBO = "muted", "placebo"
MEMBERS = 3
ARMS: Mapping[str, dict[str, Any]] = {
    SELF_PLAY: {},
    PAST: {"iterate.partners": [{"player": "self", "share": 0.5}, {"player": "past", "share": 0.5, "last": 5}]},
    POPULATION: {},
    OTHER_PLAY: {"iterate.other_play": True},
    MUTED: {"game.mute": True},
    PLACEBO: {"convert.placebo": True},
}
"""Keys in which each arm differs from self-play."""
STRANGERS = ("speaking", "sharing")
"""Scripted speakers with phrasings of their own."""
SEEDS_BETWEEN = 10_000
"""Difference of the configured seeds; the members of a population have seeds between them."""
SILENT = "proposing"
"""The scripted player that plays the silence line."""
FEWEST_SEEDS = 3
COSTS_NOTHING = -0.02
"""Largest loss of reward with oneself that counts as none."""


class Training(BaseModel):
    """Rows, updates and own tokens of a policy, each summed over its iterations; `Trained` says what each one is."""

    model_config = ConfigDict(extra="forbid")

    rows: float
    updates: float
    own_tokens: float


class Figures(BaseModel):
    """Figures of an arm, sampled, each with its interval; differences are to self-play.

    Attributes:
        training: What a policy was trained on, the mean over seeds.
        own: Reward of the policy with itself.
        worth: Worth of its words.
        with_seeds: Reward with the other trainings of the arm; None with fewer than three seeds.
        with_scripts: Reward with scripted speakers.
        cross_seed: Cross-seed gap; None with fewer than three seeds.
        partner: Partner gap.
        over_silence: Reward of the policy with itself minus that of the script that plays the silence line.
    """

    model_config = ConfigDict(extra="forbid")

    seeds: int
    training: Training
    own: Interval
    worth: Interval
    with_seeds: Interval | None = None
    with_scripts: Interval
    cross_seed: Interval | None = None
    partner: Interval
    over_silence: Interval
    own_minus: Interval | None = None
    worth_minus: Interval | None = None
    with_seeds_minus: Interval | None = None
    with_scripts_minus: Interval | None = None


class WarmStart(BaseModel):
    """Figures of the model that all arms begin with, sampled, on the same states."""

    model_config = ConfigDict(extra="forbid")

    own: Interval
    worth: Interval
    over_silence: Interval


class Results(BaseModel):
    """Content of `results.json`."""

    model_config = ConfigDict(extra="forbid")

    command: str
    revision: str | None
    config: dict[str, Any]
    iterations: int
    states: int
    warm_start: WarmStart | None = None
    arms: dict[str, Figures]
    means: dict[str, list[list[float]]] = {}
    """Mean reward of each pair of players of an arm, its seeds and then `STRANGERS`; rows hold seat 0."""
    verdict: list[str]


class Trial(BaseModel):
    """Scope of the study, and its folder."""

    source: str
    model: str | None
    iterations: int
    states: int
    work: Path

    def config(self, arm: str, seed: int) -> Config:
        given = {
            "model": self.model,
            "seed": SEEDS_BETWEEN * seed,
            "iterate.num_iterations": self.iterations,
            "iterate.decay_iterations": self.iterations,
        }
        return load_config(self.source, given | ARMS[arm])

    def train(self, arm: str, seed: int) -> None:
        """Run the unfinished parts of a training."""
        config, folder = self.config(arm, seed), self.work / arm / f"seed_{seed}"
        if arm == POPULATION:
            stopping.run(run_population(config, folder, MEMBERS))
        else:
            stopping.run(run_iterate(config, folder))

    def run(self, arm: str, seed: int) -> RunDirectory:
        """Returns the run folder of an arm's policy."""
        folder = self.work / arm / f"seed_{seed}"
        return RunDirectory(member_folders(folder, MEMBERS)[0] if arm == POPULATION else folder)

    def checkpoint(self, arm: str, seed: int) -> str | None:
        """Returns the last checkpoint of an arm's policy; None until it is trained."""
        run = self.run(arm, seed)
        return run.checkpoint(self.iterations) if run.load().trained(self.iterations) else None

    def training(self, arm: str, seeds: Sequence[int]) -> Training:
        """Returns what the policies of an arm were trained on."""
        runs = [self.run(arm, seed).load() for seed in seeds]
        numbers = range(1, self.iterations + 1)
        return training_of([run.trained(number) for run in runs for number in numbers], len(runs))

    def held_out(self) -> StateSet:
        return held_out_states(make_game(self.config(SELF_PLAY, 1).game), self.states, 0)

    def job(self, player: str, *folder: str) -> EvaluationJob:
        to = self.work.joinpath("evaluations", *folder)
        return EvaluationJob(player, self.held_out(), to, episodes=1, swaps=("swapped",), greedy=False)

    def silent(self) -> Totals:
        """Returns the rewards of the script that plays the silence line."""
        config, job = self.config(SELF_PLAY, 1), EvaluationJob(SILENT, self.held_out(), self.work / "silent")
        asyncio.run(run_evaluate(config, job))
        return rewards_of(config, job, "scripted")

    def worth(self, job: EvaluationJob) -> Terms:
        """Returns the worth of words of a player in an evaluation, which is run first unless it is stored."""
        config = self.config(SELF_PLAY, 1)  # the muted arm is played with messages too
        asyncio.run(run_evaluate(config, job))
        return [(1.0, rewards_of(config, job, "sampled")), (-1.0, rewards_of(config, job, "sampled", "swapped"))]

    def warm_start(self, silent: Totals) -> WarmStart:
        """Returns the figures of the model that all arms begin with."""
        worth = self.worth(self.job(str(self.config(SELF_PLAY, 1).model), "warm_start"))
        own = worth[:1]
        return WarmStart(
            own=_over_seeds([own]), worth=_over_seeds([worth]), over_silence=_over_seeds([[*own, (-1.0, silent)]])
        )

    def measure(self, arm: str, seeds: Sequence[int]) -> tuple[list[Terms], Matrix]:
        """Play what is missing; returns the worth of words of each seed, and the matrix of the seeds and strangers."""
        config = self.config(SELF_PLAY, 1)
        played = {seed: found for seed in seeds if (found := self.checkpoint(arm, seed))}
        worth = [self.worth(self.job(found, arm, f"seed_{seed}")) for seed, found in played.items()]
        checkpoints = [*played.values()]
        folder = self.work / "crossplay" / arm
        names = [*STRANGERS, *checkpoints]  # seeds last, so that the files of a pair keep their name with further ones
        asyncio.run(run_crossplay(config, names, self.held_out(), 1, folder))
        game = make_game(config.game)

        def rewards(one: str, other: str) -> Any:
            tally = Tally(game, self.states, Seating.BOTH, measure_reward)
            file = folder / f"{names.index(one)}-{names.index(other)}.jsonl"
            return tally.add(read_episodes(file)).totals()

        order = [*checkpoints, *STRANGERS]
        return worth, [[rewards(one, other) for other in order] for one in order]


def training_of(trainings: Sequence[Trained | None], policies: int) -> Training:
    """Returns what one policy was trained on, the mean over policies.

    Args:
        trainings: Trainings of all policies; one that carried the checkpoint forward counts 0.
        policies: Number of policies.
    """
    return Training(
        **{name: sum(getattr(one, name, None) or 0 for one in trainings) / policies for name in Training.model_fields}
    )


def figures(
    training: Training,
    worth: Sequence[Terms],
    rewards: Matrix,
    silent: Totals,
    base: tuple[Sequence[Terms], Matrix] | None,
) -> Figures:
    """Returns the figures of an arm.

    Args:
        training: What a policy of the arm was trained on.
        worth: Worth of words of each seed.
        rewards: The matrix of the arm: its seeds, then the strangers.
        silent: Rewards of the script that plays the silence line, on the same states.
        base: Worth of words and matrix of self-play; None for self-play itself.
    """

    def terms(worth: Sequence[Terms], of: Matrix) -> dict[str, Sequence[Terms]]:
        players = len(worth)
        own, strangers = range(players), range(players, len(of))
        found: dict[str, Sequence[Terms]] = {
            "own": [[(1.0, of[one][one])] for one in own],
            "worth": worth,
            "over_silence": [[(1.0, of[one][one]), (-1.0, silent)] for one in own],
            "with_scripts": [stranger_terms(of, one, strangers) for one in own],
            "partner": [gap_terms(of, one, strangers) for one in own],
        }
        if players >= FEWEST_SEEDS:
            found["with_seeds"] = [pair_terms(of, one, own) for one in own]
            found["cross_seed"] = [cross_seed_terms(of, one, own) for one in own]
        return found

    mine = terms(worth, rewards)
    said = {name: _over_seeds(of) for name, of in mine.items()}
    if base is not None and min(len(worth), len(base[0])) > 1:
        theirs = terms(*base)
        for name in mine.keys() & theirs.keys() & {"own", "worth", "with_seeds", "with_scripts"}:
            said[f"{name}_minus"] = difference_over_seeds(mine[name], theirs[name], bounded=(REWARD.name,))[REWARD.name]
    return Figures(seeds=len(worth), training=training, **said)


def mean_rewards(rewards: Matrix) -> list[list[float]]:
    """Returns the mean reward of each pair of players over all states."""
    return [[round(float(one.numerators.sum() / one.denominators.sum()), 4) for one in row] for row in rewards]


def _over_seeds(terms: Sequence[Terms]) -> Interval:
    return contrast_over_seeds(terms, same_states=True, bounded=(REWARD.name,))[REWARD.name]


def verdict(arms: Mapping[str, Figures]) -> list[str]:
    """Returns the verdict in sentences, by the rule in the first lines of this file."""
    if SELF_PLAY not in arms or min(one.seeds for one in arms.values()) < FEWEST_SEEDS:
        return [f"No verdict: it needs {FEWEST_SEEDS} seeds of self-play and of each other arm."]
    said = list[str]()
    for name, one in arms.items():
        if _low(one.worth) <= 0:
            said.append(f"{name} is not shown to talk (worth of words {one.worth:+}); nothing else is said of it.")
            continue
        if name in CONTROLS:
            said.append(f"{name}, a control, talks (worth of words {one.worth:+}); see the rule.")
        if name == SELF_PLAY and one.cross_seed is not None:
            has = "has a" if _low(one.cross_seed) > 0 else "is not shown to have a"
            said.append(f"{name} {has} positive cross-seed gap ({one.cross_seed:+}).")
        for whom, difference in (("other trainings", one.with_seeds_minus), ("the scripts", one.with_scripts_minus)):
            if difference is not None:
                said.append(f"{name} {_does(difference)} with {whom} than self-play ({difference:+}).")
        if one.own_minus is not None:
            costs = "costs nothing" if _low(one.own_minus) > COSTS_NOTHING else "is not shown to cost nothing"
            said.append(f"{name} {costs}: its reward with itself differs by {one.own_minus:+}.")
    return said


def _does(difference: Interval) -> str:
    if _low(difference) > 0:
        return "does better"
    return "does worse" if difference.high is not None and difference.high < 0 else "is not shown to do better or worse"


def _low(interval: Interval) -> float:
    return float("-inf") if interval.low is None else interval.low


def tables(results: Results) -> str:
    """Returns the table in Markdown, with a column for each arm, and the verdict."""
    rows = {
        "seeds": [str(one.seeds) for one in results.arms.values()],
        "rows trained on": [f"{one.training.rows:.0f}" for one in results.arms.values()],
        "updates": [f"{one.training.updates:.0f}" for one in results.arms.values()],
        "own tokens trained on": [f"{one.training.own_tokens:.0f}" for one in results.arms.values()],
        **{
            label: ["" if (found := getattr(one, name)) is None else f"{found:{sign}}" for one in results.arms.values()]
            for label, name, sign in (
                ("reward with itself", "own", ""),
                ("reward with itself minus silence", "over_silence", "+"),
                ("worth of words", "worth", "+"),
                ("reward with other trainings", "with_seeds", ""),
                ("reward with the scripts", "with_scripts", ""),
                ("cross-seed gap", "cross_seed", "+"),
                ("partner gap", "partner", "+"),
                ("reward with itself minus self-play's", "own_minus", "+"),
                ("worth of words minus self-play's", "worth_minus", "+"),
                ("reward with other trainings minus self-play's", "with_seeds_minus", "+"),
                ("reward with the scripts minus self-play's", "with_scripts_minus", "+"),
            )
        },
    }
    return (
        _of_warm_start(results.warm_start)
        + markdown_table(results.arms, rows)
        + "\n"
        + "\n".join(f"- {sentence}" for sentence in results.verdict)
        + "\n"
    )


def _of_warm_start(found: WarmStart | None) -> str:
    if found is None:
        return ""
    return (
        f"Warm start: reward with itself {found.own}, minus silence {found.over_silence:+}, worth of words "
        f"{found.worth:+}.\n\n"
    )


def draw(results: Results, path: Path) -> None:
    """Draw the reward of each arm with itself and with its other trainings."""
    kinds = (("own", "with itself", BLUE, -0.1), ("with_seeds", "with other trainings", ORANGE, 0.1))
    with drawn(path, ["all"], height=3.6) as (panel,):
        for name, label, colour, aside in kinds:
            found = [(place, getattr(one, name)) for place, one in enumerate(results.arms.values())]
            known = [(place, one) for place, one in found if one is not None]
            values = [one.value for _, one in known]
            ends = [[one.value - one.low for _, one in known], [one.high - one.value for _, one in known]]
            places = [place + aside for place, _ in known]
            panel.errorbar(places, values, ends, fmt="o", color=colour, capsize=3, label=label)
        if results.warm_start and results.warm_start.own.value:
            panel.axhline(results.warm_start.own.value, color=GREY, lw=0.8, ls=":", label="warm start with itself")
        panel.set_xticks(range(len(results.arms)), list(results.arms))
        panel.set_ylabel("reward on held-out states")


def main(
    arms: Annotated[list[str], typer.Option("--arm", help=f"Trainings: {', '.join(ARMS)}; repeat.")] = [*ARMS],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds, one after the other.")] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Of each training.")] = 20,
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = "studies/partners/config.yaml",
    model: Annotated[str | None, typer.Option(help="The warm start.")] = None,
    states: Annotated[int, typer.Option(min=2, help="Held-out states.")] = 200,
    work: Annotated[Path, typer.Option(help="Gets runs and episodes; for other settings give another.")] = Path(
        "data/partners"
    ),
    output: Annotated[Path, typer.Option(help="Gets results, table and picture.")] = Path("data/partners/results"),
) -> None:
    """Train self-play, a mixture with the past, a population and other-play, and compare their rewards with strangers.

    Earlier trainings in the same folder are compared too. The exit status is 0 for every verdict.
    """
    for arm in arms:
        if arm not in ARMS:
            raise UserError(f"--arm: there is no arm {arm!r}; choose from {', '.join(ARMS)}")
    trial = Trial(source=config, model=model, iterations=iterations, states=states, work=work)
    for seed in range(1, seeds + 1):
        for arm in arms:
            say(f"{arm}, seed {seed} of {seeds}")
            trial.train(arm, seed)
    trained = {arm: [seed for seed in range(1, seeds + 1) if trial.checkpoint(arm, seed)] for arm in ARMS}
    measured = {arm: trial.measure(arm, of) for arm, of in trained.items() if of}
    base, silent = measured.get(SELF_PLAY), trial.silent()
    found = {
        arm: figures(trial.training(arm, trained[arm]), worth, rewards, silent, None if arm == SELF_PLAY else base)
        for arm, (worth, rewards) in measured.items()
    }
    results = Results(
        command=shlex.join(["python", "-m", "studies.partners.run", *sys.argv[1:]]),
        revision=describe({})["git_revision"],
        config=trial.config(SELF_PLAY, 1).model_dump(mode="json", exclude={"engine", "seed"}),
        iterations=iterations,
        states=states,
        warm_start=trial.warm_start(silent),
        arms=found,
        means={arm: mean_rewards(matrix) for arm, (_, matrix) in measured.items()},
        verdict=verdict(found),
    )
    write_text(output / "results.json", results.model_dump_json(indent=1) + "\n")
    write_text(output / "table.md", tables(results))
    draw(results, output / "strangers.svg")
    print((output / "table.md").read_text())


if __name__ == "__main__":
    command.run(main)
