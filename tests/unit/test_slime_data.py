"""Prompt data: what slime is given, and what is said of a file that slime could not play."""

import json
from pathlib import Path

import pytest
from command import selfplay
from factories import BOARD, set_at
from hypothesis import given
from hypothesis import strategies as st
from quick import examples
from slime_contract import RealSample, sample_of

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.states import held_out_states, key_of
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.slime.data import DataJob, check_data, game_of, game_row, write_data


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@given(st.integers(2, 6), st.integers(0, 10_000))
@examples(30)
def test_a_row_says_what_seat_0_sees_and_holds_the_whole_game(size, number):
    game = MatchingGame(MatchingConfig(size=size, hard_factor=0, max_length=7))
    state = game.sample_state(state_rng(0, number))
    row = json.loads(json.dumps(game_row(game, state, "g")))
    assert set(row["metadata"]) == {"state_id", "game_state", "ground_truth", "optimal_score", "rules"}
    loaded_game, loaded = game_of(row["metadata"])
    assert (loaded_game.config, loaded.to_dict()) == (game.config, state.to_dict())
    opening = loaded_game.start(loaded).opening(0)
    shown = [(message["role"], message["content"]) for message in row["prompt"]]
    assert shown == [("system", opening.system), ("user", opening.observation)]
    best = [(state.reviewers.index(r), state.papers.index(p)) for r, p in row["metadata"]["ground_truth"].items()]
    assert state.score(tuple(best)) == row["metadata"]["optimal_score"] == state.best and len(best) == size


def test_a_file_of_data_names_no_code_to_run(tmp_path):
    (trap := tmp_path / "trap.py").write_text("import pathlib\npathlib.Path(__file__).with_name('sprung').touch()")
    game = MatchingGame(MatchingConfig(size=2, hard_factor=0))
    row = game_row(game, game.sample_state(state_rng(0, 0)), "g")
    env = f"{trap}:env"
    row["metadata"] |= {
        "rules": {"name": "pettingzoo", "env": env},
        "game_state": {"env": env, "players": 2, "seed": 1},
    }
    (tmp_path / "games.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"games\.jsonl:1: "):
        check_data(tmp_path / "games.jsonl")
    (tmp_path / "own.yaml").write_text(f"game: {{name: pettingzoo, env: '{env}'}}\n")
    command = ("slime", "data", "--config", str(tmp_path / "own.yaml"), "--num-states", "1")
    done = selfplay(*command, "--output", str(tmp_path / "new.jsonl"))
    assert done.returncode == 2 and "pettingzoo plays code of your own" in done.stderr, done.stderr
    assert not (tmp_path / "sprung").exists()


def data(*options, output):
    return selfplay("slime", "data", "--config", "tiny", *options, "--output", str(output))


def test_the_command_writes_the_states_that_it_was_asked_for_and_leaves_the_same_file_alone(tmp_path):
    out = tmp_path / "new" / "games.jsonl"
    asked = ("--num-states", "5", "--first-state", "2")
    done = data(*asked, output=out)
    assert done.returncode == 0, done.stderr
    game = MatchingGame(load_config("tiny", {"game.max_length": 40}).game)
    expected = [game.sample_state(state_rng(0, number)).to_dict() for number in range(2, 7)]
    assert [row["metadata"]["game_state"] for row in rows(out)] == expected
    assert check_data(out) == [game.config]
    before = out.stat().st_mtime_ns
    data(*asked, output=out)
    assert out.stat().st_mtime_ns == before and list(out.parent.iterdir()) == [out]
    data(*asked, "--max-length", "6", output=out)
    assert [rules.max_length for rules in check_data(out)] == [6]


def test_held_out_rows_are_the_states_of_evaluate_and_none_to_train_on(tmp_path):
    files = {tmp_path / "train.jsonl": (), tmp_path / "held.jsonl": ("--held-out",)}
    for path, options in files.items():
        data("--num-states", "20", *options, output=path)
    train, held = ([row["metadata"]["game_state"] for row in rows(path)] for path in files)
    game = MatchingGame(load_config("tiny", {"game.max_length": 40}).game)
    assert held == [state.to_dict() for state in held_out_states(game, 20).states]
    assert not {key_of(game, state) for state in train} & {key_of(game, state) for state in held}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("metadata", None, "field 'metadata' is missing"),
        ("metadata.game_state", None, "metadata.game_state is missing"),
        ("metadata.game_state.best_assignment_reward", 1, "the table's best matching gives"),
        ("metadata.rules", None, "metadata.rules is missing"),
        ("metadata.rules", {"size": 1}, "metadata.rules"),
        ("metadata.rules.max_length", 99, "field 'prompt' is not the prompt of seat 0"),
        ("metadata.optimal_score", 1, "'optimal_score' are not those"),
        ("metadata.state_id", None, "'state_id' is missing"),
        ("metadata.state_id", [1], "field 'state_id' is not text"),
        ("prompt", "match", "field 'prompt'"),
        ("metadata.game_state.papers", [None] * 3, "field 'papers' needs 3 different names"),
        ("metadata.game_state.scale1", 10**400, "field 'scale1' is 1000"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, path, value, words):
    file = tmp_path / "games.jsonl"
    write_data(file, DataJob(BOARD.model_copy(update={"prompts": "default"}), num_states=3, seed=0))
    lines = rows(file)
    set_at(lines[1], path, value)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"games.jsonl:2: ") as error:
        check_data(file)
    assert words in str(error.value)


def test_a_file_is_refused_that_is_empty_missing_no_json_or_repeats_a_game(tmp_path):
    data, once = tmp_path / "games.jsonl", tmp_path / "once.jsonl"
    with pytest.raises(UserError, match=r"`selfplay slime data` writes this file"):
        check_data(data)
    write_data(once, DataJob(BOARD, num_states=1, seed=0))
    twice = once.read_text() * 2
    for text, words in (
        ("\n", "holds no row"), ("{", ":1: not JSON"), ("[" * 50_000, ":1: .*deep"),
        (twice, ":2: .* is that of line 1"),
    ):  # fmt: skip
        data.write_text(text)
        with pytest.raises(UserError, match=words):
            check_data(data)


@pytest.mark.skipif(RealSample is None, reason="slime is not installed")
@pytest.mark.parametrize("rendered", [False, True])
def test_slimes_own_dataset_reads_it(tmp_path, rendered):
    from slime.utils.data import Dataset
    from transformers import AutoTokenizer

    data = tmp_path / "games.jsonl"
    write_data(data, DataJob(BOARD, num_states=3, seed=0))
    tokenizer = AutoTokenizer.from_pretrained("data/tiny_model")
    options = {"prompt_key": "prompt", "metadata_key": "metadata", "tool_key": "tools"}
    read = Dataset(str(data), tokenizer, None, 4096, apply_chat_template=rendered, **options)
    assert len(read) == 3
    for number, sample in enumerate(read.samples):
        ours = sample_of(RealSample, BOARD, number)
        assert sample.metadata == json.loads(json.dumps(ours.metadata))
        prompt = ours.prompt
        if rendered:
            prompt = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        assert sample.prompt == prompt
