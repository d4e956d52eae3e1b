"""Plays random episodes of a game and checks what the rest of the package relies on."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np

from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.games.base import CUT, INVALID, MESSAGE, Game, Session, Status, Step, state_rng
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import where_raised
from selfplay_pipeline.generate.episode_wrappers import RenamedSession
from selfplay_pipeline.generate.human_episodes import NOBODY
from selfplay_pipeline.generate.read_records import parse_episode
from selfplay_pipeline.generate.records import EpisodeRecord, OutcomeRecord, SeatRecord, TurnRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.metrics.figures import measure

TOKENIZER = "data/tiny_model"
"""Shipped model whose tokenizer encodes the turns; it encodes any text in bytes."""
_TURNS = (
    "{{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}}"
    "{{%- for message in (messages[1:] if system else messages) %}}{check}"
    "{{{{- '<|im_start|>' + {role} + '\n' + (system if loop.first else '') + message.content + '<|im_end|>\n' }}}}"
    "{{%- endfor %}}{{%- if add_generation_prompt %}}{{{{- '<|im_start|>' + '{model}' + '\n' }}}}{{% endif %}}"
)
_ALTERNATE = (
    "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
)
TEMPLATES = {
    "its own": None,
    "Gemma's way": _TURNS.format(
        check="", role="('model' if message.role == 'assistant' else message.role)", model="model"
    ),
    "Mistral's way": _TURNS.format(check=_ALTERNATE, role="message.role", model="assistant"),
}
"""Chat templates by name. The model's own has a system message; Gemma's puts its text into the first user message, and
Mistral's also refuses messages whose roles do not alternate."""
NOISE = ("", "hello", "[message]", "[propose]", "[accept]", "[no such tag] 1", "7 <|im_end|> {{ 1 }} é 漢")
"""Texts of turns that most games refuse."""
PACKAGE = __name__.partition(".")[0]
REWARDS = ("rewards", "score", "best")
"""Members that say how good a decision is."""
OF_REWARDS = ("references", "known_lines", "known_reward", "solution", "wordless_rewards", "alter", "human_episodes")
"""Members whose results depend on the game's rewards."""
EPISODES = 4
"""Number of episodes of each state."""
FEW = 3
"""Number of states on which the players also only talk, or half of their texts are garbled."""
GARBLED = 6
"""Number of episodes with garbled texts of each such state; more states would try rules of turns no better."""
BOOKKEEPING = {"game", "config", "counts", "status", "_read", "_said"}
"""Members of a session that illegal turns may change, or that never change."""
SHOWN = 60


class Fault(Exception):
    """A check that a game does not pass; the message says where and what."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        check: What must hold.
        passed: False if it does not hold; None if it could not be checked.
        said: What was found, in one line.
    """

    check: str
    passed: bool | None
    said: str


@dataclass
class _Played:
    """One episode and all that its session answered."""

    number: int
    """Number of its state."""
    state: Any
    texts: list[tuple[int, str, bool]] = field(default_factory=list)
    """Seat and text of each turn, and whether the text was cut off."""
    steps: list[Step] = field(default_factory=list)
    session: Any = None
    changed: list[str] = field(default_factory=list)
    """Turn and member of the session for each member that an illegal turn changed."""

    @property
    def where(self) -> str:
        return f"state {self.number}, turn {len(self.steps)}"


@dataclass
class GameCheck:
    """Checks of one game under one configuration, on random states and episodes.

    Attributes:
        game: The game with its configuration.
        num_states: Number of states.
        seed: Seed of the states and of the players.
    """

    game: Game
    num_states: int = 20
    seed: int = 0

    def findings(self) -> Iterator[Finding]:
        """Yields the result of each check; without episodes, the checks of episodes are left out."""
        checks: dict[str, Callable[[], str]] = {
            "members are spelled right": self._members,
            "figures count its rewards": self._of_own_rewards,
            "states survive JSON": self._states_survive_json,
            "seeds repeat states": self._seeds_repeat,
            "players take their turns": self._players_act,
            "limits end every episode": self._limits_end,
            "steps say what they must": self._steps,
            "illegal turns change nothing": self._unchanged,
            "sessions repeat": self._sessions_repeat,
            "rewards and scores fit": self._rewards,
            "every goal is reached": self._goals,
            "records are read back": self._records,
            "nothing hidden is told": self._nothing_hidden,
            "turns replay token by token": self._replays,
            **({"names can be exchanged": self._renamed} if self.game.has("renamed") else {}),
            "drawings and figures": self._shown,
        }
        for check, run in checks.items():
            try:
                said = run()
                yield Finding(check, None if said.startswith("not checked") else True, said)
            except Fault as fault:
                yield Finding(check, False, str(fault))
            except Exception as error:
                yield Finding(check, False, where_raised(error))
                if check == "players take their turns":
                    return  # there are no episodes to look at

    # --- material -------------------------------------------------------------------------------------------

    @cached_property
    def _states(self) -> list[Any]:
        return [self.game.sample_state(state_rng(self.seed, number)) for number in range(self.num_states)]

    @cached_property
    def _episodes(self) -> list[_Played]:
        """Episodes of the scripted players in all mixtures, with noise, and of players that only talk or only err."""
        found = []
        for number, state in enumerate(self._states):
            for episode in range(EPISODES):
                rng = np.random.default_rng([self.seed, number, episode])
                noise = (0.0, 0.0, 0.2, 1.0)[episode]
                found.append(self._play(number, state, rng, noise=noise))
        for number, state in enumerate(self._states[:FEW]):
            for episode in range(GARBLED):
                rng = np.random.default_rng([self.seed, number, EPISODES + episode])
                found.append(self._play(number, state, rng, garbled=True))
        talk = [(seat, text) for played in found for seat, text, step in _legal(played) if step.action == MESSAGE]
        for number, state in enumerate(self._states[:FEW]):
            said = {seat: text for seat, text in talk}
            found.append(self._play(number, state, np.random.default_rng(0), talk=said))
        return found

    @cached_property
    def _finished(self) -> list[_Played]:
        return [played for played in self._episodes if played.session.status is not None]

    def _play(
        self,
        number: int,
        state: Any,
        rng: np.random.Generator,
        *,
        noise: float = 0.0,
        garbled: bool = False,
        talk: dict[int, str] | None = None,
    ) -> _Played:
        played = _Played(number, state, session=self.game.start(state))
        names = [*self.game.players] or [""]
        scripts = [names[rng.integers(len(names))] for _ in self.game.roles]
        while (seats := played.session.seats) and len(played.steps) <= self.game.config.max_length:
            seat, cut = seats[0], False
            if talk is not None:
                text = talk.get(seat, NOISE[2])
            elif not scripts[0] or rng.random() < noise:
                text, cut = NOISE[rng.integers(len(NOISE))], bool(rng.random() < 0.2)
            else:
                text = self.game.players[scripts[seat]].act(self.game.view(played.session, seat), rng)
                if garbled and rng.random() < 0.5:
                    text = _garbled(own := text, self.game.actions, rng)
                    noise = 1.0 * (text != own)
            _take(played, seat, text, cut)
            if garbled and played.steps[-1].error is not None:
                noise = 0.0  # a legal one may be a lie, which players need not understand
        return played

    def _record(self, played: _Played) -> EpisodeRecord:
        turns = [
            TurnRecord.of(seat, text, step, "scripted")
            for (seat, text, _), step in zip(played.texts, played.steps, strict=True)
        ]
        return EpisodeRecord.of(
            [SeatRecord(kind="script", name="check")] * len(self.game.roles),
            NOBODY,
            episode_id=f"check-{played.number}",
            group_index=played.number,
            episode=0,
            seed=self.seed,
            game=self.game.name,
            state=self.game.state_to_json(played.state),
            turns=turns,
            trajectories=[],
            outcome=OutcomeRecord.of(played.session.outcome()),
        )

    # --- checks ---------------------------------------------------------------------------------------------

    def _states_survive_json(self) -> str:
        for number, state in enumerate(self._states):
            self._fits(number, state, "sample_state draws it")
            written = self.game.state_to_json(state)
            data = json.loads(json.dumps(written))
            again = self.game.state_to_json(self.game.state_from_json(data))
            if json.loads(json.dumps(again)) != data:
                raise Fault(f"state {number}: is {_short(data)}, but {_short(again)} after it was written and read")
            if _openings(self.game, state) != _openings(self.game, state):
                raise Fault(
                    f"state {number}: two sessions of one state have other openings, so that no episode can be repeated"
                )
            for seat, _ in enumerate(self.game.roles):
                if _openings(self.game, state)[seat] != _openings(self.game, self.game.state_from_json(data))[seat]:
                    raise Fault(f"state {number}: seat {seat} has another opening after the state was written and read")
        return f"{len(self._states)} states"

    def _fits(self, number: int, state: Any, drawn: str) -> None:
        try:
            self.game.check_fits(state)
        except UserError as error:
            raise Fault(f"state {number}: {drawn}, but check_fits refuses it: {error}") from None

    def _members(self) -> str:
        own = {
            name: kind
            for kind in type(self.game).__mro__
            if not kind.__module__.startswith(PACKAGE)
            for name in vars(kind)
        }
        known = {name for name in (*dir(Game), *Game.__annotations__) if not name.startswith("_")}
        for name in own:
            if name not in known and not name.startswith("_") and (like := get_close_matches(name, known, cutoff=0.8)):
                raise Fault(
                    f"{own[name].__name__}.{name}: a game has no such member; rename it to {like[0]}, or to _{name}"
                )
        return f"{len(own.keys() & known)} of a game's {len(known)}"

    def _of_own_rewards(self) -> str:
        kind = type(self.game)
        for name in OF_REWARDS:
            parent = next((one for one in kind.__mro__ if name in vars(one)), Game)
            if parent is not Game and (changed := [one for one in REWARDS if _differs(kind, parent, one)]):
                raise Fault(
                    f"{kind.__name__}.{changed[0]} differs from that of {parent.__name__}, for which {name} was "
                    f"written; write {name} for your rewards, or set {name} = Game.{name} in the class to do without it"
                )
        return "all are written for its rewards"

    def _seeds_repeat(self) -> str:
        written = [json.dumps(self.game.state_to_json(state), sort_keys=True) for state in self._states]
        for number, text in enumerate(written):
            again = self.game.state_to_json(self.game.sample_state(state_rng(self.seed, number)))
            if json.dumps(again, sort_keys=True) != text:
                raise Fault(f"state {number}: sample_state gives another state with the same generator; use only `rng`")
        if len({*written}) == 1:
            raise Fault(f"all {len(written)} states are equal; sample_state must draw them with `rng`")
        return f"{len({*written})} different states of {len(written)} seeds"

    def _players_act(self) -> str:
        return f"{len(self._episodes)} episodes of {', '.join(self.game.players) or 'noise alone'}"

    def _limits_end(self) -> str:
        limit = self.game.config.max_length
        for played in self._episodes:
            if played.session.status is None or len(played.steps) > limit:
                raise Fault(f"{played.where}: the episode goes on after max_length, {limit} turns")
            if played.session.seats:
                raise Fault(f"{played.where}: the episode has ended, but `seats` is {played.session.seats}")
        counts = Counter(str(played.session.status) for played in self._episodes)
        return ", ".join(f"{status} {count}" for status, count in counts.most_common())

    def _steps(self) -> str:
        kinds = {CUT, *self.game.error_kinds}
        for played in self._finished:
            for number, ((seat, _, _), step) in enumerate(zip(played.texts, played.steps, strict=True), start=1):
                where = f"state {played.number}, turn {number}"
                if len(step.observations) != len(self.game.roles):
                    raise Fault(f"{where}: {len(step.observations)} observations for {len(self.game.roles)} seats")
                if step.action not in {INVALID, *self.game.actions}:
                    raise Fault(f"{where}: action {step.action!r} is not in Game.actions")
                if (step.action == INVALID) != (step.error is not None):
                    raise Fault(f"{where}: action {step.action!r} with error {step.error!r}")
                if step.error is not None and step.error_kind not in kinds:
                    raise Fault(f"{where}: error kind {step.error_kind!r} is not in Game.error_kinds")
                if step.error is not None and any(step.observations[:seat] + step.observations[seat + 1 :]):
                    raise Fault(f"{where}: other seats read something of an illegal action")
                if step.error is not None and number < len(played.texts) and played.texts[number][0] != seat:
                    raise Fault(f"{where}: seat {seat} loses its turn by an illegal action")
                again = number < len(played.texts) and played.texts[number][0] == seat
                if again and not step.observations[seat]:
                    raise Fault(f"{where}: seat {seat} acts again, but reads nothing new before")
        steps = [step for played in self._finished for step in played.steps]
        illegal = sum(step.error is not None for step in steps)
        return f"{len(steps)} turns, {illegal} of them illegal{self._not_reached(steps)}"

    def _not_reached(self, steps: Sequence[Step]) -> str:
        """Returns the actions and error kinds of which the other checks have seen nothing, as text."""
        actions = sorted(self.game.actions - {step.action for step in steps})
        kinds = sorted({*self.game.error_kinds} - {step.error_kind for step in steps})
        parts = [f"{what} {', '.join(names)}" for what, names in (("action", actions), ("error kind", kinds)) if names]
        return f"; not reached, and so not checked: {'; '.join(parts)}" if parts else ""

    def _unchanged(self) -> str:
        if self.game.chance_later:
            return "not checked: an environment may count illegal turns itself"
        for played in self._finished:
            if played.changed:
                raise Fault(f"state {played.number}, {played.changed[0]}; raise ParseError before anything is changed")
        return "members of the session are equal before and after"

    def _sessions_repeat(self) -> str:
        for played in self._finished:
            again = _Played(played.number, played.state, session=self.game.start(played.state))
            for (seat, text, cut), step in zip(played.texts, played.steps, strict=True):
                _take(again, seat, text, cut)
                if again.steps[-1] != step:
                    raise Fault(f"{again.where}: the same turns give {_short(again.steps[-1])} and {_short(step)}")
            if again.session.outcome() != played.session.outcome():
                raise Fault(f"{again.where}: the same turns give two outcomes; a session may draw nothing at random")
        return f"{len(self._finished)} episodes, played again"

    def _rewards(self) -> str:
        found: list[float] = []
        for played in self._finished:
            outcome, where = played.session.outcome(), f"state {played.number}"
            if len(outcome.rewards) != len(self.game.roles):
                raise Fault(f"{where}: {len(outcome.rewards)} rewards for {len(self.game.roles)} seats")
            for seat, reward in enumerate(outcome.rewards):
                if not 0 <= reward <= 1:
                    raise Fault(f"{where}: reward {reward} of seat {seat} is outside of 0 to 1")
            if any(outcome.rewards) and outcome.status not in self.game.goals:
                raise Fault(f"{where}: rewards {outcome.rewards} with status {outcome.status}, which is not a goal")
            if self.game.shared_reward and len({*outcome.rewards}) > 1:
                raise Fault(f"{where}: rewards {outcome.rewards} differ, but Game.shared_reward is True")
            if not outcome.best > 0:
                raise Fault(f"{where}: the best score is {outcome.best}, but must be above 0")
            found += outcome.rewards
        return f"from {min(found):.3f} to {max(found):.3f}"

    def _goals(self) -> str:
        reached = {str(played.session.status) for played in self._finished}
        unknown = reached - self.game.goals - {*map(str, Status)}
        if unknown:
            raise Fault(f"status {min(unknown)!r} is neither in Game.goals nor one of {', '.join(map(str, Status))}")
        if not self.game.players:
            return "not checked: the game has no scripted players that could reach one"
        missing = self.game.goals - reached
        if missing:
            raise Fault(f"goal {min(missing)!r} is reached in none of {len(self._finished)} episodes of its players")
        return ", ".join(sorted(self.game.goals))

    def _records(self) -> str:
        for played in self._finished:
            try:
                line = self._record(played).model_dump_json()
                parse_episode(line.encode())
            except ValueError as error:
                raise Fault(f"state {played.number}: {str(error).splitlines()[0]}") from None
        return f"{len(self._finished)} episodes, written and read"

    def _nothing_hidden(self) -> str:
        if self.game.chance_later:
            return "not checked: states decide what is drawn at random later, too"
        checked = Counter[int]()
        for played in self._finished:
            for seat, _ in enumerate(self.game.roles):
                for other in islice(self._alike(played, seat), 3):
                    checked[seat] += 1
                    self._compare(played, seat, other)
        if not checked:
            return "not checked: no change of a state shows in the opening of one seat alone"
        return ", ".join(f"seat {seat}: {count} episodes" for seat, count in sorted(checked.items()))

    def _alike(self, played: _Played, seat: int) -> Iterator[Any]:
        """Yields states that differ from an episode's state only in what another seat's opening shows."""
        game, rng = self.game, np.random.default_rng([self.seed, played.number, seat])
        own = _openings(game, played.state)
        for other in self._changed(played, seat, rng):
            theirs = _openings(game, other)
            if theirs[seat] == own[seat] and theirs != own:
                yield other

    def _renamed(self) -> str:
        """Plays the turns of all episodes again with other names for each seat; the rewards must be the same."""
        game, rng = self.game, np.random.default_rng([self.seed, 0])
        for played in self._episodes:
            names = [game.draw_names(played.state, rng) for _ in self.game.roles]
            session = RenamedSession(self.game, played.state, names)
            for number, (seat, text, cut) in enumerate(played.texts):
                if seat not in session.seats:
                    break
                step = session.step(seat, text, cut=cut)
                if step.action != played.steps[number].action:
                    raise Fault(f"{played.where}: {text!r} is {step.action} with other names")
            if session.status is not None:
                session.outcome()
        return f"{len(self._episodes)} episodes"

    def _changed(self, played: _Played, seat: int, rng: np.random.Generator) -> Iterator[Any]:
        if self.game.has("redraw"):
            other = self.game.redraw(played.state, seat, rng)
            self._fits(played.number, other, f"redraw draws another one for seat {seat}")
            if _openings(self.game, other)[seat] != _openings(self.game, played.state)[seat]:
                raise Fault(f"state {played.number}: redraw changes the opening of seat {seat}, which it has to keep")
            yield other
            return
        data = self.game.state_to_json(played.state)
        for donor in rng.permutation(len(self._states))[:8]:
            given = self.game.state_to_json(self._states[donor])
            for key, value in data.items():
                parts = range(len(value)) if isinstance(value, list) and len(value) == len(given[key]) else ()
                changes = [given[key], *([*value[:at], given[key][at], *value[at + 1 :]] for at in parts)]
                for change in changes:
                    try:
                        yield self.game.state_from_json(json.loads(json.dumps(data | {key: change})))
                    except UserError:
                        continue  # no state of the game

    def _compare(self, played: _Played, seat: int, other: Any) -> None:
        """Raises Fault if a seat reads different things in two states although all said the same."""
        session = self.game.start(other)
        for number, ((actor, text, cut), step) in enumerate(zip(played.texts, played.steps, strict=True), start=1):
            if actor not in session.seats:
                return
            found = session.step(actor, text, cut=cut)
            if found.action != step.action:
                return  # the rules answer otherwise, and the episodes part
            if step.action in self.game.disclosing:
                continue
            one, two = step.observations[seat], found.observations[seat]
            if one != two:
                raise Fault(
                    f"state {played.number}, turn {number}: seat {seat} reads {_short(one)}, but {_short(two)} where "
                    "only another seat's opening differs"
                )

    def _replays(self) -> str:
        if find_spec("transformers") is None:
            return "not checked: transformers is not installed"
        chat = ChatTokenizer.load(shipped(TOKENIZER))
        for name, template in TEMPLATES.items():
            if template is not None:
                chat.tokenizer.chat_template = template
                chat = ChatTokenizer(chat.tokenizer)
            for played in self._finished[: 2 * EPISODES]:
                try:
                    self._replay(played, chat)
                except (ValueError, UserError) as error:
                    raise Fault(f"state {played.number}, chat template in {name}: {error}") from None
        return f"with {len(TEMPLATES)} chat templates"

    def _replay(self, played: _Played, chat: ChatTokenizer) -> None:
        for side in replay(self._record(played), self.game, chat):
            legal = [text for seat, text, _ in _legal(played) if seat == side.seat]
            spans, said = np.flatnonzero(np.diff(side.response_mask, prepend=0, append=0)).tolist(), []
            for begin, end in zip(spans[::2], spans[1::2], strict=True):
                said.append(chat.decode_reply(side.response_ids[begin:end]))
            if said != [chat.neutralise(text) for text in legal]:
                raise ValueError(
                    f"the tokens of seat {side.seat} decode to {_short(said)}, but it said {_short(legal)}"
                )

    def _shown(self) -> str:
        for played in self._finished[: 2 * EPISODES]:
            record = self._record(played)
            self.game.draw_state(played.state)
            self.game.draw_episode(played.state, record.turns, record.outcome.proposal)
            measure(Measured(self.game, record, range(len(self.game.roles))))
            json.dumps(self.game.solution(played.state))
        self.game.references(self._states)
        return self.game.describe()


def check_game(game: Game | type[Game], num_states: int = 20, seed: int = 0) -> list[Finding]:
    """Returns the result of each check of a game; of a class, under its default configuration."""
    return [*GameCheck(game if isinstance(game, Game) else game(), num_states, seed).findings()]


def _differs(kind: type[Game], parent: type[Any], name: str) -> bool:
    """Returns whether a class has another implementation of a member than a parent that implements it."""
    there = getattr(parent, name)
    return there is not getattr(Game, name) and there is not getattr(kind, name)


def _take(played: _Played, seat: int, text: str, cut: bool) -> None:
    session = played.session
    before, seats = _members_of(session), session.seats
    step = session.step(seat, text, cut=cut)
    played.texts.append((seat, text, cut))
    played.steps.append(step)
    if step.error is not None and session.seats == seats:  # else the turn was lost, or ended the episode
        after = _members_of(session)
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        played.changed += [
            f"turn {len(played.steps)}: an illegal turn changes {name!r} of the session" for name in names
        ]


def _members_of(session: Any) -> dict[str, Any]:
    """Returns comparable copies of a session's members, without those in `BOOKKEEPING`."""
    return {name: _frozen(value) for name, value in vars(session).items() if name not in BOOKKEEPING}


def _frozen(value: Any, depth: int = 6) -> Any:
    """Returns a comparable copy of a value: an object's members; the type of one that is frozen or has none."""
    if isinstance(value, str | bytes | int | float | None):
        return value
    if depth and isinstance(value, Mapping):
        return {repr(key): _frozen(one, depth - 1) for key, one in value.items()}
    if depth and isinstance(value, list | tuple | deque):
        return [_frozen(one, depth - 1) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, np.ndarray):
        return value.tolist()
    rules = getattr(value, "__dataclass_params__", None)
    frozen = getattr(rules, "frozen", False) or getattr(value, "model_config", {}).get("frozen", False)
    if depth and not frozen and not callable(value) and hasattr(value, "__dict__"):
        kept = (name for name in vars(value) if not isinstance(getattr(type(value), name, None), cached_property))
        return {name: _frozen(vars(value)[name], depth - 1) for name in kept}
    return type(value).__name__


def _garbled(text: str, actions: Collection[str], rng: np.random.Generator) -> str:
    """Returns the text of a turn with a number, a word, a line or its action replaced, left out or repeated."""
    match rng.integers(5):
        case 0:
            return re.sub(r"\d+", lambda _: str(rng.integers(100)), text)
        case 1:
            action = sorted(actions)[rng.integers(len(actions))]
            return re.sub(r"^\[[^\]]*\]", lambda _: f"[{action}]", text)
        case 2:
            parts = re.split(r"(?<=\s)", text)
            return "".join(part for part in parts if rng.random() < 0.8)
        case 3:
            return re.sub(r"(?<!\[)\b[^\W\d_]+\b(?!\])", lambda word: word[0] if rng.random() < 0.7 else "zyx", text)
        case _:
            return f"{text}\n{text.partition(' ')[2]}"


def _legal(played: _Played) -> Iterator[tuple[int, str, Step]]:
    for (seat, text, _), step in zip(played.texts, played.steps, strict=True):
        if step.error is None:
            yield seat, text, step


def _openings(game: Game, state: Any) -> list[Any]:
    session: Session = game.start(state)
    return [session.opening(seat) for seat, _ in enumerate(game.roles)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
