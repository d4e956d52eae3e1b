"""Which games there are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig

GAMES: dict[type[MatchingConfig], type[MatchingGame]] = {MatchingConfig: MatchingGame}
"""By their configurations. A new game is one more line here, and one more part of `GameConfig`."""
GameConfig = MatchingConfig
FIRST_GAME = MatchingGame.name
"""That of files from before there were several games, which name none."""
MOST_SEATS = max(game.num_players for game in GAMES.values())
"""Of any game."""
SCRIPTED = frozenset(name for game in GAMES.values() for name in game.players)
"""Names of scripted players, of any game."""


def make_game(config: GameConfig) -> Game:
    """The rules for a configuration."""
    return GAMES[type(config)](config)


def partner_prompts() -> dict[str, Path]:
    """System prompts for a chat model that is a partner, by name: `GAME/prompts/partners/NAME.j2`."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*/prompts/partners/*.j2"))}


def all_games() -> tuple[Game, ...]:
    """Each game under its default configuration."""
    return tuple(game_named(game.name) for game in GAMES.values())


@cache
def game_named(name: str) -> Game:
    """A game by its name, under its default configuration: enough to read its states.

    Raises:
        ValueError: there is none.
    """
    for config, game in GAMES.items():
        if game.name == name:
            return game(config())
    raise ValueError(f"{name!r}, but the games are {', '.join(game.name for game in GAMES.values())}")
