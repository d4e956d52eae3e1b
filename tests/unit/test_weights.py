"""A checkpoint is what it holds: records, rows and resumed runs name its content hash, and `train` insists on it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import next_words, selfplay
from factories import (
    BOARD,
    POLICY,
    TINY,
    Habits,
    RandomTurns,
    board_state,
    byte_chat,
    make_episode,
    make_episodes,
    untrained,
    write_episodes,
)

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.imitation import Source
from selfplay_pipeline.convert.parquet import sampler_of
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.pairing import Pairing
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import ContextFull, Episode
from selfplay_pipeline.generate.players import policy_player
from selfplay_pipeline.generate.read_records import parse_episode
from selfplay_pipeline.generate.records import PolicyRecord
from selfplay_pipeline.generate.seats import seats_named
from selfplay_pipeline.generate.stage import make_job
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.train import imitation, offline_stage
from selfplay_pipeline.train.offline import check_sampler, run_train
from selfplay_pipeline.train.process import TrainError

OTHER = "data/tiny_honest_model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that a test may change."""
    return Path(shutil.copytree(TINY, tmp_path / "model with a space"))


def change(model: Path) -> None:
    """Other weights of the same size, in a file of the same time."""
    file = model / "model.safetensors"
    times, data = file.stat(), bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def policy_of(model: str | Path) -> PolicyRecord:
    return POLICY.model_copy(update={"checkpoint": str(model), "weights": content_hash(str(model))})


def rows_of(model: str | Path, folder: Path, **options: Any) -> Path:
    """Rows of episodes that a model is recorded to have played."""
    games = write_episodes(folder / "games.jsonl", make_episodes(3, 4, policy=policy_of(model), **options))
    run_convert(games, folder)
    return folder / "train.parquet"


def refused(*arguments: str) -> str:
    """The line that a command is refused with."""
    done = selfplay(*arguments)
    lines = [line for line in done.stderr.splitlines() if line.startswith("selfplay: ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    return lines[0]


@pytest.fixture
def trained(monkeypatch) -> list[TrainConfig]:
    """The trainings that `train` was about to begin once the rows' model was checked. It then stops."""
    seen: list[TrainConfig] = []

    def train(config: TrainConfig, *rest: Any) -> None:
        check_sampler(config)
        seen.append(config)
        raise UserError("seen")

    monkeypatch.setattr(offline_stage, "run_train", train)
    return seen


# --- records and rows -----------------------------------------------------------------------------------------------


def test_an_episode_names_the_weights_of_the_policy_and_of_another_checkpoint_in_a_seat():
    state = board_state(0, 0)
    engine = RandomTurns(byte_chat(), state, Habits(), np.random.default_rng(0), 0, ContextFull)
    policy = policy_player(engine, byte_chat(), policy_of(TINY), 1 << 30)
    other = policy_player(engine, byte_chat(), policy_of(OTHER), 1 << 30, "checkpoint", OTHER, trained=False)
    players = [policy, other]
    seated = Episode(MatchingGame(BOARD), state, players, "e", (0, 0, 0))
    engine.episode = seated
    seated.play_out()
    record, alone = seated.record(POLICY), make_episode()
    assert (alone.policy.weights, alone.other_weights) == (content_hash(TINY), None)
    assert record.other_weights == {OTHER: content_hash(OTHER)}
    line = record.model_dump_json().encode()
    assert parse_episode(line) == record
    without = parse_episode(line.replace(b'"weights":"%s",' % POLICY.weights.encode(), b""))
    assert without.policy.weights == "", "unknown, so that nothing can be trained on it unasked"


def test_a_hub_model_on_an_attached_server_is_not_downloaded_for_a_hash_that_the_server_may_not_have(tmp_path):
    config = load_config("tiny", {"engine.server_url": ["http://127.0.0.1:9"]})
    job = make_job(config, tmp_path / "games.jsonl", "some/model", 0, 0, ["policy", "another/model"])
    partner = seats_named(make_game(config.game), config.engine, ["another/model"], job.policy)[0].policy
    states = held_out_states(make_game(config.game), 2)
    paired = Pairing("some/model", "another/model", states, tmp_path / "paired.jsonl", 1, 0.0).job(config)
    assert partner is not None
    assert (job.policy.weights, partner.weights, paired.policy.weights) == ("", "", "")
    assert make_job(config, tmp_path / "games.jsonl", TINY, 0, 0).policy.weights == content_hash(TINY)


def test_rows_of_a_hub_model_on_an_attached_server_are_trained_on_by_the_model_of_this_name(tmp_path):
    policy = POLICY.model_copy(update={"checkpoint": "some/model", "weights": ""})
    run_convert(write_episodes(tmp_path / "games.jsonl", make_episodes(3, 4, policy=policy)), tmp_path)
    config = TrainConfig(model="some/model", data=tmp_path / "train.parquet", output=tmp_path / "training")
    check_sampler(config)
    with pytest.raises(UserError, match=f"sampled by some/model on an attached server, not by {TINY}; give --model so"):
        check_sampler(config.model_copy(update={"model": TINY}))


def test_two_checkpoints_in_one_file_are_not_converted(tmp_path, model):
    before = policy_of(model)
    change(model)
    now = policy_of(model)
    episodes = [*make_episodes(2, 4, policy=before), *make_episodes(4, 4, policy=now)][:-4]
    games = write_episodes(tmp_path / "games.jsonl", episodes)
    said = refused("convert", str(games))
    assert f"{games}:9: field 'policy.weights'" in said and "line 1 by" in said and "a file of its own" in said
    assert before.weights in said and now.weights in said
    assert not (tmp_path / "train.parquet").exists()


# --- train trains the model that played -----------------------------------------------------------------------------


def test_a_moved_model_with_equal_files_is_trained(tmp_path, model, trained):
    rows = rows_of(model, tmp_path)
    moved = model.rename(tmp_path / "moved")
    said = refused("train", str(rows))
    assert f"{model}: no Hugging Face model there" in said and "give --model" in said
    selfplay("train", str(rows), "--model", str(moved))
    assert [training.model for training in trained] == [str(moved)]


def test_the_model_that_played_is_trained_in_place_of_that_of_a_file_which_is_said(tmp_path, model, trained):
    rows, file = rows_of(model, tmp_path), tmp_path / "own.yaml"
    file.write_text(f"base: tiny\nmodel: {OTHER}\n")
    train = ("train", str(rows), "--config", str(file))
    assert f"model: {model}, which sampled the rows, in place of {OTHER}" in selfplay(*train, "--dry-run").stderr
    selfplay(*train)
    assert [training.model for training in trained] == [str(model)]
    helped = selfplay("train", "--help").stdout
    assert "--model" in helped and "tiny_honest_model" not in helped


@pytest.mark.parametrize("other", [OTHER, "smaller", "changed"])
def test_another_model_than_the_one_that_played_is_refused_unless_it_is_asked_for(tmp_path, model, other, trained):
    """Also one of another vocabulary, and one whose files have changed, whatever its token ids are."""
    rows, played = rows_of(model, tmp_path), content_hash(str(model))
    if other == "changed":
        change(model)
        other = str(model)
    elif other == "smaller":
        other = untrained("tiny_bargaining", tmp_path / "smaller")
    train = ("train", str(rows), "--config", "tiny", "--model", other, "--output", str(tmp_path / "training"))
    said = refused(*train)
    assert all(words in said for words in (str(rows), str(model), played, content_hash(other), "--any-model"))
    assert not (tmp_path / "training").exists()
    selfplay(*train, "--any-model")
    assert [(training.model, training.any_model) for training in trained][-1] == (other, True)


def test_a_model_with_too_small_a_vocabulary_for_the_rows_is_refused_whatever_is_asked_for(tmp_path):
    rows = rows_of(OTHER, tmp_path, chat=ChatTokenizer.load(OTHER))
    smaller = untrained("tiny_bargaining", tmp_path / "smaller")
    said = refused("train", str(rows), "--model", smaller, "--any-model", "--output", str(tmp_path / "training"))
    assert "but the model's ids are 0 to 298; give --model, the model that sampled these rows" in said


def test_rows_that_name_no_model_are_trained_on_by_any_model_alone(tmp_path):
    rows = rows_of(TINY, tmp_path)
    table = pq.read_table(rows)
    facts = json.loads(table.schema.metadata[b"selfplay"]) | {"weights": "", "checkpoint": 7}
    pq.write_table(table.replace_schema_metadata({"selfplay": json.dumps(facts)}), rows)
    config = TrainConfig(model=TINY, data=rows, output=tmp_path / "training")
    with pytest.raises(UserError, match="does not say which model sampled its rows"):
        check_sampler(config)
    check_sampler(config.model_copy(update={"any_model": True}))


# --- resumed runs ---------------------------------------------------------------------------------------------------


class Dies:
    """A trainer that ends before the first step."""

    async def run(self, *task: Any) -> None:
        raise TrainError("on purpose")


def begun_with(*keys: str) -> Any:
    """What refuses a run of which one of these differs by its content hash."""
    return pytest.raises(UserError, match=rf"begun with ({'|'.join(keys)}) = '\w{{32}}', now it is '\w{{32}}'")


def test_a_training_goes_on_only_with_the_same_rows_and_the_same_model(tmp_path, model):
    rows = rows_of(model, tmp_path)
    config = TrainConfig(model=str(model), data=rows, output=tmp_path / "training", any_model=True, device="cpu")

    def train() -> None:
        asyncio.run(run_train(config, trainer=Dies()))  # type: ignore[arg-type]

    for _ in "begun", "continued":
        with pytest.raises(TrainError, match="on purpose"):
            train()
    table = pq.read_table(rows)
    halved = [row | {"response_logprobs": [p / 2 for p in row["response_logprobs"]]} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(halved, table.schema), rows)
    with begun_with("rows"):
        train()
    rows_of(model, tmp_path)
    change(model)
    with begun_with(r"weights\.model"):
        train()


@pytest.mark.parametrize(("seats", "key"), [((), r"policy\.weights"), (("policy", "other"), r"weights\.1")])
def test_a_generation_goes_on_only_with_the_same_weights(tmp_path, model, seats, key):
    config, output = load_config("tiny", {}), tmp_path / "games.jsonl"
    policy, seats = str(model) if not seats else TINY, tuple(str(model) if seat == "other" else seat for seat in seats)
    with make_job(config, output, policy, 0, 0, seats).store.opened(lambda episode: None):
        pass
    make_job(config, output, policy, 0, 0, seats).store.check()
    change(model)
    with begun_with(key):
        make_job(config, output, policy, 0, 0, seats).store.check()
    command = ("generate", "--config", "tiny", "--model", policy, "--output", str(output))
    assert re.search(f"begun with {key}", refused(*command, *(word for seat in seats for word in ("--player", seat))))


def test_episodes_of_an_evaluation_are_not_those_of_changed_weights(tmp_path, model):
    config = load_config("tiny", {})
    states = held_out_states(make_game(config.game), 2)
    pairings = [Pairing(str(model), other, states, tmp_path / "e.jsonl", 1) for other in (str(model), "sharing")]
    before = [pairing.job(config).arguments for pairing in pairings]
    change(model)
    assert all(pairing.job(config).arguments != earlier for pairing, earlier in zip(pairings, before, strict=True))


@pytest.mark.parametrize("changed", ["model", "partner"])
def test_a_run_goes_on_only_with_the_same_initial_weights(tmp_path, model, changed):
    given = {"model": str(model)} if changed == "model" else {"model": TINY, "iterate.partner": str(model)}
    config: Config = load_config("tiny", given)
    for _ in "begun", "continued":
        RunDirectory(tmp_path / "run").open(config)
    change(model)
    with begun_with(rf"weights\.{changed}"):
        RunDirectory(tmp_path / "run").open(config)


def test_an_imitation_goes_on_only_with_the_same_model(tmp_path, model, monkeypatch):
    games = write_episodes(tmp_path / "games.jsonl", make_episodes(8, 2))
    game = BOARD.model_copy(update={"prompts": "compact"})
    config = load_config("tiny", {"model": str(model)}).model_copy(update={"game": game})

    async def trained(job: TrainConfig, *rest: Any) -> TrainConfig:
        return job

    monkeypatch.setattr(imitation, "train_policy", trained)
    assert asyncio.run(imitation.imitate_episodes(config, [Source(games)], tmp_path / "out")).any_model  # type: ignore[attr-defined]
    change(model)
    with begun_with("weights"):
        asyncio.run(imitation.imitate_episodes(config, [Source(games)], tmp_path / "out"))


# --- printed commands -----------------------------------------------------------------------------------------------


def test_the_commands_that_are_printed_lead_from_rows_to_the_training_of_their_model(tmp_path, model, trained):
    """With the options that were given to the command before and that the next one takes."""
    folder = tmp_path / "it's here"
    games = write_episodes(folder / "games.jsonl", make_episodes(3, 4, policy=policy_of(model)))
    words = next_words(selfplay("convert", str(games), "--config", "tiny_shy", "--seed", "7"))
    assert words[:2] == ["train", str(folder / "train.parquet")]
    assert sampler_of(folder / "train.parquet") == (str(model), content_hash(str(model)))
    selfplay(*words)
    (training,) = trained
    assert (training.model, training.seed, training.output) == (str(model), 7, folder / "training")
    assert training.learning_rate == load_config("tiny_shy", {}).train.learning_rate
