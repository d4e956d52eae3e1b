"""`selfplay benchmark`: any player on the tasks of `suite.py`, as one line of a leaderboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain, write_text
from selfplay_pipeline.core.folders import check_folder, own_folder
from selfplay_pipeline.core.shipped import as_listed
from selfplay_pipeline.core.small_files import read_small_text
from selfplay_pipeline.evaluate.pairing import check_names
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, check_job, run_evaluate
from selfplay_pipeline.evaluate.suite import Task, all_tasks, suite, tasks_for
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.silence import SILENCE
from selfplay_pipeline.generate.chat_player import partner_arguments
from selfplay_pipeline.generate.episode_wrappers import Swap
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import CHAT, PartnerUsage
from selfplay_pipeline.generate.seats import Backends, Servers, is_checkpoint, weights_of
from selfplay_pipeline.generate.stage import policy_record
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

LINE_FILE = "benchmark.json"
FIGURES = {"reward": "reward", "agreement": "agreed", "turns": "length", "words": "words", "illegal": "illegal"}
"""Names of the figures of an evaluation, by their names in a line."""


class TaskResult(BaseModel):
    """Figures of one task, means over episodes with 95 % intervals over states; words and tokens are of all seats.

    Attributes:
        states: Number of states.
        sha256: Hash of the states.
        episodes: Number of played episodes.
        lost: Number of missing episodes, lost to the engine or the chat model.
        worth_of_words: Reward minus reward with swapped messages; None in free play and for `chat`.
        tokens: Number of sampled tokens per episode, those of answers from the cache included; None for scripted
            players, and if the chat model or the cache does not report all.
        usage: Requests, tokens and price of the chat model; None for other players.
        silence: Silence line of the configuration; a bound for play without words in the fixed protocol.
        people: Reward of people on recorded states of the configuration; None if no people played the configuration.
    """

    model_config = ConfigDict(extra="forbid")

    states: int
    sha256: str
    episodes: int
    lost: int
    reward: Interval
    agreement: Interval
    turns: Interval
    words: Interval
    illegal: Interval
    worth_of_words: Interval | None = None
    tokens: float | None = None
    usage: PartnerUsage | None = None
    silence: Interval | None = None
    people: Interval | None = None


class Line(BaseModel):
    """One line of the leaderboard: the content of `benchmark.json`.

    Attributes:
        mode: `greedy` for checkpoints, `scripted` for all other players, `chat` included.
        partial: Whether tasks have fewer states than the suite.
        settings: Settings that decide the player's answers.
        tasks: Figures by task; tasks that were not played are missing.
    """

    model_config = ConfigDict(extra="forbid")

    suite: str
    version: int
    player: str
    mode: Mode
    partial: bool
    settings: dict[str, Any]
    tasks: dict[str, TaskResult]

    @property
    def lost(self) -> int:
        return sum(task.lost for task in self.tasks.values())


@dataclass(frozen=True)
class BenchmarkJob:
    """Description of a benchmark.

    Attributes:
        player: A checkpoint, a scripted player, or `chat`.
        output: Folder of the line, and of one evaluation per task.
        games: Names of games or tasks; empty for all.
        most: Largest number of states per task; None for all.
    """

    player: str
    output: Path
    games: Sequence[str] = ()
    most: int | None = None

    def parts(self, config: Config) -> Iterator[tuple[Task, Config, EvaluationJob]]:
        """Yields each task with its configuration and its evaluation.

        Raises:
            UserError: The player or a task is unknown, or the states differ from the published ones.
        """
        for task in tasks_for(self.player, self.games):
            own = configured(config, task, self.player)
            check_names(own, [self.player])  # before the states are drawn, which may be slow
            swaps: tuple[Swap, ...] = ("swapped",) if task.protocol == "fixed" and self.player != CHAT else ()
            states, folder = task.states(self.most), self.output / task.name
            yield task, own, EvaluationJob(self.player, states, folder, episodes=1, sampled=False, swaps=swaps)


def configured(config: Config, task: Task, player: str) -> Config:
    """Returns the configuration for a task: its game, the checkpoint's prompts, and a chat model that is told the
    rules alone."""
    partner = config.partner.model_copy(update={"prompt": "plain"})
    own = config.model_copy(update={"game": task.config(), "partner": partner})
    if not is_checkpoint(make_game(own.game), player):
        return own
    return own.model_copy(update={"game": task.config(config.game.prompts)})


def check_benchmark(config: Config, job: BenchmarkJob) -> list[tuple[Task, Config, EvaluationJob]]:
    """Returns the parts of a benchmark.

    Raises:
        UserError: The player cannot play a task, the folder is not usable, or its line cannot be read or is another
            player's.
    """
    check_folder(job.output, "benchmark")
    earlier = _earlier_line(job.output / LINE_FILE)
    parts = list(job.parts(config))
    for _task, own, evaluation in parts:
        check_job(own, evaluation)
    if earlier is not None and not _same_player(earlier, _line(parts, job, {})):
        raise UserError(
            f"{job.output / LINE_FILE}: the line of {earlier.player}, played with other settings or by another player; "
            "give another --output"
        )
    return parts


async def run_benchmark(config: Config, job: BenchmarkJob) -> Line:
    """Play the missing episodes, write the line, and return it.

    Raises:
        UserError: The player cannot play a task, the folder holds something else, or the budget is spent.
        EngineError: Too many episodes failed because of the engine or the chat model.
    """
    parts = check_benchmark(config, job)
    results = {}
    async with Servers(Backends.of(parts[0][1]), job.output) as servers:
        own_folder(job.output, "benchmark")
        if job.player == CHAT and config.partner.max_dollars is not None:
            servers.chat().total += PartnerUsage(dollars=spent(job.output))
        for task, own, evaluation in parts:
            results[task.name] = await _play(own, evaluation, servers)
    earlier = _earlier_line(job.output / LINE_FILE)
    line = _line(parts, job, (earlier.tasks if earlier else {}) | results)
    write_text(job.output / LINE_FILE, line.model_dump_json() + "\n")
    return line


def _line(parts: Sequence[tuple[Task, Config, EvaluationJob]], job: BenchmarkJob, found: dict[str, TaskResult]) -> Line:
    """Returns the line of a benchmark with the figures found so far, in the suite's order."""
    _task, config, evaluation = parts[0]
    tasks = [task for task in all_tasks() if task.name in found]
    return Line(
        suite=suite().suite,
        version=suite().version,
        player=config.partner.model if job.player == CHAT else as_listed(job.player),
        mode=evaluation.modes(config)[0],
        partial=any(found[task.name].states < task.given.states for task in tasks),
        settings=_settings(config, job.player),
        tasks={task.name: found[task.name] for task in tasks},
    )


def _same_player(one: Line, other: Line) -> bool:
    compared = {"player", "mode", "settings"}
    return one.model_dump(include=compared) == other.model_dump(include=compared)


def _earlier_line(path: Path) -> Line | None:
    """Returns the line of an earlier benchmark in the same folder; None if there is no file.

    Raises:
        UserError: The file does not have exactly one line of this version of the suite.
    """
    if not path.exists():
        return None
    found = read_lines_of([path])
    if len(found) != 1:
        raise UserError(
            f"{path}: expected one line of `selfplay benchmark`, found {len(found)}; move the file away, "
            "or give another --output"
        )
    return found[0]


def spent(folder: Path) -> float:
    """Returns the price of the stored episodes in US dollars."""
    files = sorted(folder.glob("*/*.jsonl"))
    records = (record for file in files for record in read_episodes(file, growing=True))
    return sum(record.partner.dollars for record in records if record.partner is not None)


async def _play(config: Config, job: EvaluationJob, servers: Servers) -> TaskResult:
    evaluation = await run_evaluate(config, job, servers)
    ((mode, report),) = evaluation.modes.items()
    own, usage = _cost(job.file(mode))
    played = report.episodes - report.statuses.get(Status.ENGINE_FAILURE.value, 0)
    answered = usage.with_cached() if usage else None
    sampled = own if mode != "scripted" else answered and answered[0]
    return TaskResult(
        states=len(job.states),
        sha256=job.states.fingerprint,
        episodes=played,
        lost=report.lost,
        **{name: report.figures[figure] for name, figure in FIGURES.items()},
        worth_of_words=report.words.worth if report.words else None,
        tokens=sampled / played if sampled and played else None,
        usage=usage,
        silence=evaluation.references.get(SILENCE),
        people=people_on(make_game(config.game)),
    )


def _cost(games: Path) -> tuple[int, PartnerUsage | None]:
    """Returns the sampled tokens of the stored episodes, and the usage of their chat model; None if none played.

    Attempts that were lost are left out: with a cache, the answers of a lost attempt are used again.
    """
    tokens, usage = 0, None
    for record in read_episodes(games):
        tokens += sum(sum(seat.response_mask) for seat in record.trajectories)
        if record.partner is not None:
            usage = (usage or PartnerUsage()) + record.partner
    return tokens, usage


def people_on(game: Game) -> Interval | None:
    """Returns the mean reward of people on recorded states of a configuration; None if there are none."""
    rewards = [episode.reward for episode in game.human_episodes()]
    return Totals.of({"reward": (rewards, [1.0] * len(rewards))}).intervals()["reward"] if rewards else None


def _settings(config: Config, player: str) -> dict[str, Any]:
    """Returns the settings that decide the player's answers; empty for a scripted player."""
    if player == CHAT:
        return partner_arguments(config.partner, make_game(config.game), [CHAT])
    if not is_checkpoint(make_game(config.game), player):
        return {}
    weights = weights_of(config.engine, player)
    policy = policy_record(config, player, weights, greedy=True)
    kept = {"weights", "engine", "max_new_tokens", "thinking", "template_args", "date"}
    return {**policy.model_dump(mode="json", include=kept), "prompts": config.game.prompts}


def read_lines_of(places: Sequence[Path]) -> list[Line]:
    """Returns the lines in files, each with any number of lines, or in folders of benchmarks.

    Raises:
        UserError: A file is missing, or a line is not one of this version of the suite.
    """
    found = []
    for place in places:
        path = place / LINE_FILE if place.is_dir() else place
        for number, text in enumerate(read_small_text(path).splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = Line.model_validate_json(text)
            except ValidationError as error:
                raise UserError(f"{path}:{number}: not a line of `selfplay benchmark`: {explain(error)}") from None
            if (line.suite, line.version) != (suite().suite, suite().version):
                raise UserError(
                    f"{path}:{number}: a line of {line.suite} {line.version}; this is {suite().suite} {suite().version}"
                )
            if strange := next((name for name, played in line.tasks.items() if not _is_of_suite(name, played)), None):
                raise UserError(f"{path}:{number}: task {strange!r}: not figures of a task of the suite; play it again")
            found.append(line)
    return found


def _is_of_suite(name: str, result: TaskResult) -> bool:
    """Whether a result has all figures of a task of the suite, and is of its states if as many were played."""
    task = next((task for task in all_tasks() if task.name == name), None)
    figures = (result.reward, result.agreement, result.turns, result.words)
    return (
        task is not None
        and all(figure.value is not None for figure in figures)
        and (result.states != task.given.states or result.sha256 == task.given.sha256)
    )


COLUMNS = ("task", "player", "reward", "worth of words", "agreed", "turns", "words", "tokens", "US dollars")


def table_of(lines: Sequence[Line]) -> str:
    """Returns the lines as a table in Markdown: for each task its players by reward, then silence and people."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for task in (task for task in all_tasks() if any(task.name in line.tasks for line in lines)):
        played = [(line, line.tasks[task.name]) for line in lines if task.name in line.tasks]
        for line, result in sorted(played, key=lambda pair: -(pair[1].reward.value or 0)):
            notes = [f"{result.states} of {task.given.states} states"] if line.partial else []
            notes += [f"{result.lost} episodes lost"] if result.lost else []
            name = f"{line.player} ({', '.join(notes)})" if notes else line.player
            rows.append((task.name, name, *_cells(result)))
        for name in ("silence", "people"):
            if (reward := getattr(played[0][1], name)) is not None:
                rows.append((task.name, f"*{name}*", str(reward), *[""] * (len(COLUMNS) - 3)))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _cells(result: TaskResult) -> tuple[str, ...]:
    figures = result.agreement, result.turns, result.words
    # As the tokens, the price is that of all answers, so that players with and without a cache can be compared.
    priced = result.usage and result.usage.with_cached()
    return (
        str(result.reward),
        "" if result.worth_of_words is None else str(result.worth_of_words),
        *(f"{figure.value:.{digits}f}" for figure, digits in zip(figures, (2, 1, 0), strict=True)),
        "" if result.tokens is None else f"{result.tokens:.0f}",
        f"{priced[1]:.2f}" if priced else "",
    )
