"""A game that lives outside of the package: it is imported when a user names it, and by no stored file."""

import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from command import selfplay

from selfplay_pipeline.config.identity import contents_of_game
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.content_hash import file_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games import registry
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.stage import check_seats
from selfplay_pipeline.iterate.folder import RunDirectory

CONFIG = "examples/sums.yaml"
GAME = str(Path("examples/sums.py").resolve())
IMPORTS = "import sys; {code}; print(*(name for name in sys.modules if name.startswith('selfplay_pipeline.games')))"
EVERYTHING = """
import pkgutil, importlib, selfplay_pipeline
others = ("games.matching", "games.bargaining", "games.mediation", "games.planning",
          "games.textarena", "games.pettingzoo", "__main__",
          "verl", "sglang", "agent_loop")  # verl takes long to import
for module in pkgutil.walk_packages(selfplay_pipeline.__path__, "selfplay_pipeline."):
    if not any(part in module.name for part in others):
        importlib.import_module(module.name)
"""

pytestmark = pytest.mark.usefixtures("no_game_named")


@pytest.fixture
def games(tmp_path):
    """Sixteen episodes of two scripted players of the game."""
    path = tmp_path / "games.jsonl"
    players = ("--player", "adding", "--player", "guessing")
    done = selfplay("generate", "--config", CONFIG, *players, "--num-episodes", "16", "--output", str(path))
    assert done.returncode == 0, done.stderr
    return path


def forget():
    """Forget the games and their files, as a new process does."""
    registry._found.clear()
    for name in [name for name, module in sys.modules.items() if registry.CONTENTS in vars(module)]:
        del sys.modules[name]


def printed_by(code: str, **environment: str) -> str:
    """What a Python process of its own prints."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- found when it is asked for -----------------------------------------------------------------------------


@pytest.mark.long
def test_python_reads_episodes_of_an_own_game_after_it_was_loaded(games):
    code = f"import selfplay_pipeline as sp; {{}}print(len(sp.episodes_frame({str(games)!r})))"
    assert printed_by(code.format("sp.load_game('examples/sums.py'); ")) == "16\n"


def games_imported_by(code: str) -> set[str]:
    """Games whose modules a Python process of its own imports."""
    printed = printed_by(IMPORTS.format(code=f"exec({code!r})")).split()
    return {parts[2] for name in printed if len(parts := name.split(".")) > 3}


@pytest.mark.long
def test_no_module_outside_of_a_games_folder_imports_a_game():
    assert games_imported_by(EVERYTHING) == set()


@pytest.mark.long
def test_a_configuration_imports_its_own_game_alone():
    code = "from selfplay_pipeline.config.load import load_config; load_config('tiny_bargaining', {})"
    assert games_imported_by(code) == {"bargaining"}


def test_a_game_in_one_file_is_played_recorded_and_measured(games, tmp_path):
    records = list(read_episodes(games))
    assert {record.game for record in records} == {"sums"} and len(records) == 16
    assert {record.outcome.status for record in records} == {"agreed"}
    evaluated = tmp_path / "evaluation"
    done = selfplay("evaluate", "adding", "--config", CONFIG, "--num-states", "4", "--output", str(evaluated))
    assert done.returncode == 0, done.stderr
    figures = json.loads((evaluated / "evaluation.json").read_text())["modes"]["scripted"]["figures"]
    assert [figures[name]["value"] for name in ("reward", "agreed", "messages")] == [1.0, 1.0, 3.0]


@pytest.mark.parametrize("command", ["show", pytest.param("report", marks=pytest.mark.long)])
def test_its_files_are_read_when_it_is_named_and_else_one_line_says_how_to_name_it(command, games):
    forget()
    done = selfplay(command, str(games))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert (
        "field 'game': 'sums', but the games are matching, bargaining, mediation, planning; give the option --game"
        in done.stderr
    )
    assert f": --game {GAME}, if it still is the code that played them" in done.stderr
    done = selfplay(command, str(games), "--game", GAME)
    assert done.returncode == 0, done.stderr
    assert "[message]" in done.stdout if command == "show" else games.with_name("report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("larges: 3", r"3: key 'game.larges': there is no such key; did you mean `largest`"),
        ("largest: 0", r"3: key 'game.largest': expected at least 1, found 0"),
    ],
)
def test_its_keys_are_those_of_its_settings(tmp_path, line, words):
    own = tmp_path / "own.yaml"
    own.write_text(f"game:\n  path: {GAME}\n  {line}\n")
    with pytest.raises(UserError, match=f"own.yaml:{words}"):
        load_config(str(own), {})


def test_the_printed_configuration_can_be_given_again(tmp_path):
    (tmp_path / "again.yaml").write_text(printed := selfplay("config", "--config", CONFIG).stdout)
    assert "# Largest number that a player may hold.\n  largest: 9" in printed
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
OWN = f"{WHOLE}class Own(Whole):\n    name = 'own'\n    "
NO_GAME = {
    "nowhere": (None, "there is no such file; name the file of a game"),
    "broken": ("1 / 0", r"cannot be imported: ZeroDivisionError: division by zero \(.*broken.py:1\)"),
    "leaves": ("raise SystemExit", "cannot be imported: SystemExit"),
    "empty": ("", "defines no game, that is, no class derived from selfplay_pipeline.games.base.Game"),
    "stranger": ("class Own: ...", "defines no game, that is, no class derived from"),
    "half": (
        "from selfplay_pipeline.games.base import Game\nclass Own(Game): ...",
        "Own: lacks name, rewards, sample_state, start, state; docs/game-reference.md",
    ),
    "two": (
        f"{WHOLE}class One(Whole):\n    name = 'one'\nclass Two(Whole):\n    name = 'two'\n",
        "defines several games: one, two; name one of them as .*two.py:NAME",
    ),
    "derived": (
        "from selfplay_pipeline.games.matching.game import MatchingGame\nclass Own(MatchingGame):\n    name = 'own'\n",
        "Own: cannot be made .*: field 'name': Input should be 'matching'; give it `settings`",
    ),
    "setter": (
        f"{OWN}config = property(lambda self: None)\n",
        "Own: cannot be made with its default configuration: AttributeError: .*no setter",
    ),
    "method": (
        f"{OWN}def shared_reward(self): return False\n",
        "Own.shared_reward: is a method, but has to be a property or a value",
    ),
    "names_alone": (
        f"{OWN}def renamed(self, state, names): return state\n",
        "Own: has renamed, but not draw_names, retold",
    ),
    "alter_alone": (
        f"{OWN}def alter(self, state, turns, kind, rng): ...\n",
        "Own: has alter, but not alterations; docs",
    ),
    "own_has": (f"{OWN}def has(self, item): return False\n", "Own.has: is the package's own; give yours another name"),
    "given_up": (f"{OWN}alter = None\n", "Own.alter: is no method; to do without it set alter = Game.alter"),
}


@pytest.mark.parametrize("name", NO_GAME)
def test_what_is_no_game_is_refused_in_one_line(name, tmp_path, monkeypatch):
    source, words = NO_GAME[name]
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "own.yaml").write_text(f"game:\n  path: {name}.py\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^own.yaml:2: key 'game.path': .*{name}.py: {words}") as refused:
        load_config("own.yaml", {})
    assert "\n" not in str(refused.value)
    done = selfplay("show", "games.jsonl", "--game", f"{name}.py")
    assert done.returncode == 2 and done.stderr.startswith("selfplay: --game: ") and done.stderr.count("\n") == 1


@pytest.fixture
def bold(tmp_path):
    """The file of a game that derives from matching, with smaller boards."""
    path = tmp_path / "bold.py"
    path.write_text(
        "from typing import Literal\n"
        "from selfplay_pipeline.games.matching.game import MatchingGame\n"
        "from selfplay_pipeline.games.matching.rules import MatchingConfig\n"
        "class BoldSettings(MatchingConfig):\n"
        "    name: Literal['bold'] = 'bold'\n"
        "    size: int = 4\n"
        "class Bold(MatchingGame):\n"
        "    name = 'bold'\n"
        "    settings = BoldSettings\n"
    )
    return str(path)


def test_a_game_that_derives_from_matching_has_people_on_dialops_board_alone_and_its_prompts_for_partners(
    tmp_path, bold
):
    small = make_game(load_config("tiny", {"game": bold}).game)
    assert not small.known_lines() and not [*small.human_episodes()]
    assert {"plain", "shy"} <= {*registry.partner_prompts(small)}
    (tmp_path / "own.yaml").write_text(f"game: {{path: {bold}, size: 8}}\n")
    large = make_game(load_config(str(tmp_path / "own.yaml"), {}).game)
    assert "human pairs (8×8)" in large.known_lines() and len([*large.human_episodes()]) == 134


def test_a_path_that_names_a_game_too_is_refused(tmp_path, bold):
    (tmp_path / "own.yaml").write_text(f"game:\n  path: {bold}:bold\n")
    with pytest.raises(UserError, match=r"own.yaml:2: key 'game.path': .*bold.py:bold': write the file as `path`"):
        load_config(str(tmp_path / "own.yaml"), {})


def test_a_missing_prompt_of_the_chat_model_is_refused_before_anything_is_done():
    config = load_config("tiny", {"partner.prompt": "nowhere", "partner.base_url": "http://127.0.0.1:9/v1"})
    with pytest.raises(UserError, match=r"partner\.prompt: 'nowhere': No such file"):
        check_seats(config, str(config.model), ["sharing", "chat"])


def test_two_games_of_one_name_are_refused(tmp_path):
    registry.find(GAME)
    (tmp_path / "other.py").write_text(Path("examples/sums.py").read_text())
    with pytest.raises(UserError, match=f"its name 'sums' belongs to {GAME}; give it another name"):
        registry.find(str(tmp_path / "other.py"))
    (tmp_path / "shadow.py").write_text(Path("examples/sums.py").read_text().replace('"sums"', '"matching"'))
    with pytest.raises(UserError, match="its name 'matching' belongs to a game that comes with the package"):
        registry.find(str(tmp_path / "shadow.py"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["game", "silence", "--num-states", "2"],
            "game silence: the game sums has no silence line; choose another game with --config",
        ),
        (["listen", "adding", "--num-states", "2"], "listen: the game sums has no listening test"),
        (["game", "humans"], "there are no episodes of people in sums; choose --game matching, which has some"),
        (["model", "tiny"], "model tiny: the game sums has no lesson"),
    ],
)
def test_a_command_that_needs_an_ability_that_the_game_lacks_says_so(command, words, tmp_path):
    done = selfplay(*command, "--config", CONFIG, "--output", str(tmp_path / "out"))
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_is_refused_if_the_file_of_its_game_has_changed_and_goes_on_if_it_has_moved(tmp_path, monkeypatch):
    path, moved, run = tmp_path / "own.py", tmp_path / "moved.py", RunDirectory(tmp_path / "run")
    path.write_text(Path("examples/sums.py").read_text())
    run.open(load_config("tiny_honest", {"game": str(path)}))
    moved.write_text(path.read_text())
    forget()
    run.check(load_config("tiny_honest", {"game": str(moved)}))
    forget()
    path.write_text(path.read_text().replace("right = float(", "right = 0.5 * float("))
    says = r"run was begun with contents of game.path = '[0-9a-f]{32}', now it is .* \(content hash\); give the earlier"
    with pytest.raises(UserError, match=says):
        run.check(load_config("tiny_honest", {"game": str(path)}))


def test_a_file_that_is_changed_while_a_command_plays_its_game_is_refused(tmp_path):
    """Else the next episodes would be recorded with code that did not play them."""
    path = tmp_path / "own.py"
    path.write_text(Path("examples/sums.py").read_text())
    config = load_config("tiny_honest", {"game": str(path)})
    before = contents_of_game(config.game)
    path.write_text(path.read_text().replace("right = float(", "right = 0.5 * float("))
    with pytest.raises(UserError, match=r"own.py: has changed since it was read; restore it, or start again"):
        contents_of_game(config.game)
    path.write_text(Path("examples/sums.py").read_text())
    assert contents_of_game(config.game) == before


def test_the_file_is_what_runs_although_python_keeps_an_older_one(tmp_path):
    """Python compares the time and the size of a file with those of its compiled copy, not the contents."""
    path = tmp_path / "own.py"
    path.write_text("CONSTANT = 1\n")
    py_compile.compile(str(path))
    before = path.stat()
    path.write_text("CONSTANT = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    module = registry.imported(str(path))
    assert (module.CONSTANT, vars(module)[registry.CONTENTS]) == (2, file_hash(path))


def test_the_file_keeps_its_own_kind_of_annotations(tmp_path):
    """Code that is compiled here would take over `from __future__ import annotations` from the module that does it."""
    (tmp_path / "own.py").write_text("CONSTANT: int = 1\n")
    assert registry.imported(str(tmp_path / "own.py")).__annotations__ == {"CONSTANT": int}


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
    ["show", "report", "convert", "imitate", f"generate --config {CONFIG} --player adding --output"],
    ids=lambda command: command.split()[0],
)
def test_a_stored_file_makes_no_command_import_what_it_names(command, where, trap, games):
    for name in trap:
        path = of_game(games, name, where)
        forget()
        done = selfplay(*command.split(), str(path))
        assert done.returncode in ((2,) if where == "episodes" else (0, 2)), done.stderr
        assert "Traceback" not in done.stderr


def test_slime_gets_no_rows_of_a_game_that_its_processes_would_not_find(tmp_path):
    out = tmp_path / "games.jsonl"
    done = selfplay("slime", "data", "--config", CONFIG, "--output", str(out))
    assert done.returncode == 2 and "slime plays only the games of the package" in done.stderr, done.stderr
    assert not out.exists()
