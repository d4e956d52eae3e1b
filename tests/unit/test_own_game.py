"""A game that lives outside of the package: it is imported when a user names it, and by no stored file."""

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from command import selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games import registry
from selfplay_pipeline.games.abilities import HumanEpisodes, Lessons, ListeningTest, TurnCredit, WordlessPlay, ability
from selfplay_pipeline.generate.records import read_episodes

CONFIG = "examples/sums.yaml"
GAME = str(Path("examples/sums.py").resolve())
EVERYTHING = """
import pkgutil, sys, importlib, selfplay_pipeline
others = ("games.matching", "games.bargaining", "__main__", "verl", "sglang", "agent_loop")  # verl takes long to import
for module in pkgutil.walk_packages(selfplay_pipeline.__path__, "selfplay_pipeline."):
    if not any(part in module.name for part in others):
        importlib.import_module(module.name)
print(*(name for name in sys.modules if name.startswith("selfplay_pipeline.games.") and name.count(".") > 2))
"""
HELP = """
import sys
from selfplay_pipeline.cli import app
sys.argv[1:] = ["--help"]
try:
    app()
except SystemExit:
    print("found:", *(name for name in sys.modules if name.startswith("selfplay_pipeline.games")))
"""


@pytest.fixture(autouse=True)
def asked_for_nothing(monkeypatch):
    """Each test begins as a process does, to which nobody has named a game."""
    monkeypatch.setattr(registry, "_found", {})


@pytest.fixture
def games(tmp_path):
    """Sixteen episodes of two scripted players of the game."""
    path = tmp_path / "games.jsonl"
    players = ("--player", "adding", "--player", "guessing")
    done = selfplay("generate", "--config", CONFIG, *players, "--num-episodes", "16", "--output", str(path))
    assert done.returncode == 0, done.stderr
    return path


def forget():
    registry._found.clear()


def printed_by(code: str, **environment: str) -> str:
    """What a Python process of its own prints."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- found when it is asked for -----------------------------------------------------------------------------


@pytest.mark.long
def test_no_module_outside_of_a_games_folder_imports_a_game():
    assert printed_by(EVERYTHING) == "\n"


def test_help_imports_nothing_of_games():
    assert printed_by(HELP).splitlines()[-1] == "found:"


def test_a_configuration_imports_its_own_game_alone():
    probe = "import sys; from selfplay_pipeline.config.load import load_config; load_config('tiny_bargaining', {})\n"
    probe += "inside = [name.split('.') for name in sys.modules if name.startswith('selfplay_pipeline.games.')]\n"
    assert printed_by(f"{probe}print(*{{parts[2] for parts in inside if len(parts) > 3}})") == "bargaining\n"


def test_a_game_in_one_file_is_played_recorded_and_measured(games, tmp_path):
    records = list(read_episodes(games))
    assert {record.game for record in records} == {"sums"} and len(records) == 16
    assert {record.outcome.status for record in records} == {"agreed"}
    evaluated = tmp_path / "evaluation"
    done = selfplay("evaluate", "adding", "--config", CONFIG, "--num-states", "4", "--output", str(evaluated))
    assert done.returncode == 0, done.stderr
    figures = json.loads((evaluated / "evaluation.json").read_text())["modes"]["scripted"]["figures"]
    assert figures["reward"]["value"] == figures["agreed"]["value"] == 1.0
    assert figures["messages"]["value"] == 3.0


def test_the_next_command_names_the_game(tmp_path, games):
    done = selfplay("generate", "--config", CONFIG, "--player", "adding", "--output", str(tmp_path / "more.jsonl"))
    assert f"next: selfplay show {tmp_path / 'more.jsonl'} --game {GAME}" in done.stderr


@pytest.mark.parametrize("command", ["show", pytest.param("report", marks=pytest.mark.long)])
def test_its_files_are_shown_and_reported_on_when_it_is_named(command, games):
    forget()
    done = selfplay(command, str(games), "--game", GAME)
    assert done.returncode == 0, done.stderr
    assert "[message]" in done.stdout if command == "show" else games.with_name("report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("larges: 3", r"3: key 'game.larges': there is no such key; did you mean `largest`"),
        ("largest: 0", r"3: key 'game.largest': expected at least 1, found 0"),
        ("largest: 3", None),
    ],
)
def test_its_keys_are_those_of_its_settings(tmp_path, line, words):
    own = tmp_path / "own.yaml"
    own.write_text(f"game:\n  path: {GAME}\n  {line}\n")
    with pytest.raises(UserError, match=f"own.yaml:{words}") if words else nullcontext():
        assert load_config(str(own), {}).game.model_dump() == {
            "name": "sums", "path": GAME, "max_length": 20, "mute": False, "prompts": "default", "largest": 3
        }  # fmt: skip


def test_the_printed_configuration_can_be_given_again(tmp_path):
    printed = selfplay("config", "--config", CONFIG).stdout
    assert "# Largest number that a player may hold.\n  largest: 9" in printed
    (tmp_path / "again.yaml").write_text(printed)
    forget()
    assert load_config(str(tmp_path / "again.yaml"), {}) == load_config(CONFIG, {})


def test_a_game_is_found_by_the_name_that_a_package_offers(tmp_path):
    source = Path("examples/sums.py").read_text()
    (tmp_path / "haggle.py").write_text(source.replace('name = "sums"', 'name = "haggle"'))
    about = tmp_path / "haggle-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: haggle\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\nhaggle = haggle:Sums\n")
    probe = "from selfplay_pipeline.games.registry import find, place_of; found = find('haggle'); "
    probe += "print(found.name, place_of(found))"
    assert printed_by(probe, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}") == "haggle haggle\n"


# --- what cannot be found -----------------------------------------------------------------------------------

WHOLE = """
from selfplay_pipeline.games.base import Game
class Whole(Game):
    def sample_state(self, rng): return 0
    def start(self, state): ...
    def rewards(self, state, decision): return 0.0, 0.0
    def state_to_json(self, state): return {"number": state}
    def state_from_json(self, data): return data["number"]
"""
"""A class with every required member but a name."""
SOURCES = {
    "broken": "1 / 0",
    "leaves": "raise SystemExit",
    "empty": "",
    "stranger": "class Own: ...",
    "half": "from selfplay_pipeline.games.base import Game\nclass Own(Game): ...",
    "two": f"{WHOLE}class One(Whole):\n    name = 'one'\nclass Two(Whole):\n    name = 'two'\n",
    "setter": f"{WHOLE}class Own(Whole):\n    name = 'own'\n    config = property(lambda self: None)\n",
    "method": f"{WHOLE}class Own(Whole):\n    name = 'own'\n    def shared_reward(self): return False\n",
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.py", "nowhere.py: there is no such file; name the file of a game"),
        ("broken.py", r"broken.py: cannot be imported: ZeroDivisionError: division by zero \(.*broken.py:1\)"),
        ("leaves.py", "leaves.py: cannot be imported: SystemExit"),
        ("empty.py", "empty.py: defines no game, that is, no class derived from selfplay_pipeline.games.base.Game"),
        ("stranger.py", "stranger.py: defines no game, that is, no class derived from"),
        ("half.py", "half.py: Own: lacks name, rewards, sample_state, start, state; docs/adding-a-game.md"),
        ("two.py", "two.py: defines several games: one, two; name one of them as .*two.py:NAME"),
        ("setter.py", "setter.py: Own: cannot be made with its default configuration: AttributeError: .*no setter"),
        ("method.py", "method.py: Own.shared_reward: is a method, but has to be a property or a value"),
    ],
)
def test_what_is_no_game_is_refused_in_one_line(name, words, tmp_path, monkeypatch):
    for stem, source in SOURCES.items():
        (tmp_path / f"{stem}.py").write_text(source)
    (tmp_path / "own.yaml").write_text(f"game:\n  path: {name}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^own.yaml:2: key 'game.path': .*{words}") as refused:
        load_config("own.yaml", {})
    assert "\n" not in str(refused.value)
    done = selfplay("show", "games.jsonl", "--game", name)
    assert done.returncode == 2 and done.stderr.startswith("selfplay: --game: ") and done.stderr.count("\n") == 1


def test_two_games_of_one_name_are_refused(tmp_path):
    registry.find(GAME)
    (tmp_path / "other.py").write_text(Path("examples/sums.py").read_text())
    with pytest.raises(UserError, match=f"its name 'sums' is that of {GAME}; give it another"):
        registry.find(str(tmp_path / "other.py"))
    (tmp_path / "shadow.py").write_text(Path("examples/sums.py").read_text().replace('"sums"', '"matching"'))
    with pytest.raises(UserError, match="its name 'matching' is that of a game that comes with the package"):
        registry.find(str(tmp_path / "shadow.py"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (WordlessPlay, "silence line"), (ListeningTest, "listening test"), (TurnCredit, "credit of single turns"),
        (Lessons, "lesson for a small model"), (HumanEpisodes, "episodes of people"),
    ],
)  # fmt: skip
def test_an_ability_that_a_game_lacks_is_refused_in_one_line(kind, words):
    with pytest.raises(UserError, match=f"^its key: the game sums has no {words}; choose another game with --config$"):
        ability(registry.find(GAME)(), kind, "its key")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["silence", "--states", "2"], "silence: the game sums has no silence line"),
        (["listen", "adding", "--num-states", "2"], "listen: the game sums has no listening test"),
        (["humans"], "no people are known to have played sums"),
        (["model", "tiny"], "model tiny: the game sums has no lesson"),
    ],
)
def test_a_command_that_needs_one_says_so(command, words, tmp_path):
    done = selfplay(*command, "--config", CONFIG, "--output", str(tmp_path / "out"))
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- stored files import nothing ----------------------------------------------------------------------------


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A file of code that leaves a trace when it is run, as each of the names that a stored file may give a game."""
    (tmp_path / "trap.py").write_text("import pathlib\npathlib.Path(__file__).with_name('sprung').touch()")
    monkeypatch.syspath_prepend(tmp_path)
    yield [str(tmp_path / "trap.py"), f"{tmp_path / 'trap.py'}:Own", "trap"]
    assert not (tmp_path / "sprung").exists()


def of_game(games, name, where) -> Path:
    """A file of episodes that says, in itself or in the arguments beside it, that its game is another."""
    if where == "episodes":
        lines = [json.loads(line) | {"game": name} for line in games.read_text().splitlines()]
        games.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        beside = games.with_suffix(".args.json")
        beside.write_text(json.dumps(json.loads(beside.read_text()) | {"game.name": name, "game.path": name}))
    return games


@pytest.mark.parametrize("where", ["episodes", "arguments"])
@pytest.mark.parametrize(
    "command",
    [
        ["show"],
        ["report"],
        ["convert"],
        ["imitate"],
        ["generate", "--config", CONFIG, "--player", "adding", "--output"],
    ],
    ids=lambda command: command[0],
)
def test_a_stored_file_makes_no_command_import_what_it_names(command, where, trap, games):
    for name in trap:
        path = of_game(games, name, where)
        forget()
        done = selfplay(*command, str(path))
        assert done.returncode in ((2,) if where == "episodes" else (0, 2)), done.stderr
        assert "Traceback" not in done.stderr


def test_a_file_of_a_game_that_nobody_has_named_says_how_to_name_it(games):
    forget()
    done = selfplay("show", str(games))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "field 'game': 'sums', but the games are matching, bargaining; give the option --game" in done.stderr
    assert f": --game {GAME}, if it still is the code that played them" in done.stderr


def test_a_game_is_looked_for_only_where_a_user_names_one():
    asking = {
        str(path.relative_to("selfplay_pipeline"))
        for path in Path("selfplay_pipeline").rglob("*.py")
        if re.search(r"registry import .*\bfind\b|registry\.find", path.read_text())
    }
    # An option, a configuration, and the same configuration for verl's workers.
    assert asking == {"cli/options.py", "config/load.py", "train/verl/agent_loop.py"}
