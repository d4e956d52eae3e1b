"""The report page: one HTML file that contains everything, loads nothing and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from selfplay_pipeline.config.identity import flatten
from selfplay_pipeline.evaluate.verdict import STATES, in_words, verdict
from selfplay_pipeline.evaluate.worth_of_words import LABELS, rows_of_words
from selfplay_pipeline.games.drawing import UNKNOWN
from selfplay_pipeline.iterate.conclusion import conclusion
from selfplay_pipeline.iterate.folder import Manifest
from selfplay_pipeline.iterate.held_out import IN_TILES, WORTH
from selfplay_pipeline.iterate.history import Iteration, best_iteration, history_of, signal_of
from selfplay_pipeline.iterate.table import OF_EPISODES, PLAY_AND_TRAIN
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.metrics.figures import REWARD, figures_of, rows_of
from selfplay_pipeline.report.charts import KINDS as KINDS_OF_EPISODES
from selfplay_pipeline.report.charts import Chart, charts_of, games_in
from selfplay_pipeline.report.draw import LIGHT, draw, in_dark
from selfplay_pipeline.report.reading import NO_TOKENS, Decoder
from selfplay_pipeline.report.sample import Sample, embedded, take_sample
from selfplay_pipeline.report.scan import SILENCE_STATES, Scan
from selfplay_pipeline.report.sources import Source

SLACK = 10_000
"""Bytes reserved for the sentence about the episodes and for separators."""
KINDS = {"run": "Self-play", "iteration": "Iteration", "evaluation": "Evaluation", "episodes": "Episodes"}
TIME = "%Y-%m-%d %H:%M UTC"
ROW_HEADS = (
    "iteration",
    *(of.label + ", all seats" * of.everyone for of in map(figures_of().__getitem__, OF_EPISODES)),
    "groups without signal", "steps",
    "held out", "greedy", "seconds: play", "train",
)  # fmt: skip

WORTH_HEADS = (LABELS["worth"], f"{LABELS['worth']}, greedy")
"""Heads of further columns, if messages were swapped."""


def render(
    source: Source,
    scans: Sequence[Scan],
    decoder_of: Callable[[Scan], Decoder | None],
    max_bytes: int,
    now: datetime | None = None,
) -> tuple[str, Sample]:
    """Returns the page's HTML, and the episodes that it contains.

    Args:
        source: The results to report on.
        scans: The files of episodes.
        decoder_of: Function that returns the tokenizer of a file's episodes; None if it is unknown.
        max_bytes: Size limit of the page; charts and tables come first, episodes fill the rest.
        now: Time of the report; by default the current time.
    """
    page = _with_episodes(source, scans, now or datetime.now(UTC))
    without = len(page(Sample([], [], [], 0)).encode("utf-8", "replace"))
    sample = take_sample(scans, decoder_of, max(0, max_bytes - without - SLACK))
    return page(sample), sample


def _with_episodes(source: Source, scans: Sequence[Scan], now: datetime) -> Callable[[Sample], str]:
    """Returns a function that renders the page with given episodes."""
    assets = resources.files("selfplay_pipeline.report") / "page"
    style, script = ((assets / name).read_text("utf-8") for name in ("page.css", "page.js"))
    environment = Environment(
        loader=PackageLoader("selfplay_pipeline.report", "page"), autoescape=True, undefined=StrictUndefined
    )
    history = history_of(source.state)
    fixed = dict(
        title=f"{KINDS[source.kind]}: {source.path}",
        facts=facts(source, scans, now),
        tiles=_tiles(source, scans),
        charts=[_chart(chart) for chart in charts_of(source, scans)],
        row_heads=(*ROW_HEADS, *WORTH_HEADS) if _swapped(history) else ROW_HEADS,
        rows=[[*_row(one), *(_worth(one) if _swapped(history) else [])] for one in history],
        conclusion=_conclusion(source, scans, history),
        warnings=_warnings(history),
        **_figures(source, scans),
        config=yaml.safe_dump(source.manifest.config, sort_keys=False) if source.manifest else None,
        versions=_versions(source.manifest) if source.manifest else [],
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
    )
    template = environment.get_template("page.html.j2")
    return lambda sample: template.render(fixed, sample=_explain(sample), data=embedded(_data(scans, sample)))


def _conclusion(source: Source, scans: Sequence[Scan], history: Sequence[Iteration]) -> list[str]:
    """Returns sentences on what a run, an evaluation or a file of episodes shows."""
    if history:
        return conclusion(history)
    if source.evaluation:
        return verdict(source.evaluation)
    for scan in scans:
        if scan.above_silence:
            muted = any(game.config.mute for game in scan.rules.values())
            states = f"the first {SILENCE_STATES} states" if len(scan.groups) > SILENCE_STATES else STATES
            return in_words({scan.file.label: scan.above_silence}, {}, muted=muted, states=states)
    return []


def facts(source: Source, scans: Sequence[Scan], now: datetime) -> list[str]:
    """Returns short facts about the results: number of episodes, progress of a run, its start."""
    facts = [f"{sum(len(scan.places) for scan in scans):,} episodes"]
    if source.kind == "run" and source.manifest:
        done = sum("train" in stages for stages in source.state.iterations.values())
        planned = flatten(source.manifest.config).get("iterate.num_iterations", done)
        facts.append(f"{done} of {planned} iterations trained" if done < planned else f"{done} iterations")
        facts += [f"begun {source.manifest.created:{TIME}}", f"model {source.manifest.config.get('model')}"]
    if source.evaluation:
        facts += [f"with {source.evaluation.partner}", source.evaluation.states]
        facts += ["messages muted"] if source.evaluation.mute else []
    if lost := _lost(source):
        facts.append(f"{lost:,} episodes lost to the engine or a chat model")
    for arm, gaps in (source.crossplay.gaps if source.crossplay else {}).items():
        facts += [f"{arm}: {gaps.in_words()}"]
    for found in source.crossplay.best_responses if source.crossplay else []:
        facts += [f"best-response gap of {found.responder} to {found.partner}: {found.gap:+}"]
    return [*facts, f"this page: {now:{TIME}}"]


def _lost(source: Source) -> int:
    """Returns the number of episodes that an evaluation or a cross-play lacks."""
    reports = source.evaluation.modes.values() if source.evaluation else ()
    return sum(report.lost for report in reports) + (source.crossplay.lost if source.crossplay else 0)


def _tiles(source: Source, scans: Sequence[Scan]) -> list[tuple[str, str, str]]:
    """Returns the few figures to show first: label, value, note."""
    history = history_of(source.state)
    evaluated = [(iteration.number, iteration.evaluated) for iteration in history if iteration.evaluated]
    best = best_iteration(history)
    if best:
        (first, before), (last, after) = evaluated[0], evaluated[-1]
        return [
            (
                f"held-out {figure.label}, {figure.mode}, after iteration {last}",
                str(now),
                f"after iteration {first}: {then}",
            )
            for figure in IN_TILES
            if (now := after.interval(figure)) and (then := before.interval(figure))
        ] + [
            (
                "best iteration",
                str(best.iteration),
                f"{best.held_out_reward.value:.3f} on the states that chose it",
            )
        ]
    return [
        (
            scan.file.label,
            str(scan.figures["reward"]),
            f"{REWARD.name}; {scan.figures['agreed'].value:.1%} agreed",
        )
        for scan in scans[-4:]
        if "reward" in scan.figures
    ]


def _chart(chart: Chart) -> dict[str, Any]:
    """Returns a chart's pictures for light and dark themes, and its numbers."""
    series = [one for one in chart.series if len(one.x)]
    xs = sorted({x for one in series for x in one.x})
    rows = []
    for x in xs:
        name = chart.names[int(x)] if chart.names else f"{x:g}"
        rows.append((name, [_cell(one.x, one, x) for one in series]))
    ends = "; ".join(f"{one.label or chart.y_label}: {one.y[0]:.3g} to {one.y[-1]:.3g}" for one in series)
    lines = ", ".join(f"{name} {value:.3f}" for name, value in chart.lines.items())
    light = draw(chart, "svg", LIGHT, title=False)
    return {
        "key": chart.key,
        "title": chart.title,
        "note": " ".join(filter(None, (chart.note, f"Dotted: {lines}." if lines else ""))),
        "x_label": chart.x_label,
        "labels": [one.label for one in series],
        "rows": rows,
        "alt": f"{chart.title}: {chart.y_label} over {chart.x_label or 'episodes'}. {ends}.",
        "light": _picture(light),
        "dark": _picture(in_dark(light)),
    }


def _cell(xs: Sequence[float], one: Any, x: float) -> str:
    if x not in xs:
        return ""
    at = list(xs).index(x)
    if one.low is None or one.high is None:
        return f"{one.y[at]:.4g}"
    return _breaks_once(str(Interval(value=one.y[at], low=one.low[at], high=one.high[at])))


def _row(iteration: Iteration) -> list[str]:
    """Returns an iteration's row of the table."""
    played, trained, evaluated = iteration.played, iteration.trained, iteration.evaluated
    cells = [""] * 6
    if played and trained:
        cells = [
            _breaks_once(f"{played.mean_reward:.3f} ± {played.reward_standard_error:.3f}"),
            f"{played.agreement_rate:.1%}",
            f"{played.illegal_per_episode:.3f}",
            f"{played.messages_per_episode:.2f}",
            f"{signal_of(played, iteration.converted).share:.0%}",
            str(trained.steps),
        ]
    held_out = [evaluated.reward, evaluated.greedy_reward] if evaluated else []
    seconds = [iteration.seconds.get(stage) for stage in PLAY_AND_TRAIN]
    return [
        str(iteration.number),
        *cells,
        *([_breaks_once(str(interval)) for interval in held_out] or ["", ""]),
        *("" if taken is None else f"{taken:.0f}" for taken in seconds),
    ]


def _swapped(history: Sequence[Iteration]) -> bool:
    """Whether an evaluation of the run swapped messages."""
    return any(one.evaluated and one.evaluated.by_mode(WORTH) for one in history)


def _worth(iteration: Iteration) -> list[str]:
    """Returns an iteration's worth of words, sampled and greedy."""
    worth = iteration.evaluated.by_mode(WORTH) if iteration.evaluated else {}
    return [_breaks_once(str(worth[mode])) if mode in worth else "" for mode in WORTH]


def _breaks_once(figure: str) -> str:
    """Returns a figure with non-breaking spaces, so that a line can break only between mean and interval."""
    mean, space, interval = figure.partition(" ")
    return mean + space + interval.replace(" ", "\N{NO-BREAK SPACE}")


def _warnings(history: Sequence[Iteration]) -> list[str]:
    """Returns messages about collapses that were noticed."""
    return [f"Iteration {one.number}: collapse? {one.collapse}" for one in history if one.collapse]


def _figures(source: Source, scans: Sequence[Scan]) -> dict[str, Any]:
    """Returns all figures of a few files side by side; empty for a run, which has curves instead."""
    known = [scan for scan in scans if scan.figures]
    if source.kind == "run" or not known:
        return {"figures": [], "figure_heads": []}
    found = rows_of([scan.figures for scan in known], *games_in(known))
    rows = [(label, ["" if interval is None else str(interval) for interval in cells]) for label, cells in found]
    statuses = [", ".join(f"{k} {v}" for k, v in sorted(scan.summary.statuses.items())) for scan in known]
    words = {str(mode): one.words for mode, one in (source.evaluation.modes if source.evaluation else {}).items()}
    rows += rows_of_words([words.get(scan.file.mode) for scan in known])
    rows += [("episodes", [str(len(scan.places)) for scan in known]), ("statuses", statuses)]
    return {"figures": rows, "figure_heads": [scan.file.label for scan in known]}


def _versions(manifest: Manifest) -> list[tuple[str, str]]:
    given = {**manifest.packages, "Python": manifest.python, "git revision": manifest.git_revision}
    return [(name, str(value or "unknown")) for name, value in given.items()]


def _explain(sample: Sample) -> str:
    if len(sample.episodes) == sample.total:
        return f"All {sample.total:,} episodes are in this page."
    return f"{len(sample.episodes):,} of {sample.total:,} episodes are in this page: {sample.rule}."


def _data(scans: Sequence[Scan], sample: Sample) -> dict[str, Any]:
    return {
        "files": [
            {"label": scan.file.label, "iteration": scan.file.iteration, "kind": KINDS_OF_EPISODES.get(scan.file.mode)}
            for scan in scans
        ],
        "states": [state.model_dump() for state in sample.states],
        "episodes": [episode.model_dump() for episode in sample.episodes],
        "state_of": sample.state_of,
        "no_tokens": NO_TOKENS,
        "unknown": UNKNOWN,
    }


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _picture(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
