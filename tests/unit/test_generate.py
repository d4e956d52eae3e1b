"""`selfplay generate`: whole groups, exact continuation, refusal of other arguments. Real model, in process."""

import ast
import asyncio
import gzip
import json
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from reports import Reports

import selfplay_pipeline
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import reporting, stopping
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import FileChangedError
from selfplay_pipeline.engines.transformers_engine import TransformersEngine
from selfplay_pipeline.engines.types import EngineError, SamplingParams
from selfplay_pipeline.games.base import Status, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.players import policy_player, script_player
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.run import GenerateJob, PlayTask, run_tasks
from selfplay_pipeline.generate.stage import make_job
from selfplay_pipeline.generate.store import repair
from selfplay_pipeline.generate.trajectory import ChatTokenizer


@cache
def config() -> Config:
    return load_config(
        "tiny", {"generate.num_episodes": 5, "generate.episodes_per_state": 2, "generate.max_new_tokens": 32}
    )


@cache
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load("data/tiny_model")


@cache
def policy() -> TransformersEngine:
    return TransformersEngine("data/tiny_model")


class Flaky:
    """The real engine, which fails or stops the run at chosen requests."""

    def __init__(self, error: type[BaseException], fails: Callable[[int, str], bool]) -> None:
        """Takes the function that says of a request's number and session whether it fails."""
        self.error, self.fails, self.requests = error, fails, 0

    async def generate(self, prompt_ids, params, *, session=""):
        self.requests += 1
        if self.fails(self.requests, session):
            raise self.error(f"on purpose, {self.requests}")
        return await policy().generate(prompt_ids, params, session=session)


def works(number: int, session: str) -> bool:
    return False


def broken(number: int, session: str) -> bool:
    return True


def job(output: Path, **changes) -> GenerateJob:
    return replace(make_job(config(), output, "data/tiny_model", 1, 0), **changes)


def play(task: GenerateJob, players, states=None, on_episode=lambda report: None):
    game = make_game(config().game)
    states = states or (lambda number: game.sample_state(state_rng(0, number)))
    with reporting.use(Reports(on_episode)):
        return asyncio.run(run_tasks([PlayTask(task, game, states, lambda group, number: players)]))[0]


def run(task: GenerateJob, fails=works, error=EngineError, *, context_length=1024):
    policy()._lock = asyncio.Lock()  # one of the event loop at hand
    return play(task, [policy_player(Flaky(error, fails), tokenizer(), task.policy, context_length)] * 2)


SILENT = [script_player("silent")] * 2


def run_silent(task: GenerateJob, on_episode=lambda report: None):
    return play(task, SILENT, on_episode=on_episode)


def ids_in(path: Path) -> list[str]:
    return sorted(record.episode_id for record in read_episodes(path))


ALL = [f"s0-g{group:06d}-p{episode}" for group in range(3) for episode in range(2)]


def test_episodes_are_rounded_up_to_whole_groups_and_logged_with_their_groups(tmp_path):
    summary = run(job(tmp_path / "games.jsonl"))
    records = list(read_episodes(tmp_path / "games.jsonl"))
    assert sorted((r.group_index, r.episode) for r in records) == [(g, p) for g in range(3) for p in range(2)]
    assert summary.episodes == 6
    for record in records:
        assert record.state == next(r.state for r in records if r.group_index == record.group_index)
    assert json.loads((tmp_path / "games.summary.json").read_text())["episodes"] == 6


def test_stopped_and_started_again_nothing_is_played_twice_and_nothing_is_lost(tmp_path):
    path = tmp_path / "games.jsonl"
    with pytest.raises(BaseExceptionGroup):
        run(job(path, max_concurrency=2), lambda number, _: number > 12, MemoryError)
    finished = path.read_text()
    assert 0 < finished.count("\n") < 6
    with path.open("a") as file:
        file.write('{"episode_id": "torn')
    run(job(path))
    assert path.read_text().startswith(finished) and ids_in(path) == ALL


def test_a_file_of_unknown_origin_is_refused(tmp_path):
    path = tmp_path / "games.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match="says how it was made"):
        run(job(path))


def of_line_3(**outcome):
    """Change the outcome in line 3."""

    def change(text: bytes) -> bytes:
        lines = [json.loads(line) for line in text.splitlines()]
        lines[2]["outcome"] |= outcome
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    return change


NO_EPISODE = "its last line is not the beginning of a JSON object"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text * 2, ":7: episode s0-g000000-p0 is in line 1 too"),
        (lambda text: text.replace(b'"group_index":1', b'"group_index":3'),
         "s0-g000001-p0 is of state 3, episode 0, but this run plays states 0 to 2, 2 times each"),
        (lambda text: text.replace(b'"episode":1', b'"episode":2'), "is of state 0, episode 2, but"),
        (gzip.compress, "games.jsonl"), (lambda text: b"\x89PNG", NO_EPISODE),
        (lambda text: text[:-40] + b"\0" * 9, NO_EPISODE), (lambda text: text + b"\0" * 9, NO_EPISODE),
        (lambda text: text + b'{\n{"episode_id": "torn', ":7: "),
        (of_line_3(normalized_reward=1.5), ":3: field 'outcome.normalized_reward'"),
        (of_line_3(status="engine_failure", score=0, normalized_reward=0, proposal=None),
         ":3: field 'outcome.status': a lost episode is played again"),
    ],
)  # fmt: skip
def test_what_is_not_a_file_of_these_episodes_is_refused_as_it_is(tmp_path, change, words):
    path = tmp_path / "games.jsonl"
    run_silent(job(path, max_concurrency=1))
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(UserError) as refused:
        run_silent(job(path))
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert path.read_bytes() == before


def test_states_whose_numbers_no_row_could_hold_are_refused_before_any_is_played(tmp_path):
    two = load_config("tiny", {"generate.num_episodes": 8, "generate.episodes_per_state": 4})
    with pytest.raises(UserError, match=r"--first-state 2147483647: with 2 states, their numbers end above 2147483647"):
        make_job(two, tmp_path / "games.jsonl", "", 0, (1 << 31) - 1, ["random"] * 2)


AT_ONCE = 1 << 16
"""Bytes that are read at a time from the end of a file, where its last line break is sought."""


@pytest.mark.parametrize("whole", [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
@pytest.mark.parametrize("torn", [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE, 2 * AT_ONCE + 1])
def test_of_a_torn_last_line_of_any_length_all_is_cut_and_nothing_before_it(tmp_path, whole, torn):
    path, lines = tmp_path / "games.jsonl", b"{" * whole + b"\n" if whole else b""
    path.write_bytes(lines + b"{" * torn)
    assert repair(path) == torn
    assert path.read_bytes() == lines


@pytest.mark.parametrize("episodes", [2, 6], ids=["in the middle", "after the last episode"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name("old.jsonl")),
        lambda path: path.write_bytes(b""),
        lambda path: path.with_name("new").write_bytes(path.read_bytes()) and path.with_name("new").replace(path),
    ],
    ids=["removed", "renamed", "emptied", "replaced"],
)
def test_a_file_that_another_program_changes_meanwhile_is_no_success(tmp_path, change, episodes):
    path = tmp_path / "games.jsonl"
    summary_path = job(path).summary_path

    def interfere(report):
        assert not summary_path.exists()
        if report.done == episodes:
            change(path)

    with pytest.RaisesGroup(
        pytest.RaisesExc(FileChangedError, match=f"{path}: changed by another program"),
        flatten_subgroups=True, allow_unwrapped=True,
    ):  # fmt: skip
        run_silent(job(path, max_concurrency=1), interfere)
    assert not summary_path.exists()
    assert run_silent(job(path)).episodes == 6
    assert ids_in(path) == ALL


@pytest.mark.long
def test_more_lost_episodes_than_allowed_stop_the_run_and_the_same_command_plays_them(tmp_path):
    path = tmp_path / "games.jsonl"
    with pytest.raises(BaseExceptionGroup) as caught:
        run(job(path, max_failures=2, max_concurrency=1), broken)
    assert "3 episodes were lost to the engine or the partner, the last to: on purpose" in str(
        caught.value.exceptions[0]
    )
    assert "6 of 6 episodes are missing" in str(caught.value.exceptions[0])
    assert path.read_bytes() == b"", "an episode that is lost is not written"
    assert run(job(path)).failures == 0
    assert ids_in(path) == ALL


@pytest.mark.long
def test_episodes_lost_for_a_while_are_played_at_the_end_of_the_same_run(tmp_path):
    summary = run(job(tmp_path / "games.jsonl", max_concurrency=1), lambda number, _: number <= 4)
    assert ids_in(tmp_path / "games.jsonl") == ALL
    assert (summary.episodes, summary.failures) == (6, 0)
    assert "engine_failure" not in (tmp_path / "games.summary.json").read_text()


@pytest.mark.long
def test_what_is_lost_twice_is_counted_and_played_by_the_same_command(tmp_path):
    path = tmp_path / "games.jsonl"
    summary = run(job(path, max_failures=1), lambda _, session: session.startswith(ALL[3]))
    assert (summary.episodes, summary.failures) == (6, 1)
    assert json.loads((tmp_path / "games.summary.json").read_text())["statuses"]["engine_failure"] == 1
    kept = path.read_text()
    assert run(job(path)).failures == 0
    assert path.read_text().startswith(kept)
    assert ids_in(path) == ALL


def test_a_run_without_a_single_episode_is_no_success(tmp_path):
    with pytest.raises(
        EngineError, match=r"all 6 episodes were lost to the engine or the partner, .*: on purpose, 12;"
    ):
        run(job(tmp_path / "games.jsonl", max_failures=16, max_concurrency=1), broken)
    assert not (tmp_path / "games.summary.json").exists()


@pytest.mark.parametrize("concurrency", [1, 64])
def test_ctrl_c_is_heard_between_two_games_of_scripted_players(tmp_path, concurrency):
    task = job(tmp_path / "games.jsonl", num_groups=50_000, max_concurrency=concurrency)
    state = make_game(config().game).sample_state(state_rng(0, 0))
    played: list[int] = []

    def on_episode(report):
        played.append(report.done)
        if report.done == 20:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        play(task, SILENT, lambda number: state, on_episode)
    assert len(ids_in(task.output)) == played[-1] <= 21


def test_no_episode_is_stored_after_a_stop_that_python_swallowed(tmp_path, monkeypatch):
    def swallowed(number: int, session: str) -> bool:
        if number == 8:
            monkeypatch.setattr(stopping.stop, "asked", 0.0)
        return False

    with pytest.raises(KeyboardInterrupt):
        run(job(tmp_path / "games.jsonl", max_concurrency=1), swallowed)
    assert 0 < len(ids_in(tmp_path / "games.jsonl")) < len(ALL)
    assert all(turn.text for record in read_episodes(tmp_path / "games.jsonl") for turn in record.turns)
    assert not (tmp_path / "games.summary.json").exists()


def test_an_engine_that_is_stopping_returns_no_incomplete_completion(monkeypatch):
    monkeypatch.setattr(stopping.stop, "asked", 0.0)
    policy()._lock = asyncio.Lock()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(policy().generate([1, 2, 3], SamplingParams(1.0, 4, ())))


def test_ctrl_c_is_heard_while_a_state_is_sampled(tmp_path):
    task, never = job(tmp_path / "games.jsonl", max_concurrency=2), threading.Event()

    def states(number):
        threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        never.wait(300)

    with pytest.raises(KeyboardInterrupt):
        play(task, SILENT, states)
    never.set()
    assert ids_in(task.output) == []


def test_a_state_is_sampled_once_for_all_episodes_of_its_group_and_its_error_ends_the_run(tmp_path):
    asked, state = [], make_game(config().game).sample_state(state_rng(0, 0))
    play(job(tmp_path / "games.jsonl"), SILENT, lambda number: asked.append(number) or state)
    assert sorted(asked) == [0, 1, 2]

    def fails(number):
        raise UserError("no such state")

    with pytest.raises(BaseExceptionGroup) as caught:
        play(job(tmp_path / "other.jsonl"), SILENT, fails)
    assert str(caught.value.exceptions[0]) == "no such state"


def test_a_run_whose_episodes_all_end_for_lack_of_context_fails_and_keeps_the_episodes(tmp_path):
    with pytest.raises(RuntimeError, match=r"context_length 6; 0\.0 turns an episode.*generate\.max_new_tokens"):
        run(job(tmp_path / "games.jsonl"), context_length=40)
    statuses = [record.outcome.status for record in read_episodes(tmp_path / "games.jsonl")]
    assert statuses == [Status.CONTEXT_LENGTH] * 6
    assert not (tmp_path / "games.summary.json").exists()


def functions_given(whole: str, *folders: str) -> set[str]:
    """Names of the functions in folders of the package that have a parameter of a type."""
    files = [file for folder in folders for file in (Path(selfplay_pipeline.__file__).parent / folder).rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    return {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for one in (*node.args.args, *node.args.kwonlyargs)
        if one.annotation is not None and ast.unparse(one.annotation) == whole
    }


def test_the_whole_configuration_ends_at_the_door_of_the_stage():
    door = {"generate_episodes", "make_job", "record_of", "policy_record", "of"}
    checks = {"check_trainable", "check_seats", "check_models"}
    assert functions_given("Config", "generate", "engines") == door | checks
