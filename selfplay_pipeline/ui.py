"""What a person sees while a stage runs: a progress bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from selfplay_pipeline.command_line import announced, program
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.harmless import one_line
from selfplay_pipeline.metrics.figures import figures_of as known_figures
from selfplay_pipeline.small_files import read_object
from selfplay_pipeline.terminal import Terminal

if TYPE_CHECKING:
    from selfplay_pipeline.iterate.manifest import RunDirectory, Stage
    from selfplay_pipeline.online.run import OnlineResult
    from selfplay_pipeline.train.run import TrainResult

console = Terminal(stderr=True)
LOG_EVERY_SECONDS, DRAW_EVERY_SECONDS = 15.0, 0.2
LIVE_ROWS = 12
"""Iterations of a run that are shown while it goes on."""
_in_table = ContextVar("in_table", default=False)
"""Whether a run's table is on the screen; bars below it go away when their stage ends."""
PLAY_AND_TRAIN: tuple[Stage, ...] = ("generate", "train")


def short(path: str) -> str:
    """A path below the working directory without that directory's own."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


class Reporter(Protocol):
    """Told how far a stage is. `figures` is called only when they are shown: to add them up may take long."""

    def __call__(self, done: int, total: int, figures: Callable[[], str]) -> None: ...


def say(line: str) -> None:
    """Print one line for people; above a bar or a table if one is drawn."""
    console.print(one_line(line), soft_wrap=True)


def say_announced() -> None:
    """Something begins: say what was announced."""
    while announced:
        say(announced.pop(0))


@contextmanager
def progress(title: str, begin: str = "", *, brief: bool = False) -> Iterator[Reporter]:
    """A bar where a terminal can draw one, else a line at the start, every 15 s and at the end.

    Args:
        begin: what goes on before the first report.
        brief: for what may be over at once: in a log there is nothing to read of it in the first 15 s, and on a
            terminal nothing stays.
    """
    title = one_line(title)
    if console.is_terminal:
        say_announced()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=brief or _in_table.get()) as bar:
            task = bar.add_task(title, total=None, figures=begin)

            def draw(done: int, total: int, figures: str) -> None:
                bar.update(task, completed=done, total=total, figures=figures)

            yield _at_most_every(DRAW_EVERY_SECONDS, draw)
        return

    def log(done: int, total: int, figures: str) -> None:
        beat.say(f"{title}: {done}/{total} {figures}".rstrip())

    now_and_then = _at_most_every(LOG_EVERY_SECONDS, log, brief=brief)

    def report(done: int, total: int, figures: Callable[[], str]) -> None:
        beat.last = time.monotonic()
        now_and_then(done, total, figures)

    with _Heartbeat(f"{title}: {begin}" if begin else title) as beat:
        yield report


class _Heartbeat(threading.Thread):
    """Repeats the newest line of a log, with the seconds since the start, when nothing was heard for a while."""

    def __init__(self, line: str) -> None:
        super().__init__(daemon=True)
        self.line = line
        self.started = self.last = time.monotonic()
        self.over = threading.Event()

    def say(self, line: str) -> None:
        """Write a line."""
        self.line = line
        self._print(line)

    def _print(self, line: str) -> None:
        say_announced()
        self.last = time.monotonic()
        say(line)

    def run(self) -> None:
        while not self.over.wait(max(0.0, self.last + LOG_EVERY_SECONDS - time.monotonic())):
            if time.monotonic() - self.last >= LOG_EVERY_SECONDS:
                self._print(f"{self.line} … {time.monotonic() - self.started:.0f} s")

    def __enter__(self) -> _Heartbeat:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()


def _at_most_every(seconds: float, show: Callable[[int, int, str], None], *, brief: bool = False) -> Reporter:
    last, shown = (time.monotonic(), False) if brief else (float("-inf"), True)

    def report(done: int, total: int, figures: Callable[[], str]) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if (done >= total and shown) or now - last >= seconds:
            last, shown = now, True
            show(done, total, figures())

    return report


@contextmanager
def waiting(title: str) -> Iterator[Callable[[str], None]]:
    """For work of unknown length, such as a server that starts: shows that time passes.

    Yields a function that changes the text.
    """
    title = one_line(title)
    if not console.is_terminal:
        with _Heartbeat(title) as beat:
            beat.say(title)
            yield beat.say
        return
    say_announced()
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda text: bar.update(task, description=one_line(text))


def figures_of(summary: Summary) -> str:
    """One line of figures for a progress bar."""
    data = summary.to_dict()
    return (
        f"{data['plays_per_second']:.1f} plays/s, {data['sampled_tokens_per_second']:.0f} tokens/s, "
        f"reward {summary.mean_reward:.3f}, agreed {summary.agreement_rate:.0%}"
    )


def show_summary(summary: Summary, output: Path) -> None:
    """The closing table of `generate`."""
    data = summary.to_dict()
    table = Table(
        title=one_line(f"{data['plays']} plays of {data['groups']} game states in {output}"), show_header=False
    )
    table.add_row("mean normalised reward", f"{data['mean_reward']:.4f} ± {data['reward_standard_error']:.4f}")
    table.add_row("agreement rate", f"{data['agreement_rate']:.1%}")
    table.add_row("statuses", ", ".join(f"{name} {count}" for name, count in sorted(data["statuses"].items())))
    table.add_row("illegal actions a game", f"{data['illegal_per_game']:.3f}")
    table.add_row("messages, turns a game", f"{data['messages_per_game']:.2f}, {data['turns_per_game']:.2f}")
    table.add_row(
        "questions a game", f"{data['questions_per_game']:.2f}, {data['specific_questions']:.0%} of them for a score"
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
    table.add_row("time", f"{data['seconds']:.1f} s, {data['plays_per_second']:.2f} plays/s")
    Terminal(highlight=True).print(table)


def show_training(result: TrainResult) -> None:
    """The closing lines of `train`."""
    Terminal().print(
        f"{result.steps} steps on {result.groups} groups ({result.groups_without_signal} without signal) in "
        f"{result.seconds_total:.0f} s\n{_where(result)}",
        soft_wrap=True,
    )


def show_online(result: OnlineResult) -> None:
    """The closing lines of `train-online`."""
    table = Table(title=f"{result.steps} steps on {result.games} games", box=None, padding=(0, 2, 0, 0))
    for name in ("held-out states", "before", "after"):
        table.add_column(name, justify="left" if name == "held-out states" else "right")
    for name, figure in known_figures().items():
        if name.startswith("illegal_"):
            continue
        if result.before.get(name) is not None and result.after.get(name) is not None:
            table.add_row(figure.label, f"{result.before[name]:.3f}", f"{result.after[name]:.3f}")
    show = Terminal()
    show.print(table)
    times = f"{result.seconds_total:.0f} s"
    if result.seconds_to_first_step is not None and result.seconds_per_step is not None:
        times += f": {result.seconds_to_first_step:.0f} s before the first step, {result.seconds_per_step:.1f} s a step"
    show.print(f"{times}\n{_where(result)}", soft_wrap=True)


def _where(result: TrainResult | OnlineResult) -> str:
    """What a training has written, a line each."""
    return one_line(f"checkpoint: {result.checkpoint}") + "\n" + one_line(f"metrics:    {result.metrics_path}")


@contextmanager
def watching(run: RunDirectory) -> Iterator[Callable[[str], None]]:
    """A table of a run, brought up to date in place on a terminal; plain lines in a log.

    Yields a function that takes what has changed or begun, in one line.
    """
    say_announced()
    if not console.is_terminal:
        yield say
        return
    token = _in_table.set(True)
    try:
        with Live(run_table(run, newest=LIVE_ROWS), console=console, transient=True) as live:
            yield lambda text: live.update(
                Group(run_table(run, newest=LIVE_ROWS), Text(one_line(text), style="bold")), refresh=True
            )
    finally:
        _in_table.reset(token)


def run_table(run: RunDirectory, newest: int | None = None) -> Table:
    """One row an iteration, or only of the `newest` ones; what is not done yet is empty."""
    table = Table(
        title=one_line(f"self-play in {run.path}"),
        caption="reward, agreed, illegal, msgs: of the games trained on, which the checkpoint before played\n"
        "held out, greedy: of the new checkpoint; flat: groups without signal; seconds per stage",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name in ("#", "reward", "agreed", "illegal", "msgs", "flat", "steps", "held out", "greedy", "play", "train"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, stages in sorted(run.state.iterations.items())[-newest if newest else None :]:
        cells = [""] * 6
        if played := run.state.played(number):
            cells = [
                f"{played.mean_reward:.3f} ± {played.reward_standard_error:.3f}",
                f"{played.agreement_rate:.1%}",
                f"{played.illegal_per_game:.3f}",
                f"{played.messages_per_game:.2f}",
                f"{played.groups_without_signal}/{played.groups}",
                "",
            ]
        if trained := run.state.trained(number):
            cells[-1] = "carried" if trained.carried else str(trained.steps)
        evaluated = run.state.evaluated(number)
        held_out = [evaluated.held_out_reward, evaluated.held_out_greedy_reward] if evaluated else []
        cells += [f"{interval.value:.3f}" for interval in held_out] or ["", ""]
        cells += [f"{stages[stage].seconds:.0f}" if stage in stages else "" for stage in PLAY_AND_TRAIN]
        table.add_row(str(number), *cells)
    return table


def show_run(run: RunDirectory) -> None:
    """The closing table of `iterate`, and where the checkpoints are."""
    Terminal(highlight=True).print(run_table(run))
    show = Terminal()
    trained = [number for number, stages in sorted(run.state.iterations.items()) if "train" in stages]
    show.print(one_line(f"newest checkpoint: {short(run.checkpoint(trained[-1]))}"), soft_wrap=True)
    if (run.path / "best.json").exists():
        best = read_object(run.path / "best.json", "selfplay iterate", "iteration", "checkpoint")
        where = short(str(best["checkpoint"]))
        show.print(one_line(f"best on held-out states: iteration {best['iteration']}, {where}"), soft_wrap=True)
    command = f"{program()} report {shlex.quote(short(str(run.path)))}"
    show.print(one_line(f"to look at curves and games: {command}"), soft_wrap=True)
