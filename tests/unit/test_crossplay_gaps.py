"""Cross-play of independent trainings: the cross-seed gap and the partner gap."""

import asyncio
import json
import re

import numpy as np
import pytest
from factories import FINISHED

from selfplay_pipeline.cli.measure import _arm_of, _checkpoint_of, _trained_with
from selfplay_pipeline.cli.show.evaluation import show_crossplay
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.evaluate.crossplay import CrossPlay, _responses, run_crossplay
from selfplay_pipeline.evaluate.crossplay_gaps import best_response, gaps_of, pair_terms
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast_over_seeds

ARMS = ["self", "self", "self", "muted", ""]


def cell(rewards: np.ndarray) -> Totals:
    return Totals.of({"reward": (rewards, np.ones(len(rewards)))})


def matrix(rewards: np.ndarray) -> list[list[Totals]]:
    """From rewards of shape (players, players, states)."""
    return [[cell(of_pair) for of_pair in row] for row in rewards]


def test_the_gaps_are_what_their_formulas_say():
    rewards = np.random.default_rng(0).random((5, 5, 40))
    mean = rewards.mean(axis=-1)
    both = (mean + mean.T) / 2
    found = gaps_of(matrix(rewards), ARMS)
    cross = np.mean([mean[i, i] - np.mean([both[i, j] for j in range(3) if j != i]) for i in range(3)])
    assert found["self"].cross_seed.value == pytest.approx(cross)
    assert found["self"].partner.value == pytest.approx(np.mean([mean[i, i] - both[i, 4] for i in range(3)]))
    assert found["muted"].cross_seed is None and found["muted"].seeds == 1
    assert found["muted"].partner.value == pytest.approx(mean[3, 3] - both[3, 4])
    assert gaps_of(matrix(rewards), [""] * 5) == {}


def test_the_gap_of_two_seeds_is_wide_and_ends_where_a_difference_of_rewards_can():
    rewards = np.zeros((2, 2, 10))
    rewards[0, 0] = 1.0
    gap = gaps_of(matrix(rewards), ["self", "self"])["self"].cross_seed
    assert (gap.low, gap.value, gap.high) == (-1, 0.5, 1)


RESULT = CrossPlay(
    players=["one", "two", "three"],
    states="9 states",
    episodes=1,
    temperature=1.0,
    rewards=[[Interval(value=row / 10, low=0.0, high=column / 10) for column in range(1, 4)] for row in range(1, 4)],
)


@pytest.mark.parametrize(("columns", "rows"), [("120", 3), ("60", 9)])
def test_each_cell_of_the_matrix_is_shown_with_its_interval_in_a_table_or_in_lines(
    columns, rows, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", columns)
    show_crossplay(RESULT, tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "[0.000, " in line]
    assert len(lines) == rows
    assert [cell for line in lines for cell in re.findall(r"0\.\d{3} \[.*?\]", line)] == [
        str(cell) for row in RESULT.rewards for cell in row
    ]


@pytest.mark.long
def test_a_private_code_of_each_seed_has_a_gap_whose_interval_excludes_0_and_one_language_has_none():
    """States are of unlike difficulty, which all pairs share, so only pairing by state can find a gap."""
    rng = np.random.default_rng(1)
    difficulty, noise = rng.normal(0, 0.2, 200), rng.normal(0, 0.02, (5, 5, 200))
    one_language = 0.7 + difficulty + noise
    private = one_language.copy()
    for i in range(3):
        for j in range(3):
            private[i, j] -= 0.05 * (i != j)
    gap = gaps_of(matrix(private), ARMS)["self"].cross_seed
    assert gap.low > 0.02 and gap.high < 0.08
    none = gaps_of(matrix(one_language), ARMS)["self"].cross_seed
    assert none.low < 0 < none.high


def test_seeds_of_unlike_gaps_widen_the_interval_and_two_the_most():
    rng = np.random.default_rng(2)
    rewards = 0.5 + rng.normal(0, 0.01, (5, 5, 100))
    alike = gaps_of(matrix(rewards), ARMS)["self"].cross_seed
    for seed, own in enumerate((0.1, 0.2, 0.3)):
        rewards[seed, seed] += own
    unlike = gaps_of(matrix(rewards), ARMS)["self"].cross_seed
    assert unlike.high - unlike.low > 10 * (alike.high - alike.low)
    assert unlike.value == pytest.approx(alike.value + 0.2)


@pytest.mark.parametrize("players", [3, 5])
def test_a_pairs_reward_varies_over_trainings_as_much_as_its_players_do(players):
    """A pair reaches the mean of its players' skills, so mean reward with others and with oneself are one figure."""
    skills = np.random.default_rng(4).normal(0.8, 0.05, players)
    rewards = matrix(np.repeat(((skills + skills[:, None]) / 2)[:, :, None], 20, axis=2))
    every = range(players)
    alone = contrast_over_seeds([[(1.0, rewards[one][one])] for one in every], same_states=True)["reward"]
    together = contrast_over_seeds([pair_terms(rewards, one, every) for one in every], same_states=True)["reward"]
    assert (together.low, together.value, together.high) == pytest.approx((alone.low, alone.value, alone.high))
    gap = gaps_of(rewards, ["self"] * players)["self"].cross_seed
    assert (gap.low, gap.value, gap.high) == pytest.approx((0, 0, 0), abs=1e-9), "unlike skill is no private code"


@pytest.mark.long
def test_the_matrix_of_a_command_has_the_gaps_of_its_arms(tmp_path):
    config, names = load_config("tiny", {}), ["sharing", "speaking", "random"]
    states = held_out_states(make_game(config.game), 20)
    result = asyncio.run(run_crossplay(config, names, states, 1, tmp_path, ["told", "told", ""]))
    assert result.gaps["told"].partner.value > 0.1, "random understands nothing"
    assert json.loads((tmp_path / "crossplay.json").read_text())["arms"] == ["told", "told", ""]


def test_the_best_response_gap_is_paired_by_state_and_has_the_responder_in_its_seat():
    rng = np.random.default_rng(3)
    difficulty, noise = rng.normal(0, 0.2, 200), rng.normal(0, 0.02, (2, 2, 200))
    rewards = 0.7 + difficulty + noise
    rewards[1, 0] += 0.05
    found = best_response(matrix(rewards), 1, 0, 0)
    assert found.gap.value == pytest.approx(rewards[1, 0].mean() - rewards[0, 0].mean())
    assert 0.03 < found.gap.low < found.gap.high < 0.07, "states of unlike difficulty are paired"
    other = best_response(matrix(rewards), 1, 0, 1)
    assert other.gap.value == pytest.approx(rewards[0, 1].mean() - rewards[0, 0].mean())
    assert other.gap.low < 0 < other.gap.high, "no gain"


def test_a_run_that_was_trained_with_another_player_of_the_matrix_has_a_best_response_gap(tmp_path):
    class Trained(RunDirectory):
        """A run with one trained iteration."""

        def __init__(self, path, seat, partner):
            super().__init__(path)
            path.mkdir()
            self.open(load_config("tiny", {"iterate.partner": partner, "iterate.seat": seat}))
            self.finish(1, "train", StageRecord(seconds=1, figures=FINISHED["train"]))

    frozen, config = "data/tiny_model", load_config("tiny", {})
    Trained(tmp_path / "one", 1, frozen)
    assert _trained_with(str(tmp_path / "one")) == (content_hash(shipped(frozen)), 1)
    Trained(tmp_path / "older", 0, frozen)
    manifest = json.loads((tmp_path / "older" / "manifest.json").read_text())
    del manifest["config"]["iterate"]["seat"]
    (tmp_path / "older" / "manifest.json").write_text(json.dumps(manifest))
    assert _trained_with(str(tmp_path / "older")) == (content_hash(shipped(frozen)), 0)
    Trained(tmp_path / "scripted", 0, "sharing")
    Trained(tmp_path / "alone", 0, "self")
    assert _trained_with(str(tmp_path / "scripted")) is None and _trained_with(str(tmp_path / "alone")) is None
    assert _trained_with("sharing") is None
    names = [shipped(frozen), "sharing"]
    responders = {1: (content_hash(names[0]), 1)}
    assert [*_responses(config, names, responders)] == [(1, 0, 1)]
    assert [*_responses(config, names, {1: ("another", 1)})] == []
    three = load_config("tiny_mediation", {})
    assert [*_responses(three, names, responders)] == [], "the matrix of three seats lacks this cell"
    assert [*_responses(three, names, {1: (content_hash(names[0]), 0)})] == [(1, 0, 0)]


def test_an_argument_is_a_player_with_or_without_an_arm(tmp_path, monkeypatch):
    assert [_arm_of(text) for text in ("sharing", "a=sharing", "=x")] == [("", "sharing"), ("a", "sharing"), ("", "x")]
    (tmp_path / "a=b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _arm_of("a=b") == ("", "a=b"), "a folder of this name"


def test_a_run_stands_for_its_newest_checkpoint_and_one_without_is_refused(tmp_path):
    run = RunDirectory(tmp_path)
    (tmp_path / "manifest.json").touch()
    run.finish(0, "evaluate", StageRecord(seconds=1, figures=FINISHED["evaluate"]))
    with pytest.raises(UserError, match="has not trained an iteration yet"):
        _checkpoint_of(str(tmp_path))
    for number in (1, 2):
        run.finish(number, "train", StageRecord(seconds=1, figures=FINISHED["train"]))
    assert _checkpoint_of(str(tmp_path)) == str(tmp_path / "iter_2" / "checkpoint")
    assert _checkpoint_of("sharing") == "sharing"
