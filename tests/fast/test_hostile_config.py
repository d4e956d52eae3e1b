"""Configurations that nobody means: each is refused in one line with file and line, before anything is built."""

import os
import types
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from command import selfplay
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.states import MAX_TRIES, sample_state

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, r":1: anchors and aliases \(a\) are not taken"),
        ("game: *a", r":1: anchors and aliases \(a\) are not taken"),
        ("[" * 50_000, r":1: nested deeper than 20"),
        ("game: " + "{a: " * 500, r":1: nested deeper than 20"),
        ("a: [" + "1," * 20_000 + "]", r":1: more than 10,000 values"),
        ("# " + "x" * 200_000, r": larger than 100,000 bytes"),
        ("seed: 1\ngame:\n  size: 4\nseed: 2", r":4: key 'seed' is given in line 1 already"),
        ("game:\n  size: 4\n  size: 3", r":3: key 'size' is given in line 2 already"),
        ("<<: {seed: 1}", r":1: .*a key must be a name"),
        ("\n1: 2", r":2: .*a key must be a name"),
        ("[1]: 2", r":1: .*a key must be a name"),
        ("~: 2", r":1: .*a key must be a name"),
        ("seed: 1\n---\nseed: 2", r":2: a second document begins"),
        ("model: !!python/object/apply:os.system [ls]", r":1: tags \(.*os.system\) are not taken"),
        ("- 1", r": expected keys and values, found list"),
        ("5", r": expected keys and values, found int"),
        ("a: [1", r":1: not YAML"),
        ("a:\n\tb: 1", r":2: not YAML"),
        ("seed: 1\nmodel: \x00x", r":2: holds the control character U\+0000"),
        ("model: \x1b[2J", r":1: holds the control character U\+001B"),
        ('\nmodel: "\\e[2J"', r":2: key 'model': holds the control character U\+001B"),
        ('model: "a\\0b"', r":1: key 'model': holds the control character U\+0000"),
        ('engine: {server_url: ["a\\r"]}', r":1: key 'engine.server_url': holds the control character U\+000D"),
        ("engine: {server_url: [nowhere]}", r":1: key 'engine.server_url': not an address such as"),
        ("generate: {num_episodes: 2020-01-01}", r":1: key 'generate.num_episodes': "),
        ("generate: {num_episodes: 1:30}", r":1: key 'generate.num_episodes': "),
        ("generate: {num_episodes: 0x10}", r":1: key 'generate.num_episodes': "),
        ("generate: {num_episodes: 8.0}", r":1: key 'generate.num_episodes': expected a whole number, found 8.0"),
        ("generate: {num_episodes: 1000000000000000000}", r":1: key 'generate.num_episodes': the largest number is"),
        (f"seed: {10**400}", r":1: key 'seed': "),
        ("game: {size: 1000000}", r":1: key 'game.size': "),
        ("game: {scale_min: 3, scale_max: 2}", r":1: key 'game': scale_min 3.0 is above scale_max 2.0"),
        ("seed: true", r":1: key 'seed': expected a number, found true"),
        ("generate: {temperature: yes}", r":1: key 'generate.temperature': expected a number, found true"),
        ("train: {learning_rate: 1e400}", r":1: key 'train.learning_rate': Input should be a finite number"),
        ("train: {kl_coef: .nan}", r":1: key 'train.kl_coef': Input should be a finite number"),
        ("engine: {startup_timeout: 1.0e+300}", r":1: key 'engine.startup_timeout': the largest number is"),
    ],
)  # fmt: skip
def test_what_nobody_means_is_refused_with_its_line(tmp_path, text, words):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"run\.yaml{words}") as error:
        load_config(str(path), {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("seed: 1".encode("utf-16"), "run.yaml:1: not UTF-8 text"),
        (b"seed: 1\nmodel: \xff\xfe", "run.yaml:2: not UTF-8 text"),
        (b"\x00" * 1000, "run.yaml:1: holds the control character U+0000"),
        (bytes(range(128, 256)) + b"\xff", "run.yaml:"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, data, words):
    path = tmp_path / "run.yaml"
    path.write_bytes(data)
    with pytest.raises(UserError, match=words.replace(".", r"\.").replace("+", r"\+")):
        load_config(str(path), {})


def test_a_byte_order_mark_an_empty_file_and_numbers_as_people_write_them_are_understood(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfseed: 7\n")
    assert load_config(str(path), {}).seed == 7
    path.write_text("")
    assert load_config(str(path), {}).seed == 0
    path.write_text("train: {learning_rate: 1e-6, kl_coef: 1}\ngenerate: {num_episodes: 1_000, thinking: yes}\n")
    config = load_config(str(path), {})
    assert (config.train.learning_rate, config.train.kl_coef) == (1e-6, 1)
    assert (config.generate.num_episodes, config.generate.thinking) == (1000, True)


@pytest.mark.parametrize("kind", ["/dev/zero", "/dev/null", "fifo", "folder", "/proc/self/mem"])
@pytest.mark.parametrize(
    "command", ["config --config", "show", "report", "evaluate random --states", "slime check --data"]
)
def test_devices_pipes_and_folders_are_not_read(tmp_path, kind, command):
    path = kind if kind.startswith("/") else str(tmp_path / kind)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        Path(path).mkdir()
    done = selfplay(*command.split(), path)
    assert done.returncode == 2
    if command != "slime check --data":
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("selfplay: ")


def numbers_of(section: type[BaseModel], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All keys of the configuration that take a number, or a list of numbers."""
    found = []
    for name, field in section.model_fields.items():
        kinds = field.annotation
        if isinstance(kinds, type) and issubclass(kinds, BaseModel):
            found += numbers_of(kinds, (*path, name))
        elif {int, float} & _parts(kinds):
            found.append((*path, name))
    return found


def _parts(annotation: Any) -> set[Any]:
    parts = [part for part in get_args(annotation) if isinstance(part, type | types.UnionType) or get_args(part)]
    return {annotation}.union(*map(_parts, parts))


@pytest.mark.parametrize("key", numbers_of(Config), ids=".".join)
def test_no_key_takes_what_is_no_plausible_number(key):
    for value in (float("nan"), float("inf"), -float("inf"), "nan", "-inf", True, 10**400, 2**31, 1e300, [1], {}, "x"):
        data: Any = [value] if key == ("imitate", "seats") else value  # a list of numbers
        for name in reversed(key):
            data = {name: data}
        with pytest.raises(ValidationError):
            Config.model_validate(data)


@pytest.mark.parametrize(
    "option",
    [
        ("generate", "--temperature", "inf"),
        ("generate", "--temperature", "nan"),
        ("generate", "--num-episodes", "9" * 30),
        ("generate", "--num-episodes", "9" * 5_000),
        ("generate", "--seed", "1e3"),
        ("generate", "--first-state", "9" * 30),
        ("generate", "--output", ""),
        ("generate", "--model="),
        ("train", "--learning-rate", "nan"),
        ("train", "--kl-coef", "inf"),
        ("train", ""),
        ("convert", "--val-fraction", "nan"),
        ("convert", "x" * 5_000),
        ("games", "--num-train", "9" * 30),
        ("games", "--num-train", "1", "--num-test", "1", "--output", "/dev/null/x"),
        ("evaluate", ""),
        ("evaluate", "random", "--state-seed", "9" * 30),
        ("show", "x" * 300),
        ("config", "--config", "x" * 300),
        ("slime", "data", "--num-states", "9" * 30),
    ],
)
def test_no_option_takes_it_either(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    done = selfplay(*option)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith(("selfplay: ", "Error: "))]) == 1
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "size": st.sampled_from([2, 3, 8, 16]),
            "max_score": st.sampled_from([1, 9, 99, 2**31 - 1]),
            "p_visible": st.sampled_from([1e-300, 0.01, 0.4, 1.0]),
            "scale_min": st.sampled_from([1e-300, 1.0]),
            "scale_max": st.sampled_from([1.0, 2.0**31 - 1]),
            "hard_factor": st.sampled_from([0.0, 1e-300, 1.0, 1.25, 1e9]),
            "unfiltered_after": st.sampled_from([0, 1, 500, 2**31 - 1]),
        }
    )
)
def test_every_board_gives_a_state_or_is_refused_after_a_bounded_number_of_draws(keys):
    game = MatchingGame(MatchingConfig(**keys))
    refused = ""
    try:
        state = sample_state(game.config, np.random.default_rng(0), tries=1_000)
        assert game.state_from_json(state.to_dict()).best == state.best > 0
    except UserError as error:
        refused = str(error)
    assert not refused or ("game.hard_factor" in refused and "\n" not in refused)


def test_the_bound_on_draws_is_far_above_what_dialops_board_needs_and_far_below_a_wait():
    assert 30 * 2_700 < MAX_TRIES <= 100_000
