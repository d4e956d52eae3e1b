"""How a user names a game of their own, what a run keeps of it, and what a broken game breaks."""

import json
import re
import shlex
from pathlib import Path

import pytest
from command import next_words, selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games import registry

GAME = Path("examples/sums.py").resolve()
FEW = ("--player", "adding", "--num-episodes", "8")

pytestmark = pytest.mark.usefixtures("no_game_named")


def forget():
    registry._found.clear()


def play(tmp_path, *arguments):
    return selfplay("generate", *FEW, *arguments, "--output", str(tmp_path / "games.jsonl"))


# --- naming -------------------------------------------------------------------------------------------------


def test_the_option_chooses_the_game_and_its_defaults_replace_the_section(tmp_path):
    done = play(tmp_path, "--game", str(GAME), "--set", "game.max_length=7")
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "games.args.json").read_text())
    kept = {key: value for key, value in stored.items() if key.startswith("game.")}
    assert kept == {
        "game.name": "sums", "game.path": str(GAME), "game.max_length": 7, "game.mute": False,
        "game.prompts": "default", "game.largest": 9,
    }  # fmt: skip


def test_a_shipped_game_is_named_the_same_way(tmp_path):
    chosen = load_config("tiny_honest", {"game": "bargaining"}).game
    assert (chosen.name, chosen.path) == ("bargaining", None)
    kept = load_config("tiny_honest", {"game": "matching"}).game
    assert kept.size == 3, "naming the configuration's own game keeps its keys"


def test_a_file_of_several_games_needs_a_name(tmp_path):
    source = GAME.read_text()
    (tmp_path / "two.py").write_text(f'{source}\n\nclass Differences(Sums):\n    name = "differences"\n')
    found = load_config(None, {"game": f"{tmp_path / 'two.py'}:differences"}).game
    assert (found.name, found.path) == ("differences", str(tmp_path / "two.py"))
    (tmp_path / "own.yaml").write_text(f"game: {{name: sums, path: {tmp_path / 'two.py'}}}\n")
    assert load_config(str(tmp_path / "own.yaml"), {}).game.name == "sums"
    for kind in (registry.known("sums"), registry.known("differences")):
        assert registry.find(registry.place_of(kind)) is kind, "as another process finds it"
    forget()
    done = play(tmp_path, "--game", f"{tmp_path / 'two.py'}:sums")
    assert next_words(done)[-2:] == ["--game", f"{tmp_path / 'two.py'}:sums"]


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            "name: chess",
            "key 'game.name': there is no game 'chess'; give one of matching, bargaining, mediation, planning, pet",
        ),
        ("name: own.py", "key 'game.name': 'own.py' is a file; name it with the key `path`"),
        (f"path: {GAME}\n  name: chess", "key 'game.path': .*sums.py: defines no game 'chess', but sums"),
    ],
)
def test_a_name_that_fits_no_game_is_refused(section, says, tmp_path):
    (tmp_path / "own.yaml").write_text(f"game:\n  {section}\n")
    with pytest.raises(UserError, match=says):
        load_config(str(tmp_path / "own.yaml"), {})


def test_the_suggested_command_names_the_game_again(tmp_path):
    words = next_words(play(tmp_path, "--game", str(GAME)))
    forget()
    done = selfplay(*words)
    assert done.returncode == 0 and "[message]" in done.stdout


@pytest.mark.long
def test_the_suggested_warm_start_names_the_game_and_a_player_that_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    policy = "generate --engine transformers --num-episodes 8 --set generate.max_new_tokens=1 --game"
    done = selfplay(*policy.split(), str(GAME), "--output", str(tmp_path / "games.jsonl"))
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"such as `selfplay (generate .*?)` plays", " ".join(done.stderr.split()))
    assert selfplay(*shlex.split(line), "--num-episodes", "8").returncode == 0
    assert next_words(done) == ["imitate", str(tmp_path / "teacher.jsonl"), "--game", str(GAME)]


# --- broken games -------------------------------------------------------------------------------------------

BROKEN = {
    "syntax": ("class Sums(Game):", "class Sums(Game:", "own.py: cannot be imported: SyntaxError"),
    "three rewards": ("return right, right", "return right, right, right", "own.py: `rewards` returns .* 2 seats"),
    "one reward": ("return right, right", "return right", r"own.py: `rewards` returns \d.\d; return one number from"),
    "large reward": ("return right, right", "return 2.0, right", r"`rewards` returns \(2.0, \d.\d\); return"),
    "code": ("rng.integers(1,", "rng.integer(1,", r"own.py:\d+: Sums.sample_state: AttributeError: .*game check"),
}


def test_an_export_with_a_configuration_takes_the_game_that_is_named(tmp_path):
    assert play(tmp_path, "--game", str(GAME)).returncode == 0
    forget()
    options = ("--config", "tiny", "--game", str(GAME), "--output", str(tmp_path / "out"))
    done = selfplay("export", str(tmp_path / "games.jsonl"), *options)
    assert done.returncode == 0, done.stderr


def test_a_game_that_a_file_names_twice_is_one_game(tmp_path):
    (tmp_path / "own.py").write_text(GAME.read_text() + "\n\nGAME = Sums\n")
    assert play(tmp_path, "--game", str(tmp_path / "own.py")).returncode == 0


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_game_ends_its_own_commands_in_one_line_and_no_others(fault, tmp_path):
    before, after, says = BROKEN[fault]
    assert before in GAME.read_text()
    (tmp_path / "own.py").write_text(GAME.read_text().replace(before, after))
    done = play(tmp_path, "--game", str(tmp_path / "own.py"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(rf"^selfplay: .*{says}", done.stderr, re.MULTILINE), done.stderr
    other = tmp_path / "other.jsonl"
    played = selfplay("generate", "--player", "random", "--num-episodes", "8", "--output", str(other))
    assert played.returncode == 0, played.stderr
    assert selfplay("show", str(other)).returncode == 0
