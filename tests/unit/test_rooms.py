"""A game of three seats with roles and two private rooms is played, recorded, converted and shown by code that knows
nothing of it."""

import asyncio
import re
from io import StringIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import POLICY, byte_chat, completion
from rich.console import Console

from selfplay_pipeline.convert.parquet import read_rows
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games import registry
from selfplay_pipeline.generate.players import policy_player, script_player
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.run import GenerateJob, PlayTask, run_tasks
from selfplay_pipeline.report.terminal import show_episode

FIRST, SECOND, CLERK = range(3)


class Model:
    """An engine whose model says the letters that it has read, as the clerk only when told to write them."""

    async def generate(self, prompt, params, *, session=""):
        read = byte_chat().tokenizer.decode(prompt)
        hesitates = "You are the clerk." in read and "Write single letters" not in read
        text = "hm" if hesitates else f"[message] {' '.join(re.findall('(?:is|says:) ([a-z])', read))}"
        return completion(byte_chat(), text, read=len(prompt))


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    """Four episodes of two states: a script in the first user's seat, the policy in the others."""
    path = tmp_path_factory.mktemp("rooms") / "selfplay_games.jsonl"
    game = registry.find("examples/relay.py")()
    policy = policy_player(Model(), byte_chat(), POLICY, 100_000)
    players = [script_player("exact"), policy, policy]
    job = GenerateJob(path, 0, 0, 2, 2, 4, POLICY, {}, max_failures=0)
    states = [game.state(letters=letters) for letters in (("p", "q"), ("x", "y"))]
    asyncio.run(run_tasks([PlayTask(job, game, states.__getitem__, lambda group, number: players)]))
    return path


@pytest.fixture(scope="module")
def record(games) -> EpisodeRecord:
    return next(read_episodes(games))


def test_users_act_at_once_then_the_clerk_and_an_illegal_turn_is_repeated(record):
    assert [(turn.seat, turn.text) for turn in record.turns] == [
        (FIRST, "[message] p"), (SECOND, "[message] q"), (CLERK, "hm"), (CLERK, "[message] p q"),
    ]  # fmt: skip
    assert (record.outcome.status, record.outcome.proposal) == ("agreed", ["p", "q"])
    assert record.outcome.normalized_reward == 1.0
    console = Console(file=StringIO(), width=120, highlight=False)
    show_episode(record, console)
    text = console.file.getvalue()
    assert "seat 0, user" in text and "─ seat 2, clerk ─" in text and "illegal: Write single letters" in text


def test_a_room_does_not_hear_the_other(record):
    streams = {
        one.seat: byte_chat().tokenizer.decode([*one.prompt_ids, *one.response_ids]) for one in record.trajectories
    }
    assert re.findall(r"User (\d) says: (.)", streams[CLERK]) == [("0", "p"), ("1", "q")]
    assert "Your letter is q" in streams[SECOND] and "says" not in streams[SECOND]


def test_the_seats_of_the_policy_become_rows_with_the_reward(games):
    report = run_convert(games, games.parent)
    rows = pq.read_table(games.with_name("train.parquet")).to_pylist()
    assert (report.episodes, report.groups, len(rows)) == (4, 2, 8)
    assert [row["extra_info"]["seat"] for row in rows] == [SECOND, CLERK] * 4
    assert {row["data_source"] for row in rows} == {"relay_selfplay"}
    assert {row["reward_model"]["normalized_reward"] for row in rows} == {1.0}
    (read,) = read_rows(games.with_name("train.parquet"))
    assert read.seat.tolist() == [SECOND, CLERK] * 4


def test_a_row_of_a_seat_that_the_game_lacks_is_refused(games, tmp_path):
    run_convert(games, games.parent)
    table = pq.read_table(games.with_name("train.parquet"))
    at = table.schema.names.index("data_source")
    two_seats = pa.array(["dialop_matching_selfplay"] * len(table))
    pq.write_table(table.set_column(at, "data_source", two_seats), tmp_path / "train.parquet")
    with pytest.raises(UserError, match="row 1: field 'seat': 2, expected 0 or more, below the seats of its game"):
        list(read_rows(tmp_path / "train.parquet"))
