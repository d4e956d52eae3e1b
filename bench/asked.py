"""Judges whether trainings against the shy partner taught the policy to ask: figures over seeds and states, and the
rule.

More questions are no evidence: a coin asks more too, and drifts. So all of these must hold after training, by the ends
of 95 % intervals over seeds and states:

- the reward is above that of a scripted coin which asks as often, sampled and greedy;
- the reward is further above the coin's than that of a placebo, the same training on rewards permuted within groups;
- fewer of the questions for a fact ask only for facts that were already asked for;
- greedy play is at least as good as sampled play;
- there is more than one seed.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from bench.coins import terms_above_coin
from bench.compared import conditions_table, markdown_table
from bench.verdict import By, Condition, above, each
from selfplay_pipeline.evaluate.run import Mode
from selfplay_pipeline.games.registry import all_games
from selfplay_pipeline.metrics.bootstrap import RESAMPLES, Interval, Totals, contrast_over_seeds
from selfplay_pipeline.metrics.figures import figures_of

WARM, TRAINED, PLACEBO = "warm start", "trained", "placebo"
MODES: tuple[Mode, ...] = ("sampled", "greedy")
SHOWN = ("reward", "optimal", "questions", "specific", "repeated", "learned", "leaks", "turns", "illegal")


Terms = list[tuple[float, Totals]]
"""Weighted evaluations of one seed, as `contrast_over_seeds` takes them."""


class Seed(NamedTuple):
    """Measurements of one training seed, all on its own states.

    Attributes:
        coins: Scripted coins by their chance to ask.
        players: The warm start and the last checkpoints of both trainings.
    """

    coins: Mapping[float, Totals]
    players: Mapping[str, Mapping[Mode, Totals]]


class Asked(BaseModel):
    """Figures over seeds and states, by player, and the verdict.

    Attributes:
        figures: Figures by player, sampling mode and name.
        coins: Reward and questions of each coin, by its chance to ask.
        above_coin: The reward minus that of a coin that asks as often.
        more_than_placebo: The trained policy's reward above its coin, minus the placebo's above its coin.
        asks_again: Change of the trained policy's share of questions for a fact that only repeat earlier ones.
        greedy_minus_sampled: Difference of the trained policy's reward between greedy and sampled play.
    """

    seeds: int
    figures: dict[str, dict[Mode, dict[str, Interval]]]
    coins: dict[float, dict[str, Interval]]
    above_coin: dict[str, dict[Mode, Interval]]
    more_than_placebo: dict[Mode, Interval]
    asks_again: dict[Mode, Interval]
    greedy_minus_sampled: Interval
    conditions: list[Condition] = []
    verdict: str = ""


def asked(seeds: Sequence[Seed], resamples: int = RESAMPLES) -> Asked:
    """Judge trainings of several seeds."""

    def over(terms: Sequence[Terms], names: Sequence[str] = ("reward",)) -> dict[str, Interval]:
        kept = [[(weight, totals.select(names)) for weight, totals in of] for of in terms]
        return contrast_over_seeds(kept, resamples)

    def played(player: str, mode: Mode, weight: float = 1.0) -> list[Terms]:
        return [[(weight, seed.players[player][mode])] for seed in seeds]

    def above_coin(player: str, mode: Mode, weight: float = 1.0) -> list[Terms]:
        terms = [terms_above_coin(seed.players[player][mode], seed.coins) for seed in seeds]
        return [[(weight * factor, totals) for factor, totals in of] for of in terms]

    def both(one: list[Terms], other: list[Terms]) -> list[Terms]:
        return [[*terms, *further] for terms, further in zip(one, other, strict=True)]

    players = (WARM, TRAINED, PLACEBO)
    change = {mode: both(played(TRAINED, mode), played(WARM, mode, -1.0)) for mode in MODES}
    more = {mode: both(above_coin(TRAINED, mode), above_coin(PLACEBO, mode, -1.0)) for mode in MODES}
    ways = both(played(TRAINED, "greedy"), played(TRAINED, "sampled", -1.0))
    found = Asked(
        seeds=len(seeds),
        figures={player: {mode: over(played(player, mode), SHOWN) for mode in MODES} for player in players},
        coins={
            chance: over([[(1.0, seed.coins[chance])] for seed in seeds], ("questions", "reward"))
            for chance in seeds[0].coins
        },
        above_coin={player: {mode: over(above_coin(player, mode))["reward"] for mode in MODES} for player in players},
        more_than_placebo={mode: over(terms)["reward"] for mode, terms in more.items()},
        asks_again={mode: over(terms, ["repeated"])["repeated"] for mode, terms in change.items()},
        greedy_minus_sampled=over(ways)["reward"],
    )
    found.conditions = conditions(found)
    missing = [condition.name for condition in found.conditions if not condition.holds]
    found.verdict = (
        f"It is not shown that the policy learned to ask. What does not hold: {'; '.join(missing)}."
        if missing
        else "The policy learned to ask: every condition holds."
    )
    return found


def conditions(found: Asked) -> list[Condition]:
    """Returns all conditions, with whether they hold."""
    again = found.asks_again["sampled"]
    trained: By = dict(found.above_coin[TRAINED].items())
    more: By = dict(found.more_than_placebo.items())
    return [
        Condition("the reward is above that of a coin that asks as often", above(trained), each(trained, "+")),
        Condition("it is further above it than a placebo's", above(more), each(more, "+")),
        Condition("fewer questions ask only again", again.high is not None and again.high < 0, f"sampled {again:+}"),
        Condition(
            "greedy play is at least as good as sampled",
            found.greedy_minus_sampled.value is not None and found.greedy_minus_sampled.value >= 0,
            f"greedy minus sampled {found.greedy_minus_sampled:+}",
        ),
        Condition("there is more than one seed", found.seeds > 1, str(found.seeds)),
    ]


def tables(found: Asked) -> str:
    """Returns Markdown: a column for each player; then the conditions and the verdict."""
    labels, rows = {name: figure.label for name, figure in figures_of(*all_games()).items()}, dict[str, list[str]]()
    for mode in MODES:
        rows[f"above a coin that asks as often, {mode}"] = [f"{by[mode]:+}" for by in found.above_coin.values()]
        for name in SHOWN:
            rows[f"{labels[name]}, {mode}"] = [str(figures[mode][name]) for figures in found.figures.values()]
    coins = {name: [str(coin[name]) for coin in found.coins.values()] for name in ("questions", "reward")}
    return "\n".join(
        [
            markdown_table(found.figures, rows),
            markdown_table([f"coin {chance:g}" for chance in found.coins], coins),
            conditions_table(found.conditions),
            f"{found.verdict}\n",
        ]
    )
