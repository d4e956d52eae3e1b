"""Letters that a case-insensitive pattern takes for others: two kinds of i, the long s, the sign for kelvin."""

import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.games.base import ParseError, state_rng
from selfplay_pipeline.games.matching.proposals import format_proposal, parse_action
from selfplay_pipeline.games.matching.renaming import retold
from selfplay_pipeline.games.planning.text import told_preferences
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.tags import folded

STATE = make_game(load_config("tiny", {}).game).sample_state(state_rng(1, 0))
ALIKE = {"İ": "i", "ı": "i", "ſ": "s", "\u212a": "k"}
PLAN = ((0, 1), (1, 2), (2, 0))


@pytest.mark.parametrize("letter", ALIKE)
def test_a_letter_is_folded_to_the_one_that_the_pattern_takes_it_for(letter):
    assert folded(letter) == ALIKE[letter]


@pytest.mark.parametrize("name", ["matching", "bargaining", "planning", "mediation"])
@pytest.mark.parametrize(("text", "plain"), [("[meſsage] hi", "[message] hi"), ("[propoſe] it", "[propose] it")])
def test_a_tag_with_such_a_letter_is_the_tag_in_each_game(name, text, plain):
    game = make_game(load_config("default", {"game": name}).game)
    state = game.sample_state(state_rng(0, 0))
    read, expected = (game.start(state).step(game.start(state).seats[0], words) for words in (text, plain))
    assert (read.action, read.error_kind) == (expected.action, expected.error_kind)


@pytest.mark.parametrize(("letter", "plain"), ALIKE.items())
def test_a_name_with_such_a_letter_is_the_name_in_a_proposal(letter, plain):
    text = format_proposal(PLAN, STATE.papers, STATE.reviewers)
    for told in (text, text.replace(plain, letter)):
        assert parse_action(told, STATE.papers, STATE.reviewers).proposal == PLAN


@pytest.mark.parametrize("name", ["Ava Lı", "Ava Lİ", "ava lı"])
def test_a_name_with_such_a_letter_is_the_name_in_other_play(name):
    names = {"reviewers": [1, 2, 0], "papers": [2, 0, 1]}
    assert "ava" not in (told := retold(STATE, names, f"[message] {name} BLEU 5").lower()) and "daniel" in told


def test_such_a_letter_as_the_number_of_a_line_is_refused():
    text = format_proposal(PLAN, STATE.papers, STATE.reviewers).replace("\n", "\nİ. ")
    with pytest.raises(ParseError):
        parse_action(text, STATE.papers, STATE.reviewers)


def test_a_place_with_such_a_letter_is_the_place():
    plain = told_preferences("[message] I must go to Cookies Cream")
    assert plain and told_preferences("[message] I must go to Cookıes Cream") == plain
