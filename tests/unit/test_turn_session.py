"""What a game gets from `TurnSession` and `Game` if it writes five members, an opening and its actions."""

from types import SimpleNamespace

import numpy as np
import pytest

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games import registry
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.generate.records import OutcomeRecord

pytestmark = pytest.mark.usefixtures("no_game_named")


def game(name, **settings):
    kind = registry.find(f"examples/{name}.py")
    return kind(kind.settings(name=name, **settings))


def played(own, state, *turns):
    """An episode after these turns, and the last step."""
    session, step = own.start(state), None
    for seat, text in turns:
        step = session.step(seat, text)
    return session, step


# --- sessions -----------------------------------------------------------------------------------------------


def test_turns_messages_proposals_and_illegal_turns_are_counted():
    own = game("haggle")
    session, _ = played(
        own, own.state(cost=2, value=12), (0, "[message] hi"), (1, "hm"), (1, "[price] 7"), (0, "[deal]")
    )
    outcome = session.outcome()
    assert (outcome.num_turns, outcome.num_messages, outcome.num_illegal) == (4, 1, 1)
    assert (outcome.status, outcome.decision, outcome.rewards, outcome.score) == ("agreed", 7, (0.5, 0.5), 0.5)
    assert session.seats == ()
    with pytest.raises(RuntimeError, match="the episode has ended: agreed"):
        session.step(1, "[deal]")


def test_an_illegal_turn_keeps_the_turn_and_only_its_author_reads_why():
    own = game("sums")
    session, step = played(own, own.state(numbers=(3, 4)), (0, "three"))
    assert session.seats == (0,) and step.observations == ("That was no whole number. Try again.", "")
    assert (step.action, step.error, step.error_kind) == ("invalid", "That was no whole number.", "no_number")


def test_an_illegal_turn_keeps_the_turn_even_if_the_game_had_named_the_next_seat(monkeypatch):
    own = game("sums")
    session = own.start(own.state(numbers=(3, 4)))
    act = type(session).act

    def hasty(self, seat, text):
        self.next = (1 - seat,)
        return act(self, seat, text)

    monkeypatch.setattr(type(session), "act", hasty)
    assert session.step(0, "three").error_kind == "no_number" and session.seats == (0,)
    assert session.step(0, "[message] 3").error is None and session.seats == (1,)


def test_a_turn_that_was_cut_is_illegal_whatever_it_says():
    own = game("sums")
    step = own.start(own.state(numbers=(3, 4))).step(0, "[message] 3", cut=True)
    assert (step.action, step.error_kind) == ("invalid", "cut")


@pytest.mark.parametrize(
    ("text", "limit", "status"), [("x", 4, "turn_limit"), ("x", 20, "error_limit"), ("1", 4, "agreed")]
)
def test_limits_end_an_episode_with_no_reward(text, limit, status):
    own = game("sums", max_length=limit)
    session = own.start(own.state(numbers=(3, 4)))
    while session.seats:
        session.step(session.seats[0], text)
    outcome = session.outcome()
    assert outcome.status == status and outcome.rewards == (0.0, 0.0)
    assert outcome.decision is None or status == "agreed"


def test_an_aborted_episode_keeps_its_first_status():
    own = game("sums")
    session = own.start(own.state(numbers=(3, 4)))
    session.abort(Status.CONTEXT_LENGTH)
    session.abort(Status.ENGINE_FAILURE)
    assert session.outcome().status == "context_length"


def test_mute_hides_the_words_of_messages_and_nothing_else():
    state = {"cost": 2, "value": 12}
    turns = (0, "[message] it costs me 2"), (1, "[price] 7")
    for mute, heard in ((False, "[message] it costs me 2"), (True, "[message]")):
        own = game("haggle", mute=mute)
        session, step = played(own, own.state(**state), *turns)
        assert session.known(1).read[1:] == (heard,) and step.observations == ("[price] 7", "")


def test_a_tool_answers_its_author_alone_who_keeps_the_turn():
    own = game("lookup")
    state = own.state(prices={100: 7, 200: 9}, asked=200)
    session, step = played(own, state, (0, "[message] 200"), (1, "[look] 200"))
    assert session.seats == (1,) and step.action == "look" and step.observations == ("", "Order 200 costs 9.")
    assert session.step(1, "[message] 9").decision == 9
    assert session.outcome().rewards == (1.0, 1.0) and session.outcome().num_turns == 3


def test_seats_that_act_at_the_same_time_do_not_read_each_other():
    own = game("relay")
    session = own.start(own.state(letters=("a", "b")))
    with pytest.raises(RuntimeError, match="seat 2 may not act now; it is the turn of 0, 1"):
        session.step(2, "[message] a b")
    session, step = played(own, own.state(letters=("a", "b")), (1, "[message] b"), (0, "[message] a"))
    assert session.seats == (2,) and step.observations == ("", "", "User 0 says: a\n")


def test_a_player_knows_what_its_seat_has_read_and_said():
    own = game("sums")
    session, _ = played(own, own.state(numbers=(3, 4)), (0, "x"), (0, "[message] 3"))
    assert own.view(session, 0).said == ("x", "[message] 3")
    assert own.view(session, 1).read == ("Your number is 4.", "[message] 3")


# --- states and rewards -------------------------------------------------------------------------------------


def test_a_state_is_written_and_read_by_its_model():
    own = game("haggle")
    state = own.sample_state(np.random.default_rng(0))
    assert own.state_from_json(own.state_to_json(state)) == state
    with pytest.raises(UserError, match=r"^game state: field 'cost': Input should be a valid integer"):
        own.state_from_json({"cost": "low", "value": 3})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"rewards": [0.5, 0.6]}, r"field 'outcome.rewards': \[0.5, 0.6\], but the proposal gives \[0.4, 0.6\]"),
        ({"score": 0.6}, "field 'outcome.score': 0.6, but the proposal scores 0.5"),
        ({"proposal": "much"}, "field 'outcome.proposal': "),
        ({"proposal": None}, "field 'outcome.proposal': "),
    ],
)
def test_a_record_is_checked_with_the_formula_that_the_episode_was_rewarded_with(change, says):
    own = game("haggle")
    session, _ = played(own, own.state(cost=2, value=12), (0, "[price] 6"), (1, "[deal]"))
    record = SimpleNamespace(**OutcomeRecord.of(session.outcome()).model_dump() | change)
    if says is None:
        own.check_outcome(session.state, record)
        return
    with pytest.raises(ValueError, match=says):
        own.check_outcome(session.state, record)
