"""Writes an evaluation as logs of inspect_ai, which `inspect view` opens.

    python -m selfplay_inspect data/evaluations/X     # writes data/evaluations/X/inspect/*.eval

A sample is one seat of one episode, with the dialogue as that seat read it and the figures of `selfplay evaluate` as
scores. A score's means and intervals are those of evaluation.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageSystem, ChatMessageUser, ModelOutput
from inspect_ai.scorer import Score
from pydantic import ValidationError

from selfplay_pipeline.config.identity import section
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.dataset import read
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import find, make_game, parse_game_config
from selfplay_pipeline.metrics.figures import measure

EVALUATE = "selfplay evaluate"
MESSAGES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}


def write_logs(folder: Path) -> list[Path]:
    """Write a log for each mode of an evaluation; returns their paths.

    Args:
        folder: Output folder of `selfplay evaluate`.

    Raises:
        UserError: The folder holds no evaluation, or its episodes cannot be read.
    """
    summary = folder / "evaluation.json"
    evaluation = read_object(summary, EVALUATE, "modes", "player", "partner", "states", "references")
    created = datetime.fromtimestamp(summary.stat().st_mtime, UTC).isoformat()
    written = []
    for mode, found in evaluation["modes"].items():
        samples = [*_samples(folder / f"{mode}.jsonl")]
        log = EvalLog(
            status="success",
            eval=EvalSpec(
                created=created,
                task=f"{samples[0].metadata['game']} {mode}",
                dataset=EvalDataset(name=evaluation["states"], samples=evaluation["num_states"]),
                model=evaluation["player"],
                config=EvalConfig(),
                metadata={key: evaluation[key] for key in ("partner", "seating", "mute", "references")},
            ),
            results=EvalResults(
                total_samples=len(samples),
                completed_samples=len(samples),
                scores=[_score(name, of) for name, of in found["figures"].items() if of["value"] is not None],
            ),
            stats=EvalStats(started_at=created, completed_at=created),
            samples=samples,
        )
        target = folder / "inspect" / f"{mode}.eval"
        target.parent.mkdir(exist_ok=True)
        write_eval_log(log, str(target))
        written.append(target)
    return written


def _samples(episodes: Path) -> Iterator[EvalSample]:
    settings = read_object(episodes.with_suffix(".args.json"), EVALUATE, "first")
    try:
        game = make_game(parse_game_config(section(settings, "game")))
    except ValidationError as error:
        raise UserError(f"{episodes.with_suffix('.args.json')}: {explain(error)}") from None
    for one, seats in read([episodes], game):
        record = one.record
        for seat in record.seats_of(settings["first"]):
            chat = [_message(message) for message in seats[seat]]
            figures = measure(Measured(game, record, (seat,)))
            yield EvalSample(
                id=f"{record.episode_id}/{seat}",
                epoch=1,
                input=[message for message in chat[:2] if message.role != "assistant"],
                messages=chat,
                target="",
                output=ModelOutput.from_content("", _last_turn(chat)),
                scores={name: Score(value=total / count) for name, (total, count) in figures.items() if count},
                metadata={"game": record.game, "status": str(record.outcome.status), "state": record.state},
            )


def _last_turn(chat: list[ChatMessage]) -> str:
    """Returns the seat's last turn; "" if it had none."""
    return next((message.text for message in reversed(chat) if message.role == "assistant"), "")


def _message(message: dict[str, Any]) -> ChatMessage:
    made: ChatMessage = MESSAGES[message["role"]](content=message["content"])
    return made


def _score(name: str, interval: dict[str, float]) -> EvalScore:
    found = {part: interval[key] for part, key in METRICS.items()}  # an interval of one state has no ends
    metrics = {part: EvalMetric(name=part, value=value) for part, value in found.items() if value is not None}
    return EvalScore(name=name, scorer=name, metrics=metrics)


METRICS = {"mean": "value", "low": "low", "high": "high"}
"""Metrics of a score, and the values of evaluation.json that they show."""


def main(
    folder: Annotated[Path, typer.Argument(help="Output folder of `selfplay evaluate`.")],
    game: Annotated[str | None, typer.Option(help="Game of your own, FILE.py, whose code is run.")] = None,
) -> None:
    """Write the logs, and print their paths."""
    try:
        if game is not None:
            find(game)
        print(*write_logs(folder), sep="\n")
    except UserError as error:
        print(f"selfplay_inspect: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    typer.run(main)
