"""Episodes with swapped messages, which measure the worth of words: each seat hears replacements of the messages.

The second theorem of `games/tagged_session.py` bounds the reward of such an episode.

Each seat hears with a `Hearer`, which stands between the episode and the seat's player. The hearer's own turns, and the
proposals and answers of the others, stay as played. In place of each message of another seat, the hearer hears

- `swapped`: the message of the same player in a counterfactual episode. Its state has the hearer's view, and all else
  is resampled (`Game.redraw`); a game without it takes another state. The hearer's own turns
  and all proposals and answers are repeated there, so the counterfactual speaker answers them.
- `named`: the original message, but with the facts of the resampled state about the named things
  (`Game.keep_named`).

If the counterfactual speaker sends no message at that point (it proposes, or its illegal turns end the episode), or one
after which another seat would have to act, a new counterfactual episode is played, `TRIES` in all; then the hearer
hears a message without content.
The play loop is the usual one (`Episode`), and every other seat hears a hearer's messages through its own hearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Literal, get_args

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import CUT, INVALID, MESSAGE, SWAPPED, Game, Session, State, Step
from selfplay_pipeline.games.measured import HEARD
from selfplay_pipeline.generate.episode import ContextFull, Episode, Reply, SeatedPlayer, bounded
from selfplay_pipeline.generate.players import Seat
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord, Trajectory, TurnRecord
from selfplay_pipeline.generate.seated import SeatedEpisode

TRIES = 3
"""Maximum number of counterfactual episodes for one message."""
NOTHING = "[message] none"
"""Message without content, as the scripted players of the built-in games say it."""
NO_WORDS = "none"
"""Words of a message without content, after the beginning that the game asks for."""
MOST_TRIES = 20
"""Largest number of messages without content that are tried for one message."""
KEY = "evaluate.swap_messages"

Swap = Literal["swapped", "named"]
"""Rule by which heard messages are replaced. `swapped` takes a message from a counterfactual state. `named` keeps
which items a message mentions, and takes their values from the counterfactual state.
"""
SWAP = "swap"
"""Key of an episode's `extra` with the rule. The turns have the replacements, at the key `HEARD`."""


def swap_of(record: EpisodeRecord) -> Swap | None:
    """Returns the rule by which heard messages were replaced; None if all were heard as they were said."""
    return record.extra.get(SWAP)


def with_heard(turn: TurnRecord, heard: Mapping[int, str] | None) -> TurnRecord:
    """Returns a turn with the replacements that seats heard, by seat; "" is a message without content."""
    return turn.with_extra(**{HEARD: {str(seat): text for seat, text in heard.items()}}) if heard else turn


def check_extra(record: EpisodeRecord) -> None:
    """Raises ValueError, which names the field, unless only other seats heard replacements, by a known rule."""
    swap = record.extra.get(SWAP)
    if SWAP in record.extra and swap not in get_args(Swap):
        raise ValueError(f"field 'extra.{SWAP}': {swap!r:.60} is not one of {', '.join(get_args(Swap))}")
    for number, turn in enumerate(record.turns):
        if HEARD not in turn.extra:
            continue
        heard, others = turn.extra[HEARD], {str(seat) for seat, _ in enumerate(record.seats) if seat != turn.seat}
        if not isinstance(heard, dict) or not all(isinstance(text, str) for text in heard.values()):
            raise ValueError(f"field 'turns.{number}.extra.{HEARD}': expected a text for each seat that heard one")
        if swap is None or not heard.keys() <= others:
            raise ValueError(
                f"field 'turns.{number}.extra.{HEARD}': only other seats hear, in an episode with a '{SWAP}'"
            )


def is_altered(record: EpisodeRecord) -> bool:
    """Whether others heard altered messages of a person, as in some episodes of `play --study`; no training takes
    them."""
    return swap_of(record) is not None and any(seat.kind == "person" for seat in record.seats)


def check_heard_as_said(record: EpisodeRecord) -> None:
    """Raises ValueError if the episode must not be trained on because its messages were replaced."""
    if swap_of(record) is not None:
        raise ValueError(
            f"field 'extra.{SWAP}': an episode of `evaluate --swap-messages`, which is not trained on; convert the "
            "file that `generate` wrote"
        )


def is_words(turn: TurnRecord) -> bool:
    """Whether a turn is a message without a decision, so that it can be replaced."""
    return turn.action == MESSAGE and turn.proposal is None


def replayed(game: Game, state: State, turns: Sequence[TurnRecord], texts: Sequence[str]) -> Session:
    """Returns a session with turns as somebody heard them.

    Args:
        turns: The turns as they were taken.
        texts: Their texts as they were heard.
    """
    session = game.start(state)
    for turn, text in zip(turns, texts, strict=True):
        session.step(turn.seat, text, cut=turn.error_kind == CUT)
    return session


def without_content(game: Game, session: Session, seat: int, fits: Callable[[str], bool]) -> str | None:
    """Returns a message without content that fits at this point of a session; None if the rules allow none.

    The game says how a message may begin (`Game.choices`).
    """
    beginnings = (
        choice.write(selected) if choice.parts else choice.form
        for choice in game.choices(session, seat)
        if choice.action == MESSAGE
        for selected in product(*(range(len(part.options)) for part in choice.parts))
    )
    texts = [NOTHING, *(beginning + NO_WORDS for beginning in islice(beginnings, MOST_TRIES))]
    return next((text for text in texts if fits(text)), None)


@dataclass(frozen=True)
class Draws:
    """Counterfactual states of one episode.

    Attributes:
        states: All states that are played; their messages are used for games that cannot redraw a state.
        place: Seed of the run, number of the state, and number of the episode within its group.
    """

    game: Game
    states: Sequence[State]
    place: tuple[int, int, int]

    def state(self, hearer: int, attempt: int) -> State:
        """Returns a state for a hearer, independent of the true state given the hearer's view."""
        _seed, group, _episode = self.place
        if self.game.has("redraw"):
            rng = np.random.default_rng([SWAPPED, *self.place, hearer, attempt])
            return self.game.redraw(self.states[group], hearer, rng)
        return self.states[(group + 1 + attempt % (len(self.states) - 1)) % len(self.states)]


@dataclass
class Counterfactual:
    """Counterfactual episode of one hearer, played up to turn `at` of the real episode.

    Attributes:
        others: All seats except the hearer's.
        at: Number of the next real turn.
    """

    session: Session
    hearer: int
    others: dict[int, SeatedPlayer]
    at: int = 0

    async def message(self, turns: Sequence[TurnRecord], number: int) -> str | None:
        """Returns the message that replaces the message of a real turn; None if the counterfactual episode has none at
        this point.
        """
        text = None
        for turn in turns[self.at : number + 1]:
            if is_words(turn) and turn.seat != self.hearer:
                text = await self._message_of(turn.seat)
                if text is None:
                    return None
            elif (turn.action != INVALID or turn.seat == self.hearer) and not self._repeat(turn):
                return None
        self.at = number + 1
        return text

    async def _message_of(self, seat: int) -> str | None:
        while seat in self.session.seats:
            reply = bounded(await self.others[seat].act())
            step = self._step(seat, reply.text, cut=reply.cut)
            if step.action != INVALID:
                return reply.text if step.action == MESSAGE and step.decision is None else None
        return None

    def _repeat(self, turn: TurnRecord) -> bool:
        """Repeat a real turn in the counterfactual episode; returns False if the rules do not allow it there."""
        if turn.seat not in self.session.seats:
            return False
        if turn.seat != self.hearer:
            self.others[turn.seat].say(turn.text)
        return self._step(turn.seat, turn.text, cut=turn.error_kind == CUT).action == turn.action

    def _step(self, seat: int, text: str, *, cut: bool) -> Step:
        step = self.session.step(seat, text, cut=cut)
        for number, other in self.others.items():
            other.observe(step.observations[number])
        return step


@dataclass
class Hearer:
    """Seat of an episode that hears a replacement of each message of another seat.

    Attributes:
        own: Player of the seat. It observes, and acts on, the episode as the seat hears it.
        session: The episode as the seat hears it.
        turns: Turns of the real episode, to which the episode adds.
        heard: Replacements that the seat has heard, by the number of the replaced turn; "" for a message without
            content.
        texts: Texts of all turns so far as the seat has heard them.
        counterfactuals: All counterfactual episodes of the seat.
        current: Counterfactual episode that provides the next message; None if a new one must begin.
    """

    seated: SwappedEpisode
    number: int
    own: SeatedPlayer
    session: Session
    turns: list[TurnRecord]
    heard: dict[int, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    counterfactuals: list[Counterfactual] = field(default_factory=list)
    current: Counterfactual | None = None

    def observe(self, text: str) -> None:
        pass  # before its turn, the seat observes the episode as it hears it

    def say(self, text: str) -> None:
        self.own.say(text)

    async def act(self) -> Reply:
        for turn in self.turns[len(self.texts) :]:
            text: str | None = turn.text
            if is_words(turn) and turn.seat != self.number:
                self.heard[len(self.texts)] = found = await self._replacement() or ""
                text = found or without_content(self.seated.game, self._so_far(), turn.seat, self._fits)
            step = self.session.step(turn.seat, text or "", cut=turn.error_kind == CUT)
            if text is None or not self._goes_on(self.session, step):
                raise UserError(
                    f"{KEY}: a message decides how an episode of the game {self.seated.game.name} goes on, so that no "
                    "other message can take its place"
                )
            self.own.observe(step.observations[self.number])
            self.texts.append(text)
        return await self.own.act()

    async def _replacement(self) -> str | None:
        """Returns the message that replaces the first turn that the seat has not yet heard; None if there is none."""
        number = len(self.texts)
        if self.seated.swap == "named":
            game, turn = self.seated.game, self.turns[number]
            drawn = self.seated.draws.state(self.number, 0)
            named = game.keep_named(drawn, turn.seat, turn.text)
            return named if self._fits(named) else None
        for _ in range(TRIES):
            if self.current is None:
                self.current = self._begin(len(self.counterfactuals))
                self.counterfactuals.append(self.current)
            with suppress(ContextFull):
                text = await self.current.message(self.turns, number)
                if text is not None and self._fits(text):
                    return text
            self.current = None
        return None

    def _so_far(self) -> Session:
        """Returns a new session with the turns that the seat has heard."""
        return replayed(self.seated.game, self.seated.state, self.turns[: len(self.texts)], self.texts)

    def _fits(self, text: str) -> bool:
        """Whether a text is a message after which the episode goes on as it was played."""
        session = self._so_far()
        step = session.step(self.turns[len(self.texts)].seat, text)
        return step.decision is None and self._goes_on(session, step)

    def _goes_on(self, session: Session, step: Step) -> bool:
        """Whether a step took the action of the first turn not yet heard, and the seat of the next turn may act."""
        turn, later = self.turns[len(self.texts)], self.turns[len(self.texts) + 1 :]
        return step.action == turn.action and [*(one.seat for one in later), self.number][0] in session.seats

    def _begin(self, attempt: int) -> Counterfactual:
        seated, number = self.seated, self.number
        session = seated.game.start(seated.draws.state(number, attempt))
        name, place = f"{seated.episode_id}-h{number}-{attempt}", (*seated.place, 1 + number, attempt)
        others = {
            seat: player.sit(Seat.at(seated.game, session, seat, name, place))
            for seat, player in enumerate(seated.players)
            if seat != number
        }
        return Counterfactual(session, number, others)

    def finish(self) -> Trajectory | None:
        return self.own.finish()

    def everyone(self) -> Iterator[SeatedPlayer]:
        """Yields the seat's player, and the players of the seat's counterfactual episodes."""
        yield self.own
        for counterfactual in self.counterfactuals:
            yield from counterfactual.others.values()


@dataclass
class SwappedEpisode(SeatedEpisode):
    """One episode in which each seat is a `Hearer`."""

    swap: Swap
    states: Sequence[State]

    def __post_init__(self) -> None:
        self.draws = Draws(self.game, self.states, self.place)
        turns: list[TurnRecord] = []
        self.hearers: list[Hearer] = []
        for number, player in enumerate(self.players):
            heard = self.game.start(self.state)
            seated = player.sit(Seat.at(self.game, heard, number, self.episode_id, self.place))
            self.hearers.append(Hearer(self, number, seated, heard, turns))
        self.episode = Episode(self.game.start(self.state), [*self.hearers], turns)

    def everyone(self) -> Iterator[SeatedPlayer]:
        for hearer in self.hearers:
            yield from hearer.everyone()

    def record(self, policy: PolicyRecord) -> EpisodeRecord:
        turns = [
            with_heard(turn, {hearer.number: hearer.heard[at] for hearer in self.hearers if at in hearer.heard})
            for at, turn in enumerate(self.episode.turns)
        ]
        return super().record(policy).model_copy(update={"turns": turns}).with_extra(**{SWAP: self.swap})


def check_swap(game: Game, states: Sequence[State]) -> None:
    """Raises UserError unless messages of episodes on these states can be swapped."""
    if MESSAGE not in game.actions:
        raise UserError(
            f"{KEY}: the game {game.name} has no action {MESSAGE!r}, so that there are no messages to replace; leave "
            "the option out"
        )
    if game.has("redraw"):
        for seat, _role in enumerate(game.roles):
            game.redraw(states[0], seat, np.random.default_rng(0))
    elif len(states) < 2:
        raise UserError(f"{KEY}: the game {game.name} takes replacements from another state; give two states or more")
