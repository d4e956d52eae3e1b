"""A game of three seats with roles and two private rooms is played, recorded, converted and shown by code that knows
nothing of it.

Each user sits in a room with the agent and has a number. Both say theirs at once, the agent tells the first user what
the second one has, and the first user names the sum.
"""

from __future__ import annotations

import asyncio
import re
from io import StringIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import POLICY, byte_chat, completion
from pydantic import BaseModel
from rich.console import Console

from selfplay_pipeline.convert.parquet import read_rows
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games import registry
from selfplay_pipeline.games.base import INVALID, MESSAGE, Game, Opening, Outcome, Status, Step, check_may_act
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, Table
from selfplay_pipeline.games.tags import untagged
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.players import policy_player, script_player
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.run import GenerateJob, PlayTask, run_tasks
from selfplay_pipeline.report.terminal import show_episode

FIRST, SECOND, AGENT = range(3)


class RoomsState(BaseModel):
    numbers: tuple[int, int]


class RoomsSession:
    def __init__(self, state: RoomsState) -> None:
        self.state, self.status, self.said, self.next, self.illegal = state, None, [], (FIRST, SECOND), 0

    @property
    def seats(self):
        return self.next if self.status is None else ()

    def opening(self, seat):
        return Opening("rules", "help them" if seat == AGENT else f"your number is {self.state.numbers[seat]}")

    def step(self, seat, text, *, cut=False):
        check_may_act(self, seat)
        told = ["", "", ""]
        if cut or not untagged(text).isdigit():
            self.illegal, told[seat] = self.illegal + 1, "say a number"
            return Step(INVALID, tuple(told), error="no number", error_kind="no_number")
        number, users_spoke = int(untagged(text)), len(self.said) > 1
        self.said.append(number)
        self.next = tuple(other for other in self.next if other != seat) or ((FIRST,) if users_spoke else (AGENT,))
        if seat == AGENT:
            told[FIRST] = f"the agent said: {number}"
        elif users_spoke:
            self.status = "solved"
            return Step(MESSAGE, ("", "", ""), decision=number)
        else:
            told[AGENT] = f"a user said: {number}"
        return Step(MESSAGE, tuple(told))

    def abort(self, status):
        self.status = self.status or status

    def outcome(self):
        score = float(self.status == "solved" and self.said[-1] == sum(self.state.numbers))
        decision = self.said[-1] if self.status == "solved" else None
        turns = len(self.said)
        return Outcome(self.status, (score,) * 3, score, 1.0, decision, turns + self.illegal, turns, 0, self.illegal)


class LookingSession(RoomsSession):
    """The agent may look the second user's number up: a tool, whose answer it reads within its turn."""

    def step(self, seat, text, *, cut=False):
        if seat != AGENT or untagged(text) != "look":
            return super().step(seat, text, cut=cut)
        check_may_act(self, seat)
        return Step("look", ("", "", f"the table says: {self.state.numbers[SECOND]}"))


class Helpful:
    """Says what helps: its own number, the second user's, the sum."""

    def act(self, view, rng):
        session, seat = view
        first, second = session.state.numbers
        said = {AGENT: second, SECOND: second, FIRST: first + second if session.said[2:] else first}
        return f"[message] {said[seat]}"


class RoomsGame(Game):
    state = RoomsState
    name, roles, goals, error_kinds = "rooms", ("user", "user", "agent"), frozenset({"solved"}), ("no_number",)
    players = {"helpful": Helpful()}

    def sample_state(self, rng):
        return RoomsState(numbers=tuple(rng.integers(1, 9, 2).tolist()))

    def start(self, state):
        return RoomsSession(state)

    def rewards(self, state, decision):
        return (float(decision == sum(state.numbers)),) * 3

    def view(self, session, seat):
        return session, seat

    def draw_state(self, state):
        return StateDrawing(
            views=[
                Table(title="sees", seat=seat, columns=["number"], rows=["own"], cells=[[str(state.numbers[seat])]])
                for seat in (FIRST, SECOND)
            ]
        )

    def draw_episode(self, state, turns, decision):
        return EpisodeDrawing(decision=f"the sum is {decision}")


class LookingGame(RoomsGame):
    def start(self, state):
        return LookingSession(state)


class Model:
    """An engine whose model says the last number that it has read, as an agent only when told to say one."""

    async def generate(self, prompt, params, *, session=""):
        read = byte_chat().tokenizer.decode(prompt)
        hesitates = "help them" in read and "say a number" not in read
        text = "hm" if hesitates else f"[message] {re.findall(r'[0-9]+', read)[-1]}"
        return completion(byte_chat(), text, read=len(prompt))


class Looks:
    """An engine whose model looks up what it says."""

    async def generate(self, prompt, params, *, session=""):
        answers = re.findall(r"the table says: ([0-9]+)", byte_chat().tokenizer.decode(prompt))
        return completion(byte_chat(), f"[message] {answers[-1] if answers else 'look'}", read=len(prompt))


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    """Four episodes of two states: a script in the first user's seat, the policy in the others."""
    path = tmp_path_factory.mktemp("rooms") / "selfplay_games.jsonl"
    policy = policy_player(Model(), byte_chat(), POLICY, 100_000)
    players = [script_player("helpful"), policy, policy]
    job = GenerateJob(path, 0, 0, 2, 2, 4, POLICY, {}, max_failures=0)
    states = [RoomsState(numbers=(3, 4)), RoomsState(numbers=(5, 9))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_found", dict(registry._found))
        registry.register(RoomsGame)
        asyncio.run(run_tasks([PlayTask(job, RoomsGame(), states.__getitem__, lambda group, number: players)]))
        yield path


@pytest.fixture(scope="module")
def record(games) -> EpisodeRecord:
    return next(read_episodes(games))


def test_who_may_act_is_named_and_nobody_else_may():
    session = RoomsSession(RoomsState(numbers=(3, 4)))
    assert session.seats == (FIRST, SECOND)
    with pytest.raises(RuntimeError, match="seat 2 may not act now; it is the turn of 0, 1"):
        session.step(AGENT, "[message] 4")
    session.step(SECOND, "[message] 4")
    assert session.seats == (FIRST,), "each acts once at a time, whoever was first"
    session.abort(Status.TURN_LIMIT)
    assert session.seats == ()


def test_users_act_at_once_then_the_agent_and_an_illegal_turn_is_repeated(record):
    assert [(turn.seat, turn.text) for turn in record.turns] == [
        (FIRST, "[message] 3"), (SECOND, "[message] 4"), (AGENT, "hm"), (AGENT, "[message] 4"), (FIRST, "[message] 7"),
    ]  # fmt: skip
    assert (record.outcome.status, record.outcome.proposal, record.outcome.normalized_reward) == ("solved", 7, 1.0)
    console = Console(file=StringIO(), width=120, highlight=False)
    show_episode(record, console)
    text = console.file.getvalue()
    assert "seat 0, user" in text and "─ seat 2, agent ─" in text and "illegal: no number" in text


def test_a_room_does_not_hear_the_other(record):
    streams = {
        one.seat: byte_chat().tokenizer.decode([*one.prompt_ids, *one.response_ids]) for one in record.trajectories
    }
    assert "a user said: 3\na user said: 4" in streams[AGENT]
    assert "your number is 4" in streams[SECOND] and "said" not in streams[SECOND] and "3" not in streams[SECOND]


def test_whichever_of_two_rooms_is_first_each_seat_reads_the_same():
    heard = []
    for order in ((FIRST, SECOND), (SECOND, FIRST)):
        session = RoomsSession(RoomsState(numbers=(4, 4)))
        steps = [session.step(seat, "[message] 4") for seat in order]
        heard.append(["".join(step.observations[seat] for step in steps) for seat in range(3)])
    assert heard[0] == heard[1] == ["", "", "a user said: 4" * 2]


def test_a_tool_answers_its_own_seat_within_the_turn():
    script, policy = script_player("helpful"), policy_player(Looks(), byte_chat(), POLICY, 100_000)
    episode = Episode(LookingGame(), RoomsState(numbers=(3, 4)), [script, script, policy], "e", (0, 0, 0))
    asyncio.run(episode.run())
    session, agent = episode.session, episode.seats[AGENT]
    taken = [(turn.seat, turn.text) for turn in episode.turns]
    assert taken[2:4] == [(AGENT, "[message] look"), (AGENT, "[message] 4")] and session.status == "solved"
    (own,) = agent.finish()
    sampled = [token for token, mask in zip(own.response_ids, own.response_mask, strict=True) if mask]
    assert "the table says: 4" in byte_chat().tokenizer.decode(own.response_ids)
    assert "the table says" not in byte_chat().tokenizer.decode(sampled), "a tool's answer is not trained on"


def test_the_seats_of_the_policy_become_rows_with_the_reward(games):
    report = run_convert(games, games.parent)
    rows = pq.read_table(games.with_name("train.parquet")).to_pylist()
    assert (report.episodes, report.groups, len(rows)) == (4, 2, 8)
    assert [row["extra_info"]["seat"] for row in rows] == [SECOND, AGENT] * 4
    assert {row["data_source"] for row in rows} == {"rooms_selfplay"}
    assert {row["reward_model"]["normalized_reward"] for row in rows} == {1.0}
    (read,) = read_rows(games.with_name("train.parquet"))
    assert read.seat.tolist() == [SECOND, AGENT] * 4


def test_a_row_of_a_seat_that_the_game_lacks_is_refused(games, tmp_path):
    run_convert(games, games.parent)
    table = pq.read_table(games.with_name("train.parquet"))
    at = table.schema.names.index("data_source")
    two_seats = pa.array(["dialop_matching_selfplay"] * len(table))
    pq.write_table(table.set_column(at, "data_source", two_seats), tmp_path / "train.parquet")
    with pytest.raises(UserError, match="row 1: field 'seat': 2, expected 0 or more, below the seats of its game"):
        list(read_rows(tmp_path / "train.parquet"))
