"""Selects the curves to show, as data. `draw.py` draws the charts, and the page lists their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from selfplay_pipeline.evaluate.worth_of_words import LABELS
from selfplay_pipeline.games.base import Game, KnownLine
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.held_out import FOREIGN_REWARD, WORTH, Evaluated
from selfplay_pipeline.iterate.history import signal_of
from selfplay_pipeline.iterate.schedule import source_of_games
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.metrics.figures import REWARD, figures_of
from selfplay_pipeline.metrics.signal import Signal
from selfplay_pipeline.report.scan import Scan
from selfplay_pipeline.report.sources import Source

BINS = 20
MOST_POINTS = 500
"""Largest number of points of a curve over training steps."""
MOST_HISTOGRAMS = 4

ITERATIONS = "iterations of training"
INTERVALS = "Means with 95 % intervals."
KINDS = {"sampled": "held out, sampled", "greedy": "held out, greedy", "training": "training episodes"}


@dataclass(frozen=True)
class Series:
    """Points of one curve, and their 95 % intervals if known."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Chart:
    """One plot.

    Attributes:
        key: Name of the plot's file.
        note: One sentence that a reader needs to understand the plot.
        lines: Reference values by name.
        style: Kind of plot; `points` and `matrix` have names instead of numbers on their x axis. In a `matrix`, each
            series is a row.
    """

    key: str
    title: str
    note: str
    x_label: str
    y_label: str
    series: list[Series]
    lines: Mapping[str, float] = field(default_factory=dict)
    style: Literal["curve", "bars", "stack", "points", "steps", "matrix"] = "curve"
    names: Sequence[str] = ()
    log: bool = False
    share: bool = False
    """Whether the values are shares, so that the axis goes from 0 to 1."""


def charts_of(source: Source, scans: Sequence[Scan]) -> list[Chart]:
    """Returns the charts that have data."""
    scans = [scan for scan in scans if scan.places]
    lines = reference_lines(source, scans)
    about = _about_rewards(scans)
    if source.kind == "run":
        charts = [
            _curves(scans, REWARD, about, lines),
            *_parts(scans),
            _by_partner(source),
            *(
                _curves(scans, figure, f"{figure.note} {INTERVALS}".strip())
                for figure in figures_of(*games_in(scans)).values()
                if figure.chart and figure is not REWARD
            ),
            _with_foreign(source),
            _worth_of_words(source),
            _flat_groups(source, scans),
            *_steps(source),
            _seconds(source),
            _tokens(source, scans),
        ]
    else:
        charts = [*_matrix(source), _points(scans, lines, about), *_steps(source)]
    charts.append(_histogram(scans))
    return [chart for chart in charts if any(len(series.x) for series in chart.series)]


def reference_lines(source: Source, scans: Sequence[Scan]) -> dict[str, float]:
    """Returns the reference lines of the game, of people and of the optimum, measured on the played states if possible.

    The optimum is the game's reference `best`, or 1 without one. People's results from elsewhere are drawn only if they
    played states of the same configuration.
    """
    found = next((scan.references for scan in reversed(scans) if scan.references), {}) | source.references
    known = {name.replace("_", " "): interval.value for name, interval in found.items() if interval.value is not None}
    drawn = [name.replace("_", " ") for game in games_in(scans) for name in (*game.lines, *game.wordless)]
    lines = {name: known[name] for name in drawn if name in known}
    if "human" in known:
        lines["human pairs"] = known["human"]
    else:
        lines |= {name: line.reward for name, line in _known_elsewhere(scans).items()}
    return lines | {"optimum": known.get("best", 1.0)}


def _known_elsewhere(scans: Sequence[Scan]) -> dict[str, KnownLine]:
    """Returns known rewards of people and other models on states of the episodes' configuration; empty if the episodes
    have several configurations.
    """
    configs = [scan.file.game_config() for scan in scans]
    found = [make_game(config).known_lines() if config is not None else {} for config in configs]
    return found[0] if found and all(lines == found[0] for lines in found) else {}


def games_in(scans: Sequence[Scan]) -> list[Game]:
    """Returns the played games, each once, with the played rules if these are known."""
    return list({name: game for scan in scans for name, game in scan.rules.items()}.values())


def _about_rewards(scans: Sequence[Scan]) -> str:
    """Returns the note below a chart of rewards, which explains its reference lines."""
    others = (
        f"{name}: {line.reward:.3f} [{line.low:.3f}, {line.high:.3f}] in {line.episodes} episodes of their own"
        for name, line in _known_elsewhere(scans).items()
    )
    about = filter(None, (game.about_lines for game in games_in(scans)))
    return "; ".join(["Means with 95 % intervals", *about, *others]) + "."


def _curves(scans: Sequence[Scan], figure: Figure, note: str, lines: Mapping[str, float] | None = None) -> Chart:
    """Returns the chart of a figure by training iteration, with one curve per kind of episode."""
    series = [_of_mode(scans, mode, figure, kind) for mode, kind in KINDS.items()]
    share = figure.unit == "share"
    return Chart(figure.name, figure.chart, note, ITERATIONS, figure.label, series, lines or {}, share=share)


def _of_mode(scans: Sequence[Scan], mode: str, figure: Figure, label: str) -> Series:
    """Returns one curve: a figure of one kind of episodes over the iterations of training."""
    points = [
        (scan.file.trained, interval)
        for scan in scans
        if scan.file.mode == mode and (interval := scan.figures.get(figure.name)) and interval.value is not None
    ]
    return _series(label, points)


def _parts(scans: Sequence[Scan]) -> Iterator[Chart]:
    """Yields stacked charts of figures that are parts of a whole (`Figure.part_of`), for each kind of held-out
    episodes.
    """
    wholes: dict[str, list[Figure]] = {}
    for figure in figures_of(*games_in(scans)).values():
        if figure.part_of:
            wholes.setdefault(figure.part_of, []).append(figure)
    for title, parts in wholes.items():
        for mode in ("sampled", "greedy"):
            stacked = [_of_mode(scans, mode, part, part.label) for part in parts]
            note = "Means; what lies below 0 was gained."
            key = f"{title.lower().replace(' ', '_')}_{mode}"
            yield Chart(key, f"{title}, {KINDS[mode]}", note, ITERATIONS, REWARD.label, stacked, style="stack")


def _by_partner(source: Source) -> Chart:
    """Returns the chart of the reward in training episodes by partner; without curves unless there are several."""
    points: dict[str, list[tuple[float, float]]] = {}
    for number in source.state.iterations:
        for partner, found in played.partners.items() if (played := source.state.played(number)) else ():
            points.setdefault(partner, []).append((source_of_games(number, source.ahead), found.mean_reward))
    series = [Series(partner, *zip(*own, strict=True)) for partner, own in sorted(points.items())]
    note = "Means over the training episodes; each partner has other game states."
    return Chart("reward_by_partner", "Reward with each partner", note, ITERATIONS, REWARD.label, series)


def _with_foreign(source: Source) -> Chart:
    """Returns the chart of the rewards with itself and with the foreign player; without curves unless there is one."""
    both = [(number, one.reward, one.interval(FOREIGN_REWARD)) for number, one in _evaluated(source)]
    series = [
        _series("with itself", [(number, own) for number, own, foreign in both if foreign]),
        _series("with the foreign player", [(number, foreign) for number, _, foreign in both if foreign]),
    ]
    note = (
        "Sampled. A reward with itself that rises, while the one with the foreign player falls, is a sign of a private "
        f"code. {INTERVALS}"
    )
    return Chart("foreign", "With the foreign player", note, ITERATIONS, REWARD.label, series)


def _evaluated(source: Source) -> list[tuple[int, Evaluated]]:
    return [(number, one) for number in source.state.iterations if (one := source.state.evaluated(number))]


def _worth_of_words(source: Source) -> Chart:
    """Returns the chart of the reward minus the reward with swapped messages, over the iterations of training."""
    evaluated = _evaluated(source)
    series = [
        _series(KINDS[mode], [(number, found) for number, one in evaluated if (found := one.interval(worth))])
        for mode, worth in WORTH.items()
    ]
    note = f"Reward minus the reward when each heard message is swapped for one of a counterfactual state. {INTERVALS}"
    return Chart("worth_of_words", "Worth of words", note, ITERATIONS, LABELS["worth"], series)


def _series(label: str, points: Sequence[tuple[float, Interval]]) -> Series:
    """Returns a curve; a point without a known interval is drawn without one."""
    values = [interval.value or 0.0 for _, interval in points]
    low, high = (
        [value if end is None else end for value, end in zip(values, ends, strict=True)]
        for ends in ([interval.low for _, interval in points], [interval.high for _, interval in points])
    )
    return Series(label, [x for x, _ in points], values, low, high)


def _flat_groups(source: Source, scans: Sequence[Scan]) -> Chart:
    note = "Groups whose episodes all scored alike: GRPO learns nothing from them."
    found = [
        (scan.file.trained, _signal(source, scan))
        for scan in scans
        if scan.file.mode == "training" and max(map(len, scan.summary.rewards.values())) > 1  # it has begun
    ]
    shares = [signal.share for _, signal in found]
    series = Series(KINDS["training"], [trained for trained, _ in found], shares)
    return Chart("flat_groups", "Groups without signal", note, ITERATIONS, "share of groups", [series], share=True)


def _signal(source: Source, scan: Scan) -> Signal:
    """Returns the counts of an iteration's groups by the rewards that are trained on, or by the game's so far."""
    number = scan.file.iteration or 0
    played = source.state.played(number)
    return signal_of(played, source.state.converted(number)) if played else scan.summary.signal


BEFORE = "selfplay/held_out_loss/before"
STEP_CHARTS = (
    ("step_reward", "Reward of each step's episodes", "selfplay/reward", REWARD.label, False),
    ("step_held_out", "Held-out reward", "held_out/reward", REWARD.label, False),
    ("loss", "Policy loss", "actor/pg_loss", "", False),
    ("imitation", "Loss of imitation", "selfplay/loss", "nats a token", False),
    ("held_out_loss", "Loss of imitation on held-out states", "selfplay/held_out_loss", "nats a token", False),
    ("gradient", "Gradient norm", "actor/grad_norm", "norm before clipping", False),
    ("step_entropy", "Entropy while training", "actor/entropy", "nats a token", False),
    ("kl", "KL to the reference policy", "actor/kl_loss", "nats a token", False),
    ("log_prob_gap", "Engine against trainer", "selfplay/log_prob_gap/mean", "mean |log-prob difference|, nats", True),
)
"""Key, title, verl's name of the metric, axis label, and whether the axis is logarithmic."""


def _steps(source: Source) -> list[Chart]:
    """Returns charts of verl's metrics over all training steps of the run."""
    notes = {
        "log_prob_gap": "Of the trainer's weights at each step to the log-probs stored while playing; an iteration's "
        "first step, where both have the same weights, should be near 0."
    }
    charts, steps = [], list(_numbered(source))
    for key, title, name, label, log in STEP_CHARTS:
        points = [(step, line[name]) for step, line in steps if name in line and (line[name] > 0 or not log)]
        if key == "held_out_loss":
            points = [(step - 1, line[BEFORE]) for step, line in steps if BEFORE in line] + points
        series = [_thinned(points)]
        if key == "log_prob_gap":
            first = {step for step, line in steps if line["step"] == 1}
            chosen = [(x, y) for x, y in points if x in first]
            series.append(Series("first of an iteration", [x for x, _ in chosen], [y for _, y in chosen]))
        charts.append(Chart(key, title, notes.get(key, ""), "optimiser step", label or title.lower(), series, log=log))
    return charts


def _numbered(source: Source) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields steps numbered through all iterations; online training begins with a validation as step 0."""
    before = last = 0
    for _, line in source.steps:
        step = int(line["step"])
        if step <= last:
            before += last
        last = step
        yield before + step, line


def _thinned(points: Sequence[tuple[int, float]]) -> Series:
    """Returns all steps, or the means of equal numbers of steps if there are more than `MOST_POINTS`."""
    width = -(-len(points) // MOST_POINTS)
    if width <= 1:
        return Series("each step", [x for x, _ in points], [y for _, y in points])
    chunks = [points[start : start + width] for start in range(0, len(points), width)]
    means = [np.mean(chunk, axis=0).tolist() for chunk in chunks]
    return Series(f"means of {width} steps", [x for x, _ in means], [y for _, y in means])


def _seconds(source: Source) -> Chart:
    """Returns the chart of each stage's wall-clock time."""
    done = sorted(source.state.iterations.items())
    series = [
        Series(
            stage,
            [number for number, stages in done if stage in stages],
            [stages[stage].seconds for _, stages in done if stage in stages],
        )
        for stage in ("generate", "convert", "train", "evaluate")
    ]
    note = "Wall clock; a server's start counts to the stage that waited for it."
    return Chart("seconds", "Time per stage", note, "iteration", "seconds", series, style="stack")


def _tokens(source: Source, scans: Sequence[Scan]) -> Chart:
    """Returns the chart of the tokens that the engine and the trainer processed in each stage."""
    counts: dict[str, dict[int, float]] = {}
    for scan in scans:
        stage, number = "generate" if scan.file.mode == "training" else "evaluate", scan.file.iteration or 0
        computed = scan.summary.prompt_tokens - scan.summary.cached_tokens
        for what, count in (("sampled", scan.summary.sampled_tokens), ("prompts", computed)):
            by_iteration = counts.setdefault(f"{stage}, {what}", {})
            by_iteration[number] = by_iteration.get(number, 0) + count
    trained: dict[int, float] = {}
    for number, line in source.steps:
        trained[number] = trained.get(number, 0) + line.get("perf/total_num_tokens", 0)
    series = [Series(name, list(found), list(found.values())) for name, found in (counts | {"train": trained}).items()]
    note = "Prompts without what came from the engine's cache; train: of all rows, prompts included, each epoch."
    return Chart("tokens", "Tokens per stage", note, "iteration", "tokens", series, style="bars")


def _points(scans: Sequence[Scan], lines: Mapping[str, float], about: str) -> Chart:
    """Returns the chart of mean rewards of a few files of episodes."""
    series = [
        _series(
            label,
            [
                (number, interval)
                for number, scan in enumerate(scans)
                if (interval := scan.figures.get(name)) and interval.value is not None
            ],
        )
        for name, label in (("reward", "all episodes"), ("reward_if_agreed", "agreed episodes"))
    ]
    names = [scan.file.label for scan in scans]
    return Chart(REWARD.name, REWARD.chart, about, "", REWARD.label, series, lines, style="points", names=names)


def _matrix(source: Source) -> list[Chart]:
    """Returns the heat map of cross-play; empty if the folder holds none."""
    found = source.crossplay
    if found is None:
        return []
    names = [
        f"{number}: {found.arms[number]}" if found.arms and found.arms[number] else f"{number}: {Path(player).name}"
        for number, player in enumerate(found.players)
    ]
    rows = [_series(name, list(enumerate(row))) for name, row in zip(names, found.rewards, strict=True)]
    note = "Reward of each player in seat 0 (row) with each player in all other seats (column). " + INTERVALS
    title = "Each player with each player"
    return [Chart("matrix", title, note, "player in the other seats", REWARD.label, rows, style="matrix", names=names)]


def _histogram(scans: Sequence[Scan]) -> Chart:
    """Returns a histogram of the rewards in a run's first and last file of one kind, or in up to four other files."""
    chosen = [scan for scan in scans if scan.places]
    if len({scan.file.iteration for scan in chosen}) > 1:
        for mode in ("sampled", "training"):
            alike = [scan for scan in chosen if scan.file.mode == mode]
            if len(alike) > 1:
                chosen = [alike[0], alike[-1]]
                break
    edges = np.linspace(0, 1, BINS + 1)
    series = [
        Series(
            scan.file.label,
            ((edges[:-1] + edges[1:]) / 2).tolist(),
            (np.histogram([place.reward for place in scan.places], edges)[0] / len(scan.places)).tolist(),
        )
        for scan in chosen[:MOST_HISTOGRAMS]
    ]
    note = "Episodes that did not reach their goal have reward 0."
    if len(chosen) > MOST_HISTOGRAMS:
        note += f" The first {MOST_HISTOGRAMS} of {len(chosen)} files."
    return Chart("histogram", "Distribution of rewards", note, REWARD.label, "share of episodes", series, style="steps")
