"""`selfplay report`: reads the results of a folder and writes a page or plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_bytes
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.generate.read_records import size_of_lines
from selfplay_pipeline.report.charts import charts_of
from selfplay_pipeline.report.draw import Format, draw
from selfplay_pipeline.report.page import render
from selfplay_pipeline.report.reading import CheckpointDecoder, find_decoder, nearby_checkpoints
from selfplay_pipeline.report.scan import Scan, scan
from selfplay_pipeline.report.sources import Source


def scan_all(source: Source) -> list[Scan]:
    """Returns the scans of all files of episodes.

    Raises:
        UserError: A line is bad, or `source` consists only of files of episodes without a complete line.
    """
    total, done, episodes = sum(size_of_lines(file.path) for file in source.files), 0, 0

    with progress("reading episodes") as report:

        def on_bytes(count: int) -> None:
            nonlocal done, episodes
            done, episodes = done + count, episodes + 1
            if done < total:  # files may grow meanwhile
                report(done, total, lambda: f"bytes, {episodes} episodes")

        alone = source.kind == "episodes" and len(source.files) == 1
        scans = [scan(file, on_bytes, with_silence=alone) for file in source.files]
        report(total, total, lambda: f"bytes, {episodes} episodes")
    if source.kind == "episodes" and not source.steps and not any(scan.places for scan in scans):
        raise UserError(f"{source.path}: no whole episode in it (yet); `selfplay generate` writes one a line")
    return scans


def write_page(source: Source, scans: Sequence[Scan], output: Path, *, max_megabytes: float) -> tuple[int, int]:
    """Write the report as one HTML file; returns the number of episodes in it, and of all episodes."""
    nearby = list(nearby_checkpoints(source.path))

    def decoder_of(scan: Scan) -> CheckpointDecoder | None:
        return find_decoder([scan.checkpoint, *nearby])

    page, sample = render(source, scans, decoder_of, int(max_megabytes * 1e6))
    write_bytes(output, page.encode("utf-8", "replace"))
    return len(sample.episodes), sample.total


def write_plots(source: Source, scans: Sequence[Scan], formats: Sequence[Format], folder: Path) -> list[Path]:
    """Write every chart as a file of each format; returns the files."""
    paths = []
    for chart in charts_of(source, scans):
        for form in formats:
            path = folder / f"{chart.key}.{form}"
            write_bytes(path, draw(chart, form))
            paths.append(path)
    return paths
