"""Frame of the benchmarks' plots: held-out reward, a panel for each sampling mode, over one legend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.arms import MODES
from selfplay_pipeline.evaluate.run import Mode


@contextmanager
def drawn(path: Path, abscissa: str) -> Iterator[dict[Mode, Any]]:
    """Yields matplotlib's axes to draw on, by sampling mode; writes the file afterwards."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(MODES), figsize=(10, 4.6), sharey=True, constrained_layout=True)
    yield dict(zip(MODES, panels, strict=True))
    for panel, mode in zip(panels, MODES, strict=True):
        panel.set_title(f"{mode} play")
        panel.set_xlabel(abscissa)
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("normalised reward on held-out states")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
