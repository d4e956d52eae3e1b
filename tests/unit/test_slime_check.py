"""What `selfplay slime check` says of slime, configuration and data; and the files that launch slime."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import selfplay
from factories import BOARD
from omegaconf import OmegaConf
from slime_contract import arguments

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.slime.check import CONTRACT, check_all, check_version
from selfplay_pipeline.slime.config import DEFAULT, RolloutConfig
from selfplay_pipeline.slime.data import DataJob, check_data, write_data

SCRIPT = Path("bin/run_slime_matching.sh").resolve()


@pytest.fixture
def slime(tmp_path) -> Path:
    """A folder of slime's, as far as the check looks at it."""
    root = tmp_path / "slime_source"
    (root / "slime").mkdir(parents=True)
    (root / "slime" / "__init__.py").touch()
    (root / "setup.py").write_text('setup(version="0.3.1")')
    return root


def options_of(text: str) -> set[str]:
    """The options that lines of a launch script pass to slime's train.py: those inside arrays of arguments."""
    arrays = re.findall(r"^\w*ARGS=\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0] for array in arrays for line in array.splitlines()]
    return {name for line in lines for name in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", line)}


def test_another_version_is_named_with_the_test_that_compares_it_and_is_no_reason_to_stop(slime, tmp_path):
    found = {item.what: item for item in check_all(slime, None)}
    assert all(found[what].ok for what in ("slime", "our hooks", "configuration", "partner"))
    assert found["slime"].found == f"0.3.1 in {slime}"
    (slime / "setup.py").write_text('setup(version="0.4.0")')
    item = check_version(slime)
    assert item.ok and item.found.startswith("0.4.0 in ") and "tested was 0.3.1" in item.found
    assert Path(CONTRACT).is_file() and CONTRACT in item.found
    (slime / "setup.py").write_bytes(b"\xff")
    assert "tested was 0.3.1" in check_version(slime).found
    done = selfplay("slime", "check", "--slime", str(tmp_path))
    assert done.returncode == 2 and re.search(r"missing\s+slime\s+not found\s+→ install slime 0.3.1", done.stdout)


def test_data_configuration_and_key_are_checked_too(slime, tmp_path, monkeypatch):
    data, config, cache = tmp_path / "games.jsonl", tmp_path / "config.yaml", tmp_path / "cache"
    config.write_text(f"max_turns: 10\nselfplay: {{partner: chat, chat: {{cache: {cache}}}}}")
    write_data(data, DataJob(BOARD, num_states=2, seed=0))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    def found() -> dict:
        return {item.what: item for item in check_all(slime, config, [data])}

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert found()["prompt data"].ok and "3×3" in found()["prompt data"].found
    assert not found()["partner"].ok and "OPENAI_API_KEY" in found()["partner"].found
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-to-be-shown")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "openai", None)
        assert not found()["partner"].ok and "openai" in found()["partner"].found
    data.write_text("{}")
    assert found()["partner"].ok and not cache.exists()
    assert not found()["prompt data"].ok and "games.jsonl:1" in found()["prompt data"].found
    assert "sk-not-to-be-shown" not in str(found())


@pytest.mark.parametrize(("partner", "fits"), [("shy", False), ("sharing", True)])
def test_a_partner_that_cannot_play_the_game_of_the_rows_is_named(slime, tmp_path, partner, fits):
    data, config = tmp_path / "games.jsonl", tmp_path / "config.yaml"
    config.write_text(f"max_turns: 10\nselfplay: {{partner: {partner}}}")
    write_data(data, DataJob(load_config("tiny_planning", {"game.max_length": 10}).game, num_states=1, seed=0))
    wrong = [item.found for item in check_all(slime, config, [data]) if item.what == "partner" and not item.ok]
    assert [f"{data}: planning: selfplay.partner: there is no 'shy'" in one for one in wrong] == [True] * (not fits)


@pytest.mark.parametrize("name", ["tiny", "tiny_bargaining", "tiny_mediation", "tiny_planning"])
def test_rows_of_every_game_are_those_that_were_written(tmp_path, name):
    data, game = tmp_path / "rows.jsonl", load_config(name).game
    write_data(data, DataJob(game, num_states=2, seed=0))
    assert check_data(data) == [game]


def test_rows_that_promise_more_turns_than_a_dialogue_gets_are_named(slime, tmp_path):
    config = tmp_path / "config.yaml"
    files = [tmp_path / "games.jsonl", tmp_path / "games_eval.jsonl"]
    for path, length in zip(files, (10, 12), strict=True):
        write_data(path, DataJob(BOARD.model_copy(update={"max_length": length}), num_states=1, seed=0))
    for turns, promising in ((6, []), (5, files[1:]), (4, files)):
        config.write_text(f"max_turns: {turns}")
        found = [item for item in check_all(slime, config, files) if item.what == "turns"]
        assert [item.found.split(":")[0] for item in found] == list(map(str, promising))
        assert not any(item.ok for item in found)


def test_the_launch_script_is_sound():
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0
    text = SCRIPT.read_text()
    for module, name in re.findall(r"selfplay_pipeline\.slime\.(\w+)\.(\w+)", text):
        assert callable(getattr(__import__(f"selfplay_pipeline.slime.{module}", fromlist=[name]), name))
    arrays = re.findall(r"^(\w*ARGS)=\($", text, re.MULTILINE)
    assert all(f'"${{{name}[@]}}"' in text for name in [*arrays, "MODEL_ARGS"])
    assert "--calculate-per-token-loss" in options_of(text), "every token weighs the same in the loss"


def evaluation_sets() -> list[dict]:
    """What the launch script has slime evaluate, as slime reads it."""
    config = OmegaConf.load(SCRIPT.parents[1] / re.search(r'--eval-config "\$PROJECT/(\S+)"', SCRIPT.read_text())[1])
    return OmegaConf.to_container(config, resolve=True)["eval"]["datasets"]


def test_evaluations_are_played_sampled_as_in_training_and_greedily(monkeypatch):
    monkeypatch.setenv("GAMES_EVAL", "/run/games_eval.jsonl")
    options, sets = SCRIPT.read_text(), evaluation_sets()
    trained_at = float(re.search(r"--rollout-temperature (\S+)", options)[1])
    assert {data["temperature"] for data in sets} == {trained_at, 0.0}
    assert {data["path"] for data in sets} == {"/run/games_eval.jsonl"}
    assert len({data["name"] for data in sets}) == len(sets)
    assert '\\"GAMES_EVAL\\": \\"$GAMES_EVAL\\"' in options, "Ray's workers are told the file"


@pytest.mark.parametrize("starts", [True, False])
def test_the_script_stops_only_a_cluster_that_it_started_and_takes_paths_from_where_it_is_called(tmp_path, starts):
    tools, models = tmp_path / "tools", tmp_path / "slime" / "scripts" / "models"
    tools.mkdir()
    models.mkdir(parents=True)
    (models / "qwen2.5-7B.sh").write_text("MODEL_ARGS=()")
    for name, text in (
        ("python3", ""),
        ("ray", f'echo "$@" >> {tmp_path}/log; [ "$1" != start ] || {str(starts).lower()}'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "SLIME": "slime", "HF_CHECKPOINT": "hf"}
    done = subprocess.run(["bash", str(SCRIPT)], cwd=tmp_path, env=env, capture_output=True, check=False)
    called = (tmp_path / "log").read_text()
    assert [line.split()[0] for line in called.splitlines() if line[0] != " "] == (
        ["start", "job", "stop"] if starts else ["start"]
    )
    assert (done.returncode == 0) == starts
    assert not starts or f"--hf-checkpoint {tmp_path}/hf --ref-load {tmp_path}/hf_torch_dist" in called


def test_the_shipped_configuration_says_what_the_defaults_are_and_explains_every_key():
    own = {"exclude": {"selfplay": {"chat": {"max_concurrency"}}}}
    assert RolloutConfig.read(DEFAULT).model_dump(**own) == RolloutConfig().model_dump(**own)
    lines = DEFAULT.read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"\s*\w+:", line)]
    assert keys and all(lines[number - 1].lstrip().startswith("#") for number in keys)
    args = arguments(**yaml.safe_load(DEFAULT.read_text()))  # into which slime puts the file's top-level keys
    assert RolloutConfig.of(args) == RolloutConfig.read(DEFAULT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_turn: 3", "field 'max_turn'"),
        ("selfplay: {chat: {modle: x}}", "field 'selfplay.chat.modle'"),
        ("max_turns: 0", "field 'max_turns'"),
        ("[1]", "expected keys and values, found list"),
        ("\nmax_turns: 1\nmax_turns: 2", "3: key 'max_turns' is given in line 2 already"),
    ],
)
def test_a_wrong_configuration_is_one_clear_line(tmp_path, text, words):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"{tmp_path}/config.yaml: ?{re.escape(words)}"):
        RolloutConfig.read(tmp_path / "config.yaml")
