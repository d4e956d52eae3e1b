"""A game as an interaction of several players, each with its own history. Needs neither verl nor torch.

Anyone can speak for a player: a script, a chat model behind an API, or a policy whose tokens are recorded. The agent
loop plays through this class too, so there is one state of a game for all of them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.generate.chat import ChatPlayer, ChatSeat, Message, as_dicts
from selfplay_pipeline.generate.play import Reply
from selfplay_pipeline.generate.players import Player
from selfplay_pipeline.generate.records import ChatMessage, Trajectory
from selfplay_pipeline.generate.run import Sitting


@runtime_checkable
class HistorySeat(Protocol):
    """A seat that can tell what its player has read and said."""

    def context(self) -> list[ChatMessage]: ...


@dataclass(frozen=True)
class TrainingInstance:
    """One player's side of an ended game.

    Attributes:
        batch_id: the same for all players of the game.
        reward: the player's own, normalised to [0, 1].
        trajectory: the exact tokens, of a player whose tokens are recorded.
    """

    batch_id: str
    player_index: int
    messages: list[Message]
    reward: float
    status: str
    trajectory: Trajectory | None = None


class MultiPlayerInteraction:
    """Games in progress, by instance id.

    Method names and the answer of `generate_response` follow verl's former `BaseInteraction`, with one difference: the
    answer is for the player whose turn it is now, who need not be the one that spoke.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self._sittings: dict[str, Sitting] = {}

    async def start_interaction(
        self,
        instance_id: str | None = None,
        *,
        game_state: str | dict[str, Any],
        players: Sequence[Player] | None = None,
        place: tuple[int, int, int] = (0, 0, 0),
    ) -> str:
        """Sit down to a new game.

        Args:
            instance_id: unique among the games in progress; drawn if not given.
            game_state: as `to_dict` of the game's states gives it, or its JSON.
            players: who sits where; by default words come from outside for all seats.
            place: seed, group index and number of the play in its group.

        Raises:
            UserError: the state is unusable, or the id is taken.
        """
        instance_id = instance_id or uuid.uuid4().hex
        if instance_id in self._sittings:
            raise UserError(f"interaction {instance_id} is in progress; finalize it first or choose another id")
        try:
            state = self.game.load_state(json.loads(game_state) if isinstance(game_state, str) else game_state)
        except json.JSONDecodeError as error:
            raise UserError(f"game state: not JSON: {error.msg}") from None
        players = players or [ChatPlayer()] * self.game.num_players
        self._sittings[instance_id] = Sitting(self.game, state, players, instance_id, place)
        await self._until_words_are_needed(instance_id)
        return instance_id

    def sitting(self, instance_id: str) -> Sitting:
        """The game itself.

        Raises:
            UserError: there is none of this id.
        """
        try:
            return self._sittings[instance_id]
        except KeyError:
            raise UserError(f"no interaction {instance_id}; start it, and do not use it once finalized") from None

    async def generate_response(
        self, instance_id: str, messages: str | Sequence[Message], *, cut: bool = False
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Take the turn of the player whose turn it is.

        Args:
            messages: the player's words, or a conversation whose last message they are.
            cut: whether a token limit ended them.

        Returns:
            Whether the game is over, what the player of the next turn has to read, the reward so far, and `player`
            (whose turn it is now), `status`, `action` and `error` of the turn just taken. Players that speak for
            themselves, such as a scripted partner, have had their turns by then.
        """
        play = self.sitting(instance_id).play
        if play.session.status is not None:
            raise UserError(f"interaction {instance_id} is over ({play.session.status}); finalize it")
        text = messages if isinstance(messages, str) else messages[-1]["content"]
        speaker = play.session.player
        seat = play.seats[speaker]
        if not isinstance(seat, ChatSeat):
            raise UserError(f"player {speaker} of interaction {instance_id} speaks for itself; run the play instead")
        seat.say(text)
        play.take_turn(speaker, Reply(text, cut, "length" if cut else "stop"))
        turn = play.turns[-1]
        await self._until_words_are_needed(instance_id)
        over, now = play.session.status is not None, play.session.player
        response = "" if over else self.get_player_context(instance_id, now)[-1]["content"]
        about = {"player": now, "status": play.session.status, "action": turn.action, "error": turn.error}
        return over, response, await self.calculate_score(instance_id), about

    def get_player_context(self, instance_id: str, player: int | None = None) -> list[Message]:
        """All that a player has read and said; of the player whose turn it is, by default.

        Empty for a scripted player, which reads the game as data.
        """
        play = self.sitting(instance_id).play
        player = play.session.player if player is None else player
        seat = play.seats[player]
        return as_dicts(seat.context()) if isinstance(seat, HistorySeat) else []

    async def _until_words_are_needed(self, instance_id: str) -> None:
        """Let players that speak for themselves take their turns, where others get their words from outside."""
        play = self.sitting(instance_id).play
        outside = {player for player, seat in enumerate(play.seats) if isinstance(seat, ChatSeat) and seat.ask is None}
        while outside and play.session.status is None and play.session.player not in outside:
            play.take_turn(play.session.player, await play.seats[play.session.player].act())

    async def calculate_score(self, instance_id: str) -> float:
        """The normalised reward of seat 0, 0 until the game has ended."""
        session = self.sitting(instance_id).play.session
        return session.outcome().rewards[0] if session.status is not None else 0.0

    async def finalize_interaction(self, instance_id: str) -> list[TrainingInstance]:
        """End a game, agreed or not, and return one instance for each player."""
        play = self.sitting(instance_id).play
        if play.session.status is None:
            play.session.abort(Status.TURN_LIMIT)
        outcome = play.session.outcome()
        instances = [
            TrainingInstance(
                batch_id=instance_id,
                player_index=player,
                messages=self.get_player_context(instance_id, player),
                reward=outcome.rewards[player],
                status=outcome.status,
                trajectory=seat.finish(),
            )
            for player, seat in enumerate(play.seats)
        ]
        del self._sittings[instance_id]
        return instances
