"""Comparison of the arms: figures and differences over seeds and states, and their tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.evaluate.run import Mode
from selfplay_pipeline.games.registry import all_games
from selfplay_pipeline.metrics.bootstrap import RESAMPLES, Interval, Totals, contrast_over_seeds
from selfplay_pipeline.metrics.figures import bounded, figures_of
from studies.common.arms import (
    ARMS,
    MODES,
    MUTED,
    NOISE,
    PLACEBO,
    SELF_PLAY,
    WARM,
    Effort,
    Hearing,
    Outcomes,
    Played,
    Point,
)
from studies.common.verdict import By, Condition, Evidence

Figures = dict[Mode, dict[str, Interval]]
"""Every figure with its interval, for each sampling mode."""
LOST = ("lost_to_telling", "lost_to_planning", "lost_to_agreement")
SHOWN = (*LOST, "optimal", "agreed", "proposals", "messages", "words", "told", "illegal")
"""Figures of the second table; those that a game does not have are left out."""
KEPT = ("reward", "talk_score", *SHOWN)


class Player(BaseModel):
    """One row: the warm start, or the last checkpoints of an arm.

    Attributes:
        seeds: The evaluated seeds.
        talking: Figures with messages.
        muted: Figures of the same checkpoints with messages muted.
        muting_costs: `talking` minus `muted`.
        swapped: Figures with swapped messages; empty in studies that did not swap.
        worth: Worth of words, the difference of `talking` and `swapped`.
        worth_over_warm: Worth of words minus that of the warm start.
        rise: Difference to the warm start, played as the arm was trained: muted if it was trained muted.
        below_self_play: Self-play with messages minus this arm, played as it was trained.
        over_silence: Figures as trained, minus those of the script that plays the silence line, on the same states;
            empty in studies without it.
        swapped_over_silence: The same with swapped messages.
        listening: For each kind of altered message, the shares of greedy decisions that follow it and that change.
    """

    model_config = ConfigDict(extra="forbid")

    seeds: list[int]
    talking: Figures
    muted: Figures
    muting_costs: Figures
    swapped: Figures = {}
    worth: Figures = {}
    worth_over_warm: Figures = {}
    rise: Figures
    below_self_play: Figures
    over_silence: Figures = {}
    swapped_over_silence: Figures = {}
    listening: dict[str, dict[str, Interval]]


class Results(BaseModel):
    """Contents of `results.json`.

    Attributes:
        revision: Git revision of the code that compared the arms; None for results that did not record it.
    """

    model_config = ConfigDict(extra="forbid")

    command: str
    revision: str | None = None
    config: dict[str, Any]
    iterations: int
    states_of_each_seed: int
    episodes_of_each_state: int
    references: dict[str, Interval]
    players: dict[str, Player]
    effort: dict[str, dict[int, Effort]]
    curves: dict[str, dict[int, list[Point]]]
    conditions: list[Condition]
    verdict: str


def compare(
    outcomes: Outcomes, hearing: Hearing, resamples: int = RESAMPLES, silent: str | None = None
) -> dict[str, Player]:
    """Returns the comparison of the warm start and of each arm with an evaluated seed.

    Args:
        silent: The scripted player that plays the silence line, if it played these states.
    """

    def over(one: Played, *others: Played) -> Figures:
        """Returns one player's figures, minus those of the second and third, plus those of the fourth."""
        weights = (1, -1, -1, 1)
        return _difference(outcomes, list(zip(weights, (one, *others), strict=False)), resamples)

    warm, warm_swapped = Played(WARM, False), Played(WARM, False, True)

    found = {}
    for name in (WARM, *ARMS):
        talking, muted, swapped = Played(name, False), Played(name, True), Played(name, False, True)
        trained = muted if name in ARMS and ARMS[name].mute else talking
        if seeds := seeds_of(outcomes, talking, muted):
            found[name] = Player(
                seeds=seeds,
                talking=over(talking),
                muted=over(muted),
                muting_costs=over(talking, muted),
                swapped=over(swapped),
                worth=over(talking, swapped),
                worth_over_warm={} if name == WARM else over(talking, swapped, warm, warm_swapped),
                rise=over(trained, Played(WARM, trained.mute)),
                below_self_play={} if name == SELF_PLAY else over(Played(SELF_PLAY, False), trained),
                over_silence=over(trained, Played(silent, False)) if silent else {},
                swapped_over_silence=over(swapped, Played(silent, False)) if silent else {},
                listening=_listening([*hearing.get(name, {}).values()], resamples),
            )
    return found


def evidence(players: dict[str, Player], silence: Interval | None, protocol: str, silent: By | None = None) -> Evidence:
    """Returns the figures that the verdict is based on.

    A reward is compared with the silent script's on the same states if it played them, else with the silence line,
    whose states are others.

    Args:
        players: The comparison.
        silence: The silence line.
        protocol: `game.protocol` of the study.
        silent: Reward of the silent script, if it played.
    """

    def reward(name: str, kind: str) -> By:
        figures: Figures = getattr(players[name], kind) if name in players else {}
        return {mode: by_name["reward"] for mode, by_name in figures.items()}

    def over_silence(name: str, kind: str) -> By:
        paired = reward(name, "swapped_over_silence" if kind == "swapped" else "over_silence")
        if paired or silence is None:
            return paired
        return {mode: minus(one, silence) for mode, one in reward(name, kind).items()}

    placebo = PLACEBO if PLACEBO in players else NOISE
    seeds = [set(players[name].seeds) for name in (SELF_PLAY, MUTED, placebo) if name in players]
    return Evidence(
        seeds=len(set.intersection(*seeds)) if seeds else 0,
        protocol=protocol,
        silent={mode: minus(one, silence) for mode, one in (silent or {}).items()} if silence else {},
        before=over_silence(WARM, "talking"),
        reward=over_silence(SELF_PLAY, "talking"),
        rise=reward(SELF_PLAY, "rise"),
        swapped=over_silence(SELF_PLAY, "swapped"),
        worth_over_warm=reward(SELF_PLAY, "worth_over_warm"),
        muted=over_silence(MUTED, "muted"),
        over_muted=reward(MUTED, "below_self_play"),
        placebo_rise=reward(placebo, "rise"),
        over_placebo=reward(placebo, "below_self_play"),
    )


def rewards_of(outcomes: Outcomes, player: Played, resamples: int = RESAMPLES) -> By:
    """Returns a player's reward over its seeds."""
    return {mode: figures["reward"] for mode, figures in _difference(outcomes, [(1, player)], resamples).items()}


def minus(one: Interval, line: Interval) -> Interval:
    """Returns an interval that holds the difference wherever both intervals hold what they stand for."""
    if one.value is None or one.low is None or one.high is None:
        return one
    if line.value is None or line.low is None or line.high is None:
        return line
    return Interval(value=one.value - line.value, low=one.low - line.high, high=one.high - line.low)


def _difference(outcomes: Outcomes, terms: Sequence[tuple[int, Played]], resamples: int) -> Figures:
    """Returns the weighted sum of some players' figures over the seeds that all of them have."""
    seeds = seeds_of(outcomes, *(player for _, player in terms))
    if not seeds:
        return {}

    def kept(who: Played, seed: int, mode: Mode) -> Totals:
        totals = outcomes[who][seed][mode]
        return totals.select([name for name in totals.names if name in KEPT])

    return {
        mode: contrast_over_seeds(
            [[(weight, kept(who, seed, mode)) for weight, who in terms] for seed in seeds],
            resamples,
            bounded=bounded(*all_games()),
        )
        for mode in MODES
    }


def _listening(seeds: Sequence[Mapping[str, Totals]], resamples: int) -> dict[str, dict[str, Interval]]:
    """Returns the figures of each kind of altered message that was tested; messages in a code cannot be altered."""
    kinds = [kind for kind in (seeds[0] if seeds else {}) if all(len(seed[kind].numerators) for seed in seeds)]
    return {
        kind: contrast_over_seeds([[(1.0, seed[kind])] for seed in seeds], resamples, bounded=("follows", "moves"))
        for kind in kinds
    }


def seeds_of(outcomes: Outcomes, *players: Played) -> list[int]:
    """Returns the seeds for which all these players are evaluated."""
    return sorted(set.intersection(*(set(outcomes.get(player, {})) for player in players)))


def tables(results: Results) -> str:
    """Returns tables in Markdown, with a column for each player.

    They show rewards, differences of rewards, listening, and sampled play; then the reference lines, the conditions and
    the verdict.
    """
    players = results.players
    arms = {name: player for name, player in players.items() if name != WARM}

    def row(of: Mapping[str, Player], kind: str, figure: str, mode: Mode, sign: str = "") -> list[str]:
        found = [getattr(player, kind).get(mode, {}).get(figure) for player in of.values()]
        return ["" if interval is None else format(interval, sign) for interval in found]

    def rows(of: Mapping[str, Player], label: str, kind: str, figure: str, sign: str = "") -> dict[str, list[str]]:
        return {f"{label}, {mode}": row(of, kind, figure, mode, sign) for mode in MODES}

    labels = {name: figure.label for name, figure in figures_of(*all_games()).items()}
    parts = [
        markdown_table(
            players,
            {"seeds": [str(len(player.seeds)) for player in players.values()]}
            | rows(players, "reward", "talking", "reward")
            | rows(players, "talk score", "talking", "talk_score")
            | rows(players, "reward, messages muted", "muted", "reward")
            | rows(players, "reward, messages swapped", "swapped", "reward")
            | rows(players, "worth of words", "worth", "reward"),
        ),
        markdown_table(
            arms,
            rows(arms, "rise as trained", "rise", "reward", "+")
            | rows(arms, "self-play minus it as trained", "below_self_play", "reward", "+")
            | rows(arms, "what muting costs", "muting_costs", "reward", "+"),
        ),
        markdown_table(
            players,
            rows(players, "as trained, minus silence on the same states", "over_silence", "reward", "+")
            | rows(players, "swapped, minus silence on the same states", "swapped_over_silence", "reward", "+"),
        ),
        markdown_table(
            players,
            {
                f"follows a {kind} message": [
                    str(player.listening[kind]["follows"]) if kind in player.listening else ""
                    for player in players.values()
                ]
                for kind in dict.fromkeys(kind for player in players.values() for kind in player.listening)
            },
        ),
        markdown_table(players, {labels[name]: row(players, "talking", name, "sampled") for name in SHOWN}),
        references_line(results.references),
        markdown_table(results.effort, _efforts([[*by_seed.values()] for by_seed in results.effort.values()])),
        conditions_table(results.conditions),
        f"{results.verdict}\n",
    ]
    return "\n".join(filter(None, parts))


def _efforts(arms: Sequence[Sequence[Effort]]) -> dict[str, list[str]]:
    """Returns rows with the mean effort of a training over seeds, and the held-out states that were also trained on."""
    return {
        "minutes a seed": [f"{fmean(one.minutes for one in arm):.1f}" for arm in arms],
        "episodes a seed": [f"{fmean(one.episodes for one in arm):,.0f}" for arm in arms],
        "tokens a seed": [f"{fmean(one.sampled_tokens for one in arm):,.0f}" for arm in arms],
        "held-out states that were trained on": [str(sum(one.shared for one in arm)) for arm in arms],
    }


def references_line(lines: Mapping[str, Interval]) -> str:
    """Returns the reference lines for rewards, in words."""
    named = [f"{name.replace('_', ' ')} {line}" for name, line in lines.items()]
    return f"Reference lines: {', '.join(named)}.\n"


def conditions_table(found: Sequence[Condition]) -> str:
    """Returns Markdown with a row for each condition of a verdict."""
    return markdown_table(
        ["holds", "figures"], {each.name: ["yes" if each.holds else "no", each.figures] for each in found}
    )


def markdown_table(columns: Iterable[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Returns labelled rows in Markdown; a row whose cells are all empty is left out, and so is a table without
    rows.
    """
    if not any(map(any, rows.values())):
        return ""
    head = ["", *columns]
    lines = [head, ["---"] * len(head), *([label, *cells] for label, cells in rows.items() if any(cells))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
