"""Episodes with people that survive a restart: each turn is logged, and logged turns are taken again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import Completion, Engine, FinishReason, SamplingParams
from selfplay_pipeline.games.base import CUT, Game, State, Status
from selfplay_pipeline.games.measured import heard_of
from selfplay_pipeline.generate.episode import AS_IT_IS, Episode, PersonLeft, Place, Player, Reply, Wrapper
from selfplay_pipeline.generate.players import PolicySeat
from selfplay_pipeline.generate.text_player import Message, TextSeat
from selfplay_pipeline.people.log import TurnLine
from selfplay_pipeline.people.person import ForPeople, PersonSeat, person_player


class Desk:
    """Place of one person in one episode, where the person's turns arrive from outside.

    Attributes:
        patience: Seconds after which a person who does not answer has left.
        since: Time at which the person could act; None if it is not the person's turn.
        kept: Turns of the log, which are taken before any new one.
        changed: Called when the person may act.
    """

    def __init__(self, patience: float, kept: Sequence[str], changed: Callable[[], None]) -> None:
        self.patience, self.kept, self.changed = patience, [*kept], changed
        self.since: float | None = None
        self.seconds: float | None = None
        self._answer: asyncio.Future[str] | None = None

    async def turn(self, seat: PersonSeat) -> str:
        """Returns the next turn of the person; see `person.py: Screen`."""
        if self.kept:
            return self.kept.pop(0)
        self._answer, self.since = asyncio.get_running_loop().create_future(), time.time()
        self.changed()
        try:
            async with asyncio.timeout(self.patience):
                text = await self._answer
        except TimeoutError:
            raise PersonLeft from None
        finally:
            self._answer = None
        self.seconds = round(time.time() - self.since, 3)
        self.since = None
        return text

    @property
    def waits(self) -> bool:
        """Whether a turn of the person is awaited now."""
        return self._answer is not None and not self._answer.done()

    def give(self, text: str) -> None:
        """Take the person's turn, which `waits` must allow."""
        assert self._answer is not None
        self._answer.set_result(text)


class Elsewhere:
    """Screen of a person who has not come yet."""

    async def turn(self, seat: PersonSeat) -> str:
        """Raises RuntimeError, since an episode begins only when everybody has come."""
        raise RuntimeError("nobody has come yet")


SOMEBODY = person_player(Elsewhere())
"""Player of the seats of people before an episode begins."""


@dataclass
class Remembering:
    """Engine of one seat that repeats logged completions first, and remembers the last one."""

    engine: Engine
    kept: list[Completion]
    last: Completion | None = None

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        """Returns the next completion."""
        if self.kept:
            self.last = self.kept.pop(0)
        else:
            self.last = await self.engine.generate(prompt_ids, params, session=session)
        return self.last


class LoggedEpisode:
    """An episode whose people answer from outside, at any time.

    Attributes:
        episode: The episode.
        people: Person of each seat that a person holds.
        desks: Desk of each of them.
        version: Number of changes so far that a person may see.
        left: Set once a person leaves, at any moment.
    """

    def __init__(
        self,
        game: Game,
        state: State,
        players: Sequence[Player],
        episode_id: str,
        place: Place,
        *,
        for_people: Game,
        people: dict[int, str],
        log: Callable[[TurnLine], None],
        kept: Sequence[TurnLine] = (),
        patience: float,
        wrapper: Wrapper = AS_IT_IS,
    ) -> None:
        """Begin an episode, or continue one from the log.

        Args:
            game: The game.
            state: The state.
            players: Player of each seat; people take the seats of `people` in their place.
            episode_id: Identifier of the episode.
            place: Seed of the run, group index, and number of the episode within its group.
            for_people: The game with the set of prompts that people read.
            people: Person of each seat that a person holds.
            log: Takes each new turn.
            kept: Turns of the log, in order.
            patience: Seconds after which a person who does not answer has left.
            wrapper: Way in which the other seats read the episode.
        """
        self.people, self.log, self.kept, self.version = people, log, kept, 0
        self._changed, self.left = asyncio.Event(), asyncio.Event()
        self.desks = {
            seat: Desk(patience, [turn.text for turn in kept if turn.seat == seat], self.change) for seat in people
        }
        holders = [
            person_player(self.desks[seat]) if seat in self.desks else player for seat, player in enumerate(players)
        ]
        self.episode = Episode(
            game, state, holders, episode_id, place, ForPeople(for_people, wrapper), after_turn=self._taken
        )
        self.engines: dict[int, Remembering] = {}
        for number, seat in enumerate(self.episode.seats):
            own = [turn for turn in kept if turn.seat == number]
            if isinstance(seat, PolicySeat):
                said = [self._completion(turn) for turn in own]
                self.engines[number] = seat.engine = Remembering(seat.engine, said)
            elif isinstance(seat, TextSeat):
                _repeat(seat, own)

    @property
    def episode_id(self) -> str:
        return self.episode.episode_id

    def seat_of_person(self, seat: int) -> PersonSeat:
        """Returns the person's view of the episode."""
        found = self.episode.seats[seat]
        assert isinstance(found, PersonSeat)
        return found

    @property
    def waits(self) -> bool:
        """Whether a turn of a person is awaited now."""
        return any(desk.waits for desk in self.desks.values())

    async def play(self) -> None:
        """Play until the episode ends or a person leaves, which ends it with the status `abandoned`."""
        playing, leaving = asyncio.ensure_future(self.episode.run()), asyncio.ensure_future(self.left.wait())
        try:
            await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                playing.result()
            else:
                self.episode.session.abort(Status.ABANDONED)
        finally:
            for task in (playing, leaving):
                task.cancel()
            await asyncio.gather(playing, leaving, return_exceptions=True)

    def change(self) -> None:
        """Wake everybody who waits for news."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def news(self, version: int, seconds: float) -> None:
        """Wait until something has changed since a version, for some seconds at most."""
        end = time.monotonic() + seconds
        while self.version == version and (left := end - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return

    def _completion(self, turn: TurnLine) -> Completion:
        try:
            data = turn.completion or {}
            return Completion(**{**data, "finish_reason": FinishReason(data["finish_reason"])})
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{self.episode_id}: turn {turn.number} of seat {turn.seat} has no completion of a checkpoint in the "
                "log, so that the episode cannot go on; put back the line as it was, or use another --output"
            ) from None

    def _taken(self) -> None:
        number = len(self.episode.turns) - 1
        turn = self.episode.turns[number]
        if number < len(self.kept):
            if (turn.seat, turn.text) != (self.kept[number].seat, self.kept[number].text):
                raise UserError(
                    f"{self.episode_id}: turn {number} of seat {turn.seat} is another one than in the log, so that the "
                    "episode cannot go on; give the same version of the game and its players, or another --output"
                )
            return
        seat, desk, engine = self.episode.seats[turn.seat], self.desks.get(turn.seat), self.engines.get(turn.seat)
        self.log(
            TurnLine(
                at=time.time(),
                episode_id=self.episode_id,
                number=number,
                seat=turn.seat,
                text=turn.text,
                cut=turn.error_kind == CUT,
                finish_reason=turn.finish_reason,
                seconds=desk.seconds if desk else None,
                heard=heard_of(turn) or None,
                completion=asdict(engine.last) if engine and engine.last else None,
                usage=seat.usage if isinstance(seat, TextSeat) else None,
            )
        )
        self.change()


def _repeat(seat: TextSeat, turns: Sequence[TurnLine]) -> None:
    """Let a chat model's seat repeat logged turns first."""
    kept, ask = [*turns], seat.ask
    assert ask is not None

    async def repeat(messages: list[Message]) -> str | Reply:
        if not kept:
            return await ask(messages)
        turn = kept.pop(0)
        seat.usage = turn.usage
        return Reply(turn.text, turn.cut, turn.finish_reason)

    seat.ask = repeat
