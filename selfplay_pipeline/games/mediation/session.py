"""Episode of mediation: two users speak with the agent, each in a room of its own.

In free play both users speak first, at the same time. Then the agent acts: it speaks into one room, whose user
answers, or it proposes a flight to each user. Both users answer a proposal at the same time. If both accept, that is
the outcome; otherwise both are told only that the proposal has failed, and both speak again. This is the order of
DialOp's loop over its text environment.

In the fixed protocol both users say a message, the agent answers user 0, then user 1, and so on; after the users' last
messages the agent proposes once. The number, order and kind of turns are the same in every episode, so the first
theorem of `games/tagged_session.py` holds with the agent as the proposer: if messages say nothing, its proposal is a
function of its own view, and earns at most the silence line.
"""

from __future__ import annotations

from typing import Any

from selfplay_pipeline.games.base import AGREED, MESSAGE, MUTED, Choice, Game, Opening, ParseError, Part
from selfplay_pipeline.games.mediation.draw import flights_of
from selfplay_pipeline.games.mediation.rules import AGENT, USERS, MediationConfig, MediationState, Pair
from selfplay_pipeline.games.mediation.text import ErrorKind, format_proposal, parse_proposal, span, split_room
from selfplay_pipeline.games.prompts import Prompts
from selfplay_pipeline.games.tags import ActionKind, tagged
from selfplay_pipeline.games.turn_session import Move, TurnSession

OF_ROLE = {
    True: (ActionKind.MESSAGE, ActionKind.PROPOSE),
    False: (ActionKind.MESSAGE, ActionKind.ACCEPT, ActionKind.REJECT),
}
"""Actions of the agent, and of a user."""


class MediationSession(TurnSession):
    """One episode.

    Attributes:
        pending: Proposal that waits for answers.
        proposals: All proposals.
        answers: Whether each user accepts the pending proposal, by user.
        rooms: Legal messages in the room of each user, as (seat, text), as they were written.
        made: Number of proposals before each message of each user.
    """

    state: MediationState
    config: MediationConfig

    def __init__(self, game: Game, state: MediationState, prompts: Prompts) -> None:
        super().__init__(game, state)
        self.prompts = prompts
        self.max_errors = self.config.max_errors
        self.next = USERS
        self.pending: Pair | None = None
        self.proposals: list[Pair] = []
        self.answers: dict[int, bool] = {}
        self.rooms: tuple[list[tuple[int, str]], list[tuple[int, str]]] = ([], [])
        self.made: tuple[list[int], list[int]] = ([], [])

    def opening(self, seat: int) -> Opening:
        shown = {
            "agent": seat == AGENT,
            "users": [self._shown(user, seat) for user in USERS if seat in (user, AGENT)],
            "sharing": self.config.p_shared > 0,
            "protocol": self.config.protocol,
            "messages": self.config.messages,
            "max_length": self.config.max_length,
        }
        return Opening(self.prompts.render("system", **shown), self.prompts.render("opening", **shown))

    def due(self, seat: int) -> ActionKind | None:
        """Returns the action that the next turn of a seat must be; None if the player chooses."""
        if self.config.protocol == "free" or self.status is not None:
            return None
        answered = sum(speaker == AGENT for speaker, _ in self.rooms[USERS[-1]])
        last = seat == AGENT and answered == self.config.messages - 1
        return ActionKind.PROPOSE if last else ActionKind.MESSAGE

    def choices(self, seat: int) -> list[Choice]:
        """Returns the actions that a seat may take."""
        kinds = [kind for kind in OF_ROLE[seat == AGENT] if self._why_not(seat, kind) is None]
        return [self._choice(kind, agent=seat == AGENT) for kind in kinds]

    def _choice(self, kind: ActionKind, *, agent: bool) -> Choice:
        """Returns an action with its form; the agent selects the flights of a proposal, and in free play the user to
        whom it speaks.
        """
        if kind is ActionKind.PROPOSE:
            flights = [
                Part(
                    f"user {user}",
                    tuple(f"{at}: ${flight.price}, {span(flight)}" for at, flight in enumerate(own)),
                    flights_of(user),
                )
                for user, own in enumerate(user.flights for user in self.state.users)
            ]
            return Choice(
                kind.value, format_proposal((0, 0)), flights, lambda numbers: format_proposal((numbers[0], numbers[1]))
            )
        if kind is not ActionKind.MESSAGE:
            return Choice(kind.value, f"[{kind}]")
        room = self.room_due()
        if not agent or room is not None:
            return Choice(kind.value, f"[message] user {room}: " if agent else "[message] ")
        rooms = [Part("to", tuple(f"user {user}" for user in USERS))]
        return Choice(kind.value, "[message] user 0: ", rooms, lambda numbers: f"[message] user {numbers[0]}: ")

    def act(self, seat: int, text: str) -> Move:
        """Take a turn; see `TurnSession.act`."""
        kind, body = tagged(text)
        if why := self._why_not(seat, kind):
            raise why
        if kind is ActionKind.PROPOSE:
            return self._propose(parse_proposal(body, self.state))
        if kind is ActionKind.MESSAGE:
            return self._say(seat, body)
        return self._answer(seat, kind)

    def about_error(self, seat: int, error: ParseError) -> str:
        return self.prompts.render(
            "error",
            error=str(error),
            errors=self.counts.errors_in_a_row[seat],
            max_errors=self.max_errors,
            choices=[choice.form.strip() for choice in self.choices(seat)],
        )

    def _observations(self, seat: int, move: Move) -> tuple[str, ...]:
        return tuple(move.told.get(other, "") for other, _ in enumerate(self.game.roles))  # `_say` mutes

    def _say(self, seat: int, body: str) -> Move:
        room, words = split_room(body) if seat == AGENT else (seat, body)
        if not words:
            raise ParseError(ErrorKind.EMPTY_MESSAGE, "the message is empty")
        if seat == AGENT and room != self.room_due(room):
            raise ParseError(ErrorKind.NOT_NOW, f"this turn must be a message to user {self.room_due(room)}")
        self.rooms[room].append((seat, f"[{MESSAGE}] {words}"))
        if seat != AGENT:
            self.made[seat].append(len(self.proposals))
        self._pass_on(seat, room)
        hearer = room if seat == AGENT else AGENT
        told = {hearer: self._heard(hearer, seat, self.known_room(room, hearer)[-1][1])}
        if self.next == (AGENT,) and seat == AGENT:
            told[AGENT] = self.prompts.render("next", room=self.room_due())
        return Move(told)

    def _pass_on(self, seat: int, room: int) -> None:
        """Set the seats that act after a message."""
        if seat != AGENT:
            self.next = tuple(other for other in self.next if other != seat) or (AGENT,)
        elif self.config.protocol == "free":
            self.next = (room,)
        elif room == USERS[-1]:
            self.next = USERS

    def _propose(self, pair: Pair) -> Move:
        self.proposals.append(pair)
        if self.config.protocol == "fixed":
            self.end(AGREED, [*pair])
            return Move({}, ActionKind.PROPOSE.value, [*pair])
        self.pending, self.answers, self.next = pair, {}, USERS
        told = {user: self._offered(user, pair) for user in USERS}
        return Move(told, ActionKind.PROPOSE.value, [*pair])

    def _answer(self, seat: int, kind: ActionKind) -> Move:
        self.answers[seat] = kind is ActionKind.ACCEPT
        told = {AGENT: self._heard(AGENT, seat, f"[{kind}]")}
        self.next = tuple(user for user in USERS if user not in self.answers)
        if not self.next and all(self.answers.values()):
            assert self.pending is not None
            self.end(AGREED, [*self.pending])
        elif not self.next:
            self.pending, self.next = None, USERS
            told |= {user: self.prompts.render("failed") for user in USERS}
        return Move(told, kind.value)

    def _why_not(self, seat: int, kind: ActionKind) -> ParseError | None:
        """Returns the reason why a seat may not take an action now; None if it may."""
        if kind not in OF_ROLE[seat == AGENT]:
            who = "users alone may" if seat == AGENT else "the agent alone may"
            return ParseError(ErrorKind.NOT_YOURS, f"{who} {kind}")
        due, answers = self.due(seat), kind in (ActionKind.ACCEPT, ActionKind.REJECT)
        if due is not None and kind is not due:
            return ParseError(ErrorKind.NOT_NOW, f"this turn must be a [{due}]")
        if self.pending is not None and not answers:
            return ParseError(ErrorKind.NOT_NOW, "a proposal is waiting: answer it with [accept] or [reject]")
        if self.pending is None and answers:
            return ParseError(ErrorKind.NOT_NOW, f"there is no proposal to {kind}")
        return None

    def room_due(self, wanted: int | None = None) -> int | None:
        """Returns the user to whom the agent must speak next in the fixed protocol, else the wanted one."""
        if self.config.protocol == "free":
            return wanted
        said = [sum(speaker == AGENT for speaker, _ in room) for room in self.rooms]
        return int(said[0] > said[1])

    def _shown(self, user: int, seat: int) -> dict[str, Any]:
        """Returns the variables of the templates that describe one user to a seat."""
        own, whole = self.state.users[user], seat == user
        events = [event for event in own.events if whole or event.shared]
        return {
            "number": user,
            "hours": (own.flights[0].end - own.flights[0].start) // 60,
            "mean_price": sum(flight.price for flight in own.flights) / len(own.flights),
            "flights": [
                {
                    "id": at,
                    "carrier": flight.carrier,
                    "price": flight.price,
                    "times": span(flight),
                    "arrival": flight.end // 60,
                    "meetings": int(-own.meeting_costs[at]) if whole else None,
                    "clashes": sum(event.shared for event in own.clashes(at)),
                }
                for at, flight in enumerate(own.flights)
            ],
            "events": [
                {"times": span(event), "importance": event.importance if whole else None, "shared": event.shared}
                for event in events
            ],
        }

    def known_room(self, room: int, seat: int) -> tuple[tuple[int, str], ...]:
        """Returns the messages of a room as a seat knows them: its own as written, the others as heard."""
        muted = self.config.mute
        return tuple((speaker, MUTED if muted and speaker != seat else text) for speaker, text in self.rooms[room])

    def _heard(self, hearer: int, speaker: int, text: str) -> str:
        return self.prompts.render("heard", agent=hearer == AGENT, speaker=speaker, text=text, due=self.due(hearer))

    def _offered(self, user: int, pair: Pair) -> str:
        """Returns what a user reads of a proposal: its own flight, and its own points."""
        flight, costs = self.state.users[user].flights[pair[user]], self.state.costs(user, pair)
        return self.prompts.render(
            "offered",
            flight={"id": pair[user], "carrier": flight.carrier, "price": flight.price, "times": span(flight)},
            clashes=[
                {"times": span(event), "importance": event.importance}
                for event in self.state.users[user].clashes(pair[user])
            ],
            costs=costs._asdict(),
            total=costs.total,
        )
