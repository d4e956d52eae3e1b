"""Episodes of a study in which the other players hear a message that the person did not write.

The rule is that of `generate/swapped.py` for games that cannot draw a state anew: a message that somebody wrote in an
earlier episode on another state, and which so says nothing about this one, takes the place of each message of the
person. All proposals and answers stay as they are, and the person reads what the others really write.

The other players hold their seats in a second session, which takes the same turns with the replaced messages. A
replacement must be a legal message after which the same seats may act. A message without content takes the place of a
message for which there is none; the game says how a message begins (`Game.choices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game, Session, State, Status
from selfplay_pipeline.generate.episode import Reply
from selfplay_pipeline.generate.kept import KeptEpisode
from selfplay_pipeline.generate.people_log import TurnLine
from selfplay_pipeline.generate.person import PersonEpisode
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord, TurnRecord
from selfplay_pipeline.generate.swapped import MOST_TRIES, SWAP, is_words, replayed, with_heard, without_content

Messages = Callable[[int, int], Iterable[str]]
"""Function that returns messages of other episodes, the preferred one first.

Its arguments are the seat of the person, and the number of the person's message in its episode.
"""


@dataclass
class HeardOtherwise(PersonEpisode):
    """Episode in progress: `session` takes the turns as they are, `heard` as the other players hear them.

    Attributes:
        messages: Messages of other episodes.
        known: Logged turns, whose replacements are taken again.
        replaced: Replacements by the number of the turn; "" for a message without content.
        hearers: Seats that heard each of them.
        as_heard: Texts of all turns as the other players hear them.
    """

    game: Game = field(kw_only=True)
    state: State = field(kw_only=True)
    heard: Session = field(kw_only=True)
    people: Sequence[int] = field(kw_only=True)
    messages: Messages = field(kw_only=True)
    known: Sequence[TurnLine] = field(kw_only=True)
    replaced: dict[int, str] = field(default_factory=dict, kw_only=True)
    hearers: dict[int, set[int]] = field(default_factory=dict, kw_only=True)
    as_heard: list[str] = field(default_factory=list, kw_only=True)

    def apply_turn(self, seat: int, reply: Reply) -> None:
        """Apply one reply to all sessions; the other players observe the session that they hear."""
        self.show_people(seat, reply)
        turn = TurnRecord.of(seat, reply.text, self.session.step(seat, reply.text, cut=reply.cut), reply.finish_reason)
        heard = self._replacement(turn)
        empty = self._without_content(turn) if heard == "" else None
        text = heard or empty or reply.text
        step = self.heard.step(seat, text, cut=reply.cut)
        if (step.action, self.heard.seats) != (turn.action, self.session.seats):
            self.lost_to = EngineError(
                f"an altered message decided how an episode of the game {self.game.name} goes on (key 'altered' of the "
                "study)"
            )
            self.session.abort(Status.ENGINE_FAILURE)
            return
        for holder, observation in zip(self.seats, step.observations, strict=True):
            holder.observe(observation)
        if heard is not None:
            others = {number for number, _ in enumerate(self.seats) if number not in self.people}
            now = {number for number in others if step.observations[number]}
            # Nobody has observed it yet if seats act simultaneously; then all of them will.
            self.replaced[len(self.turns)], self.hearers[len(self.turns)] = heard, now or others
        self.turns.append(turn)
        self.as_heard.append(text)
        self.taken()

    def heard_at(self, number: int) -> dict[int, str] | None:
        """Returns the replacements of a turn by the seats that heard them; None if they heard the turn itself."""
        if number not in self.replaced:
            return None
        return dict.fromkeys(sorted(self.hearers[number]), self.replaced[number])

    def _replacement(self, turn: TurnRecord) -> str | None:
        """Returns the message that the others hear in place of a turn.

        It is "" for a message without content, and None for the turn itself, which is heard only if the rules allow no
        other message.
        """
        number = len(self.turns)
        if turn.seat not in self.people or not is_words(turn):
            return None
        if number < len(self.known):
            return next(iter((self.known[number].heard or {}).values()), None)
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
        return step.action == turn.action and step.decision is None and session.seats == self.session.seats


@dataclass
class AlteredEpisode(KeptEpisode):
    """An episode with a person, whose messages the other players do not hear.

    Attributes:
        messages: Messages of other episodes.
    """

    messages: Messages = field(kw_only=True)

    def begun(self, shown: Session) -> PersonEpisode:
        """Returns the episode; the seats, which hold the first session, hear the replaced messages."""
        return HeardOtherwise(
            self.game.start(self.state),
            self.episode.seats,
            for_people=shown,
            game=self.game,
            state=self.state,
            heard=self.episode.session,
            people=[*self.people],
            messages=self.messages,
            known=self.kept,
        )

    def record(self, policy: PolicyRecord) -> EpisodeRecord:
        """Returns the record of the finished episode, marked as one with replaced messages."""
        turns = [with_heard(turn, self.episode.heard_at(number)) for number, turn in enumerate(self.episode.turns)]
        return super().record(policy).model_copy(update={"turns": turns}).with_extra(**{SWAP: "swapped"})
