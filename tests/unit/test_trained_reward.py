"""A reward of one's own: which number is trained on, what keeps the game's own, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import selfplay
from factories import make_episodes, write_episodes

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import RewardConfig
from selfplay_pipeline.convert.credit import check_credit
from selfplay_pipeline.convert.reward import TrainedReward
from selfplay_pipeline.convert.rows import METADATA_KEY, TRAINED
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.train.groups import read_data

EPISODES = 4
PAGE = Path("docs/changing-the-reward.md")
OWN = "def reward(state, turns, outcome):\n    {}\n"


@pytest.fixture
def games(tmp_path) -> Path:
    return write_episodes(tmp_path / "games.jsonl", make_episodes(4, EPISODES))


def written(folder: Path, body: str) -> str:
    """A file of a reward of its own, whose function has this body."""
    path = folder / "own.py"
    path.write_text(OWN.format(body))
    return str(path)


def convert(games: Path, name: str, **settings) -> list[dict]:
    """The rows of a conversion with these settings of the section `reward`."""
    placebo = settings.pop("placebo", False)
    run_convert(games, games.parent / name, reward=TrainedReward(RewardConfig(**settings)), placebo=placebo)
    return pq.read_table(games.parent / name / "train.parquet").to_pylist()


# --- the formula --------------------------------------------------------------------------------------------


def costs(record, seat, row):
    said = [turn for turn in record.turns if (turn.seat, turn.action) == (seat, "message")]
    return record.outcome.normalized_reward - 0.25 * len(said) - 0.001 * sum(row["response_mask"])


def shares(record, seat, row):
    own, other = (len(record.turns), record.outcome.best)[:: -1 if seat else 1]
    return 0.75 * own + 0.25 * other


def of_the_page(record, seat, row):
    return record.outcome.normalized_reward - 0.01 * len(record.turns)


@pytest.mark.parametrize(
    ("settings", "code", "formula"),
    [
        ({"message_cost": 0.25, "token_cost": 0.001}, "", costs),
        ({"partner_share": 0.25}, OWN.format("return [len(turns), outcome.best + 0 * state.size]"), shares),
        ({}, PAGE.read_text().split("```python\n")[1].split("```")[0], of_the_page),
    ],
    ids=["costs", "a function whose rewards partners share", "the page's function"],
)
def test_the_trained_reward_is_what_costs_shares_and_functions_say_and_the_games_own_stays(
    settings, code, formula, games, tmp_path
):
    (tmp_path / "own.py").write_text(code)
    records = {record.episode_id: record for record in read_episodes(games)}
    for row in convert(games, "out", **settings, **({"path": str(tmp_path / "own.py")} if code else {})):
        record = records[row["extra_info"]["episode_id"]]
        assert row[TRAINED] == pytest.approx(formula(record, row["extra_info"]["seat"], row))
        assert row["reward_model"]["normalized_reward"] == record.outcome.normalized_reward


def test_the_report_counts_what_is_compared_in_groups_and_what_is_trained_on_in_states(games):
    own = run_convert(games, games.parent / "own").to_text()
    assert "groups                      4 of up to 4 episodes\n" in own and " rows of 4 groups\n" in own
    costs = run_convert(games, games.parent / "costs", reward=TrainedReward(RewardConfig(message_cost=0.25))).to_text()
    assert "groups                      8 of up to 4 episodes, several in a state\n" in costs
    assert " rows of 4 states\n" in costs


# --- what is trained on -------------------------------------------------------------------------------------


def test_groups_compare_a_seat_with_the_same_seat_by_the_trained_reward(games, tmp_path):
    rows = convert(games, "costs", message_cost=0.25)
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
    true, false = convert(games, "true", message_cost=0.25), convert(games, "false", message_cost=0.25, placebo=True)
    own = [[row["reward_model"]["normalized_reward"] for row in rows] for rows in (true, false)]
    trained = [[row[TRAINED] for row in rows] for rows in (true, false)]
    assert own[0] == own[1] and trained[0] != trained[1] and sorted(trained[0]) == pytest.approx(sorted(trained[1]))


def test_without_the_section_no_column_is_written(games, tmp_path):
    report = run_convert(games, tmp_path / "plain")
    assert TRAINED not in pq.read_schema(tmp_path / "plain" / "train.parquet").names
    assert report.trained_reward is None and "trained_reward" not in report.model_dump()


def test_the_command_reports_the_mean_over_all_seats_beside_the_games_own(games, tmp_path):
    done = selfplay("convert", str(games), "--message-cost", "0.25", "--output", str(tmp_path / "out"))
    formula = TrainedReward(RewardConfig(message_cost=0.25))
    mean = np.mean([formula.of(record) for record in read_episodes(games)])
    assert done.returncode == 0 and f"trained reward              {mean:.4f}" in done.stdout, done.stderr


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [1.0, float('nan')]", "own.py: reward: returns nan for seat 1 of episode .*; return finite numbers$"),
        ("return [1.0, float('-inf')]", "returns -inf for seat 1"),
        ("return [1e16, 0.0]", r"reward: 1e\+16 is the trained reward of seat 0 of episode .* beyond ±1e\+15; make"),
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


@pytest.mark.parametrize("cost", ["message_cost", "token_cost"])
def test_a_cost_below_0_which_would_be_a_prize_is_refused(cost):
    assert getattr(load_config("tiny", {f"reward.{cost}": 0}).reward, cost) == 0
    with pytest.raises(UserError, match=f"reward.{cost}: expected at least 0, found -0.1"):
        load_config("tiny", {f"reward.{cost}": -0.1})


def test_it_cannot_be_combined_with_credits_of_turns_or_used_by_online_training(tmp_path):
    with pytest.raises(UserError, match="credit: turn: cannot be combined with reward: another reward, since a cre"):
        check_credit(load_config("tiny", {"convert.credit": "turn", "reward.message_cost": 0.1}))
    (tmp_path / "own.yaml").write_text("reward: {message_cost: 0.1}")
    with pytest.raises(UserError, match=r"own.yaml:1: .*train-online does not use it, only convert and iterate can"):
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
    assert selfplay(*command, "--message-cost", "0.1").returncode == 0
    done = selfplay(*command)
    assert done.returncode == 2 and "reward.message_cost = 0.1, now it is 0.0" in done.stderr


def test_a_stored_run_makes_no_command_run_the_file_that_it_names(tmp_path):
    path = Path(written(tmp_path, "return outcome.rewards"))
    path.write_text(f"{path.read_text()}\nfrom pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    RunDirectory(tmp_path / "run").open(load_config("tiny_honest", {"reward.path": str(path)}))
    (tmp_path / "ran").unlink(missing_ok=True)
    selfplay("report", str(tmp_path / "run"))
    assert not (tmp_path / "ran").exists()
