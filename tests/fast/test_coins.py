"""What asking is compared with: coins that ask as often, placebos that can learn nothing, and who stops asking."""

from collections import Counter

import numpy as np
import pytest

from bench.coins import against_placebo, play_coin, terms_above_coin
from selfplay_pipeline.games.base import HELD_OUT, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.teacher import AskingTeacher, CountingTeacher
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast

GAME = MatchingGame(MatchingConfig(size=3, max_score=9, scale_min=1, scale_max=1, max_length=30))
STATES = [GAME.sample_state(state_rng(5, index, HELD_OUT)) for index in range(60)]


def play(player: AskingTeacher, episodes: int = 2) -> Totals:
    return play_coin(GAME, STATES, player, "shy", episodes)


@pytest.fixture(scope="module")
def coins() -> dict[float, Totals]:
    return {chance: play(AskingTeacher(ask=chance)) for chance in (0.0, 0.4, 0.8)}


def above_coin(found: Totals, coins: dict[float, Totals]) -> Interval:
    return contrast(terms_above_coin(found, coins))["reward"]


def mean(totals: Totals, name: str) -> float:
    value = totals.intervals()[name].value
    assert value is not None
    return value


def test_a_coin_that_asks_more_often_reaches_more(coins: dict[float, Totals]) -> None:
    questions, rewards = ([mean(totals, name) for totals in coins.values()] for name in ("questions", "reward"))
    assert questions[0] == 0 < questions[1] < questions[2]
    assert rewards == sorted(rewards) and rewards[2] - rewards[0] > 0.05


def test_a_coin_is_no_better_than_coins_and_who_asks_for_all_at_once_is(coins: dict[float, Totals]) -> None:
    other = above_coin(play(AskingTeacher(ask=0.6)), coins)
    assert other.low < 0.02 and other.high > -0.02
    asker = above_coin(play_coin(GAME, STATES, SCRIPTED["asker"], "shy", 2), coins)
    assert asker.low > 0.1, "one question about all cells is worth more than one about a cell"


def test_on_a_coin_the_difference_is_exactly_nothing(coins: dict[float, Totals]) -> None:
    assert above_coin(coins[0.4], coins).value == pytest.approx(0, abs=1e-12)


def test_who_asks_more_than_all_coins_is_compared_with_the_one_that_asks_most(coins: dict[float, Totals]) -> None:
    more = play(AskingTeacher(ask=0.95))
    assert mean(more, "questions") > mean(coins[0.8], "questions")
    assert above_coin(more, coins).value == pytest.approx(mean(more, "reward") - mean(coins[0.8], "reward"))


def test_drift_alone_seldom_goes_beyond_the_placebos() -> None:
    slopes = np.random.default_rng(0).normal(0.1, 0.3, (2000, 4))
    verdicts = Counter(against_placebo(slope, placebos).verdict for slope, *placebos in slopes.tolist())
    assert 0.03 < (verdicts["rose"] + verdicts["fell"]) / 2000 < 0.07


@pytest.mark.parametrize(
    ("slope", "placebos", "verdict"),
    [
        (0.3, [0.0, 0.02, -0.02], "rose"), (-0.3, [0.0, 0.02, -0.02], "fell"),
        (0.3, [0.2, -0.2, 0.1], "no more than a placebo"), (0.3, [0.0], "cannot be told"),
    ],
)  # fmt: skip
def test_a_slope_rose_only_beyond_what_placebos_show(slope: float, placebos: list[float], verdict: str) -> None:
    found = against_placebo(slope, placebos)
    assert found.verdict == verdict and str(found).startswith(f"{verdict}: slope {slope:+.3f}")


@pytest.mark.long
def test_the_counting_teacher_asks_each_number_of_questions_as_often_and_then_stops() -> None:
    teacher = CountingTeacher(most=3)
    chances = [teacher.chance(asked) for asked in range(5)]
    assert chances == [3 / 4, 2 / 3, 1 / 2, 0, 0]
    totals = play(teacher, 8)
    assert mean(totals, "questions") == pytest.approx(1.5, abs=0.15)
