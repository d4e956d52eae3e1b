"""`selfplay generate`: whole groups, exact continuation, refusal of other arguments. Real model, in process."""

import asyncio
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from selfplay_pipeline.config import Config, load_config
from selfplay_pipeline.engines.transformers_engine import TransformersEngine
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.types import Status, state_rng
from selfplay_pipeline.generate.players import PolicyPlayer, Scripted
from selfplay_pipeline.generate.records import read_games
from selfplay_pipeline.generate.run import GenerateJob, run_generate
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.stages import make_job


@cache
def config() -> Config:
    return load_config("tiny", {"generate.num_games": 5, "generate.plays_per_state": 2, "generate.max_new_tokens": 32})


@cache
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load("data/tiny_model")


@cache
def policy() -> TransformersEngine:
    return TransformersEngine("data/tiny_model")


class Flaky:
    """The real engine, which fails or stops the run at chosen requests."""

    def __init__(self, fail_after: int, error: type[BaseException]) -> None:
        self.left, self.error = fail_after, error

    async def generate(self, prompt_ids, params, *, session=""):
        self.left -= 1
        if self.left < 0:
            raise self.error("on purpose")
        return await policy().generate(prompt_ids, params, session=session)

    async def reload(self, checkpoint: Path) -> None: ...
    async def close(self) -> None: ...


def job(output: Path, **changes) -> GenerateJob:
    return replace(make_job(config(), output, "data/tiny_model", 1, 0), **changes)


def run(task: GenerateJob, engine=None, *, context_length=1024, opponent=None):
    # An engine of the event loop at hand, because its lock belongs to one.
    engine = engine or Flaky(1_000_000, EngineError)
    policy()._lock = asyncio.Lock()
    game = make_game(config().game)
    me = PolicyPlayer(engine, tokenizer(), task.policy, context_length)
    states = lambda number: game.sample_state(state_rng(task.seed, number))  # noqa: E731
    return asyncio.run(run_generate(task, game, states, lambda number: [me, opponent or me]))


def test_games_are_rounded_up_to_whole_groups_and_logged_with_their_groups(tmp_path):
    summary = run(job(tmp_path / "games.jsonl"))
    records = list(read_games(tmp_path / "games.jsonl"))
    assert sorted((r.group_index, r.play) for r in records) == [(g, p) for g in range(3) for p in range(2)]
    assert summary.plays == 6
    for record in records:
        assert record.state == next(r.state for r in records if r.group_index == record.group_index)
    assert json.loads((tmp_path / "games.summary.json").read_text())["plays"] == 6


def test_stopped_and_started_again_nothing_is_played_twice_and_nothing_is_lost(tmp_path):
    path = tmp_path / "games.jsonl"
    with pytest.raises(BaseExceptionGroup):
        run(job(path, max_concurrency=2), Flaky(12, MemoryError))
    finished = path.read_text()
    assert 0 < finished.count("\n") < 6
    with path.open("a") as file:
        file.write('{"game_id": "torn')
    run(job(path))
    assert path.read_text().startswith(finished)
    ids = [record.game_id for record in read_games(path)]
    assert len(ids) == len(set(ids)) == 6


def test_other_arguments_into_the_same_file_are_refused_by_name(tmp_path):
    path = tmp_path / "games.jsonl"
    run(job(path))
    other = job(path)
    with pytest.raises(UserError, match=r"seed \(0 then, 7 now\)"):
        run(replace(other, arguments=other.arguments | {"seed": 7}))


def test_a_file_of_unknown_origin_is_refused(tmp_path):
    path = tmp_path / "games.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match="says how it was made"):
        run(job(path))


def test_engine_failures_are_recorded_and_past_the_limit_stop_the_run(tmp_path):
    with pytest.raises(BaseExceptionGroup) as caught:
        run(job(tmp_path / "games.jsonl", max_failures=2, max_concurrency=1), Flaky(0, EngineError))
    assert "3 plays were lost to the engine or the partner" in str(caught.value.exceptions[0])
    records = list(read_games(tmp_path / "games.jsonl"))
    assert [record.outcome.status for record in records] == [Status.ENGINE_FAILURE] * 3


def test_a_run_without_a_single_play_is_no_success(tmp_path):
    with pytest.raises(EngineError, match=r"all 6 plays were lost to the engine or the partner, the last to: "):
        run(job(tmp_path / "games.jsonl", max_failures=16), Flaky(0, EngineError))
    assert not (tmp_path / "games.summary.json").exists()


def test_a_run_whose_plays_all_end_for_lack_of_context_fails_and_keeps_the_plays(tmp_path):
    with pytest.raises(RuntimeError, match=r"context_length 6; 0\.0 turns a play.*generate\.max_new_tokens"):
        run(job(tmp_path / "games.jsonl"), context_length=40)
    statuses = [record.outcome.status for record in read_games(tmp_path / "games.jsonl")]
    assert statuses == [Status.CONTEXT_LENGTH] * 6
    assert not (tmp_path / "games.summary.json").exists()


def test_a_scripted_partner_leaves_no_trajectory(tmp_path):
    run(job(tmp_path / "games.jsonl"), opponent=Scripted("sharing"))
    for record in read_games(tmp_path / "games.jsonl"):
        assert record.players == ["policy", "sharing"]
        assert [trajectory.player_index for trajectory in record.trajectories] == [0]
        assert {turn.finish_reason for turn in record.turns if turn.player == 1} == {"scripted"}


def test_a_bad_line_names_file_line_and_field(tmp_path):
    path = tmp_path / "games.jsonl"
    run(job(path))
    lines = path.read_text().splitlines()
    broken = json.loads(lines[2])
    broken["outcome"]["normalized_reward"] = 1.5
    path.write_text("\n".join([*lines[:2], json.dumps(broken), *lines[3:]]) + "\n")
    with pytest.raises(UserError, match=r"games\.jsonl:3: field 'outcome\.normalized_reward'"):
        list(read_games(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("game:\n  siez: 3\n", r":2: key 'game\.siez': there is no such key"),
        ("generate:\n  num_games: many\n", r":2: key 'generate\.num_games'"),
        ("game: [", "not YAML"),
        ("- 1\n", "expected keys and values"),
    ],
)
def test_bad_configuration_names_file_line_and_key(tmp_path, text, words):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        load_config(str(path), {})
