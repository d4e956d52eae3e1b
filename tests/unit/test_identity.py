"""What makes two runs the same run: every key that may not change, one comparison and one message."""

import json
import re
from pathlib import Path
from typing import Annotated

import pytest
from command import selfplay
from pydantic import create_model
from test_used_keys import KEYS, another

from selfplay_pipeline.config import identity
from selfplay_pipeline.config.fields import value_of
from selfplay_pipeline.config.identity import KNOWN, check_same, contents, deciding, differences
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.online import OnlineConfig
from selfplay_pipeline.config.schema import Config, GenerateConfig
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.stage import decided_by
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import UsedBy
from selfplay_pipeline.evaluate.pairing import Pairing
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.chat_player import CHAT, partner_arguments
from selfplay_pipeline.generate.stage import make_job
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.train.offline import claim
from selfplay_pipeline.train.offline_stage import training_of

COMMANDS = ("generate", "evaluate", "iterate")
"""Whose runs the whole configuration is asked for; trainings have configurations of their own."""


TEMPLATE = {"generate.template_args", "generate.date", "generate.history"}
PLAY = TEMPLATE | {
    "engine.context_length", "generate.max_new_tokens", "generate.thinking", "generate.temperature", "game.size",
}  # fmt: skip
OPTIMIZER = {
    "train.learning_rate", "train.kl_coef", "train.lora_rank",
    "train.gradient_checkpointing", "train.gpus_per_node", "train.nodes", "train.dtype", "train.overrides",
}  # fmt: skip
UPDATES = OPTIMIZER | {
    "train.method", "train.best_of_group", "train.epochs", "train.train_batch_size", "train.mini_batches",
    "train.old_log_probs", "train.keep_zero_signal",
}  # fmt: skip
ROWS = {"convert.val_fraction", "convert.placebo"}
KEPT = {
    "generate": PLAY | {"seed", "engine.kind", "generate.num_episodes", "generate.episodes_per_state"},
    "chat": {"partner.base_url", "partner.model", "partner.temperature", "partner.max_tokens", "partner.prompt"},
    "evaluate": PLAY | {"engine.kind"},
    "convert": ROWS | {"reward.path"},
    "imitate": TEMPLATE | {
        "engine.context_length", "game.size", "imitate.seats", "imitate.min_reward", "imitate.held_out",
        "imitate.train_batch_size", "imitate.learning_rate",
    },
    "train": UPDATES | {"seed", "device"},
    "train-online": PLAY | OPTIMIZER | {
        "model", "seed", "device", "engine.tensor_parallel", "generate.episodes_per_state", "online.mode",
        "online.steps", "online.states_per_step", "evaluate.monitor_states", "online.validate_every",
    },
    "iterate": PLAY | ROWS | UPDATES | {
        "model", "seed", "device", "generate.num_episodes", "generate.episodes_per_state", "evaluate.state_seed",
        "iterate.partner", "iterate.seat", "iterate.partners", "iterate.foreign", "iterate.other_play", "iterate.ahead",
        "evaluate.monitor_states", "iterate.decay_iterations",
    },
}  # fmt: skip
"""Keys that a continued run of each command must have as before; all other keys may change. Models, files and states
are compared by their contents.
"""


def settings(config: Config, command: str) -> dict:
    """What a command stores of a configuration, without what it reads."""
    if command == "chat":
        return partner_arguments(config.partner, make_game(config.game), [CHAT])
    if command == "generate":
        return make_job(config, Path("/games.jsonl"), "data/tiny_model", 0, 0).arguments
    if command == "convert":
        return decided_by(config, Path("/games.jsonl"), Path("/"))
    if command == "imitate":
        parts = {name: getattr(config, name) for name in ("imitate", "game", "engine")}
        found = {key: one for name, part in parts.items() for key, one in deciding(part, command, f"{name}.").items()}
        return found | {key: value_of(config, key) for key in TEMPLATE}
    if command == "train":
        return deciding(training_of(config, Path("d"), Path("o"), checkpoint="m", seed=config.seed), command)
    if command == "train-online":
        shared = {
            name: getattr(config, name)
            for name in ("model", "seed", "device", "game", "generate", "evaluate", "online")
        }
        engine = {
            "context_length": config.engine.context_length or 64,
            "tensor_parallel": config.engine.tensor_parallel,
        }
        made = OnlineConfig.model_construct(**dict(config.train), **shared, **engine, output=Path("o"), games=Path("g"))
        return deciding(made, command)
    return deciding(config, command)


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # some of the other values are of another type
@pytest.mark.parametrize("command", [name for name in KEPT if name != "evaluate"])
def test_the_keys_that_a_continued_run_must_have_as_before(command, tmp_path):
    (tmp_path / "reward.py").write_text("")
    usual, kept = load_config("tiny", {}), set()
    for name, key in KEYS.items():
        if name.startswith("game."):  # those of another game
            continue
        changed = usual.model_copy(deep=True)
        special = {"reward.path": str(tmp_path / "reward.py"), "partner.prompt": "plain"}
        value = special.get(name) or another(key, value_of(usual, name))
        section, _, field = name.rpartition(".")
        setattr(value_of(changed, section) if section else changed, field, value)
        if differences(settings(usual, command), settings(changed, command)):
            kept.add(name)
    resized = usual.model_copy(update={"game": usual.game.model_copy(update={"size": 5})})
    if differences(settings(usual, command), settings(resized, command)):
        kept.add("game.size")
    assert kept == KEPT[command]


def test_an_evaluation_keeps_its_settings_too(tmp_path):
    usual = load_config("tiny", {})
    assert deciding(usual, "evaluate").keys() - {key for key in deciding(usual, "evaluate") if "game." in key} == (
        KEPT["evaluate"] - {"game.size"} | {"model"}
    )


def test_what_may_change_is_a_key_or_a_field_of_a_training():
    fields = {*TrainConfig.model_fields, *OnlineConfig.model_fields, "partner"}
    for key in identity.MAY_CHANGE | identity.MAY_CHANGE_UNLESS.keys():
        assert key in KEYS or key in fields


PLAYING = {"games": "g", "game": {}, "generate": {"temperature": 0.8, "max_new_tokens": 64}}


def runs(config: Config, folder: Path) -> dict:
    """What the runs of one configuration store, by command."""
    states = held_out_states(make_game(config.game), 2)
    pairing = Pairing("random", "sharing", states, folder / "pair.jsonl", 1)
    return {
        "generate": make_job(config, folder / "games.jsonl", "data/tiny_model", 0, 0).store,
        "evaluate": pairing.job(config).store,
    }


def longer(new: int) -> Config:
    """A configuration, as it would be if the section `generate` had a further field."""
    kind = create_model("Longer", __base__=GenerateConfig, new=(int, new))
    (mark,) = (mark for mark in Config.model_fields["generate"].metadata if isinstance(mark, UsedBy))
    whole = create_model("Changed", __base__=Config, generate=(Annotated[kind, mark], kind()))
    return whole(**load_config("tiny", {}).model_dump())


def test_a_new_field_is_compared_without_further_edits(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "Config", type(longer(1)))
    monkeypatch.setattr(identity, "KNOWN", KNOWN | {"generate.new"})
    earlier = runs(load_config("tiny", {}), tmp_path)
    with_default = runs(longer(1), tmp_path)
    with_another = runs(longer(2), tmp_path)
    for command, store in earlier.items():
        with store.opened(lambda episode: None):
            pass
        with_default[command].check()  # what was stored before the field came
        with pytest.raises(UserError, match=r"begun with generate\.new = 1, now it is 2;"):
            with_another[command].check()


def test_a_run_goes_on_only_with_the_same_values_of_what_decides(tmp_path):
    config = load_config("tiny", {})
    for command in COMMANDS:
        before = deciding(config, command)
        check_same(tmp_path, before | {"engine.memory_fraction": "elsewhere"}, before)  # is free to change
        for key in before:
            with pytest.raises(UserError, match=f"was begun with {re.escape(key)} = 'another', now it is "):
                check_same(tmp_path, before | {key: "another"}, before)
        with pytest.raises(UserError, match="begun with weight = 3, now it is not given;"):
            check_same(tmp_path, before | {"weight": 3}, before)


PLAYED = {
    "generate": "generate --player random --player sharing --num-episodes 2 --episodes-per-state 2",
    "evaluate": "evaluate random --num-states 2 --episodes 1",
    "crossplay": "crossplay random sharing --num-states 2",
}


@pytest.mark.parametrize(
    ("command", "option", "words"),
    [
        *(
            (command, "--set generate.max_new_tokens=9", r"generate\.max_new_tokens = \d+, now it is 9")
            for command in PLAYED
        ),
        *(
            (command, "--set evaluate.state_seed=3", r"evaluate\.state_seed = 0, now it is 3")
            for command in ("evaluate", "crossplay")
        ),
        ("crossplay", "--num-states 3", r"num_states = 2, now it is 3"),
        ("evaluate", "--states states.jsonl", r"states = 'held out', now it is 'a file'"),
    ],
)
def test_who_plays_says_what_differs_by_the_option_that_gave_it(command, option, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    game = make_game(load_config("tiny", {}).game)
    states = Path("states.jsonl")
    states.write_text("".join(json.dumps(game.sample_state(state_rng(5, at)).to_dict()) + "\n" for at in range(2)))
    played = [*PLAYED[command].split(), "--output", "games.jsonl" if command == "generate" else "folder"]
    selfplay(*played, "--config", "tiny")
    if "--states" in option:
        played = [*PLAYED[command].replace(" --num-states 2", "").split(), *played[-2:]]
    said = " ".join(selfplay(*played, "--config", "tiny", *option.split()).stderr.split())
    assert re.search(rf"was begun with {words} \(option {option.split()[0]}\); give the earlier value, or", said)
    if "--states" in option:
        played = ("evaluate", "random", "--config", "tiny", "--states", "states.jsonl", "--output", "of a file")
        selfplay(*played)
        states.write_text("".join(json.dumps(game.sample_state(state_rng(6, at)).to_dict()) + "\n" for at in range(2)))
        assert "was begun with contents of states = " in " ".join(selfplay(*played).stderr.split())


def test_trainings_and_loops_go_on_from_any_folder_with_the_same_values_alone(tmp_path, monkeypatch):
    made = OnlineConfig(model="m", output=tmp_path, context_length=1024, **PLAYING)
    offline = TrainConfig(model="m", output=tmp_path / "offline", data=tmp_path)
    for training, command, key in (
        (made, "train-online", "generate.max_new_tokens"),
        (offline, "train", "train.learning_rate"),
    ):
        claim(training, deciding(training, command))
        free = training.model_copy(update={"save_every": 3})
        claim(free, deciding(free, command))
        with pytest.raises(UserError, match=rf"{re.escape(key)} = .*, now it is 9\.5"):
            claim(training, deciding(training, command) | {key: 9.5})
    run = RunDirectory(tmp_path / "run")
    run.open(load_config("tiny", {}))
    monkeypatch.chdir(tmp_path)
    elsewhere = load_config("tiny", {})
    assert Path(str(elsewhere.model)).is_absolute()
    run.open(elsewhere)
    with pytest.raises(UserError, match=r"was begun with generate\.max_new_tokens = \d+, now it is 9"):
        run.open(load_config("tiny", {"generate.max_new_tokens": 9}))


def test_a_content_hash_that_is_unknown_makes_no_difference_and_the_name_does():
    """A hub model on an attached server has none, so that a server may be attached in the middle."""
    known, unknown = ({"first": "org/name", "policy.weights": weights} for weights in ("abc", ""))
    assert differences(known, unknown) == differences(unknown, known) == {}
    other = {"first": "org/other", "policy.weights": ""}
    assert len(differences(known, other)) == 1
    changed = {"first": "org/name", "policy.weights": "def"}
    assert len(differences(known, changed)) == 1


def test_a_file_that_a_key_names_must_be_there():
    with pytest.raises(UserError, match=r"^reward\.path none\.py: there is no such file; name another one"):
        contents("none.py", "reward.path")
