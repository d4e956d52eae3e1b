"""Compares players that `studies.common.learn` trained with people, on the 134 states of DialOp that people played.

Run `python -m studies.people.run` with the trained players, such as `--player self-play=CHECKPOINT`. Differences are
paired: a state's reward minus the recorded reward of the pair of people on it. They say nothing of further seeds.
People had to guess each other's scale, which the digits of `studies.people.rounded` give away: play there is easier.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, rewards_of, run_evaluate
from selfplay_pipeline.evaluate.states import StateSet, read_states, references
from selfplay_pipeline.games.matching.humans import GAMES
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast
from studies.common.arms import MODES

REWARD = "reward"


class Row(BaseModel):
    """Rewards of a player on the states that people played, and their differences from those of people."""

    model_config = ConfigDict(extra="forbid")

    player: str
    mode: Mode
    muted: bool
    reward: Interval
    minus_people: Interval


class Comparison(BaseModel):
    """All rows, beside the rewards of people and of play without a model on these states."""

    model_config = ConfigDict(extra="forbid")

    states: int
    people: Interval
    lines: dict[str, Interval]
    rows: list[Row]


def main(
    players: Annotated[list[str], typer.Option("--player", metavar="NAME=CHECKPOINT", help="A player; repeat.")],
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = "studies/people/config.yaml",
    work: Annotated[Path, typer.Option(help="Gets the episodes.")] = Path("data/learn_people/people"),
    output: Annotated[Path, typer.Option(help="Gets people.json and people.md.")] = Path("studies/people/results"),
) -> None:
    """Play the states that people played, with messages and muted, and print the rewards beside those of people."""
    named = [*map(_pair, players)]
    loaded = {mute: load_config(config, {"game.mute": mute}) for mute in (False, True)}
    game = make_game(loaded[False].game)
    states = read_states(GAMES, game)
    people = np.array(states.human, np.float64)
    rows = [
        row
        for name, checkpoint in named
        for mute, settings in loaded.items()
        for row in _rows(
            name, EvaluationJob(checkpoint, states, work / _folder(name, mute=mute), episodes=1), settings, people
        )
    ]
    lines = references(game, StateSet(states.name, states.states))
    found = Comparison(
        states=len(states), people=_totals(people, np.ones(len(people))).intervals()[REWARD], lines=lines, rows=rows
    )
    write_text(output / "people.json", found.model_dump_json(indent=1) + "\n")
    write_text(output / "people.md", table(found))
    print(table(found))


def _pair(given: str) -> tuple[str, str]:
    name, _, checkpoint = given.partition("=")
    if not name or not checkpoint:
        raise UserError(f"--player {given}: write NAME=CHECKPOINT, such as warm=data/tiny_people_model")
    return name, checkpoint


def _folder(name: str, *, mute: bool) -> str:
    return name.replace(" ", "_") + ("_mute" if mute else "")


def _rows(name: str, job: EvaluationJob, config: Config, people: NDArray[np.float64]) -> list[Row]:
    """Play what is missing of an evaluation, and return its row of each mode."""
    stopping.run(run_evaluate(config, job))
    rows = []
    for mode in MODES:
        totals = rewards_of(config, job, mode)
        played = totals.select([REWARD]).denominators[:, 0]
        rows.append(
            Row(
                player=name,
                mode=mode,
                muted=bool(getattr(config.game, "mute", False)),
                reward=totals.intervals()[REWARD],
                minus_people=contrast([(1, totals), (-1, _totals(people, played))])[REWARD],
            )
        )
    return rows


def _totals(rewards: NDArray[np.float64], episodes: NDArray[np.float64]) -> Totals:
    """Returns rewards that count as often as a player's episodes on their states."""
    return Totals.of({REWARD: (rewards * episodes, episodes)})


def table(found: Comparison) -> str:
    """Returns the comparison as Markdown."""
    lines = [
        f"| on {found.states} states | reward | minus people |",
        "|---|---|---|",
        f"| people | {found.people} | |",
        *(f"| *{name.replace('_', ' ')}* (line) | {line} | |" for name, line in found.lines.items()),
    ]
    for row in found.rows:
        label = f"{row.player}, {row.mode}{', muted' if row.muted else ''}"
        lines.append(f"| {label} | {row.reward} | {row.minus_people:+} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    command.run(main)
