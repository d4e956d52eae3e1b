"""Altered messages in a study with people: the other players hear a message that the person did not write.

The rule is that of swapped episodes (`generate/episode_wrappers.py`) for games that cannot draw a state anew: a message
that somebody wrote in an earlier episode on another state, and which so says nothing about this one, takes the place of
each message of the person. All proposals and answers stay as they are, and the person reads what the others really
write. The other players hold their seats in a second session, which takes the same turns with the replaced messages. A
replacement must be a legal message after which the same seats may act. A message without content takes the place of a
message for which there is none; the game says how a message begins (`Game.choices`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game, Opening, Session, State, Step
from selfplay_pipeline.generate.episode import Episode, Wrapper
from selfplay_pipeline.generate.episode_wrappers import (
    MOST_TRIES,
    SWAP,
    SessionBesideOthers,
    is_words,
    replayed,
    with_heard,
    without_content,
)
from selfplay_pipeline.generate.records import EpisodeRecord, TurnRecord

Messages = Callable[[int, int], Iterable[str]]
"""Function that returns messages of other episodes, the preferred one first.

Its arguments are the seat of the person, and the number of the person's message in its episode.
"""


class AlteredSession(SessionBesideOthers):
    """Session in which the other players hear messages that people did not write.

    Attributes:
        own: Session with the turns as they are.
        heard: Session with the turns as the other players hear them.
        people: Seats of people.
        messages: Messages of other episodes.
        known: Replacements of logged turns, which are taken again.
        turns: Turns so far.
        as_heard: Their texts as the other players heard them.
        replaced: Replacements by the number of the turn and the seat that heard them; "" for a message without content.
    """

    def __init__(
        self,
        game: Game,
        state: State,
        people: Container[int],
        messages: Messages,
        known: Sequence[Mapping[int, str] | None],
    ) -> None:
        self.game, self.state, self.people, self.messages, self.known = game, state, people, messages, known
        self.own: Session = game.start(state)
        self.heard: Session = game.start(state)
        self.turns: list[TurnRecord] = []
        self.as_heard: list[str] = []
        self.replaced: dict[int, dict[int, str]] = {}

    def opening(self, seat: int) -> Opening:
        return self.heard.opening(seat)

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take a turn in both sessions; the observations are those of the session that the other players hear.

        Raises:
            EngineError: A replacement decided how the episode goes on.
        """
        step = self.own.step(seat, text, cut=cut)
        turn = TurnRecord.of(seat, text, step, "")
        found = self._replacement(turn)
        empty = self._without_content(turn) if found == "" else None
        heard = self.heard.step(seat, found or empty or text, cut=cut)
        if (heard.action, self.heard.seats) != (turn.action, self.own.seats):
            raise EngineError(
                f"an altered message decided how an episode of the game {self.game.name} goes on (key 'altered' of the "
                "study)"
            )
        if found is not None:
            others = [number for number, _ in enumerate(self.game.roles) if number not in self.people]
            now = [number for number in others if heard.observations[number]]
            # Nobody has observed it yet if seats act simultaneously; then all of them will.
            self.replaced[len(self.turns)] = dict.fromkeys(now or others, found)
        self.turns.append(turn)
        self.as_heard.append(found or empty or text)
        return replace(step, observations=heard.observations)

    def _replacement(self, turn: TurnRecord) -> str | None:
        """Returns the message that the others hear in place of a turn.

        It is "" for a message without content, and None for the turn itself, which is heard only if the rules allow no
        other message.
        """
        number = len(self.turns)
        if turn.seat not in self.people or not is_words(turn):
            return None
        if number < len(self.known):
            return next(iter((self.known[number] or {}).values()), None)
        said = sum(earlier.seat == turn.seat and is_words(earlier) for earlier in self.turns)
        found = islice(self.messages(turn.seat, said), MOST_TRIES)
        fitting = next((text for text in found if self._fits(turn, text)), None)
        if fitting is None and self._without_content(turn) is not None:
            return ""
        return fitting

    def _without_content(self, turn: TurnRecord) -> str | None:
        """Returns a message without content that may take the place of a turn; None if the rules allow none."""
        return without_content(self.game, self._so_far(), turn.seat, lambda text: self._fits(turn, text))

    def _so_far(self) -> Session:
        """Returns a session with all turns so far as the other players heard them."""
        return replayed(self.game, self.state, self.turns, self.as_heard)

    def _fits(self, turn: TurnRecord, text: str) -> bool:
        """Whether a text is a message that leaves the order of turns as it is."""
        session = self._so_far()
        step = session.step(turn.seat, text)
        return step.action == turn.action and step.decision is None and session.seats == self.own.seats


@dataclass(frozen=True)
class Altered(Wrapper):
    """The other players do not hear the messages of people.

    Attributes:
        messages: Messages of other episodes.
        known: Replacements of logged turns, by the seats that heard them; None for a turn that was heard as it was.
    """

    messages: Messages
    known: Sequence[Mapping[int, str] | None] = ()

    def start(self, episode: Episode) -> tuple[Session, Sequence[Session]]:
        people = [number for number, player in enumerate(episode.players) if player.record.kind == "person"]
        session = AlteredSession(episode.game, episode.state, people, self.messages, self.known)
        return session, [session.heard for _ in episode.game.roles]

    def turn(self, session: AlteredSession, turn: TurnRecord) -> TurnRecord:
        return with_heard(turn, session.replaced.get(len(session.turns) - 1))

    def record(self, episode: Episode, session: AlteredSession, record: EpisodeRecord) -> EpisodeRecord:
        return record.with_extra(**{SWAP: "swapped"})
