"""What earlier versions wrote is read under today's names: configurations, options, runs, games and rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from factories import make_episodes, write_episodes
from typer.testing import CliRunner

from selfplay_pipeline.asking.records import log_step, read_records
from selfplay_pipeline.asking.sources import read
from selfplay_pipeline.cli import app
from selfplay_pipeline.config import load_config
from selfplay_pipeline.convert.rows import EARLIER as EARLIER_FIELDS
from selfplay_pipeline.convert.rows import METADATA_KEY, upgrade_rows
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.content import content_hash
from selfplay_pipeline.core.earlier import NAMES, renamed
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import read_model
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.evaluate.run import Evaluation
from selfplay_pipeline.generate.records import parse_episode
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.generate.upgrade import upgrade
from selfplay_pipeline.iterate.manifest import RunDirectory, describe
from selfplay_pipeline.online.games import todays, write_games
from selfplay_pipeline.online.run import read_rows
from selfplay_pipeline.slime.data import DataJob, check_data, state_id_of, write_data
from selfplay_pipeline.train.groups import read_data

STORED = Path(__file__).parent / "stored" / "games_1.jsonl"
EARLIER = {today: earlier for earlier, today in NAMES.items()}


def formerly(data):
    """The same with the keys of earlier versions."""
    if not isinstance(data, dict):
        return data
    return {
        ".".join(EARLIER.get(part, part) for part in key.split(".")): formerly(value) for key, value in data.items()
    }


def selfplay(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_keys_are_renamed_at_any_depth_and_what_is_not_known_stays():
    data = {"generate.num_games": 1, "iterate": {"opponent": "shy", "other": [{"plays": 1}]}, "selfplay/plays": 2.0}
    assert renamed(data) == {
        "generate.num_episodes": 1, "iterate": {"partner": "shy", "other": [{"plays": 1}]}, "selfplay/episodes": 2.0,
    }  # fmt: skip
    assert renamed(renamed(data)) == renamed(data) and renamed([1]) == [1]


def test_a_configuration_with_earlier_keys_is_read_with_todays_names(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "base: tiny\ngenerate: {num_games: 8, plays_per_state: 4}\nevaluate: {plays: 3}\n"
        "iterate: {opponent: shy}\nonline: {held_out_plays: 2}\n"
    )
    config = load_config(str(path), {})
    assert (config.generate.num_episodes, config.generate.episodes_per_state) == (8, 4)
    assert (config.evaluate.episodes, config.iterate.partner, config.online.held_out_episodes) == (3, "shy", 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("generate:\n  thinking: true\n  num_games: many\n", r"run\.yaml:3: key 'generate\.num_episodes'"),
        ("generate: {num_games: 1, num_episodes: 2}\n", r"run\.yaml: key 'num_games' is the earlier name of 'num_epis"),
    ],
)
def test_a_mistake_under_an_earlier_key_is_one_line(tmp_path, text, words):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        load_config(str(path), {})


def test_options_are_understood_by_their_earlier_names_which_no_help_shows(tmp_path):
    output = ("--config", "tiny", "--dry-run", "--output", str(tmp_path / "games.jsonl"))
    for games, plays in (("--num-games", "--plays-per-state"), ("--num-episodes", "--episodes-per-state")):
        done = selfplay("generate", games, "20", plays, "4", *output)
        assert done.exit_code == 0 and "20 episodes (5 states × 4 episodes" in done.output
    named = ("evaluate", "random", "--num-states", "2", "--opponent", "own-view", "--plays", "3", "--dry-run")
    assert "12 scripted episodes" in selfplay(*named, "--config", "tiny").output
    for command in ("generate", "iterate", "evaluate", "show", "games"):
        shown = selfplay(command, "--help").output
        assert not any(f"{option} " in shown for option in ("--num-games", "--plays", "--opponent", "--per-player"))


def test_a_run_of_an_earlier_version_is_continued(tmp_path):
    config = load_config("tiny_shy", {"model": "data/tiny_shy_model"})
    weights = {"model": content_hash("data/tiny_shy_model")}
    manifest = describe(formerly(config.model_dump(mode="json"))) | {"weights": weights}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    played = {
        "mean_reward": 0.5, "reward_standard_error": 0.1, "agreement_rate": 1.0, "illegal_per_game": 0.25,
        "messages_per_game": 2.0, "groups": 2, "groups_without_signal": 0,
    }  # fmt: skip
    stages = {"iterations": {"1": {"generate": {"seconds": 1.0, "figures": played}}}}
    (tmp_path / "state.json").write_text(json.dumps(stages))
    run = RunDirectory(tmp_path)
    run.open(config)
    assert run.state.iterations[1]["generate"].figures["illegal_per_episode"] == 0.25


def test_games_made_with_arguments_of_an_earlier_version_are_continued(tmp_path):
    arguments = {"seed": 0, "num_groups": 2, "plays_per_state": 4}
    (tmp_path / "games.args.json").write_text(json.dumps(arguments))
    EpisodeStore(tmp_path / "games.jsonl", renamed(arguments)).check()
    with pytest.raises(UserError, match=r"begun with generate\.episodes_per_state = 4, now it is 2"):
        EpisodeStore(tmp_path / "games.jsonl", {"seed": 0, "num_groups": 2, "episodes_per_state": 2}).check()


def test_an_evaluation_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "evaluation.json"
    mode = {"plays": 2, "statuses": {"agreed": 2}, "figures": {}}
    path.write_text(json.dumps({
        "player": "random", "opponent": "own-view", "states": "2", "num_states": 2, "temperature": 0.7, "mute": False,
        "modes": {"scripted": mode}, "references": {},
    }))  # fmt: skip
    evaluation = read_model(path, Evaluation, "selfplay evaluate")
    assert (evaluation.partner, evaluation.modes["scripted"].episodes) == ("own-view", 2)
    assert read_object(path, "selfplay evaluate")["partner"] == "own-view"


def test_a_log_of_questions_of_an_earlier_version_is_read_and_continued_under_todays_name(tmp_path):
    counts = ("turns", "messages", "questions", "specific", "pairs", "repeated", "learned", "partner_messages", "leaks")
    line = {"step": 1, "game_id": "g1", "group": 0, "reward": 0.5, "status": "agreed"} | dict.fromkeys(counts, 0)
    line["dialops_board"] = True
    (tmp_path / "dialogues.jsonl").write_text(json.dumps(line) + "\n")
    (record,) = read(tmp_path).records
    assert (record.episode_id, record.people_played) == ("g1", True)
    log_step(tmp_path, 2, [record.model_copy(update={"step": 2})])
    assert [record.step for record in read_records(tmp_path / "questions.jsonl")] == [1, 2]
    assert not (tmp_path / "dialogues.jsonl").exists()


def test_rows_for_slime_of_an_earlier_version_are_read(tmp_path):
    rules = load_config("tiny", {}).game
    write_data(tmp_path / "new.jsonl", DataJob(rules, num_states=2, seed=0))
    text = (tmp_path / "new.jsonl").read_text()
    assert '"state_id"' in text
    (tmp_path / "old.jsonl").write_text(text.replace('"state_id"', '"game_id"'))
    assert check_data(tmp_path / "old.jsonl") == [rules]
    assert state_id_of({"game_id": "train-s0-g000001"}) == "train-s0-g000001"


def test_states_for_train_online_of_an_earlier_version_are_read(tmp_path):
    rules = load_config("tiny", {}).game
    for path in write_games(tmp_path, rules, num_train=3, num_test=2, seed=0, test_seed=0):
        table = pq.read_table(path)
        assert {"state_id", "seat"} < set(table.column_names)
        former = {"state_id": "game_id", "seat": "player_index"}
        pq.write_table(table.rename_columns([former.get(name, name) for name in table.column_names]), path)
        assert read_rows(rules, path)[0] == len(table)
        assert [todays(row) for row in pq.read_table(path).to_pylist()] == table.to_pylist()


def stored_lines() -> list[bytes]:
    """Two episodes of one state as version 1 of the schema has them."""
    return STORED.read_bytes().splitlines(keepends=True)


def test_a_stored_line_of_version_1_is_read_as_one_of_today():
    for line in stored_lines():
        before, record = json.loads(line), parse_episode(line)
        assert record.schema_version == 2
        assert (record.episode_id, record.episode) == (before["game_id"], before["play"])
        assert [turn.seat for turn in record.turns] == [turn["player"] for turn in before["turns"]]
        assert [one.seat for one in record.trajectories] == [one["player_index"] for one in before["trajectories"]]
        assert parse_episode(record.model_dump_json().encode()) == record


def test_upgrading_changes_names_alone_and_only_those_of_version_1():
    line = json.loads(stored_lines()[0])
    new = upgrade(line)
    assert len(new) == len(line) and upgrade(new) is new
    assert new["state"] is line["state"] and line["schema_version"] == 1, "the line itself is as it was"
    assert upgrade({"schema_version": 1, "turns": 3, "trajectories": [None]}) == {
        "schema_version": 2, "turns": 3, "trajectories": [None],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"play":0', b'"play":-1', "field 'episode'"),
        (b'"player":0', b'"player":7', "field 'players'"),
        (b'"play":0', b'"play":0,"play":0', "field 'play': is there 2 times"),
        (b'"schema_version":1', b'"schema_version":3', "field 'schema_version'"),
        (b'"score":', b'"score":NaN,"other":', "NaN is no number"),
    ],
)
def test_what_is_wrong_with_a_line_of_version_1_is_named(old, new, words):
    with pytest.raises(ValueError, match=words):
        parse_episode(stored_lines()[0].replace(old, new, 1))


def test_rows_are_the_same_whichever_version_the_games_have(tmp_path):
    records = [parse_episode(line) for line in stored_lines()]
    run_convert(STORED, tmp_path / "stored")
    run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path / "new")
    first, second = (pq.read_table(tmp_path / name / "train.parquet") for name in ("stored", "new"))
    assert first.equals(second, check_metadata=True) and first.num_rows > 1


def test_rows_of_version_1_are_trained_on_as_those_of_today(tmp_path):
    run_convert(write_episodes(tmp_path / "games.jsonl", make_episodes(3, 2)), tmp_path)
    new = pq.read_table(tmp_path / "train.parquet")
    names = {today: earlier for earlier, today in EARLIER_FIELDS.items()}
    rows = [
        row | {"extra_info": {names.get(key, key): value for key, value in row["extra_info"].items()}}
        for row in new.to_pylist()
    ]
    facts = json.dumps({"schema_version": 1, "game": "matching"}).encode()
    old = pa.Table.from_pylist(rows).replace_schema_metadata({METADATA_KEY: facts})
    pq.write_table(old, tmp_path / "old.parquet")
    assert "play" in old.to_pylist()[0]["extra_info"]
    assert upgrade_rows(old).to_pylist() == new.to_pylist() and upgrade_rows(new) is new
    assert read_data([tmp_path / "old.parquet"]) == read_data([tmp_path / "train.parquet"])
