"""One episode with its players, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from selfplay_pipeline.games.base import Game, State
from selfplay_pipeline.generate.episode import Episode, SeatedPlayer
from selfplay_pipeline.generate.outside_text import SeatedChat
from selfplay_pipeline.generate.players import Player, Seat
from selfplay_pipeline.generate.records import EpisodeRecord, OutcomeRecord, PartnerUsage, PolicyRecord


@dataclass
class SeatedEpisode:
    """One episode with a player in each seat; returns its record after its end (`record`).

    Attributes:
        episode_id: Identifier, unique among all episodes; part of the session keys that engines receive.
        place: Seed of the run, group index, and number of the episode within its group.
    """

    game: Game
    state: State
    players: Sequence[Player]
    episode_id: str
    place: tuple[int, int, int]

    def __post_init__(self) -> None:
        session = self.game.start(self.state)
        seats = (
            Seat.at(self.game, session, number, self.episode_id, self.place) for number, _ in enumerate(self.game.roles)
        )
        self.episode = Episode(session, [player.sit(seat) for player, seat in zip(self.players, seats, strict=True)])

    def everyone(self) -> Iterable[SeatedPlayer]:
        """Returns the players whose tokens and costs the record adds up: by default, those in the episode's seats."""
        return self.episode.seats

    def record(self, policy: PolicyRecord) -> EpisodeRecord:
        """Returns the record of the finished episode.

        Args:
            policy: The player `policy`, even if it holds no seat.
        """
        seed, group, number = self.place
        outcome, everyone = self.episode.session.outcome(), [*self.everyone()]
        trajectories = [trajectory for seat in self.episode.seats if (trajectory := seat.finish()) is not None]
        usages = [seat.usage for seat in everyone if isinstance(seat, SeatedChat) and seat.usage is not None]
        return EpisodeRecord.of(
            [player.record for player in self.players],
            policy,
            episode_id=self.episode_id,
            group_index=group,
            episode=number,
            seed=seed,
            game=self.game.name,
            state=self.game.state_to_json(self.state),
            turns=self.episode.turns,
            trajectories=trajectories,
            outcome=OutcomeRecord.of(outcome),
            prompt_tokens=sum(seat.prompt_tokens for seat in everyone),
            cached_tokens=sum(seat.cached_tokens for seat in everyone),
            partner=sum(usages, PartnerUsage()) if usages else None,
        )


EpisodeFactory: TypeAlias = Callable[[Game, State, Sequence[Player], str, tuple[int, int, int]], SeatedEpisode]
"""Function that makes an episode with its players; its arguments are the fields of `SeatedEpisode`."""
