"""Each key says which commands use it; what would have no effect on a command is refused, and not left unread."""

import asyncio
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfplay_pipeline.cli.reference import commands
from selfplay_pipeline.config.fields import Key, keys, value_of
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.online import OnlineConfig
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.used_keys import CONFIGURED
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import built_in
from selfplay_pipeline.train import imitation
from selfplay_pipeline.train import online_stage as online
from selfplay_pipeline.train.groups import TrainData
from selfplay_pipeline.train.offline_stage import training_of
from selfplay_pipeline.train.online_overrides import StatesFile, online_overrides
from selfplay_pipeline.train.verl_overrides import verl_overrides

ROOT = Path(__file__).parents[2]
KEYS = {key.name: key for key in keys(Config)}
REFUSED = {
    "imitate": {"convert.placebo"},
    "train-online": {
        "engine.kind", "engine.server_url", "engine.hang_timeout", "engine.extra_args",
        "convert.placebo", "reward.path",
        "train.method", "train.best_of_group", "train.keep_zero_signal",
        "iterate.partner", "iterate.seat", "iterate.partners", "iterate.foreign", "iterate.other_play",
        "iterate.keep_processes", "iterate.decay_iterations",
    },
}  # fmt: skip
"""All that is refused. A key that comes here must be one that nobody can have in one file for several commands."""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


SPECIAL = {
    "train.ray_address": "auto", "train.overrides": ["a.b=1"], "engine.server_url": ["http://127.0.0.1:1"],
    "iterate.partners": [{"player": "past", "share": 1.0}], "generate.template_args": {"reasoning_effort": "low"},
    "generate.date": "2026-07-26",
}  # fmt: skip


def another(key: Key, current: Any) -> Any:
    """Returns a value that a key may have, and that it does not have now."""
    if key.name in SPECIAL:
        return SPECIAL[key.name]
    if key.is_list:
        return [key.choices[-1]] if key.choices else ["another"]
    if key.choices:
        return next(choice for choice in reversed(key.choices) if choice != current)
    return {bool: not current, int: 7, float: 0.123, str: "another"}[key.kind]


def test_the_table_of_all_keys_and_commands():
    for command in CONFIGURED:
        found = {name for name, key in KEYS.items() if key.used and command in key.used.refused_by}
        assert found == REFUSED.get(command, set()), command


@pytest.mark.parametrize("name", KEYS)
def test_what_a_mark_says_is_there(name):
    mark, there = KEYS[name].used, commands()
    if mark is None:
        return
    assert mark.commands and mark.commands | mark.refused_by <= there.keys()
    assert not mark.commands & mark.refused_by


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_key_that_has_no_effect_on_a_command_is_refused_unless_it_has_its_default(command, tmp_path):
    settings, file = load_config("tiny", {}).model_dump(mode="json"), tmp_path / "my.yaml"
    file.write_text(yaml.safe_dump(settings))
    load_config(str(file), {}, command=command)
    for name in REFUSED.get(command, ()):
        section, _, key = name.partition(".")
        value = json.dumps(another(KEYS[name], KEYS[name].field.default))
        file.write_text(f"base: tiny\nseed: 3\n{section}:\n  {key}: {value}\n")
        words = f"{file}:4: key '{name}': {command} does not use it, only .*; leave it out, or set its default, "
        with pytest.raises(UserError, match=words):
            load_config(str(file), {}, command=command)


@pytest.mark.parametrize("command", CONFIGURED)
def test_all_built_in_configurations_are_for_every_command_but_the_partner_for_training_while_playing(
    command, tmp_path
):
    for name in built_in():
        if command != "train-online" or name not in ("tiny_shy", "smollm2"):
            load_config(name, {}, gpus=int(name == "default"), command=command)
    on_top = tmp_path / "on top.yaml"
    on_top.write_text("base: tiny_shy\niterate: {num_iterations: 7}\n")
    with pytest.raises(UserError, match=r"^tiny_shy:10: key 'iterate.partner': train-online does not use it"):
        load_config(str(on_top), {}, command="train-online")
    on_top.write_text("base: tiny_shy\niterate: {partner: self}\n")
    load_config(str(on_top), {}, command="train-online")


@pytest.mark.parametrize("command", CONFIGURED)
def test_one_file_configures_all_commands(command, tmp_path):
    example = re.search("```yaml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    assert example
    (tmp_path / "all.yaml").write_text(example[1])
    load_config(str(tmp_path / "all.yaml"), {}, gpus=1, command=command)


ONLINE = {"model": "data/tiny_model", "train.lora_rank": 4, "train.kl_coef": 0.1, "device": "cpu"}


def begun_online(config: Config) -> list[Any]:
    """Returns all that an online training is told, or why it is refused."""
    told: list[Any] = []

    def games(config: Config, out: Path, num_train: int, num_test: int) -> None:
        told.append((config.game, config.seed, config.evaluate.state_seed, num_train, num_test))

    async def run(job: OnlineConfig) -> None:
        told.extend(online_overrides(job, StatesFile(rows=9, rows_per_episode=2), device) for device in ("cpu", "cuda"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "online_games", games)
        patch.setattr(online, "run_online", run)
        try:
            asyncio.run(online.train_online(config, Path("/nowhere/x")))
        except UserError as error:
            told.append(str(error))
    return told


@cache
def usually_told() -> list[Any]:
    return begun_online(load_config("tiny", ONLINE))


def concerned(command: str) -> list[str]:
    """Returns the keys that a command uses or ignores."""
    return [
        name
        for name, key in KEYS.items()
        if name != "model" and not name.startswith("game.") and name not in REFUSED.get(command, ())
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", concerned("train-online"))
def test_training_while_playing_acts_on_the_keys_that_it_uses_and_on_no_other(name):
    changed = load_config("tiny", ONLINE)
    section, _, key = name.rpartition(".")
    setattr(value_of(changed, section) if section else changed, key, another(KEYS[name], value_of(changed, name)))
    assert (begun_online(changed) != usually_told()) == KEYS[name].is_used_by("train-online")


DATA = TrainData(
    groups=[], signal=None, temperature=0.7, episodes_per_state=2, num_rows=52, max_prompt_tokens=30,
    max_response_tokens=90,
)  # type: ignore[arg-type]  # fmt: skip


def told_offline(config: Config, command: str) -> list[Any]:
    """All that verl is told by a training on stored episodes, for both methods."""
    told: list[Any] = []
    for method in ("grpo", "filtered-bc"):
        other = config.model_copy(update={"train": config.train.model_copy(update={"method": method})})
        if command == "imitate":
            job = imitation.training_of(other, Path("x"))
        else:
            job = training_of(other, Path("d"), Path("x"), checkpoint="data/tiny_model", seed=other.seed)
        told += [job.device, job.imitated, config.train.best_of_group]  # `imitate` makes its rows by the last
        told += [verl_overrides(job, DATA, 13, device) for device in ("cpu", "cuda")]
    return told


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, name)
        for command in ("train", "imitate")
        for name in concerned(command)
        if name.startswith("train.") and name != "train.method"
    ],
)
def test_training_on_stored_episodes_acts_on_the_keys_that_it_uses(command, name):
    usual = load_config("tiny", ONLINE)
    changed = usual.model_copy(deep=True)
    setattr(changed.train, name.partition(".")[2], another(KEYS[name], value_of(usual, name)))
    differ, used = (
        told_offline(usual, command) != told_offline(changed, command),
        KEYS[name].is_used_by(command),
    )
    assert differ or not used
    if command == "train":  # a supervised loss is told of options that it has no use for
        assert used or not differ


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({}, [4096, 16384]),
        ({"train.max_tokens_per_pass": 5000}, [5000, 5000]),
        ({"train.max_tokens_per_pass": 10}, [1024, 1024]),
    ],
)
@pytest.mark.long
def test_a_pass_while_playing_has_as_many_tokens_as_one_of_training_or_as_the_device_usually_has(given, tokens):
    _, *told = begun_online(load_config("tiny", given))
    for overrides, number in zip(told, tokens, strict=True):
        assert f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={number}" in overrides


@pytest.mark.parametrize(("copies", "served"), [(1, True), (2, True), (3, False)])
def test_copies_of_the_model_are_as_many_as_the_training_processes_hold(copies, served):
    (*_, told) = begun_online(load_config("tiny", {"engine.data_parallel": copies, "train.gpus_per_node": 2}))
    refused = isinstance(told, str) and "engine.data_parallel 3: train-online serves 2 copies of the model" in told
    assert refused is not served
