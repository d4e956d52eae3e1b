"""`selfplay report`: read what there is, write a page or plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from selfplay_pipeline.files import write_bytes
from selfplay_pipeline.report.charts import charts_of
from selfplay_pipeline.report.draw import Format, draw
from selfplay_pipeline.report.page import render
from selfplay_pipeline.report.sample import take_sample
from selfplay_pipeline.report.scan import Scan, scan
from selfplay_pipeline.report.sources import Source
from selfplay_pipeline.report.tokens import CheckpointDecoder, find_decoder

MAX_GAMES_BYTES = 11_000_000
"""Of the games in a page; with charts and tables it stays under 15 MB."""

Progress = Callable[[int, int, Callable[[], str]], None]


def scan_all(source: Source, report: Progress) -> list[Scan]:
    """Read all files of plays.

    Raises:
        UserError: a line is bad.
    """
    total, done, plays = sum(file.path.stat().st_size for file in source.files), 0, 0

    def on_bytes(count: int) -> None:
        nonlocal done, plays
        done, plays = done + count, plays + 1
        report(min(done, total), total, lambda: f"bytes, {plays} games")

    return [scan(file, on_bytes) for file in source.files]


def write_page(source: Source, scans: Sequence[Scan], output: Path) -> Path:
    """The report as one HTML file."""
    decoders: dict[str | None, CheckpointDecoder | None] = {}
    fallback = [scan.checkpoint for scan in reversed(scans)]

    def decoder_of(scan: Scan) -> CheckpointDecoder | None:
        key = None if source.kind == "run" else scan.checkpoint
        if key not in decoders:
            decoders[key] = find_decoder([key, *(fallback if source.kind == "run" else [])])
        return decoders[key]

    sample = take_sample(scans, decoder_of, MAX_GAMES_BYTES)
    write_bytes(output, render(source, scans, sample).encode("utf-8", "replace"))
    return output


def write_plots(source: Source, scans: Sequence[Scan], formats: Sequence[Format], folder: Path) -> list[Path]:
    """Every chart as a file of each format."""
    paths = []
    for chart in charts_of(source, scans):
        for form in formats:
            path = folder / f"{chart.key}.{form}"
            write_bytes(path, draw(chart, form))
            paths.append(path)
    return paths
