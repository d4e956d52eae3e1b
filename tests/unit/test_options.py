"""One field of the configuration is one option, one help, one row of docs/options.md and one commented key of YAML."""

import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer.main
import typer.testing
import yaml
from command import selfplay
from pydantic import Field

from selfplay_pipeline.cli.reference import commands, page
from selfplay_pipeline.config import load, schema
from selfplay_pipeline.config.fields import keys
from selfplay_pipeline.config.schema import Config, GenerateConfig
from selfplay_pipeline.core.sections import Option

ROOT = Path(__file__).parents[2]
KEYS = {key.name: key for key in keys(Config)}
COMMANDS = commands()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_the_page_is_what_the_fields_say():
    assert (ROOT / "docs" / "options.md").read_text() == page(), "`make docs` writes it anew"


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_key_is_explained_in_a_sentence(key):
    assert re.fullmatch(r"[A-Z].{10,120}[.]", key.help), key.help
    assert not re.search(r"^(Of|Default)\b|``", key.text)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_names_keys_that_there_are_and_shows_each_under_an_option_of_its_own(name):
    command = COMMANDS[name]
    taken = [{key for key in KEYS if key == given or key.startswith(f"{given}.")} for given in command.names]
    assert all(taken) and len(set().union(*taken)) == len(command.keys), "no two keys have the same option"
    shown = " ".join(selfplay(name, "--help").stdout.split())
    for key in command.keys.values():
        assert f"{key.option} " in shown and key.help.split()[0] in shown


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
        done = selfplay("generate", option, value, "--dry-run", "--output", str(tmp_path / "games.jsonl"))
        assert done.returncode == 2 and words in done.stderr
    given = ("--haste", "much", "--patience", "3", "--player", "random", "--player", "random")
    assert selfplay("generate", *given, "--dry-run", "--output", str(tmp_path / "games.jsonl")).returncode == 0
