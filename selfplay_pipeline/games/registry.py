"""Which games there are."""

from __future__ import annotations

from selfplay_pipeline.games.matching import MatchingConfig, MatchingGame

GameConfig = MatchingConfig


def make_game(config: GameConfig) -> MatchingGame:
    """The rules for a configuration. A second game adds its config to the union and a branch here."""
    return MatchingGame(config)
