"""`game new` writes a game that plays; `game check` passes good games and names each fault of others in one line."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from command import selfplay
from quick import long_but

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.doctor.game_check import GameCheck, check_game
from selfplay_pipeline.doctor.new_game import new_game
from selfplay_pipeline.games import registry

SUMS = Path("examples/sums.py").read_text()
CUT = "    def start(self"
"""Place of further members."""
SAID = 'f"[message] {self.said[-1]}"'
COUNTING = """
        self.notes = Numbers(numbers=(0, 0))

    def about_error(self, seat, error):
        self.notes.numbers = (self.notes.numbers[0] + 1, 0)
        return str(error)
"""
FAULTS = {
    "a member that is spelled wrong": (
        CUT,
        f"    shard_reward = False\n\n{CUT}",
        "members are spelled right: .*shard_reward: a game has no such member; rename it to shared_reward",
    ),
    "state loses a field": (
        CUT,
        f"    def state_from_json(self, data):\n        return Numbers(numbers=(data['numbers'][0], 1))\n\n{CUT}",
        r"states survive JSON: state 0: is {'numbers': \[8, 6\]}, but {'numbers': \[8, 1\]} after",
    ),
    "state drawn without rng": (
        "rng.integers(1, self",
        "np.random.default_rng().integers(1, self",
        # The first state may be the same by chance.
        r"seeds repeat states: state \d+: sample_state gives another state with the same generator",
    ),
    "player that crashes": ("own, *heard = ", "own, *heard = 1 / 0, ", "players take their turns: ZeroDivisionError: "),
    "no limit of turns": (
        "    def opening(self",
        "    def _check_turn_limit(self):\n        ...\n\n    max_errors = 99\n\n    def opening(self",
        "limits end every episode: state 0, turn 21: the episode goes on after max_length, 20 turns",
    ),
    "action without a name": (
        "decision=self.decision)",
        "action='say')",
        "steps say what they must: state 0, turn 1: action 'say' is not in Game.actions",
    ),
    "error without a name": (
        'error_kinds = ("no_number",)',
        "error_kinds = ()",
        "steps say what they must: .*: error kind 'no_number' is not in Game.error_kinds",
    ),
    "chance in a session": (
        SAID,
        'f"[message] {np.random.rand()} {self.said[-1]}"',
        "sessions repeat: state 0, turn 1: the same turns give ",
    ),
    "illegal turn that is counted": (
        '            raise ParseError("no_number"',
        '            self.tries = getattr(self, "tries", 0) + 1\n            raise ParseError("no_number"',
        "illegal turns change nothing: state 0, turn .*: an illegal turn changes 'tries' of the session; raise",
    ),
    "illegal turn that is counted in an object": (
        "        self.said: list[int] = []\n",
        f"        self.said: list[int] = []\n{COUNTING}",
        "illegal turns change nothing: state 0, turn .*: an illegal turn changes 'notes' of the session; raise",
    ),
    "illegal turn that changes the state": (
        '            raise ParseError("no_number"',
        '            object.__setattr__(self.state, "numbers", (1, 1))\n            raise ParseError("no_number"',
        "illegal turns change nothing: state 0, turn .*: an illegal turn changes 'state' of the session; raise",
    ),
    "reward above 1": ("right = float(", "right = 2 * float(", "sessions repeat: UserError: .*rewards. returns "),
    "rewards that differ": (
        "return right, right",
        "return right, 0.0",
        "rewards and scores fit: .*shared_reward is Tr",
    ),
    "status that is no goal": ("self.end(AGREED,", "self.end('won',", "every goal is reached: status 'won' is neither"),
    "goal out of reach": (
        "    state = Numbers",
        '    goals = frozenset({AGREED, "won"})\n    state = Numbers',
        "every goal is reached: goal 'won' is reached in none of 101 episodes",
    ),
    "decision that is no JSON": (
        "self.end(AGREED, self.said[-1])",
        "self.end(AGREED, np.int64(self.said[-1]))",
        "records are read back: ",
    ),
    "private view that leaks": (
        SAID,
        'f"[message] {self.said[-1]} {self.state.numbers[seat]}"',
        "nothing hidden is told: state 0, turn 2: seat 0 reads '.message. 2 6', but '.message. 2 9' where only another",
    ),
    "state that does not fit": (
        CUT,
        "    def check_fits(self, state):\n        from selfplay_pipeline.core.errors import UserError\n\n"
        f"        raise UserError('too small')\n\n{CUT}",
        "states survive JSON: state 0: sample_state draws it, but check_fits refuses it: too small",
    ),
    "redraw that changes what the seat sees": (
        CUT,
        f"    def redraw(self, state, seat, rng):\n        return self.sample_state(rng)\n\n{CUT}",
        r"nothing hidden is told: state 0: redraw changes the opening of seat \d, which it has to keep",
    ),
    "solution that is no JSON": (
        CUT,
        f"    def solution(self, state):\n        return {{1}}\n\n{CUT}",
        "drawings and figures: TypeError: Object of type set is not JSON serializable",
    ),
}
"""Change of a line of the example, and what the one failing check says, by fault."""

pytestmark = pytest.mark.usefixtures("no_game_named")


GAMES = {
    **{name: (name, {}) for name in registry.NAMES},
    "compact bargaining": ("bargaining", {"prompts": "compact", "reward": "semi"}),
    "selfish bargaining": ("bargaining", {"reward": "selfish"}),
    **{f"{name} of {config}": (name, load_config(config, {}).game.model_dump()) for name, config in (
        ("matching", "tiny_honest"), ("mediation", "tiny_mediation"), ("planning", "tiny_planning"))},
    **{name: (f"examples/{name}.py", {"name": name}) for name in ("sums", "haggle", "relay", "lookup")},
}  # fmt: skip
"""Game and the keys of its configuration; the smaller ones are the games that `make test-fast` checks."""
LARGE = {"matching", "mediation", "planning"}


@pytest.mark.parametrize("case", long_but(GAMES.keys() - LARGE, GAMES))
def test_the_games_of_the_package_and_the_examples_pass(case):
    name, keys = GAMES[case]
    kind = registry.find(name)
    findings = check_game(kind(kind.settings(**keys)), num_states=3)
    assert len(findings) == 15 + kind(kind.settings(**keys)).has("renamed")
    assert [finding for finding in findings if not finding.passed] == []


@pytest.mark.parametrize(
    ("name", "proposers"), [("matching", {0}), ("bargaining", {0}), ("mediation", {2}), ("planning", {1})]
)
def test_what_a_person_selects_is_a_legal_proposal_of_a_seat_that_may_propose(name, proposers):
    game, rng, selecting = registry.find(name)(), np.random.default_rng(0), set()
    session = game.start(game.sample_state(rng))
    while session.seats and not selecting:
        seat = session.seats[0]
        text = game.players["random"].act(game.view(session, seat), rng)
        for choice in (choice for choice in game.choices(session, seat) if choice.parts):
            assert all(isinstance(part.label, str) for part in choice.parts)
            text = choice.write([number % len(part.options) for number, part in enumerate(choice.parts)])
            selecting.add(seat)
        assert session.step(seat, text).error is None
    assert selecting == proposers


def test_the_command_checks_another_configuration_and_says_which():
    done = selfplay("game", "check", "matching", "--config", "tiny_honest", "--num-states", "2")
    assert done.returncode == 0, done.stdout
    assert re.match(r"board 3×3 \(tiny_honest\)$", done.stdout.splitlines()[0]), done.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_in_one_line(fault, tmp_path):
    before, after, says = FAULTS[fault]
    assert before in SUMS
    path = tmp_path / "own.py"
    name = f"sums{[*FAULTS].index(fault)}"  # states are kept by the name of their game
    path.write_text(SUMS.replace(before, after, 1).replace('"sums"', f'"{name}"'))
    failed = [finding for finding in check_game(registry.find(str(path))) if finding.passed is False]
    lines = [f"{finding.check}: {finding.said}" for finding in failed]
    assert any(re.match(says, line) for line in lines), lines
    assert not any("\n" in line for line in lines)


SQUARED = """from typing import Literal
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig

class SquaredConfig(MatchingConfig):
    name: Literal['squared'] = 'squared'

class Squared(MatchingGame):
    name, settings = 'squared', SquaredConfig

    def rewards(self, state, decision):
        return tuple(one**2 for one in super().rewards(state, decision))

    def references(self, states):
        return {}
"""


def test_what_counts_the_parents_rewards_must_be_written_anew_or_given_up(tmp_path):
    def said(further):
        name = f"squared{len(further)}"
        (tmp_path / f"{name}.py").write_text((SQUARED + further).replace("'squared'", f"'{name}'"))
        game = registry.find(str(tmp_path / f"{name}.py"))()
        found = GameCheck(game).findings()
        return next(one for one in found if one.check == "figures count its rewards"), game

    finding, _ = said("")
    assert finding.passed is False and finding.said == (
        "Squared.rewards differs from that of MatchingGame, for which known_lines was written; write known_lines for "
        "your rewards, or set known_lines = Game.known_lines in the class to do without it"
    )
    given_up = "".join(f"    {one} = Game.{one}\n" for one in ("known_lines", "known_reward", "solution"))
    finding, game = said(given_up)
    assert finding.passed is False and game.has("wordless_rewards")
    assert finding.said.endswith("or set wordless_rewards = Game.wordless_rewards in the class to do without it")
    optional = ("wordless_rewards", "alter", "human_episodes")
    finding, game = said(given_up + "".join(f"    {one} = Game.{one}\n" for one in optional))
    assert finding.passed and not any(game.has(one) for one in optional) and game.has("redraw")


def test_what_was_not_reached_is_said(tmp_path):
    path = tmp_path / "sums_too.py"
    path.write_text(SUMS.replace('error_kinds = ("no_number",)', 'error_kinds = ("no_number", "too_late")'))
    said = {finding.check: finding.said for finding in check_game(registry.find(str(path)), num_states=3)}
    assert said["steps say what they must"].endswith("; not reached, and so not checked: error kind too_late")


def test_hidden_things_may_be_told_after_an_action_that_discloses_them(tmp_path):
    before, leak, _ = FAULTS["private view that leaks"]
    text = SUMS.replace(before, leak, 1).replace('"sums"', '"telling"')
    (tmp_path / "own.py").write_text(text.replace(CUT, f'    disclosing = frozenset({{"message"}})\n\n{CUT}'))
    hidden = [
        each for each in check_game(registry.find(str(tmp_path / "own.py"))) if each.check == "nothing hidden is told"
    ]
    assert hidden[0].passed


def test_the_command_prints_a_line_a_check_and_fails_with_exit_code_2(tmp_path):
    (tmp_path / "own.py").write_text(SUMS.replace("right = float(", "right = 2 * float("))
    done = selfplay("game", "check", str(tmp_path / "own.py"), "--num-states", "4")
    assert done.returncode == 2 and done.stdout.count("\n") == 16
    assert sum(line.startswith("FAILED") for line in done.stdout.splitlines()) >= 1
    assert done.stderr.startswith("selfplay: game check: ") and done.stderr.count("\n") == 1


def test_a_new_game_passes_its_own_test_outside_of_the_checkout(tmp_path, monkeypatch):
    done = selfplay("game", "new", "my_game", "--output", str(tmp_path / "mine"))
    assert done.returncode == 0 and f"next: selfplay game check {tmp_path / 'mine' / 'my_game.py'}" in done.stderr
    monkeypatch.chdir(tmp_path)
    runpy.run_path("mine/test_my_game.py")["test_the_game_passes_every_check"]()


def test_a_new_game_is_the_smallest_example_under_another_name(tmp_path):
    game, _ = new_game("sums", tmp_path)
    assert game.read_text() == SUMS


@pytest.mark.parametrize(
    "name",
    [
        "matching",
        "textarena",
        "opening",
        "move",
        "parse_error",
        "numbers",
        "random",
        "numpy",
        "none",
        "true",
        "Mine",
        "1st",
        "a-b",
    ],
)
def test_what_is_no_name_of_a_new_game_is_refused_in_one_line(name, tmp_path):
    done = selfplay("game", "new", name, "--output", str(tmp_path))
    assert done.returncode == 2 and "cannot be the name of a new game" in done.stderr and not [*tmp_path.iterdir()]


def test_no_file_is_overwritten(tmp_path):
    (tmp_path / "test_mine.py").write_text("mine")
    done = selfplay("game", "new", "mine", "--output", str(tmp_path))
    assert done.returncode == 2 and "test_mine.py: exists already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
