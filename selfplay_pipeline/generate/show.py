"""What a person sees of games that are played: the figures beside the bar, and the closing table."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.generate.summary import Summary


def figures_of(summary: Summary) -> str:
    """One line of figures for a progress bar."""
    data = summary.to_dict()
    return (
        f"{data['episodes_per_second']:.1f} episodes/s, {data['sampled_tokens_per_second']:.0f} tokens/s, "
        f"reward {summary.mean_reward:.3f}, agreed {summary.agreement_rate:.0%}"
    )


def show_summary(summary: Summary, output: Path) -> None:
    """The closing table of `generate`."""
    data = summary.to_dict()
    table = Table(
        title=one_line(f"{data['episodes']} episodes of {data['groups']} game states in {output}"), show_header=False
    )
    table.add_row("mean normalised reward", f"{data['mean_reward']:.4f} ± {data['reward_standard_error']:.4f}")
    table.add_row("agreement rate", f"{data['agreement_rate']:.1%}")
    table.add_row("statuses", ", ".join(f"{name} {count}" for name, count in sorted(data["statuses"].items())))
    table.add_row("illegal actions an episode", f"{data['illegal_per_episode']:.3f}")
    table.add_row("messages, turns an episode", f"{data['messages_per_episode']:.2f}, {data['turns_per_episode']:.2f}")
    table.add_row(
        "questions an episode",
        f"{data['questions_per_episode']:.2f}, {data['specific_questions']:.0%} of them for a fact",
    )
    table.add_row("tokens sampled, in prompts", f"{data['sampled_tokens']:,}, {data['prompt_tokens']:,}")
    table.add_row("prefix-cache hit share", f"{data['prefix_cache_hit_share']:.1%}")
    table.add_row("groups without signal", f"{data['groups_without_signal']} of {data['groups']}")
    if summary.partner is not None:
        used = summary.partner
        table.add_row(
            "partner", f"{used.requests:,} requests ({used.retries:,} retries), {used.cache_hits:,} answers from cache"
        )
        table.add_row(
            "partner's tokens", f"{used.prompt_tokens:,} in, {used.completion_tokens:,} out, ${used.dollars:.2f}"
        )
    table.add_row("time", f"{data['seconds']:.1f} s, {data['episodes_per_second']:.2f} episodes/s")
    Terminal(highlight=True).print(table)
