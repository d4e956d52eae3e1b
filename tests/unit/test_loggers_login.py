"""A logger without a login is refused in one line before anything starts."""

import os

import pytest
from command import selfplay

KEY = "0123456789" * 4
NO_LOGIN = (
    "selfplay: --logger wandb: no API key is there; run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline"
)
LATER = "train.parquet: no such file"
"""What is refused after the login was looked at."""
COMMANDS = {
    "train": ("train", "train.parquet"),
    "imitate": ("imitate", "games.jsonl"),
    "train-online": ("train-online",),
    "iterate": ("iterate",),
}


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """An empty home and working directory, and an environment without a key."""
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_trains_looks_for_the_login_first(alone, command):
    done = selfplay(*COMMANDS[command], "--output", "out", "--logger", "wandb")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(NO_LOGIN), done.stderr
    assert not [path for path in (alone / "out").glob("*") if not path.name.startswith(".")]


@pytest.mark.long
@pytest.mark.parametrize("source", ["offline", "key", "netrc", "wandb offline"])
def test_a_key_or_offline_writing_is_enough(alone, monkeypatch, source):
    if source == "netrc":
        (alone / ".netrc").write_text(f"machine api.wandb.ai\n login user\n password {KEY}\n")
    elif source == "wandb offline":
        (alone / "wandb").mkdir()
        (alone / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    else:
        monkeypatch.setenv(*{"offline": ("WANDB_MODE", "offline"), "key": ("WANDB_API_KEY", KEY)}[source])
    done = selfplay(*COMMANDS["train"], "--logger", "wandb")
    assert done.returncode == 2 and LATER in done.stderr, done.stderr
    assert "WANDB_SERVICE" not in os.environ, "verl's process would take it for its own"


def test_a_key_that_cannot_be_one_is_named(alone, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    done = selfplay(*COMMANDS["train"], "--logger", "wandb")
    assert done.returncode == 2 and "--logger wandb: WANDB_API_KEY invalid" in done.stderr.splitlines()[-1]
