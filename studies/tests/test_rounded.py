"""`studies.people.rounded`: DialOp's boards with digits have the states and rewards of DialOp's boards."""

from types import SimpleNamespace

import numpy as np
import pytest

from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.lost_reward import told_truly
from selfplay_pipeline.games.matching.mentions import told_cells
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.scripted import own_cells
from selfplay_pipeline.generate.records import TurnRecord
from studies.people.rounded import Rounded, RoundedConfig, scores_of

GAME, PLAIN = Rounded(RoundedConfig(protocol="fixed")), MatchingGame(MatchingConfig(protocol="fixed"))


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture
def state():
    return GAME.sample_state(rng())


def test_states_are_those_of_matching_and_are_stored_as_they_are(state):
    stored = GAME.state_to_json(state)
    assert stored == PLAIN.state_to_json(PLAIN.sample_state(rng()))
    again = GAME.state_from_json(stored)
    assert GAME.state_to_json(again) == stored and again.view(0) == state.view(0)
    GAME.check_fits(again)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_player_sees_digits_in_the_order_of_its_scores_and_9_for_the_largest(state, seat):
    cells = [
        (int(score), digit)
        for scores, digits in zip(state.table, state.view(seat), strict=True)
        for score, digit in zip(scores, digits, strict=True)
        if digit is not None
    ]
    assert len(cells) == state.masks[seat].sum()
    largest = max(score for score, _ in cells)
    assert all(digit == int(9.99 * score / largest) for score, digit in cells)
    assert max(digit for _, digit in cells) == 9


def test_rewards_and_lines_are_those_of_matching(state):
    plain = PLAIN.sample_state(rng())
    plan = [[number, number] for number in range(8)]
    assert GAME.rewards(state, plan) == PLAIN.rewards(plain, plan)
    assert GAME.references([state]) == PLAIN.references([plain])
    assert GAME.known_lines() == PLAIN.known_lines()
    assert GAME.silence == PLAIN.silence and GAME.silence.value == pytest.approx(0.890, abs=0.001)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("seat", [0, 1])
def test_a_resampled_state_looks_the_same_to_the_hearer_and_another_way_to_its_partner(seed, seat):
    state = GAME.sample_state(rng(seed))
    drawn = GAME.redraw(state, seat, rng(1))
    assert drawn.view(seat) == state.view(seat) and drawn.view(1 - seat) != state.view(1 - seat)
    GAME.check_fits(drawn)


def test_resampled_scores_are_those_that_the_rules_give_to_such_digits():
    digits, states = np.array([9, 4, 9]), rng().integers(0, 13, (200_000, 3))
    shown = (states * (9.99 / np.maximum(1, states.max(axis=1, keepdims=True)))).astype(int)
    those = states[(shown == digits).all(axis=1)]
    drawn = scores_of(digits, 12, 50_000, rng(1))
    for cell in range(3):
        wanted, found = (np.bincount(scores[:, cell], minlength=13) / len(scores) for scores in (those, drawn))
        assert np.abs(wanted - found).max() < 0.035
    assert not scores_of(np.zeros(3, int), 12, 10, rng()).any()


@pytest.mark.parametrize("kind", GAME.alterations)
def test_an_altered_message_tells_digits(kind):
    for seed in range(10):
        state = GAME.sample_state(rng(seed))
        said = GAME.players["deaf-teacher"].act(GAME.view(GAME.start(state), 0), rng())
        turn = TurnRecord(seat=0, text=said, action="message", finish_reason="stop")
        new = GAME.alter(state, [turn], kind, rng(seed))
        assert new is None or max(told_cells(new.text, state.papers, state.reviewers).values()) <= 9
        kept = GAME.keep_named(GAME.sample_state(rng(seed + 100)), 0, said)
        assert max(told_cells(kept, state.papers, state.reviewers).values()) <= 9


def test_people_who_told_numbers_are_no_episodes_of_this_game():
    assert not [*GAME.human_episodes()]


def test_a_scripted_player_tells_its_digits_and_they_are_true(state):
    view = GAME.view(GAME.start(state), 0)
    said = GAME.players["deaf-teacher"].act(view, rng())
    told = told_truly(state, SimpleNamespace(seat=0, text=said))
    assert told and told <= {*own_cells(view)}
    assert len(told) == len(told_cells(said, state.papers, state.reviewers))


def test_a_cell_that_both_see_is_worth_about_the_same_to_a_script_in_either_view(state):
    view = GAME.view(GAME.start(state), 0)
    low, high = view.scales
    assert low == high
    values = {cell: digit / low for cell, digit in own_cells(view).items()}
    assert all(abs(value - state.table[cell]) < 15 for cell, value in values.items())
