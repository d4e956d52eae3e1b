"""PettingZoo both ways: an AEC environment of texts is a game, and a game is an AEC environment."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import selfplay

from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.doctor.game_check import check_game
from selfplay_pipeline.games import registry
from selfplay_pipeline.generate.human_episodes import NOBODY
from selfplay_pipeline.generate.records import PERSON, EpisodeRecord, OutcomeRecord, SeatRecord, TurnRecord

pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")
SUMS = Path("examples/sums.py").resolve()
ENV = f"""\
from selfplay_pipeline.games import registry
from selfplay_pipeline.games.pettingzoo import aec


def env():
    return aec.env(registry.find({str(SUMS)!r})())


def numbers():
    from pettingzoo.test.example_envs import generated_agents_env_v0

    made = generated_agents_env_v0.env()
    made.reset()
    made.unwrapped.possible_agents = list(made.agents)
    return made
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "my_env.py").write_text(ENV)
    return tmp_path / "my_env.py"


def game_of(env, **further):
    kind = registry.find("pettingzoo")
    return kind(kind.settings(name="pettingzoo", env=env, **further))


def test_a_seat_reads_the_same_answer_a_second_time(place):
    place.write_text(ENV.replace(f"registry.find({str(SUMS)!r})()", "registry.find('bargaining')()"))
    game = game_of(f"{place}:env", lowest=0.0, highest=1.0)
    session = game.start(game.sample_state(np.random.default_rng(0)))
    session.step(0, "[message] hello")
    session.step(1, "[message] no")
    read = []
    for _ in range(2):
        session.step(0, "[propose] Proposal: book 1, hat 0, ball 0")
        session.step(1, "[reject]")
        read.append(session.step(1, "[message] no").observations[0])
    assert read[0] == read[1] and "[reject]" in read[0]


@pytest.mark.filterwarnings("ignore::UserWarning")  # PettingZoo expects arrays
@pytest.mark.parametrize("name", ["bargaining", "examples/relay.py"])
def test_a_game_passes_pettingzoos_own_tests(name):
    from gymnasium.spaces import Box
    from pettingzoo.test import api_test, seed_test
    from pettingzoo.utils.wrappers import BaseWrapper

    from selfplay_pipeline.games.pettingzoo import aec

    class AsBytes(BaseWrapper):
        """The same observations as arrays, whose type `api_test` compares; those of texts have none."""

        space = Box(0, 255, (20_000,), np.uint8)

        def observation_space(self, agent):
            return self.space

        def observe(self, agent):
            text = self.env.observe(agent)
            assert self.env.observation_space(agent).contains(text)
            return np.frombuffer(text.encode().ljust(20_000, b"\0"), np.uint8)

    game = registry.find(name)()
    api_test(AsBytes(aec.env(game)), num_cycles=100)
    seed_test(lambda: aec.env(game), num_cycles=50)


def test_a_game_gives_the_same_episode_as_an_environment():
    from selfplay_pipeline.games.pettingzoo import aec

    game, rng = registry.find("bargaining")(), np.random.default_rng(0)
    state = game.sample_state(np.random.default_rng(3))
    session, env = game.start(state), aec.env(game)
    env.reset(options={"state": game.state_to_json(state)})
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        if terminated or truncated:
            assert reward == session.outcome().rewards[env.possible_agents.index(agent)]
            env.step(None)
            continue
        seat = session.seats[0]
        assert agent == f"seat_{seat}"
        text = game.players["random"].act(game.view(session, seat), rng)
        told = session.step(seat, text).observations
        env.step(text)
        assert all(text in env.observe(f"seat_{other}") for other, text in enumerate(told))
    assert session.status is not None


@pytest.mark.long
def test_an_environment_passes_the_check_of_games_and_rewards_are_scaled(place):
    game = game_of(f"{place}:env", lowest=0.0, highest=2.0)
    findings = check_game(game, num_states=3)
    assert [finding for finding in findings if finding.passed is False] == []
    session = game.start(game.sample_state(np.random.default_rng(0)))
    numbers = [int(session.opening(seat).observation.split()[-1].strip(".")) for seat in (0, 1)]
    session.step(0, f"[message] {numbers[0]}")
    assert f"[message] {numbers[0]}" in session.known(1).read[-1]
    session.step(1, f"[message] {sum(numbers)}")
    session.step(0, f"[message] {sum(numbers)}")
    outcome = session.outcome()
    assert outcome.decision == [0.0, 0.0] and outcome.rewards == (0.5, 0.5), "1 lies halfway between 0 and 2"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("", "game.env: '' names no environment; give FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("none.py:env", "game.env: none.py: there is no such file"),
        ("{place}:no", "game.env: .*my_env.py has no function 'no'"),
        ("{place}:numbers", "cannot be used: TypeError: agent .* has the space .*, but observations and actions must"),
        ("no_such_module:env", "no_such_module: cannot be imported: ModuleNotFoundError"),
    ],
)
def test_an_environment_that_cannot_be_played_is_refused_in_one_line(env, says, place):
    game = game_of(env.format(place=place))
    with pytest.raises(UserError, match=says) as refused:
        game.sample_state(np.random.default_rng(0))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "None", "np.float32('nan')", "'1'"])
def test_a_reward_that_is_no_finite_number_is_refused_in_one_line(value, place):
    place.write_text(
        f"{ENV}\n\nimport numpy as np\n\n\nclass Odd(aec.GameEnv):\n    def step(self, action):\n"
        f"        super().step(action)\n        self.rewards['seat_1'] = {value}\n\n\n"
        f"def odd():\n    return Odd(registry.find({str(SUMS)!r})())\n"
    )
    game = game_of(f"{place}:odd")
    session = game.start(game.sample_state(np.random.default_rng(0)))
    with pytest.raises(
        UserError, match=r"my_env.py:odd cannot be used: .* gives seat_1 the reward .* not a finite num"
    ):
        session.step(0, "[message] 1")


@pytest.mark.parametrize("players", [1, 3])
def test_another_number_of_players_than_the_environments_is_refused(players, place):
    game = game_of(f"{place}:env", players=players)
    with pytest.raises(
        UserError, match=f"game.players: {players}, but .*my_env.py:env has 2 agents; leave the key out"
    ):
        game.start(game.sample_state(np.random.default_rng(0)))


def test_no_stored_state_names_what_is_imported(place, tmp_path):
    trap = tmp_path / "trap.py"
    trap.write_text("import pathlib\npathlib.Path(__file__).with_name('sprung').touch()")
    config = tmp_path / "own.yaml"
    config.write_text(f"base: tiny\ngame: {{name: pettingzoo, env: '{place}:env'}}\n")
    registry.find(str(SUMS))
    done = selfplay("iterate", "--config", str(config), "--dry-run", "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    game = game_of(f"{place}:env")
    state = game.sample_state(np.random.default_rng(0)).model_copy(update={"env": f"{trap}:env"})
    of_trap = registry.game_of("pettingzoo", json.loads(json.dumps(game.state_to_json(state))))
    assert len(of_trap.roles) == 2, "read without the environment"
    with pytest.raises(UserError, match=r"game state: field 'env': .*trap.py:env', but the configuration has"):
        game.start(state)
    assert not (tmp_path / "sprung").exists()


def test_the_file_of_an_environment_decides_a_run(place):
    game = game_of(f"{place}:env")
    before = deciding(game.config, "generate", "game.")
    place.write_text(ENV + "\n")
    after = deciding(game.config, "generate", "game.")
    assert {key for key in before if before[key] != after[key]} == {"contents of game.env"}


@pytest.mark.parametrize("command", ["report", "show", "export", "evaluate --people"])
def test_no_stored_rules_name_what_is_imported(command, place, tmp_path):
    """The episodes of somebody else, with rules beside them that name a file."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (trap := folder / "trap.py").write_text("import pathlib\npathlib.Path(__file__).with_name('sprung').touch()")
    (folder / "selfplay_games.args.json").write_text(json.dumps({"game.name": "pettingzoo", "game.env": f"{trap}:env"}))
    record = EpisodeRecord.of(
        [SeatRecord(kind="person", name=PERSON), SeatRecord(kind="script", name="random")],
        NOBODY,
        **{"episode_id": "s0-g000000-p0", "group_index": 0, "episode": 0, "seed": 0, "game": "pettingzoo"},
        state={"env": f"{trap}:env", "players": 2, "seed": 1},
        turns=[TurnRecord(seat=0, text="hi", action="act", finish_reason="person")],
        trajectories=[],
        outcome=OutcomeRecord(
            **{"status": "turn_limit", "score": 0, "best": 1, "normalized_reward": 0, "proposal": None},
            **{"num_turns": 1, "num_messages": 0, "num_proposals": 0, "num_illegal": 0},
        ),
    )
    (folder / "selfplay_games.jsonl").write_text(record.model_dump_json() + "\n")
    people = [
        {"kind": "person", "at": 0, "person": "p1", "key_hash": "x"},
        {"kind": "begun", "at": 0, "episode_id": "s0-g000000-p0", "group": 0, "people": {"0": "p1"}},
    ]
    (folder / "selfplay_games.people.jsonl").write_text("".join(json.dumps(line) + "\n" for line in people))
    done = selfplay(*command.split(), str(folder if command != "show" else folder / "selfplay_games.jsonl"))
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "sprung").exists()


@pytest.mark.long
def test_generate_plays_an_environment_and_reports_its_figures(place, tmp_path):
    config, games = tmp_path / "own.yaml", tmp_path / "games.jsonl"
    config.write_text(f"base: tiny\ngame: {{name: pettingzoo, env: '{place}:env', max_length: 4}}\n")
    play = ["generate", "--config", str(config), "--engine", "transformers", "--output", str(games)]
    done = selfplay(*play, "--num-episodes", "4", "--episodes-per-state", "2")
    assert done.returncode == 0 and "illegal" in done.stdout, done.stderr
    again = selfplay("convert", str(games), "--config", str(config))
    assert again.returncode == 0 and "rows" in again.stdout, again.stderr
