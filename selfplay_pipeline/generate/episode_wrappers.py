"""Wrappers of an episode in which seats read something else than happens: renamed and swapped episodes.

**Renamed** (other-play): each seat sees its own random renaming of the state's names (Hu et al. 2020, arXiv
2003.02979). A state whose names are exchanged is the same problem (`Game.renamed`). Each seat plays it
in a session of its own, with names that are drawn for the state and the seat. A legal turn is retold in the names of
each other seat's session. So a code that depends on names, such as one that says a name for another one, does not work:
the hearer's names are others. What depends on the state alone works as before. Records have states and turns in the
state's own names, and for each seat its renaming (`names_of`). Trajectories hold the tokens that the seats read and
wrote, in their names.

**Swapped**, which measures the worth of words: each seat hears replacements of the messages. The second theorem of
`games/tagged_session.py` bounds the reward of such an episode. Each seat hears with a `Hearer`, which stands between
the episode and the seat. The hearer's own turns, and the proposals and answers of the others, stay as played. In place
of each message of another seat, the hearer hears

- `swapped`: the message of the same player in a counterfactual episode. Its state has the hearer's view, and all else
  is resampled (`Game.redraw`); a game without it takes another state. The hearer's own turns
  and all proposals and answers are repeated there, so the counterfactual speaker answers them.
- `named`: the original message, but with the facts of the resampled state about the named things
  (`Game.keep_named`).

If the counterfactual speaker sends no message at that point (it proposes, or its illegal turns end the episode), or one
after which another seat would have to act, a new counterfactual episode is played, `TRIES` in all; then the hearer
hears a message without content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, Literal, get_args

import numpy as np
from pydantic import TypeAdapter, ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import (
    CUT,
    INVALID,
    MESSAGE,
    NAMES,
    SAME_SCORE,
    SWAPPED,
    Game,
    Opening,
    Outcome,
    Session,
    State,
    Status,
    Step,
)
from selfplay_pipeline.games.measured import HEARD
from selfplay_pipeline.generate.episode import ContextFull, Episode, Place, Reply, Seat, SeatView, Wrapper, bounded
from selfplay_pipeline.generate.records import EpisodeRecord, PartnerUsage, Trajectory, TurnRecord

TRIES = 3
"""Maximum number of counterfactual episodes for one message."""
NOTHING = "[message] none"
"""Message without content, as the scripted players of the built-in games say it."""
NO_WORDS = "none"
"""Words of a message without content, after the beginning that the game asks for."""
MOST_TRIES = 20
"""Largest number of messages without content that are tried for one message."""
SWAP_KEY, OTHER_PLAY_KEY = "evaluate.swap_messages", "iterate.other_play"

Swap = Literal["swapped", "named"]
"""Rule by which heard messages are replaced. `swapped` takes a message from a counterfactual state. `named` keeps
which items a message mentions, and takes their values from the counterfactual state.
"""
SWAP = "swap"
"""Key of an episode's `extra` with the rule. The turns have the replacements, at the key `HEARD`."""
NAMES_SEEN = "names"
"""Key of an episode's `extra` with the renaming of the state that each seat saw."""
AS_SAID = "as_said"
"""Key of a turn's `extra` with its text as the seat wrote it, if it differs."""
Names = list[dict[str, list[int]]]
"""Renaming of the state for each seat."""
_NAMES = TypeAdapter(Names)


def swap_of(record: EpisodeRecord) -> Swap | None:
    """Returns the rule by which heard messages were replaced; None if all were heard as they were said."""
    return record.extra.get(SWAP)


def with_heard(turn: TurnRecord, heard: Mapping[int, str] | None) -> TurnRecord:
    """Returns a turn with the replacements that seats heard, by seat; "" is a message without content."""
    return turn.with_extra(**{HEARD: {str(seat): text for seat, text in heard.items()}}) if heard else turn


def names_of(record: EpisodeRecord) -> Names | None:
    """Returns the renaming of the state that each seat saw; None if all saw the state's names."""
    return record.extra.get(NAMES_SEEN)


def said(turn: TurnRecord) -> str:
    """Returns the text of a turn as the seat wrote it, in its own names."""
    text: str = turn.extra.get(AS_SAID, turn.text)
    return text


def check_extra(record: EpisodeRecord, game: Game, state: State) -> None:
    """Raises ValueError, which names the field, if `extra` of an episode or of a turn has something impossible."""
    if strange := sorted(record.extra.keys() - {SWAP, NAMES_SEEN}):
        raise ValueError(f"field 'extra.{strange[0]}': not known")
    for number, turn in enumerate(record.turns):
        if strange := sorted(turn.extra.keys() - {HEARD, AS_SAID}):
            raise ValueError(f"field 'turns.{number}.extra.{strange[0]}': not known")
        if not isinstance(turn.extra.get(AS_SAID, ""), str):
            raise ValueError(f"field 'turns.{number}.extra.{AS_SAID}': expected a text")
    _check_heard(record)
    if NAMES_SEEN in record.extra:
        _check_names(record.extra[NAMES_SEEN], game, state)


def _check_heard(record: EpisodeRecord) -> None:
    """Raises ValueError unless only other seats heard replacements, by a known rule."""
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


def _check_names(found: Any, game: Game, state: State) -> None:
    """Raises ValueError unless each seat has a renaming that the state allows."""
    try:
        names = _NAMES.validate_python(found, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("extra", NAMES_SEEN, *first["loc"])))
        raise ValueError(f"field '{field}': {first['msg']}") from None
    if not game.has("renamed") or len(names) != len(game.roles):
        raise ValueError(
            f"field 'extra.{NAMES_SEEN}': has {len(names)} renamings, which do not fit the game {game.name}"
        )
    for seat, one in enumerate(names):
        try:
            game.renamed(state, one)
        except ValueError as error:
            raise ValueError(f"field 'extra.{NAMES_SEEN}.{seat}': {error}") from None


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


# --- renamed


class SessionBesideOthers:
    """Part of a session that runs others beside `own`, the one that happens: the parts that are those of `own`."""

    own: Session

    @property
    def seats(self) -> tuple[int, ...]:
        return self.own.seats

    @property
    def status(self) -> str | None:
        return self.own.status

    def abort(self, status: Status) -> None:
        self.own.abort(status)

    def outcome(self) -> Outcome:
        return self.own.outcome()


class RenamedSession(SessionBesideOthers):
    """One episode in which each seat has its own names.

    Attributes:
        own: Session in the state's own names.
        worlds: Session of each seat, in the seat's names.
        told: Text of each turn in the state's own names; of an illegal turn, as it was written.
    """

    def __init__(self, game: Game, state: State, names: Sequence[Any]) -> None:
        """Begin an episode; `names` has the renaming of each seat."""
        self.game, self.state, self.names = game, state, names
        self.own: Session = game.start(state)
        self.worlds: list[Session] = [game.start(self.game.renamed(state, one)) for one in names]
        self.told: list[str] = []

    def opening(self, seat: int) -> Opening:
        return self.worlds[seat].opening(seat)

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take a turn in all sessions; see `games/base.py: Session`.

        Raises:
            UserError: The renaming decides how the episode goes on.
        """
        said = self.worlds[seat].step(seat, text, cut=cut)
        legal = said.action != INVALID
        told = self.game.retold(self.state, self.names[seat], text, back=True) if legal else text
        self.told.append(told)
        step = self.own.step(seat, told, cut=cut)
        heard = [
            said if other == seat else world.step(seat, self._retold(other, told) if legal else text, cut=cut)
            for other, world in enumerate(self.worlds)
        ]
        alike = all(one.action == step.action for one in heard)
        if not alike or any(world.seats != self.own.seats for world in self.worlds):
            raise _differs(self.own, text)
        observations = tuple(one.observations[other] for other, one in enumerate(heard))
        return replace(step, observations=observations, error=said.error)

    def _retold(self, seat: int, told: str) -> str:
        return self.game.retold(self.state, self.names[seat], told)

    def abort(self, status: Status) -> None:
        for session in (self.own, *self.worlds):
            session.abort(status)

    def outcome(self) -> Outcome:
        """Returns the result of an ended episode.

        Raises:
            UserError: A seat's session has other rewards.
        """
        found = self.own.outcome()
        for world in self.worlds:
            if not np.allclose(world.outcome().rewards, found.rewards, rtol=0, atol=SAME_SCORE):
                raise _differs(self.own, "its rewards")
        return found


def _differs(session: Session, what: str) -> UserError:
    return UserError(
        f"{OTHER_PLAY_KEY}: with other names an episode goes on otherwise ({session.status}, {what!r}); leave it out"
    )


class Renamed(Wrapper):
    """Other-play; all episodes of a state have the same names, so that GRPO compares like with like."""

    def start(self, episode: Episode) -> tuple[Session, Sequence[Session]]:
        seed, group, _ = episode.place
        rng, game = np.random.default_rng([NAMES, seed, group]), episode.game
        names = [game.draw_names(episode.state, rng) for _ in game.roles]
        session = RenamedSession(episode.game, episode.state, names)
        return session, session.worlds

    def turn(self, session: RenamedSession, turn: TurnRecord) -> TurnRecord:
        told = session.told[-1]
        return turn if turn.text == told else turn.with_extra(**{AS_SAID: turn.text}).model_copy(update={"text": told})

    def record(self, episode: Episode, session: RenamedSession, record: EpisodeRecord) -> EpisodeRecord:
        return record.with_extra(**{NAMES_SEEN: list(session.names)})


# --- swapped


@dataclass(frozen=True)
class Draws:
    """Counterfactual states of one episode.

    Attributes:
        states: All states that are played; their messages are used for games that cannot redraw a state.
        place: Seed of the run, number of the state, and number of the episode within its group.
    """

    game: Game
    states: Sequence[State]
    place: Place

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
    others: dict[int, Seat]
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
        episode: The real episode.
        draws: Counterfactual states.
        swap: Rule of replacement.
        own: The seat, which observes, and acts on, the episode as it hears it.
        session: The episode as the seat hears it.
        heard: Replacements that the seat has heard, by the number of the replaced turn; "" for a message without
            content.
        texts: Texts of all turns so far as the seat has heard them.
        counterfactuals: All counterfactual episodes of the seat.
        current: Counterfactual episode that provides the next message; None if a new one must begin.
    """

    episode: Episode
    draws: Draws
    swap: Swap
    number: int
    own: Seat
    session: Session
    heard: dict[int, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    counterfactuals: list[Counterfactual] = field(default_factory=list)
    current: Counterfactual | None = None

    @property
    def turns(self) -> list[TurnRecord]:
        """Turns of the real episode."""
        return self.episode.turns

    @property
    def prompt_tokens(self) -> int:
        return sum(seat.prompt_tokens for seat in self._everyone())

    @property
    def cached_tokens(self) -> int:
        return sum(seat.cached_tokens for seat in self._everyone())

    @property
    def usage(self) -> PartnerUsage | None:
        usages = [seat.usage for seat in self._everyone() if seat.usage is not None]
        return sum(usages, PartnerUsage()) if usages else None

    def observe(self, text: str) -> None:
        pass  # before its turn, the seat observes the episode as it hears it

    def say(self, text: str) -> None:
        self.own.say(text)

    async def act(self) -> Reply:
        for turn in self.turns[len(self.texts) :]:
            text: str | None = turn.text
            if is_words(turn) and turn.seat != self.number:
                self.heard[len(self.texts)] = found = await self._replacement() or ""
                text = found or without_content(self.episode.game, self._so_far(), turn.seat, self._fits)
            step = self.session.step(turn.seat, text or "", cut=turn.error_kind == CUT)
            if text is None or not self._goes_on(self.session, step):
                raise UserError(
                    f"{SWAP_KEY}: a message decides how an episode of the game {self.episode.game.name} goes on, so "
                    "that no other message can take its place"
                )
            self.own.observe(step.observations[self.number])
            self.texts.append(text)
        return await self.own.act()

    async def _replacement(self) -> str | None:
        """Returns the message that replaces the first turn that the seat has not yet heard; None if there is none."""
        number = len(self.texts)
        if self.swap == "named":
            game, turn = self.episode.game, self.turns[number]
            drawn = self.draws.state(self.number, 0)
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
        return replayed(self.episode.game, self.episode.state, self.turns[: len(self.texts)], self.texts)

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
        episode, number = self.episode, self.number
        session = episode.game.start(self.draws.state(number, attempt))
        name, place = f"{episode.episode_id}-h{number}-{attempt}", (*episode.place, 1 + number, attempt)
        others = {
            seat: player.sit(SeatView.at(episode.game, session, seat, name, place))
            for seat, player in enumerate(episode.players)
            if seat != number
        }
        return Counterfactual(session, number, others)

    def finish(self) -> list[Trajectory]:
        return self.own.finish()

    def _everyone(self) -> Iterator[Seat]:
        """Yields the seat itself, and the seats of its counterfactual episodes."""
        yield self.own
        for counterfactual in self.counterfactuals:
            yield from counterfactual.others.values()


@dataclass(frozen=True)
class Swapped(Wrapper):
    """Each seat is a `Hearer`.

    Attributes:
        swap: Rule of replacement.
        states: All states that are played.
    """

    swap: Swap
    states: Sequence[State]

    def start(self, episode: Episode) -> tuple[Session, Sequence[Session]]:
        game, state = episode.game, episode.state
        return game.start(state), [game.start(state) for _ in game.roles]

    def seat(self, episode: Episode, number: int, seat: Seat, session: Session) -> Hearer:
        draws = Draws(episode.game, self.states, episode.place)
        return Hearer(episode, draws, self.swap, number, seat, session)

    def record(self, episode: Episode, session: Session, record: EpisodeRecord) -> EpisodeRecord:
        hearers = [seat for seat in episode.seats if isinstance(seat, Hearer)]
        turns = [
            with_heard(turn, {hearer.number: hearer.heard[at] for hearer in hearers if at in hearer.heard})
            for at, turn in enumerate(record.turns)
        ]
        return record.model_copy(update={"turns": turns}).with_extra(**{SWAP: self.swap})


def check_swap(game: Game, states: Sequence[State]) -> None:
    """Raises UserError unless messages of episodes on these states can be swapped."""
    if MESSAGE not in game.actions:
        raise UserError(
            f"{SWAP_KEY}: the game {game.name} has no action {MESSAGE!r}, so that there are no messages to replace; "
            "leave the option out"
        )
    if game.has("redraw"):
        for seat, _role in enumerate(game.roles):
            game.redraw(states[0], seat, np.random.default_rng(0))
    elif len(states) < 2:
        raise UserError(
            f"{SWAP_KEY}: the game {game.name} takes replacements from another state; give two states or more"
        )
