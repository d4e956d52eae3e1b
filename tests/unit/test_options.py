"""One field of the configuration is one option, one help, one row of docs/options.md and one commented key of YAML."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer.main
import typer.testing
import yaml
from command import next_words, selfplay
from pydantic import Field

from selfplay_pipeline.cli import GROUPS, app, generate
from selfplay_pipeline.cli.reference import commands, page
from selfplay_pipeline.command_parts.options import as_setting
from selfplay_pipeline.config import load, schema
from selfplay_pipeline.config.fields import keys
from selfplay_pipeline.config.load import read_settings
from selfplay_pipeline.config.schema import Config, GenerateConfig
from selfplay_pipeline.core.sections import Option
from selfplay_pipeline.games.registry import shipped_games

ROOT = Path(__file__).parents[2]
KEYS = {key.name: key for key in keys(Config)}
COMMANDS = commands()


def leaves(group, above: str = "") -> Iterator[str]:
    """Names of all commands, those of groups too."""
    for name, command in group.commands.items():
        yield from leaves(command, f"{above}{name} ") if hasattr(command, "commands") else [above + name]


PROGRAM = typer.main.get_command(app)
ALL = [*leaves(PROGRAM)]


def test_the_help_lists_every_command_once_in_a_group_and_at_most_20():
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(PROGRAM.commands) and len(listed) <= 20
    _, shown = selfplay("--help").stdout.split("\nOptions:\n")
    lines = re.findall(r"^(\S.+):$|^  ([a-z][a-z-]*)  ", shown, re.MULTILINE)
    assert [title or name for title, name in lines] == [
        word for title, names in GROUPS.items() for word in (title, *names)
    ]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_the_page_has_a_row_with_the_meaning_of_every_key():
    """The keys of the sections `game` too, of which each game has one."""
    rows = {}
    for part in re.split("^## ", page(), flags=re.MULTILINE)[1:]:
        section = re.match("Section `([a-z]+)`(?: with `name: (.*)`)?\n", part)
        name = section[2] or section[1] if section else ""
        rows |= {(name, row[0].strip("`")): row for row in re.findall(r"^\| (`.+?`) \| (.*) \|$", part, re.MULTILINE)}
    wanted = [(key.section, key) for key in KEYS.values() if key.section != "game"]
    wanted += [(game.name, key) for game in shipped_games() for key in keys(game.settings, "game.")]
    assert len(wanted) == len(rows)
    for section, key in wanted:
        row = rows[section, key.name.rpartition(".")[2]][1]
        assert row.endswith(" ".join(key.text.replace("|", "\\|").split())), key.name
    assert "`--num-episodes`: doctor, generate, iterate" in rows["generate", "num_episodes"][1]
    assert "(tiny_honest: 1536) | Number of episodes" in rows["generate", "num_episodes"][1]


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_key_is_explained_in_a_sentence(key):
    assert re.fullmatch(r"[A-Z].{10,120}[.]", key.help), key.help
    assert not re.search(r"^(Of|Default)\b|``", key.text)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_names_keys_that_there_are_and_shows_each_under_an_option_of_its_own(name):
    command = COMMANDS[name]
    assert len(command.names) == len(command.keys), "no two keys have the same option"
    printed = selfplay(*name.split(), "--help").stdout
    shown = " ".join(printed.split())
    for key in command.keys.values():
        assert f"{key.option} " in shown and key.help.split()[0] in shown
        assert key.is_used_by(name) or name in ("doctor", "config")


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_a_command_shows_at_most_15_options(name):
    assert 1 <= len(re.findall("^  --", selfplay(*name.split(), "--help").stdout, re.MULTILINE)) <= 15


def test_a_value_of_set_is_read_as_in_a_file():
    settings = ("train.mini_batches=4", "train.loggers=[console, wandb]", "engine.context_length=null", "seed=7")
    given = [word for setting in settings for word in ("--set", setting)]
    printed = yaml.safe_load(selfplay("config", "--config", "tiny", *given, "--set", "game.mute=yes").stdout)
    assert printed["train"]["mini_batches"] == 4 and printed["train"]["loggers"] == ["console", "wandb"]
    assert (printed["seed"], printed["engine"]["context_length"], printed["game"]["mute"]) == (7, None, True)


def test_set_null_takes_back_the_value_of_a_file(tmp_path):
    (tmp_path / "my.yaml").write_text("base: tiny\nengine: {context_length: 512}\n")
    printed = selfplay("config", "--config", str(tmp_path / "my.yaml"), "--set", "engine.context_length=null").stdout
    assert yaml.safe_load(printed)["engine"]["context_length"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "train.epochs"], "--set train.epochs: expected KEY=VALUE, such as train.epochs=2"),
        (["--set", "train.epoch=2"], "--set train.epoch: there is no such key; did you mean `epochs`? "),
        (["--set", "epochs=2"], "--set epochs: there is no such key; did you mean `train.epochs`? "),
        (["--set", "trian.epochs=2"], "--set trian.epochs: there is no such key; did you mean `train.epochs`? "),
        (["--set", "game.colour=2"], "--set game.colour: there is no such key; `selfplay config` prints all keys"),
        (["--set", "train={epochs: 2}"], "--set train: a section; give its keys one by one, as train.KEY"),
        (["--set", "game=planning"], "--set game: a section; give its keys one by one, as game.KEY, or --game"),
        (["--set", "game.name=planning"], "--set game.name: give --game, which also replaces the keys of another game"),
        (["--set", "train.epochs=many"], "--set train.epochs: expected a whole number, found the text 'many'"),
        (["--set", "train.epochs=2.0"], "--set train.epochs: expected a whole number, found 2.0"),
        (["--set", "train.epochs=0"], "--set train.epochs: expected at least 1, found 0"),
        (["--set", "train.epochs={a: 1}"], "--set train.epochs: expected a whole number, found keys and values"),
        (["--set", "train.loggers=wandb"], "--set train.loggers: expected a list, found the text 'wandb'; write it in"),
        (["--set", "train.epochs="], "--set train.epochs: an empty value is given; leave it out, or give one"),
        (["--set", "train.epochs=#2"], "--set train.epochs: holds only a comment; quote a value that begins with #"),
        (["--set", "train.loggers=[console"], "--set train.loggers: not YAML: "),
        (["--set", "train.overrides=a"], "--set train.overrides: expected a list, found the text 'a'"),
        (["--set", "train.overrides=[1]"], "--set train.overrides: expected a text, found 1"),
        (["--set", "seed=1", "--set", "seed=2"], "--set seed: another --set sets this key too; give one of them"),
        (["--set", "seed=1", "--seed", "2"], "--set seed: --seed sets this key too; give one of them"),
        (["--set", "imitate.held_out=0.1"], "--set imitate.held_out: iterate does not use it, only imitate "),
        (["--set", "evaluate.num_states=9"], "--set evaluate.num_states: there is no such key; the option --num-"),
        (["--kl-coef", "0.1"], "no such option: --kl-coef; give --set train.kl_coef=VALUE; `"),
        (["--no-keep-processes"], "no such option: --no-keep-processes; give --set iterate.keep_processes=VALUE; `"),
        (["--device", "cpu"], "no such option: --device; give --set device=VALUE; `"),
        (["--num-states", "9"], "no such option: --num-states; "),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_one_line(words, says, tmp_path):
    done = selfplay("iterate", "--config", "tiny", "--output", str(tmp_path / "run"), *words)
    assert done.returncode == 2 and done.stderr.startswith(f"selfplay: {says}") and done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_suggested_command_repeats_the_settings_that_it_uses(tmp_path):
    done = selfplay(
        "generate", "--config", "tiny", "--seed", "7", "--engine", "transformers", "--num-episodes", "2",
        "--episodes-per-state", "2", "--temperature", "0.1", "--set", "generate.max_new_tokens=48",
        "--set", "game.max_length=9", "--output", str(tmp_path / "games.jsonl"),
    )  # fmt: skip
    words = next_words(done)
    assert words[2:] == ["--config", "tiny", "--seed", "7", "--set", "game.max_length=9"]
    assert selfplay(*words).returncode == 0


def test_a_setting_is_written_as_it_is_read():
    for value in (3, 1e-5, True, None, "text", "7", "a: b", ["x", "self=0.5"], "ü #1", "two\nlines"):
        assert read_settings([as_setting("partner.prompt", value)]) == {"partner.prompt": value}


class Hurried(GenerateConfig):
    """As before, with a new field."""

    hurry: Annotated[Literal["little", "much"], Option("--haste")] = "little"
    """How much haste there is.

    Haste makes waste.
    """
    patience: Annotated[float, Field(ge=1, lt=5)] = 2.0
    """Seconds without haste."""


class Wider(Config):
    generate: Hurried = Hurried()


@pytest.mark.long
def test_a_new_field_is_an_option_a_help_and_a_comment(monkeypatch, tmp_path):
    for module in (load, schema):
        monkeypatch.setattr(module, "Config", Wider)
    monkeypatch.setattr(typer.testing, "_get_command", typer.main.get_command)  # the commands are made anew
    assert "  hurry: much\n" in selfplay("config", "--set", "generate.hurry=much").stdout, "at once"
    (declared,) = (command for command in generate.app.registered_commands if command.callback is generate.generate)
    monkeypatch.setattr(declared.cls, "names", (*declared.cls.names, "generate.hurry", "generate.patience"))
    shown = " ".join(selfplay("generate", "--help").stdout.split())
    assert "--haste little|much How much haste there is. [default: little] --patience NUMBER" in shown
    assert "Seconds without haste. [at least 1 and below 5; default: 2.0]" in shown and "waste" not in shown
    printed = selfplay("config").stdout
    assert "  # How much haste there is. Haste makes waste.\n  hurry: little\n" in printed
    assert yaml.safe_load(printed)["generate"]["patience"] == 2.0
    for option, value, words in (
        ("--haste", "none", "--haste, the option for generate.hurry: expected little or much, found the text 'none'"),
        ("--patience", "5", "--patience, the option for generate.patience: expected a number below 5, found 5"),
        ("--patience", "some", "option for generate.patience: expected a number, found the text 'some'"),
        ("--num-episodes", "8.0", "option for generate.num_episodes: expected a whole number, found 8.0"),
    ):
        done = selfplay("generate", option, value, "--output", str(tmp_path / "games.jsonl"))
        assert done.returncode == 2 and words in done.stderr
    given = ("--haste", "much", "--patience", "3", "--player", "random", "--player", "random")
    few = ("--num-episodes", "2", "--episodes-per-state", "2", "--output", str(tmp_path / "games.jsonl"))
    assert selfplay("generate", *given, *few).returncode == 0
