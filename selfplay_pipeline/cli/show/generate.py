"""Closing table of `generate`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.metrics.figures import REWARD


def show_summary(summary: Summary, output: Path) -> None:
    """Print the closing table of `generate`."""
    played = summary.result()
    episodes, states = f"episode{'s' * (played.episodes != 1)}", f"game state{'s' * (played.states != 1)}"
    table = Table(
        title=one_line(f"{played.episodes} {episodes} of {played.states} {states} in {output}"), show_header=False
    )
    for figure, value in summary.shown:
        spread = f" ± {played.reward_standard_error:.3f}" if figure is REWARD else ""
        table.add_row(figure.label + ", all seats" * figure.everyone, figure.text(value) + spread)
    if played.episodes != played.states:
        table.add_row("reward, best of each state", f"{summary.best_reward:.3f}")
    table.add_row("statuses", ", ".join(f"{name} {count}" for name, count in sorted(played.statuses.items())))
    table.add_row("tokens sampled, in prompts", f"{played.sampled_tokens:,}, {played.prompt_tokens:,}")
    table.add_row("prefix-cache hit share", f"{played.prefix_cache_hit_share:.1%}")
    table.add_row("groups without signal", f"{played.groups_without_signal} of {played.groups}")
    if summary.partner is not None:
        used = summary.partner
        table.add_row(
            "partner", f"{used.requests:,} requests ({used.retries:,} retries), {used.cache_hits:,} answers from cache"
        )
        table.add_row(
            "partner's tokens", f"{used.prompt_tokens:,} in, {used.completion_tokens:,} out, ${used.dollars:.2f}"
        )
    table.add_row("time", f"{played.seconds:.1f} s, {played.episodes_per_second:.2f} episodes/s")
    Terminal(highlight=True).print(table)
