"""Analyses the policy's questions: figures, trends over the steps, correlation with reward, and sentences on them.

Episodes were logged by slime's hook, played by a run of our own, or played by people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.games.registry import FIRST_GAME, game_named, game_of, make_game
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report.scan import episodes
from selfplay_pipeline.report.sources import EpisodesFile
from selfplay_pipeline.slime.questions import statistics
from selfplay_pipeline.slime.questions.records import FIGURES, FILE_NAME, AskingRecord, log_in, read_records
from selfplay_pipeline.slime.questions.statistics import MIN_STATES, Bin, Step, Trend

TRENDS = ("questions", "facts", "asking", "reward")
"""Figures that are tested for a trend over the steps."""
METHOD = (
    "Brackets are 95 % intervals that take game states, never single episodes, as independent. A trend is the slope "
    "of the least-squares line of the episodes' figures over the steps, tested by the wild cluster bootstrap "
    "(Cameron, Gelbach and Miller 2008), two-sided at 5 % for each figure: it speaks about this run, not about another "
    "seed, and sees no rise that is followed by a fall. Correlations are Pearson's, of single episodes, after the "
    "mean of the step, or of the game state within its step, is removed from both figures."
)
NO_EVIDENCE = (
    "This is no evidence that the policy learned when to ask: where nothing is learned and the log-odds of asking "
    "drift at random by 0.05, 0.1 or 0.2 per iteration (standard deviation), the same test says rose or fell in 18, 27 "
    "and 40 of 40 simulated runs. Compare with a control run whose rewards are permuted, and with a scripted player "
    "that asks equally often."
)
"""Sentence for reports. Its numbers come from simulated runs: ten iterations of 64 states, 8 episodes of each state,
and geometrically distributed numbers of questions.
"""


@dataclass(frozen=True)
class Records:
    """Episodes of a log directory or a run.

    Attributes:
        unit: Displayed name of a step.
        lost: Number of episodes left out because a machine failed.
        comparable: The game, if human episodes on states of the same configuration exist; else None.
    """

    path: Path
    unit: str
    records: list[AskingRecord]
    lost: int
    comparable: Game | None = None


class HumanReference(BaseModel):
    """Figures of the human episodes.

    The share of messages with a question mark is given in two ways, since the usually cited 29 % is the mean over the
    episodes' shares.
    """

    counted: str
    games: int
    messages: int
    with_question_mark: float
    with_question_mark_mean_of_episodes: float
    figures: dict[str, Interval]


class Analysis(BaseModel):
    """Contents of `analysis.json`.

    Attributes:
        lost: Number of episodes left out because a machine failed.
        plots: Names of the plots in the same folder.
        human: Figures of human pairs, if human episodes on states of the same configuration exist.
        overall: Figures of all steps together.
        correlations: Correlations of questions with reward, within steps and within game states.
    """

    source: str
    unit: str
    episodes: int
    lost: int
    verdicts: list[str]
    trends: dict[str, Trend]
    correlations: dict[str, Interval]
    overall: dict[str, Interval]
    steps: list[Step]
    reward_by_questions: list[Bin]
    human: HumanReference | None
    plots: list[str] = []
    method: str = METHOD


def read(path: Path) -> Records:
    """Returns the episodes in a log directory of slime's hook, or in a run directory of `selfplay iterate`.

    Raises:
        UserError: The folder has no episode to analyse, or a line is bad.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give the log directory, or a run directory of `selfplay iterate`")
    log = log_in(path)
    if log is not None:
        unit, records = "training step", list(read_records(log))
        comparable = game_named(FIRST_GAME) if all(record.people_played for record in records) else None
    else:
        unit, records = "iteration", list(_run(path))
        comparable = _comparable(path)
    kept = [record for record in records if record.status != Status.ENGINE_FAILURE]
    if not kept:
        raise UserError(
            f"{path}: no episode in it (yet); expected {FILE_NAME} of slime's log hook, or "
            "iter_1/selfplay_games.jsonl of `selfplay iterate`, with episodes that did not all fail"
        )
    return Records(path, unit, kept, len(records) - len(kept), comparable)


def _run(path: Path) -> Iterator[AskingRecord]:
    """Yields all episodes of a run; their step is the iteration that trained on them.

    An iteration that is still playing is left out, because its finished episodes would be those with few questions.
    """
    run = RunDirectory(path)
    for number in run.numbers():
        if run.games(number).with_suffix(".summary.json").exists():
            for _, _, record in episodes(run.games(number)):
                yield from records_of(record, number)


def _comparable(path: Path) -> Game | None:
    """Returns the game of a run, if human episodes exist for the one configuration of all its episodes; else None."""
    run = RunDirectory(path)
    games = [run.games(number) for number in run.numbers() if run.games(number).exists()]
    configs = [EpisodesFile(path, "training", "").game_config() for path in games]
    played = [make_game(config) for config in configs if config is not None]
    return played[0] if played and len(played) == len(configs) and all(game.known_lines() for game in played) else None


def records_of(record: EpisodeRecord, step: int) -> Iterator[AskingRecord]:
    """Yields an episode's record for each trained seat."""
    game = game_of(record.game, record.state)
    state = game.state_from_json(record.state)
    for seat in record.trained_seats:
        yield AskingRecord(
            step=step,
            episode_id=record.episode_id,
            group=record.group_index,
            reward=record.outcome.reward_of(seat),
            status=record.outcome.status,
            turns=record.outcome.num_turns,
            **asdict(game.asking(state, record.turns, seat)),
        )


def human_reference(game: Game) -> HumanReference | None:
    """Returns the figures of the episodes that people played; None if there are no such episodes."""
    if not (played := list(game.human_episodes())):
        return None
    marks = [sum("?" in turn.text for turn in episode.turns) for episode in played]
    messages = [len(episode.turns) for episode in played]
    shares = [marked / max(1, said) for marked, said in zip(marks, messages, strict=True)]
    records = [
        AskingRecord(
            step=0, episode_id=f"human-{number}", group=number, reward=episode.reward, status="finished",
            turns=episode.num_turns, **asdict(game.asking(episode.state, episode.turns, seat)),
        )
        for number, episode in enumerate(played) for seat in range(len(game.roles))
    ]  # fmt: skip
    return HumanReference(
        counted=game.about_humans,
        games=len(played),
        messages=sum(messages),
        with_question_mark=sum(marks) / sum(messages),
        with_question_mark_mean_of_episodes=sum(shares) / len(shares),
        figures=statistics.figures_of(statistics.frame_of(records)),
    )


def analyse(found: Records) -> Analysis:
    """Returns all figures and tests, with their conclusions in words."""
    parts = statistics.frame_of(found.records)
    step, state = (parts.index.get_level_values(name).to_numpy() for name in ("step", "state"))
    values = {name: statistics.values_of(parts, name).to_numpy() for name in TRENDS}
    trends = {name: statistics.trend(step, values[name], state) for name in TRENDS}
    cell = parts.groupby(level=["step", "state"]).ngroup().to_numpy()
    correlations = {
        "within steps": statistics.correlation(values["questions"], values["reward"], step, state),
        "within game states": statistics.correlation(values["questions"], values["reward"], cell, state),
    }
    steps, overall = statistics.by_step(parts), statistics.figures_of(parts)
    sentences = [_trend_in_words(name, trends[name], steps, found.unit) for name in TRENDS]
    if trends["questions"].verdict in ("rose", "fell"):
        sentences.insert(1, NO_EVIDENCE)
    sentences += [_correlation_in_words(correlations), _leaks_in_words(overall["leaks"])]
    return Analysis(
        source=str(found.path), unit=found.unit, episodes=len(parts), lost=found.lost, verdicts=sentences,
        trends=trends, correlations=correlations, overall=overall, steps=steps,
        reward_by_questions=statistics.reward_by_questions(parts),
        human=human_reference(found.comparable) if found.comparable is not None else None,
    )  # fmt: skip


def _trend_in_words(name: str, found: Trend, steps: Sequence[Step], unit: str) -> str:
    what = FIGURES[name].label
    if not found.episodes:
        return f"Whether {what} rose or fell cannot be told: no episode has any to count."
    if found.verdict == "cannot be told":
        return (
            f"Whether {what} rose or fell cannot be told: it is known at {count(found.steps, unit)} and on "
            f"{count(found.states, 'game state')}, and the test needs at least 2 and {MIN_STATES}."
        )
    ends = [f"{step.figures[name]} at {unit} {step.step}" for step in (steps[0], steps[-1])]
    chance = "p < 0.001" if found.p is not None and found.p < 0.001 else f"p = {found.p:.3f}"
    figures = (
        f"{ends[0]}, {ends[1]}; slope {_signed(found.slope)} per {unit}, {chance} (wild cluster bootstrap test, "
        f"two-sided, 5 %; {count(found.episodes, 'episode')}, {count(found.states, 'game state')})."
    )
    if found.verdict == "no evidence":
        return f"No evidence that {what} rose or fell: {figures}"
    return f"{what[0].upper()}{what[1:]} {found.verdict}: {figures}"


def _correlation_in_words(found: dict[str, Interval]) -> str:
    within = found["within steps"]
    figures = ", ".join(f"r = {interval} {where}" for where, interval in found.items()) + " (Pearson, means removed)"
    if within.value is None:
        return "Whether questions go with reward cannot be told: one of them never varied within a step."
    if within.low is None or within.high is None or within.low <= 0 <= within.high:
        return f"No evidence that within a step episodes with more questions end better or worse: {figures}."
    better = "better" if within.value > 0 else "worse"
    return f"Within a step, episodes with more questions end {better}: {figures}."


def _leaks_in_words(leaks: Interval) -> str:
    if leaks.value is None:
        return "Leak meter: the partner said nothing that is read for facts."
    return f"Leak meter: {leaks} of the partner's messages told a fact that nobody had asked for."


def count(number: int, thing: str) -> str:
    """Returns a number with its noun: `1 step`, `2 steps`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _signed(slope: Interval) -> str:
    """Returns a slope with two significant digits, since slopes may be small."""
    if slope.value is None or slope.low is None or slope.high is None:
        return "–" if slope.value is None else f"{slope.value:+.2g}"
    return f"{slope.value:+.2g} [{slope.low:+.2g}, {slope.high:+.2g}]"
