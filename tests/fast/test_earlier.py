"""What earlier versions wrote is read under today's names: configurations, options, runs, games and rows."""

from __future__ import annotations

import json

import pytest
from click.testing import Result
from typer.testing import CliRunner

from selfplay_pipeline.asking.records import read_dialogues
from selfplay_pipeline.cli import app
from selfplay_pipeline.config import load_config
from selfplay_pipeline.earlier import NAMES, renamed
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.evaluate.run import Evaluation
from selfplay_pipeline.files import read_model
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.iterate.manifest import RunDirectory, describe
from selfplay_pipeline.small_files import read_object

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
    (tmp_path / "manifest.json").write_text(json.dumps(describe(formerly(config.model_dump(mode="json")))))
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
    with pytest.raises(UserError, match=r"other arguments: episodes_per_state \(4 then, 2 now\)"):
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


def test_a_log_of_questions_of_an_earlier_version_is_read(tmp_path):
    counts = ("turns", "messages", "questions", "specific", "pairs", "repeated", "learned", "partner_messages", "leaks")
    line = {"step": 1, "game_id": "g1", "group": 0, "reward": 0.5, "status": "agreed"} | dict.fromkeys(counts, 0)
    (tmp_path / "dialogues.jsonl").write_text(json.dumps(line) + "\n")
    assert [record.episode_id for record in read_dialogues(tmp_path / "dialogues.jsonl")] == ["g1"]
