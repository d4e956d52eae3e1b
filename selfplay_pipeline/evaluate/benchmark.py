"""`selfplay benchmark`: any player on the boards of `suite.py`, as one line of a leaderboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain, write_text
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.shipped import as_listed
from selfplay_pipeline.core.small_files import read_object, read_small_text
from selfplay_pipeline.evaluate.pairing import check_names
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, check_job, run_evaluate
from selfplay_pipeline.evaluate.suite import BOARDS, SUITE, VERSION, Board, chosen
from selfplay_pipeline.games.abilities import HumanEpisodes
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.silence import SILENCE
from selfplay_pipeline.generate.chat_player import partner_arguments
from selfplay_pipeline.generate.records import CHAT, PartnerUsage, Swap, read_episodes
from selfplay_pipeline.generate.seats import checkpoints_among, weights_of
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.generate.stage import policy_record
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

LINE_FILE = "benchmark.json"
FIGURES = {"reward": "reward", "agreement": "agreed", "turns": "length", "words": "words", "illegal": "illegal"}
"""Names of the figures of an evaluation, by their names in a line."""


class BoardResult(BaseModel):
    """Figures of one board, means over episodes with 95 % intervals over states; words and tokens are of all seats.

    Attributes:
        states: Number of states.
        sha256: Hash of the states.
        episodes: Number of episodes.
        lost: Number of missing episodes, lost to the engine or the chat model.
        worth_of_words: Reward minus reward with swapped messages; None in free play and for `chat`.
        tokens: Number of sampled tokens per episode; None for scripted players.
        usage: Requests, tokens and price of the chat model; None for other players.
        silence: Silence line of the configuration; a bound for play without words in the fixed protocol.
        people: Reward of people on DialOp's states; None if no people played the configuration.
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
        mode: `greedy` for checkpoints, else `scripted`.
        partial: Whether boards have fewer states than the suite.
        settings: Settings that decide the player's answers.
        boards: Figures by board; boards that were not played are missing.
    """

    model_config = ConfigDict(extra="forbid")

    suite: str = SUITE
    version: int = VERSION
    player: str
    mode: Mode
    partial: bool
    settings: dict[str, Any]
    boards: dict[str, BoardResult]

    @property
    def lost(self) -> int:
        return sum(board.lost for board in self.boards.values())


@dataclass(frozen=True)
class BenchmarkJob:
    """Description of a benchmark.

    Attributes:
        player: A checkpoint, a scripted player, or `chat`.
        output: Folder of the line, and of one evaluation per board.
        games: Names of games or boards; empty for all.
        most: Largest number of states per board; None for all.
    """

    player: str
    output: Path
    games: Sequence[str] = ()
    most: int | None = None

    def parts(self, config: Config) -> Iterator[tuple[Board, Config, EvaluationJob]]:
        """Yields each board with its configuration and its evaluation.

        Raises:
            UserError: The player or a board is unknown, or the states differ from the published ones.
        """
        for board in chosen(self.player, self.games):
            own = configured(config, board, self.player)
            check_names(own, [self.player])  # before the states are drawn, which may be slow
            swaps: tuple[Swap, ...] = ("swapped",) if board.protocol == "fixed" and self.player != CHAT else ()
            folder = self.output / board.name
            yield (
                board,
                own,
                EvaluationJob(
                    self.player, board.states(self.most), folder, episodes=1, sampled=False, swaps=swaps
                ),
            )  # fmt: skip


def configured(config: Config, board: Board, player: str) -> Config:
    """Returns the configuration for a board: its game, the checkpoint's prompts, and a chat model that is told the
    rules alone."""
    prompts = config.game.prompts if checkpoints_among(config, [player]) else "default"
    partner = config.partner.model_copy(update={"prompt": "plain"})
    return config.model_copy(update={"game": board.config(prompts), "partner": partner})


def check_benchmark(config: Config, job: BenchmarkJob) -> list[tuple[Board, Config, EvaluationJob]]:
    """Returns the parts of a benchmark.

    Raises:
        UserError: The player cannot play a board, or the folder is not usable.
    """
    check_folder(job.output, "benchmark")
    parts = list(job.parts(config))
    for _board, own, evaluation in parts:
        check_job(own, evaluation)
    return parts


def plan_benchmark(config: Config, job: BenchmarkJob) -> str:
    """Returns one line that describes what the benchmark would do, after all checks."""
    boards = ", ".join(f"{board.name} ({len(one.states)})" for board, _own, one in check_benchmark(config, job))
    return f"{job.player} with itself on version {VERSION} of the suite, boards with states: {boards}, to {job.output}"


async def run_benchmark(config: Config, job: BenchmarkJob) -> Line:
    """Play the missing episodes, write the line, and return it.

    Raises:
        UserError: The player cannot play a board, the folder holds something else, or the budget is spent.
        EngineError: Too many episodes failed because of the engine or the chat model.
    """
    parts = check_benchmark(config, job)
    results = {}
    async with Servers(parts[0][1], job.output) as servers:
        if job.player == CHAT and config.partner.max_dollars is not None:
            servers.chat(parts[0][1].partner).total += PartnerUsage(dollars=_spent(job.output))
        for board, own, evaluation in parts:
            results[board.name] = await _play(own, evaluation, servers)
    line = Line(
        player=config.partner.model if job.player == CHAT else as_listed(job.player),
        mode=parts[0][2].modes(parts[0][1])[0],
        partial=any(len(evaluation.states) < board.count for board, _own, evaluation in parts),
        settings=_settings(parts[0][1], job.player),
        boards=results,
    )
    write_text(job.output / LINE_FILE, line.model_dump_json() + "\n")
    return line


def _spent(folder: Path) -> float:
    """Returns the price of the stored episodes in US dollars."""
    records = (record for file in sorted(folder.glob("*/*.jsonl")) for record in read_episodes(file))
    return sum(record.partner.dollars for record in records if record.partner is not None)


async def _play(config: Config, job: EvaluationJob, servers: Servers) -> BoardResult:
    evaluation = await run_evaluate(config, job, servers)
    ((mode, report),) = evaluation.modes.items()
    summary = read_object(job.file(mode).with_suffix(".summary.json"), "selfplay benchmark", "sampled_tokens")
    usage = summary.get("partner")
    return BoardResult(
        states=len(job.states),
        sha256=job.states.fingerprint,
        episodes=report.episodes,
        lost=report.lost,
        **{name: report.figures[figure] for name, figure in FIGURES.items()},
        worth_of_words=report.words.worth if report.words else None,
        tokens=summary["sampled_tokens"] / report.episodes if mode != "scripted" else None,
        usage=PartnerUsage.model_validate(usage) if usage else None,
        silence=evaluation.references.get(SILENCE),
        people=people_on(make_game(config.game)),
    )


def people_on(game: Game) -> Interval | None:
    """Returns the mean reward of people on DialOp's own states; None for states of another kind."""
    rewards = [episode.reward for episode in game.human_episodes()] if isinstance(game, HumanEpisodes) else []
    return Totals.of({"reward": (rewards, [1.0] * len(rewards))}).intervals()["reward"] if rewards else None


def _settings(config: Config, player: str) -> dict[str, Any]:
    """Returns the settings that decide the player's answers; empty for a scripted player."""
    if player == CHAT:
        return partner_arguments(config, [CHAT])
    if not checkpoints_among(config, [player]):
        return {}
    weights = weights_of(config, player)
    policy = policy_record(config, player, weights, greedy=True)
    kept = {"weights", "engine", "max_new_tokens", "thinking"}
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
            try:
                line = Line.model_validate_json(text)
            except ValidationError as error:
                raise UserError(f"{path}:{number}: not a line of `selfplay benchmark`: {explain(error)}") from None
            if (line.suite, line.version) != (SUITE, VERSION):
                raise UserError(f"{path}:{number}: a line of {line.suite} {line.version}; this is {SUITE} {VERSION}")
            found.append(line)
    return found


COLUMNS = ("board", "player", "reward", "worth of words", "agreed", "turns", "words", "tokens", "US dollars")


def table_of(lines: Sequence[Line]) -> str:
    """Returns the lines as a table in Markdown: for each board its players by reward, then silence and people."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for board in (board for board in BOARDS if any(board.name in line.boards for line in lines)):
        played = [(line, line.boards[board.name]) for line in lines if board.name in line.boards]
        for line, result in sorted(played, key=lambda pair: -(pair[1].reward.value or 0)):
            name = f"{line.player} ({result.states} of {board.count} states)" if line.partial else line.player
            rows.append((board.name, name, *_cells(result)))
        for name in ("silence", "people"):
            if (reward := getattr(played[0][1], name)) is not None:
                rows.append((board.name, f"*{name}*", str(reward), *[""] * (len(COLUMNS) - 3)))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _cells(result: BoardResult) -> tuple[str, ...]:
    usage, figures = result.usage, (result.agreement, result.turns, result.words)
    tokens = usage.completion_tokens / result.episodes if usage else result.tokens
    return (
        str(result.reward),
        "" if result.worth_of_words is None else str(result.worth_of_words),
        *(f"{figure.value:.{digits}f}" for figure, digits in zip(figures, (2, 1, 0), strict=True)),
        "" if tokens is None else f"{tokens:.0f}",
        f"{usage.dollars:.2f}" if usage else "",
    )
