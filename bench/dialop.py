"""Makes the table of DialOp's games: scripted players on new states, and people on theirs, as Markdown.

Run `python -m bench.dialop`. Words are those of messages, without the tag and the room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from bench import command
from selfplay_pipeline.games.abilities import HumanEpisodes, ability
from selfplay_pipeline.games.base import HELD_OUT, MESSAGE, Game, Session, state_rng
from selfplay_pipeline.games.registry import make_game, parse_game_config
from selfplay_pipeline.games.tags import untagged
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.people import replayed
from selfplay_pipeline.generate.players import SeatedScript

GAMES = {
    "matching": ("random", "silent", "sharing", "speaking"),
    "mediation": ("random", "silent", "sharing", "speaking"),
    "planning": ("random", "silent", "sharing", "speaking"),
}
"""Scripted players that hold all seats, by game."""
WIDTH = 1.96
"""Half width of a 95 % interval in standard errors."""


class Played(NamedTuple):
    """Figures of one episode."""

    reward: float
    agreed: bool
    turns: int
    words: int


def main(states: Annotated[int, typer.Option(help="Number of states for each scripted player.")] = 1000) -> None:
    """Print the table of DialOp's games."""
    print("| game | players | reward | agreed | turns | words | episodes |\n|---|---|---|---|---|---|---|")
    for name, players in GAMES.items():
        game = make_game(parse_game_config({"name": name}))
        for player in players:
            print(_row(game, player, [*_scripted(game, player, states)]), flush=True)
        if game.silence is not None:
            print(f"| {name} | *silence* (line) | {game.silence.value:.3f} | | | | {game.silence.states} |")
        print(_row(game, "people", [*_people(game)]), flush=True)


def _scripted(game: Game, player: str, states: int) -> Iterator[Played]:
    for number in range(states):
        state = game.sample_state(state_rng(0, number, HELD_OUT))
        session = game.start(state)
        view: Callable[[int], Any] = partial(game.view, session)
        seats = [
            SeatedScript(game.players[player], partial(view, seat), np.random.default_rng([number, seat]))
            for seat, _ in enumerate(game.roles)
        ]
        episode = Episode(session, [*seats])
        episode.play_out()
        yield _played(
            game, session, [turn.text for turn in episode.turns if turn.action == MESSAGE], len(episode.turns)
        )


def _people(game: Game) -> Iterator[Played]:
    """Yields the recorded episodes: rewards and messages as recorded, turns as our rules count them."""
    for number, episode in enumerate(ability(game, HumanEpisodes, "bench").human_episodes()):
        turns = len(replayed(game, number, episode).turns) if episode.legal else episode.num_turns
        yield Played(episode.reward, True, turns, sum(len(said.text.split()) for said in episode.turns))


def _played(game: Game, session: Session, messages: list[str], turns: int) -> Played:
    outcome = session.outcome()
    words = sum(len(untagged(text).split()) for text in messages)
    return Played(float(np.mean(outcome.rewards)), outcome.status in game.goals, turns, words)


def _row(game: Game, players: str, played: list[Played]) -> str:
    rewards, agreed, turns, words = (np.array(column, np.float64) for column in zip(*played, strict=True))
    error = WIDTH * rewards.std(ddof=1) / len(rewards) ** 0.5
    return (
        f"| {game.name} | {players} | {rewards.mean():.3f} ± {error:.3f} | {agreed.mean():.0%} | {turns.mean():.1f} | "
        f"{words.mean():.0f} | {len(rewards):,} |"
    )


if __name__ == "__main__":
    command.run(main)
