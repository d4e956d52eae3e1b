"""`selfplay report`: read what there is, write a page or plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from selfplay_pipeline.core.files import write_bytes
from selfplay_pipeline.report.charts import charts_of
from selfplay_pipeline.report.draw import Format, draw
from selfplay_pipeline.report.page import render
from selfplay_pipeline.report.sample import take_sample
from selfplay_pipeline.report.scan import Scan, scan
from selfplay_pipeline.report.sources import Source
from selfplay_pipeline.report.tokens import CheckpointDecoder, find_decoder, nearby_checkpoints

MAX_BYTES = 14_000_000
"""Largest size of a page."""

Progress = Callable[[int, int, Callable[[], str]], None]


def scan_all(source: Source, report: Progress) -> list[Scan]:
    """Read all files of episodes.

    Raises:
        UserError: a line is bad.
    """
    total, done, episodes = sum(file.path.stat().st_size for file in source.files), 0, 0

    def on_bytes(count: int) -> None:
        nonlocal done, episodes
        done, episodes = done + count, episodes + 1
        if done < total:  # files may grow meanwhile
            report(done, total, lambda: f"bytes, {episodes} episodes")

    scans = [scan(file, on_bytes) for file in source.files]
    report(total, total, lambda: f"bytes, {episodes} episodes")
    return scans


def write_page(source: Source, scans: Sequence[Scan], output: Path) -> Path:
    """Write the report as one HTML file."""
    nearby = list(nearby_checkpoints(source.path))

    def decoder_of(scan: Scan) -> CheckpointDecoder | None:
        return find_decoder([scan.checkpoint, *nearby])

    page = render(source, scans, lambda room: take_sample(scans, decoder_of, room), MAX_BYTES)
    write_bytes(output, page.encode("utf-8", "replace"))
    return output


def write_plots(source: Source, scans: Sequence[Scan], formats: Sequence[Format], folder: Path) -> list[Path]:
    """Write every chart as a file of each format."""
    paths = []
    for chart in charts_of(source, scans):
        for form in formats:
            path = folder / f"{chart.key}.{form}"
            write_bytes(path, draw(chart, form))
            paths.append(path)
    return paths
