"""Configuration files: what they build on, and that errors name the place."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.config import load as configuration
from selfplay_pipeline.config.fields import as_yaml
from selfplay_pipeline.config.identity import flatten
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped


def written(folder, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def differing(one, other) -> dict:
    """Keys of the first whose values are others in the second."""
    first, second = (flatten(item.model_dump(mode="json")) for item in (one, other))
    return {key: value for key, value in first.items() if second[key] != value}


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(configuration, "gpu_visible", lambda: True)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("generate: {temperature: 0.9}", {"generate.temperature": 0.9}),
        ("game:\n  max_length: 7\ntrain: {epochs: 2}", {"game.max_length": 7, "train.epochs": 2}),
        ("train: {loggers: [console]}", {"train.loggers": ["console"]}),
        ("model: some/model", {"model": "some/model"}),
        ("", {}),
        ("generate:\n  # temperature: 0.9\nonline:\n", {}),
    ],
)
def test_a_file_changes_what_it_says_and_nothing_else(tmp_path, text, changed):
    assert differing(load_config(written(tmp_path, text), {}), load_config(None, {})) == changed
    in_default = differing(load_config(written(tmp_path, f"base: default\n{text}"), {}), load_config("default", {}))
    assert in_default == changed


def test_with_a_gpu_a_file_builds_on_dialops_board_unless_the_model_is_the_tiny_one(tmp_path, gpu):
    other = "generate: {temperature: 0.9}"
    assert load_config(written(tmp_path, other), {}).game.size == 8
    assert load_config(written(tmp_path, other), {"model": "data/tiny_model"}).game.size == 3
    absolute = str(Path(shipped("data/tiny_honest_model")).resolve())
    assert load_config(written(tmp_path, other), {"model": absolute}).game.visibility == "complementary"
    tiny = written(tmp_path, f"{other}\nmodel: ./data/tiny_model/")
    assert load_config(tiny, {}).game.size == 3
    assert load_config(tiny, {"model": "some/model"}).game.size == 8
    assert load_config(written(tmp_path, f"base: tiny\n{other}"), {}).game.size == 3


def test_a_file_may_build_on_any_built_in(tmp_path):
    shy = load_config(written(tmp_path, "base: tiny_shy\niterate: {num_iterations: 7}"), {})
    assert differing(shy, load_config("tiny_shy", {})) == {"iterate.num_iterations": 7}
    assert shy.iterate.partner == "shy"


@pytest.mark.parametrize("text", ["game: {path: null}", "game: {name: null}", "model: null", "model:\ngame:"])
def test_a_key_that_is_commented_out_leaves_what_the_base_says(tmp_path, text):
    found = load_config(written(tmp_path, f"base: tiny_honest\n{text}\n"))
    assert differing(found, load_config("tiny_honest")) == {}


@pytest.mark.parametrize("section", ["generate", "game"])
def test_a_section_is_no_option(section):
    with pytest.raises(UserError, match=f"option for {section}: .* give its keys one by one, as {section}.KEY"):
        load_config("tiny", {section: {"num_episodes": 8}})


def test_the_learning_rate_falls_linearly_over_the_iterations_and_never_to_zero(tmp_path):
    falling = load_config(written(tmp_path, "iterate: {num_iterations: 4, decay_iterations: 4}"), {}).iterate
    assert [falling.rate_share(number) for number in (1, 2, 3, 4)] == [1, 0.75, 0.5, 0.25]
    assert load_config("tiny", {}).iterate.rate_share(9) == 1
    with pytest.raises(UserError, match="leaves a learning rate of 0 for the rest of num_iterations: 9"):
        load_config(written(tmp_path, "iterate: {num_iterations: 9, decay_iterations: 4}"), {})


def test_config_prints_the_whole_and_says_what_it_builds_on(tmp_path):
    path = written(tmp_path, "generate: {temperature: 0.9}")
    done = CliRunner().invoke(app, ["config", "--config", path])
    assert " ".join(done.stderr.split()) == f"configuration: {path} on top of tiny_honest (no GPU is visible)"
    printed = yaml.safe_load(done.stdout)
    expected = json.loads(load_config(path, {}).model_dump_json())
    for section, key in (("train", "gpus_per_node"), ("engine", "data_parallel"), ("generate", "max_concurrency")):
        expected[section][key] = None  # the machine decides
    assert printed == expected
    whole = written(tmp_path, done.stdout)
    assert not differing(load_config(whole, {}), load_config(None, {"generate.temperature": 0.9}))


def test_settings_of_verl_on_the_command_line_follow_those_of_the_file(tmp_path):
    path = written(tmp_path, "base: tiny\ntrain: {overrides: [actor_rollout_ref.actor.entropy_coeff=0.01]}\n")
    config = load_config(path, {"train.overrides": ["actor_rollout_ref.actor.grad_clip=0.5"]})
    assert [one.rpartition("actor.")[2] for one in config.train.overrides] == ["entropy_coeff=0.01", "grad_clip=0.5"]
    assert len(load_config(path, {}).train.overrides) == 1
    again = load_config(path, {"train.overrides": ["++actor_rollout_ref.actor.entropy_coeff=0"]})
    assert again.train.overrides == ["++actor_rollout_ref.actor.entropy_coeff=0"]


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


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, (8, 8, 2048)),
        ({"engine.tensor_parallel": 2}, (8, 4, 1024)),
        ({"train.gpus_per_node": 4, "engine.data_parallel": 2, "generate.max_concurrency": 96}, (4, 2, 96)),
        ({"engine.server_url": ["http://one:1", "http://two:1"]}, (8, 1, 512)),
        ({"device": "cpu"}, (1, 1, 256)),
    ],
)
def test_all_gpus_are_used_unless_the_configuration_says_how_many(given, used):
    """Processes that train, copies of the model that play, and episodes at the same time, 256 for each copy."""
    config = load_config("default", given, gpus=8)
    assert (config.train.gpus_per_node, config.engine.data_parallel, config.generate.max_concurrency) == used


@pytest.mark.parametrize(("gpus", "used"), [(1, 1), (2, 2), (3, 2), (6, 4), (7, 4), (8, 8)])
def test_online_training_uses_as_many_gpus_as_share_a_step_equally(gpus, used):
    """A step has 8 states × 8 episodes; what the user gives is not changed."""
    said = []
    given = {"device": "cuda", "online.states_per_step": 8}
    config = load_config("default", given, said.append, gpus=gpus, command="train-online")
    assert config.train.gpus_per_node == used
    assert said == ["configuration: default" + f"; {used} of {gpus} GPUs" * (used < gpus)]
    given["train.gpus_per_node"] = gpus
    assert load_config("default", given, gpus=gpus, command="train-online").train.gpus_per_node == gpus


def test_a_configuration_that_was_printed_on_one_machine_uses_all_gpus_of_another(tmp_path):
    printed = as_yaml(load_config("default", {"device": "cuda"}, gpus=8))
    for line in ("gpus_per_node: null  # 8 on this", "data_parallel: null  # 8 on", "max_concurrency: null  # 2048 on"):
        assert line in printed
    (tmp_path / "printed.yaml").write_text(printed)
    config = load_config(str(tmp_path / "printed.yaml"), {}, gpus=2)
    assert (config.train.gpus_per_node, config.engine.data_parallel, config.generate.max_concurrency) == (2, 2, 512)
    given = as_yaml(load_config("default", {"device": "cuda", "train.gpus_per_node": 4}, gpus=8))
    assert "gpus_per_node: 4\n" in given


def test_online_training_serves_on_the_gpus_that_it_trains_on():
    config = load_config("default", {"train.gpus_per_node": 4}, gpus=8, command="train-online")
    assert (config.train.gpus_per_node, config.engine.data_parallel) == (4, 1)


@pytest.mark.parametrize("base", ["default", "one_gpu"])
def test_a_number_of_rows_in_a_pass_takes_the_place_of_a_built_in_number_of_tokens(base, tmp_path):
    (file := tmp_path / "own.yaml").write_text(f"base: {base}\ntrain: {{micro_batch_size: 2}}\n")
    for source, given in ((base, {"train.micro_batch_size": 2}), (str(file), {})):
        train = load_config(source, given, gpus=1, command="train").train
        assert (train.micro_batch_size, train.max_tokens_per_pass) == (2, None)
    assert load_config(str(file), gpus=1, command="train-online").train.max_tokens_per_pass == 8192
    both = load_config(str(file), {"train.max_tokens_per_pass": 4096}, gpus=1, command="train").train
    assert both.max_tokens_per_pass == 4096
    file.write_text(f"base: {base}\ntrain: 5\n")
    with pytest.raises(UserError, match=r":2: key 'train': expected keys and values, found 5"):
        load_config(str(file), {"train.micro_batch_size": 2}, gpus=1, command="train")
