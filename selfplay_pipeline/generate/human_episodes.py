"""Conversion of human episodes to a file of episodes for `imitate`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.games.base import SAME_SCORE, Game, HumanEpisode
from selfplay_pipeline.games.registry import FIRST_GAME, place_of
from selfplay_pipeline.generate.records import (
    PERSON,
    EpisodeRecord,
    OutcomeRecord,
    PolicyRecord,
    SeatRecord,
    TurnRecord,
)

NOBODY = PolicyRecord(checkpoint=PERSON, weights="", iteration=0, engine=PERSON, temperature=1.0, max_new_tokens=1)
"""Placeholder for the policy in records of human episodes, in which no policy holds a seat."""


@dataclass
class People:
    """Counts of the converted human episodes.

    Attributes:
        rows: Number of seats with turns to imitate.
        left_out: Number of skipped actions and episodes, by reason.
    """

    episodes: int = 0
    rows: int = 0
    turns: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def to_text(self) -> str:
        """Returns one line with the counts, and one line per reason for skipping."""
        lines = [f"{self.episodes} episodes of people, {self.rows} rows to imitate, {self.turns} actions"]
        lines += [f"left out {count}: {reason}" for reason, count in self.left_out.most_common()]
        return "\n".join(lines)


def write_people(game: Game, output: Path) -> People:
    """Write the human episodes on states of the configured game as JSON lines, and return their counts.

    Args:
        game: The configured game.
        output: The file.

    Raises:
        UserError: No human episodes exist for this game and its states, or the file cannot be written.
    """
    people, lines = People(), list[str]()
    for number, episode in enumerate(game.human_episodes()):
        people.left_out.update(episode.left_out)
        if not episode.legal:
            continue
        record = replayed(game, number, episode)
        if abs(record.outcome.normalized_reward - episode.reward) > SAME_SCORE:
            people.left_out["an episode that our rules end with another reward than people got"] += 1
            continue
        lines.append(record.model_dump_json() + "\n")
        people.episodes += 1
        people.turns += len(record.turns)
        people.rows += len({turn.seat for turn in record.turns})
    if not lines:
        if not any(True for _ in type(game)().human_episodes()):
            raise UserError(
                f"there are no episodes of people in {game.name}; choose --game {FIRST_GAME}, which has some"
            )
        raise UserError(
            f"there are no episodes of people in {game.name} on states of this configuration ({game.describe()}); "
            f"choose --config default --game {place_of(type(game))}, on whose states people played"
        )
    write_text(output, "".join(lines))
    return people


def replayed(game: Game, number: int, episode: HumanEpisode) -> EpisodeRecord:
    """Returns the record of a human episode after replaying its legal actions."""
    session, turns = game.start(episode.state), list[TurnRecord]()
    for said in episode.legal:
        turns.append(TurnRecord.of(said.seat, said.text, session.step(said.seat, said.text), PERSON))
    return EpisodeRecord.of(
        [SeatRecord(kind="person", name=PERSON)] * len(game.roles),
        NOBODY,
        episode_id=f"{PERSON}-{number}",
        group_index=number,
        episode=0,
        seed=0,
        game=game.name,
        state=game.state_to_json(episode.state),
        turns=turns,
        trajectories=[],
        outcome=OutcomeRecord.of(session.outcome()),
    )
