"""Draws charts with matplotlib, for the page and for print, also for black-and-white and colour-blind readers."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.terminal.harmless import harmless
from selfplay_pipeline.report.charts import Chart, Series

Format = Literal["svg", "png", "pdf"]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's palette, which colour-blind readers can distinguish (jfly.uni-koeln.de/color)."""
DARK_COLOURS = ("#56b4e9", "#e69f00", "#2fc79b", "#e6a3c8", "#9fd3f5", "#f0e442")
MARKERS = "osD^v*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 2)))
HATCHES = ("", "////", "....", "xxxx", "----", "++++")
CROWDED = 8
"""Minimum number of names on an axis for which they are vertical."""
SHORT_NAMES = 30
"""Total number of letters up to which names are drawn horizontally."""
MOST_DIGITS = 15
"""Maximum number of digits after the point of a tick on a logarithmic axis; a double has no more."""
MOST_WITH_INTERVALS = 6
"""Largest number of players in a matrix whose cells have room for their intervals."""
MARKED = 12
"""Maximum number of points for which each point gets a marker."""


@dataclass(frozen=True)
class Theme:
    """Colours of a drawing. The background is transparent on the page, so that the page's background shows."""

    ink: str
    faint: str
    background: str
    colours: Sequence[str] = COLOURS
    hatched: bool = False


PRINT = Theme("#000000", "#555555", "#ffffff", hatched=True)
LIGHT = Theme("#1f2328", "#59636e", "none")
DARK = Theme("#e6edf3", "#9aa4af", "none", DARK_COLOURS)
_TO_DARK = dict(zip((LIGHT.ink, LIGHT.faint, *LIGHT.colours), (DARK.ink, DARK.faint, *DARK.colours), strict=True))


def formats_in(option: str, also: str = "") -> list[Format]:
    """Returns the formats that the option --format names.

    Args:
        option: Value of the option, names joined by commas.
        also: Other values that the option accepts, for the message.

    Raises:
        UserError: The option names an unknown format.
    """
    known: dict[str, Format] = {name: name for name in get_args(Format)}
    names = [part.strip().lower() for part in option.split(",")]
    if not set(names) <= known.keys():
        raise UserError(f"--format {option}: give {also}any of png, svg, pdf joined by commas")
    return [known[name] for name in dict.fromkeys(names)]


def draw(chart: Chart, form: Format, theme: Theme = PRINT, *, title: bool = True) -> bytes:
    """Returns a chart as a picture. The same chart gives the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    settings: dict[Any, Any] = {
        "svg.hashsalt": "selfplay",
        "text.parse_math": False,  # labels may be file names
        "font.size": 9,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.faint,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.facecolor": "none",
        "figure.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "hatch.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # a user's own style may ask for LaTeX
        mpl.rcParams.update(settings)
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks is drawn as a box
        wide, tall = (4.6, 3.1) if len(chart.names) < CROWDED else (0.25 * len(chart.names) + 2, 4.6)
        figure, axes = plt.subplots(figsize=(wide, tall), constrained_layout=True)
        _PAINT[chart.style](chart, axes, theme)
        _frame(chart, axes, theme, title)
        if sum(len(series.x) > 0 for series in chart.series) > 1 and chart.style != "matrix":
            figure.legend(
                frameon=False, fontsize=8, ncols=3 if len(chart.series) < 4 else 2, loc="outside lower center"
            )
        buffer = io.BytesIO()
        metadata = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}[form]
        figure.savefig(buffer, format=form, dpi=200, metadata=metadata)
        plt.close(figure)
    return buffer.getvalue()


def in_dark(svg: bytes) -> bytes:
    """Returns an SVG of theme LIGHT in the colours of DARK: the drawing of `draw` except for the ids of its parts."""
    return re.sub("|".join(_TO_DARK).encode(), lambda found: _TO_DARK[found[0].decode()].encode(), svg)


def _frame(chart: Chart, axes: Any, theme: Theme, title: bool) -> None:
    """Add labels, axis limits and reference lines."""
    if title:
        axes.set_title(chart.title, fontsize=10)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_numbers())
        axes.yaxis.set_minor_formatter(_numbers(labelOnlyBase=False))
    xs = {x for series in chart.series for x in series.x}
    if chart.share:
        axes.set_ylim(-0.03, 1.03)
    elif not any(y for series in chart.series for y in series.y):
        axes.set_ylim(-0.03, 1.05 * max([1.0, *chart.lines.values()]))
    elif len(xs) == 1 and not chart.log and not chart.lines:
        bottom, top = axes.get_ylim()
        axes.set_ylim(min(0, 1.2 * bottom), max(0, 1.2 * top))  # a single point fits no scale of its own
    if chart.style in ("points", "matrix"):
        turned: dict[str, Any] = {"rotation": 90 if len(chart.names) >= CROWDED else 20, "ha": "right"}
        names = [harmless(name) for name in chart.names]
        axes.set_xticks(range(len(names)), names, **(turned if sum(map(len, names)) > SHORT_NAMES else {}))
        axes.set_xlim(-0.6, len(chart.names) - 0.4)
        if chart.style == "matrix":
            axes.set_ylabel("player in seat 0")
            axes.set_yticks(range(len(chart.series)), [_label(series) for series in chart.series])
            axes.set_ylim(len(chart.series) - 0.5, -0.5)
            axes.set_xlim(-0.5, len(chart.names) - 0.5)
    elif chart.style != "steps":
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(xs) == 1:
            (x,) = xs
            axes.set_xticks([x])
            axes.set_xlim(x - 1, x + 1)
    _reference_lines(chart.lines, axes, theme)


def _numbers(**options: Any) -> Any:
    """Returns a formatter for a logarithmic axis: no markup, and enough digits to tell its ticks apart.

    Args:
        options: Arguments of matplotlib's `LogFormatter`, which writes one digit.
    """
    from matplotlib.ticker import LogFormatter

    class Numbers(LogFormatter):
        def format_ticks(self, values: list[float]) -> list[str]:
            labels: list[str] = super().format_ticks(values)
            shown = [value for value, label in zip(values, labels, strict=True) if label]
            digits = 0
            while len({*filter(None, labels)}) < len({*shown}) and digits < MOST_DIGITS:
                digits += 1
                labels = [
                    self.fix_minus(f"{value:.{digits}e}") if label else ""
                    for value, label in zip(values, labels, strict=True)
                ]
            return labels

    return Numbers(**options)


def _reference_lines(lines: Mapping[str, float], axes: Any, theme: Theme) -> None:
    """Draw dotted lines, named at the right; names of close lines are moved apart."""
    for value in lines.values():
        axes.axhline(value, color=theme.faint, linewidth=0.8, linestyle=(0, (1, 2)))
    bottom, top = axes.get_ylim()
    height = float("-inf")
    for name, value in sorted(lines.items(), key=lambda line: line[1]):
        height = max((value - bottom) / (top - bottom), height + 0.065)
        axes.annotate(
            f"{name} {value:.2f}", (1.01, height), xycoords="axes fraction", va="center", fontsize=7, color=theme.faint,
            annotation_clip=False,
        )  # fmt: skip


def _label(series: Series) -> str:
    """Returns the label for the legend; matplotlib leaves out labels that begin with an underscore."""
    return harmless(series.label).lstrip("_")


def _curve(chart: Chart, axes: Any, theme: Theme) -> None:
    for number, series in enumerate(chart.series):
        if not len(series.x):
            continue
        few = len(series.x) <= MARKED
        axes.plot(
            series.x, series.y, color=theme.colours[number % 6], linestyle=DASHES[number % 6],
            marker=MARKERS[number % 6] if few else None, markersize=4, linewidth=1.4, label=_label(series),
        )  # fmt: skip
        if series.low is None or series.high is None:
            continue
        if len(series.x) == 1:  # a band would have no width
            axes.errorbar(series.x, series.y, _errors(series), color=theme.colours[number % 6], fmt="none", capsize=3)
        else:
            axes.fill_between(
                series.x, series.low, series.high, color=theme.colours[number % 6], alpha=0.15, linewidth=0
            )


def _points(chart: Chart, axes: Any, theme: Theme) -> None:
    for number, series in enumerate(chart.series):
        if not len(series.x):
            continue
        x = np.asarray(series.x) + 0.14 * (number - (len(chart.series) - 1) / 2)
        axes.errorbar(
            x, series.y, _errors(series), color=theme.colours[number], fmt=MARKERS[number], markersize=5, capsize=3,
            linewidth=1.2, label=_label(series),
        )  # fmt: skip


def _errors(series: Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    low, y, high = (np.asarray(values, dtype=np.float64) for values in (series.low, series.y, series.high))
    return np.stack([y - low, high - y])


def _stack(chart: Chart, axes: Any, theme: Theme) -> None:
    base: dict[tuple[float, bool], float] = {}  # values below 0 are stacked downwards
    for number, series in enumerate(chart.series):
        places = [(x, y < 0) for x, y in zip(series.x, series.y, strict=True)]
        bottom = [base.get(place, 0.0) for place in places]
        axes.bar(
            series.x, series.y, 0.7, bottom, color=theme.colours[number], edgecolor=theme.ink, linewidth=0.4,
            hatch=HATCHES[number] * theme.hatched, label=_label(series),
        )  # fmt: skip
        base |= {place: under + y for place, y, under in zip(places, series.y, bottom, strict=True)}


def _bars(chart: Chart, axes: Any, theme: Theme) -> None:
    width = 0.8 / len(chart.series)
    for number, series in enumerate(chart.series):
        x = np.asarray(series.x) + width * (number - (len(chart.series) - 1) / 2)
        axes.bar(
            x, series.y, width, color=theme.colours[number], edgecolor=theme.ink, linewidth=0.4,
            hatch=HATCHES[number] * theme.hatched, label=_label(series),
        )  # fmt: skip


def _steps(chart: Chart, axes: Any, theme: Theme) -> None:
    for number, series in enumerate(chart.series):
        half = (series.x[1] - series.x[0]) / 2
        edges = [series.x[0] - half, *(x + half for x in series.x)]
        axes.stairs(
            series.y, edges, color=theme.colours[number], linestyle=DASHES[number], linewidth=1.4, label=_label(series)
        )


def _matrix(chart: Chart, axes: Any, theme: Theme) -> None:
    """Draw a heat map, of few players with intervals; cividis is a scale that colour-blind readers can distinguish."""
    table = np.full((len(chart.series), len(chart.names)), np.nan)
    texts = dict[tuple[int, int], str]()
    for row, series in enumerate(chart.series):
        table[row, np.asarray(series.x, dtype=int)] = series.y
        for at, column in enumerate(map(int, series.x)):
            texts[row, column] = f"{series.y[at]:.2f}"
            if series.low is not None and series.high is not None and len(chart.names) <= MOST_WITH_INTERVALS:
                texts[row, column] += f"\n[{series.low[at]:.2f}, {series.high[at]:.2f}]"
    picture = axes.imshow(table, cmap="cividis", aspect="auto")
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for row, column in zip(*np.nonzero(~np.isnan(table)), strict=True):
        colour = "#000001" if table[row, column] > middle else "#fffffe"  # the same in both themes
        axes.text(column, row, texts[row, column], ha="center", va="center", fontsize=8, color=colour)
    axes.figure.colorbar(picture, ax=axes).outline.set_visible(False)


_PAINT = {"curve": _curve, "points": _points, "stack": _stack, "bars": _bars, "steps": _steps, "matrix": _matrix}
