"""Episodes with swapped messages, which measure the worth of words: each seat hears replacements of the messages.

The second theorem of `games/tagged_session.py` bounds the reward of such an episode.

Each seat hears with a `Hearer`, which stands between the episode and the seat's player. The hearer's own turns, and the
proposals and answers of the others, stay as played. In place of each message of another seat, the hearer hears

- `swapped`: the message of the same player in a counterfactual episode. Its state has the hearer's view, and all else
  is resampled (`games/abilities.py: Redraw`); a game without that ability takes another state. The hearer's own turns
  and all proposals and answers are repeated there, so the counterfactual speaker answers them.
- `named`: the original message, but with the facts of the resampled state about the named things
  (`games/abilities.py: KeepNamed`).

If the counterfactual speaker sends no message at that point (it proposes, or its illegal turns end the episode), a new
counterfactual episode is played, `TRIES` in all; after that the hearer hears `NOTHING`.
The play loop is the usual one (`Episode`), and every other seat hears a hearer's messages through its own hearer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.abilities import KeepNamed, Redraw, ability
from selfplay_pipeline.games.base import CUT, INVALID, MESSAGE, SWAPPED, Game, Session, State, Step
from selfplay_pipeline.generate.episode import ContextFull, Episode, Reply, SeatedPlayer
from selfplay_pipeline.generate.players import Seat
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord, Swap, Trajectory, TurnRecord
from selfplay_pipeline.generate.run import SeatedEpisode

TRIES = 3
"""Maximum number of counterfactual episodes for one message."""
NOTHING = "[message] none"
"""Message without content, as the scripted players of the built-in games say it."""
KEY = "evaluate.swap_messages"


def is_words(turn: TurnRecord) -> bool:
    """Whether a turn is a message without a decision, so that it can be replaced."""
    return turn.action == MESSAGE and turn.proposal is None


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
        if isinstance(self.game, Redraw):
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
            reply = await self.others[seat].act()
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
        heard: Replacements that the seat has heard, by the number of the replaced turn; "" for `NOTHING`.
        at: Number of the first turn that the seat has not yet heard.
        counterfactuals: All counterfactual episodes of the seat.
        current: Counterfactual episode that provides the next message; None if a new one must begin.
    """

    seated: SwappedEpisode
    number: int
    own: SeatedPlayer
    session: Session
    turns: list[TurnRecord]
    heard: dict[int, str] = field(default_factory=dict)
    at: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    counterfactuals: list[Counterfactual] = field(default_factory=list)
    current: Counterfactual | None = None

    def observe(self, text: str) -> None:
        pass  # before its turn, the seat observes the episode as it hears it

    def say(self, text: str) -> None:
        self.own.say(text)

    async def act(self) -> Reply:
        for number in range(self.at, len(self.turns)):
            turn = self.turns[number]
            text = turn.text
            if is_words(turn) and turn.seat != self.number:
                self.heard[number] = await self._replacement(number) or ""
                text = self.heard[number] or NOTHING
            step = self.session.step(turn.seat, text, cut=turn.error_kind == CUT)
            following = [*(later.seat for later in self.turns[number + 1 :]), self.number][0]
            if step.action != turn.action or following not in self.session.seats:
                raise UserError(
                    f"{KEY}: a message decides how an episode of the game {self.seated.game.name} goes on, so that no "
                    "other message can take its place"
                )
            self.own.observe(step.observations[self.number])
            self.at = number + 1
        return await self.own.act()

    async def _replacement(self, number: int) -> str | None:
        if self.seated.swap == "named":
            game, turn = self.seated.game, self.turns[number]
            drawn = self.seated.draws.state(self.number, 0)
            return ability(game, KeepNamed, KEY).keep_named(drawn, turn.seat, turn.text)
        for _ in range(TRIES):
            if self.current is None:
                self.current = self._begin(len(self.counterfactuals))
                self.counterfactuals.append(self.current)
            with suppress(ContextFull):
                text = await self.current.message(self.turns, number)
                if text is not None:
                    return text
            self.current = None
        return None

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
            turn.model_copy(update={"heard": heard})
            if (heard := {hearer.number: hearer.heard[at] for hearer in self.hearers if at in hearer.heard})
            else turn
            for at, turn in enumerate(self.episode.turns)
        ]
        return super().record(policy).model_copy(update={"turns": turns, "swap": self.swap})


def check_swap(game: Game, states: Sequence[State]) -> None:
    """Raises UserError unless messages of episodes on these states can be swapped."""
    if isinstance(game, Redraw):
        for seat, _role in enumerate(game.roles):
            game.redraw(states[0], seat, np.random.default_rng(0))
    elif len(states) < 2:
        raise UserError(f"{KEY}: the game {game.name} takes replacements from another state; give two states or more")
