"""A reward of one's own: which number is trained on, what keeps the game's own, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import selfplay
from factories import make_episodes, write_episodes
from test_convert import opposite

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import RewardConfig
from selfplay_pipeline.convert.reward import TrainedReward
from selfplay_pipeline.convert.rows import METADATA_KEY, TRAINED
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.train.groups import read_data

EPISODES = 4
PAGE = Path("docs/changing-the-reward.md")
COST = """
def reward(state, turns, outcome):
    return [
        value - 0.25 * sum((turn.seat, turn.action) == (seat, "message") for turn in turns)
        for seat, value in enumerate(outcome.rewards)
    ]
"""
OWN = "def reward(state, turns, outcome):\n    {}\n"


@pytest.fixture
def games(tmp_path) -> Path:
    return write_episodes(tmp_path / "games.jsonl", make_episodes(4, EPISODES))


def written(folder: Path, body: str) -> str:
    """A file of a reward of its own, whose function has this body."""
    path = folder / "own.py"
    path.write_text(OWN.format(body))
    return str(path)


def costly(folder: Path) -> str:
    """A file whose function takes a cost for each message."""
    path = folder / "costly.py"
    path.write_text(COST)
    return str(path)


def convert(games: Path, name: str, **settings) -> list[dict]:
    """The rows of a conversion with these settings of the section `reward`."""
    placebo = settings.pop("placebo", False)
    run_convert(games, games.parent / name, reward=TrainedReward(RewardConfig(**settings)), placebo=placebo)
    return pq.read_table(games.parent / name / "train.parquet").to_pylist()


# --- the formula --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [False, True])
def test_the_trained_reward_is_what_the_function_says_and_the_games_own_stays(page, games, tmp_path):
    (tmp_path / "own.py").write_text(PAGE.read_text().split("```python\n")[1].split("```")[0] if page else COST)
    records = {record.episode_id: record for record in read_episodes(games)}
    for row in convert(games, "out", path=str(tmp_path / "own.py")):
        record, seat = records[row["extra_info"]["episode_id"]], row["extra_info"]["seat"]
        said = sum((turn.seat, turn.action) == (seat, "message") for turn in record.turns)
        cost = 0.02 * said + 0.001 * sum(row["response_mask"]) if page else 0.25 * said
        assert row[TRAINED] == pytest.approx(record.outcome.normalized_reward - cost)
        assert row["reward_model"]["normalized_reward"] == record.outcome.normalized_reward


def test_a_seat_that_the_policy_does_not_hold_has_no_tokens(tmp_path):
    path = written(tmp_path, "return outcome.tokens")
    games = write_episodes(tmp_path / "games.jsonl", [opposite(one, 1) for one in make_episodes(4, 2)])
    rewards = [TrainedReward(RewardConfig(path=path)).of(record) for record in read_episodes(games)]
    assert all(sorted(map(bool, one)) == [False, True] for one in rewards)


def test_the_report_counts_what_is_compared_in_groups_and_what_is_trained_on_in_states(games):
    own = run_convert(games, games.parent / "own").to_text()
    assert "groups                      4 of up to 4 episodes\n" in own and " rows of 4 groups\n" in own
    costs = run_convert(
        games, games.parent / "costs", reward=TrainedReward(RewardConfig(path=costly(games.parent)))
    ).to_text()
    assert "groups                      8 of up to 4 episodes, several in a state\n" in costs
    assert " rows of 4 states\n" in costs


# --- what is trained on -------------------------------------------------------------------------------------


def test_groups_compare_a_seat_with_the_same_seat_by_the_trained_reward(games, tmp_path):
    rows = convert(games, "costs", path=costly(tmp_path))
    path = tmp_path / "costs" / "train.parquet"
    assert json.loads(pq.read_schema(path).metadata[METADATA_KEY])["shared_reward"] is False
    expected: dict = {}
    for row in rows:
        expected.setdefault((row["extra_info"]["index"], row["extra_info"]["seat"]), []).append(row[TRAINED])
    found = {(group.index, group.key.seat): [*group.rewards] for group in read_data([path]).groups}
    assert found == expected


def test_any_finite_reward_is_trained_on(games, tmp_path):
    convert(games, "large", path=written(tmp_path, "return [-1e6 * len(turns), 1e6]"))
    rewards = [reward for group in read_data([tmp_path / "large" / "train.parquet"]).groups for reward in group.rewards]
    assert min(rewards) < -1e6 and max(rewards) == 1e6


def test_a_placebo_permutes_the_trained_reward_and_leaves_the_games_own(games):
    path = costly(games.parent)
    true, false = convert(games, "true", path=path), convert(games, "false", path=path, placebo=True)
    own = [[row["reward_model"]["normalized_reward"] for row in rows] for rows in (true, false)]
    trained = [[row[TRAINED] for row in rows] for rows in (true, false)]
    assert own[0] == own[1] and trained[0] != trained[1] and sorted(trained[0]) == pytest.approx(sorted(trained[1]))


def test_without_the_section_no_column_is_written(games, tmp_path):
    report = run_convert(games, tmp_path / "plain")
    assert TRAINED not in pq.read_schema(tmp_path / "plain" / "train.parquet").names
    assert report.trained_reward is None and "trained_reward" not in report.model_dump()


def test_the_command_reports_the_mean_over_all_seats_beside_the_games_own(games, tmp_path):
    done = selfplay("convert", str(games), "--reward", costly(tmp_path), "--output", str(tmp_path / "out"))
    formula = TrainedReward(RewardConfig(path=costly(tmp_path)))
    mean = np.mean([formula.of(record) for record in read_episodes(games)])
    assert done.returncode == 0 and f"trained reward              {mean:.4f}" in done.stdout, done.stderr


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [1.0, float('nan')]", "own.py: reward: returns nan for seat 1 of episode .*; return finite numbers$"),
        ("return [1.0, float('-inf')]", "returns -inf for seat 1"),
        ("return [1e16, 0.0]", r"own.py: reward: returns 1e\+16 for seat 0 of episode .* beyond ±1e\+15; make"),
        ("return [1.0]", "own.py: reward: returns 1 rewards for episode .*, but the game has 2 seats; return one"),
        (
            "return {0: 1.0, 1: 0.5}",
            r"own.py: reward: returns \{0: 1.0, 1: 0.5\} for episode .*; return one number",
        ),
        ("return '01'", r"own.py: reward: returns '01' for episode .*; return one number for each seat"),
        ("return outcome.score", r"own.py: reward: returns [0-9.]+ for episode .*; return one number for each seat"),
        ("return [1 / 0, 0]", r"own.py: reward: ZeroDivisionError: .* \(.*own.py:2\), for episode s0-g000000-p0$"),
        ("return ['much', 0]", r"own.py: reward: returns \['much', 0\] for episode"),
        ("yield 1; yield 1 / 0", r"own.py: reward: ZeroDivisionError: .* \(.*own.py:2\), for episode"),
        ("raise SystemExit(3)", r"own.py: reward: SystemExit: 3 \(.*own.py:2\), for episode"),
        ("return [10**400, 1]", r"own.py: reward: returns \[1000"),
        ("+", "own.py: cannot be imported: SyntaxError"),
    ],
)
def test_a_function_that_gives_no_finite_number_for_each_seat_is_refused_in_one_line(body, says, games, tmp_path):
    path = written(tmp_path, body)
    done = selfplay("convert", str(games), "--reward", path, "--output", str(tmp_path / "out"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert sum(line.startswith("selfplay: ") for line in done.stderr.splitlines()) == 1
    with pytest.raises(UserError, match=says):
        convert(games, "out", path=path)


def test_a_file_without_the_function_or_no_file_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("")
    for name, says in (
        ("empty.py", r"defines no function `reward\(state, turns, outcome\)`"),
        ("none.py", "no such file"),
    ):
        with pytest.raises(UserError, match=f"{name}: .*{says}"):
            TrainedReward(RewardConfig(path=str(tmp_path / name)))


def test_it_is_refused_by_online_training(tmp_path):
    (tmp_path / "own.yaml").write_text("reward: {path: own.py}")
    with pytest.raises(
        UserError, match=r"own.yaml:1: .*train-online does not use it, only convert, iterate and evaluate can"
    ):
        load_config(str(tmp_path / "own.yaml"), {}, command="train-online")


# --- what a run keeps ---------------------------------------------------------------------------------------


def test_a_run_is_refused_if_the_file_has_changed_and_goes_on_if_it_has_moved(tmp_path):
    def with_file(path):
        return load_config("tiny_honest", {"reward.path": path} if path else {})

    path, moved = written(tmp_path, "return outcome.rewards"), tmp_path / "moved.py"
    run, plain = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "plain")
    run.open(with_file(path)), plain.open(with_file(None))
    moved.write_text(Path(path).read_text())
    run.check(with_file(str(moved)))
    written(tmp_path, "return [0, 1]")
    for begun, now, says in (
        (run, path, r"contents of reward.path = '[0-9a-f]{32}', now it is .* \(content hash\); give the earlier"),
        (run, None, "a file as reward.path, now none is given; give the earlier"),
        (plain, path, "no file as reward.path, now one is given; give the earlier"),
    ):
        with pytest.raises(UserError, match=f"{begun.path.name} was begun with {says}"):
            RunDirectory(begun.path).check(with_file(now))


def test_a_file_that_is_changed_while_a_command_uses_it_is_refused(games, tmp_path):
    """Else the record of the conversion would name code that did not give the rewards."""
    path = written(tmp_path, "return outcome.rewards")
    convert(games, "first", path=path)
    written(tmp_path, "return [0, 1]")
    with pytest.raises(UserError, match=r"own.py: has changed since it was read; restore it, or start again"):
        convert(games, "second", path=path)
    written(tmp_path, "return outcome.rewards")
    convert(games, "second", path=path)


def test_a_conversion_with_another_reward_needs_another_folder(games, tmp_path):
    command = ("convert", str(games), "--output", str(tmp_path / "out"))
    assert selfplay(*command, "--reward", costly(tmp_path)).returncode == 0
    done = selfplay(*command)
    assert done.returncode == 2 and "a file as reward.path (option --reward), now none is given" in done.stderr


def test_a_stored_run_makes_no_command_run_the_file_that_it_names(tmp_path):
    path = Path(written(tmp_path, "return outcome.rewards"))
    path.write_text(f"{path.read_text()}\nfrom pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    RunDirectory(tmp_path / "run").open(load_config("tiny_honest", {"reward.path": str(path)}))
    (tmp_path / "ran").unlink(missing_ok=True)
    selfplay("report", str(tmp_path / "run"))
    assert not (tmp_path / "ran").exists()
