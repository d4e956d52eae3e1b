"""Mediation: states, scores, people's games, rooms, turn-taking, scripted players, figures and the line of silence."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from factories import alike, drawn, play, scripts_record, streams, take
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from quick import examples, long_but

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.altered import CHANGED
from selfplay_pipeline.games.base import CUT, INVALID, ParseError, Said, Status
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.mediation import humans
from selfplay_pipeline.games.mediation.game import MediationGame
from selfplay_pipeline.games.mediation.rules import (
    AGENT,
    FIRST,
    LENGTHS,
    SECOND,
    USERS,
    Costs,
    Event,
    Flight,
    MediationConfig,
    MediationState,
    Span,
    User,
    clashes,
    overlap,
)
from selfplay_pipeline.games.mediation.scripted import _told_offers, best_pair, player_view
from selfplay_pipeline.games.mediation.states import Calendars
from selfplay_pipeline.games.mediation.teacher import LESSONS
from selfplay_pipeline.games.mediation.text import (
    format_proposal,
    parse_proposal,
    span,
    split_room,
    told_costs,
    told_offer,
)
from selfplay_pipeline.games.mediation.wordless import mean_rewards, wordless_rewards
from selfplay_pipeline.generate.human_episodes import replayed
from selfplay_pipeline.metrics.figures import measure
from selfplay_pipeline.warm_start.tiny_model import build_tokenizer

GAME = MediationGame()
TINY = MediationGame(
    MediationConfig(flights=5, days=1, p_event=0.9, p_shared=0, protocol="fixed", max_length=3, prompts="compact")
)
TWICE = MediationGame(MediationConfig(flights=5, days=1, protocol="fixed", messages=2))
ANY_GAME = pytest.mark.parametrize("game", [GAME, TINY], ids=["default", "tiny"])


def user(prices: tuple[int, ...] = (100, 150), importance: int = 4) -> User:
    """Two flights of eight hours, at 10:00 and 12:00; the meeting of 11:00 clashes with the first alone."""
    flights = [
        Flight(carrier="Delta", price=price, start=600 + 120 * at, end=1080 + 120 * at)
        for at, price in enumerate(prices)
    ]
    event = Event(start=660, end=720, importance=importance, shared=False)
    return User(flights=flights, events=[event], mean_price=100, price_pref=10)


STATE = MediationState(users=(user(), user((100, 300), 9)), arrival_pref=3)
"""Points: meetings -4 and -9 for flights 0; prices -5 and -20 for flights 1; -2 each if the arrivals differ."""
PINNED = (1129, 591, 953, 13, 9)
"""Price and times of a flight, events, arrival preference of state 0 of seed 0: a change changes all users' states."""

seeds = st.integers(0, 10_000)


# --- states and scores ----------------------------------------------------------------------------------------


@ANY_GAME
@given(seed=seeds)
@examples(15)
def test_a_sampled_state_keeps_to_the_rules(game, seed):
    state = drawn(game, seed)
    for own in state.users:
        assert all(event.end - event.start in LENGTHS for event in own.events)
        assert all(own.clashes(flight) for flight, _ in enumerate(own.flights)), "a flight without a clash is removed"
    assert game.rewards(state, [*state.best_pair]) == (1.0,) * 3
    assert state.rewards.min() == 0 and game.best(state) == game.score(state, [*state.best_pair]) > 0


def test_a_sampled_state_is_pinned():
    first = drawn(GAME, 0)
    one = first.users[0].flights[0]
    assert (one.price, one.start, one.end, len(first.users[0].events), first.arrival_pref) == PINNED


def test_the_score_of_each_pair_is_computed_by_hand():
    assert STATE.scores.tolist() == [[-13, -28], [-18, -25]]
    assert [STATE.costs(user, (1, 0)) for user in USERS] == [Costs(0, -5, -2), Costs(-9, 0, -2)]
    assert STATE.best_pair == (0, 0) and STATE.rewards.tolist() == [[1, 0], [10 / 15, 3 / 15]]


def test_the_table_of_clashes_says_for_each_pair_whether_its_times_overlap():
    times = [(start, end) for start in range(540, 720, 60) for end in range(start + 60, 780, 60)]
    flights = [Flight(carrier="Delta", price=50, start=start, end=end) for start, end in times]
    found = clashes(np.array(times), flights)
    assert found.tolist() == [[overlap(event, flight) for event in flights] for flight in flights]


def test_times_that_begin_together_do_not_overlap_as_in_dialop():
    event = Event(start=600, end=660, importance=1, shared=True)
    assert not overlap(event, Flight(carrier="Delta", price=50, start=600, end=900))
    assert overlap(event, Flight(carrier="Delta", price=50, start=659, end=900))
    assert overlap(Flight(carrier="Delta", price=50, start=541, end=601), event)
    assert not overlap(event, Flight(carrier="Delta", price=50, start=660, end=900))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrival_pref": 11}, "'arrival_pref': Input should be less than or equal to 10"),
        ({"users": [user()] * 3}, "'users': Tuple should have at most 2 items"),
        ({"users": [user((50,), 1)] * 2}, "field 'users': all pairs of flights have the same score"),
    ],
)
def test_a_damaged_state_is_refused_by_its_field(change, words):
    data = STATE.model_dump(mode="json") | {
        key: [each.model_dump(mode="json") for each in value] if key == "users" else value
        for key, value in change.items()
    }
    with pytest.raises(UserError, match=words):
        GAME.state_from_json(data)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("flights", 4, "flights, but game.flights is 4"),
        ("days", 1, "an event that game.days 1 cannot have"),
        ("p_shared", 1.0, "are shared; game.p_shared says otherwise"),
    ],
)
def test_a_state_of_another_configuration_is_refused(key, value, words):
    with pytest.raises(UserError, match=words):
        MediationGame(MediationConfig(**{key: value})).check_fits(drawn(GAME, 0))


def test_a_fixed_protocol_needs_room_for_its_turns():
    with pytest.raises(ValidationError, match="max_length 6 leaves no turn for the proposal after 2 messages"):
        MediationConfig(protocol="fixed", messages=2, max_length=6)


# --- people ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people():
    return list(zip(humans.recorded(), humans.human_episodes(), strict=True))


def test_scores_of_all_162_recorded_games_and_points_of_all_459_proposals_are_ours(people):
    proposals = 0
    for game, episode in people:
        state, result, pair = episode.state, game["result"], (0, 0)
        GAME.check_fits(state)
        for entry in game["action_log"]:
            if entry["type"] == "proposal":
                flights = [each["flights"] for each in game["player_data"]]
                pair = tuple(flights[user].index(entry["proposals"][user]["proposal_data"]) for user in USERS)
                costs = [entry["proposals"][user]["cost"] for user in USERS]
                found = [Costs(cost["calendar"], cost["price"], cost["arrival_time"]) for cost in costs]
                assert found == [state.costs(user, pair) for user in USERS]
                assert [each.total for each in found] == [cost["total"] for cost in costs]
                proposals += 1
        scores = state.scores
        assert (scores[pair], scores.max(), scores.min()) == (result["score"], result["best"], result["worst"])
        assert state.rewards[pair] == pytest.approx(result["norm"], abs=1e-12) == episode.reward
    assert (len(people), proposals) == (162, 459)


def test_our_states_look_like_those_that_people_played(people):
    """Means over 324 users, and over 300 of ours (fixed seeds): within four standard errors of the difference."""
    ours = [own for seed in range(150) for own in drawn(GAME, seed).users]
    theirs = [own for _, episode in people for own in episode.state.users]
    for quantity in (
        lambda own: len(own.flights),
        lambda own: len(own.events),
        lambda own: own.mean_price,
        lambda own: own.price_pref,
        lambda own: own.meeting_costs.mean(),
        lambda own: own.flights[0].end - own.flights[0].start,
        lambda own: np.mean([event.importance for event in own.events]),
        lambda own: np.mean([flight.price for flight in own.flights]),
    ):
        assert alike(ours, theirs, quantity)


def test_people_play_by_our_rules_and_each_action_is_kept_or_counted(people):
    left_out, kept = Counter(), 0
    for number, (game, episode) in enumerate(people):
        left_out.update(episode.left_out)
        if episode.legal:
            record = replayed(GAME, number, episode)
            kept += len(record.turns)
            assert record.outcome.status == "agreed" and not any(turn.error for turn in record.turns)
            assert record.outcome.normalized_reward == pytest.approx(game["result"]["norm"], abs=1e-12)
            assert len(record.turns) + sum(episode.left_out.values()) == episode.num_turns
    assert kept == 1534 and left_out == {
        humans.AGAIN: 516, humans.UNANSWERED: 303, humans.JOINED: 166, humans.WAITING: 104, humans.UNASKED: 104,
        humans.REPLACED: 75, humans.NOT_ALL: 28, humans.LATE: 1,
    }  # fmt: skip
    assert sum(not episode.legal for _, episode in people) == 2


def test_people_are_there_for_dialops_states_alone():
    assert next(GAME.human_episodes()) and not [*TINY.human_episodes()]


# --- rooms and turns ------------------------------------------------------------------------------------------


def test_users_speak_at_the_same_time_then_the_agent_and_a_room_does_not_hear_the_other():
    session = GAME.start(STATE)
    assert session.seats == USERS
    one, two = session.step(SECOND, "[message] second"), session.step(FIRST, "[message] first")
    assert one.observations == ("", "", "User 1 said: [message] second") and two.observations[SECOND] == ""
    assert session.seats == (AGENT,)
    asked = session.step(AGENT, "[message] user 1: and you?")
    assert asked.observations == ("", "The agent said: [message] and you?", "")
    assert session.seats == (SECOND,), "the agent waits for the answer; nobody else may act"
    session.step(SECOND, "[message] yes")
    assert session.seats == (AGENT,)


def test_both_accept_or_the_proposal_fails_and_neither_user_sees_the_other_ones_flight():
    session = GAME.start(STATE)
    for seat in USERS:
        session.step(seat, "[message] hi")
    offered = session.step(AGENT, "[propose] user 0: 1, user 1: 0")
    assert offered.decision == [1, 0] and session.seats == USERS
    assert "flight 1 to you: Delta | $150" in offered.observations[FIRST]
    assert "meetings 0, price -5, arrival -2, together -7" in offered.observations[FIRST]
    assert "It clashes with Wed 11:00-12:00 | importance 9" in offered.observations[SECOND]
    first = session.step(FIRST, "[accept]")
    assert first.observations == ("", "", "User 0 said: [accept]") and session.seats == (SECOND,)
    second = session.step(SECOND, "[reject]")
    assert second.observations[FIRST] == second.observations[SECOND] != ""
    assert "not accepted by both" in second.observations[FIRST] and session.seats == USERS
    for seat in USERS:
        session.step(seat, "[message] again")
    session.step(AGENT, "[propose] user 0: 0, user 1: 0")
    for seat in reversed(USERS):
        session.step(seat, "[accept]")
    outcome = session.outcome()
    assert (outcome.status, outcome.decision, outcome.rewards) == ("agreed", [0, 0], (1.0,) * 3)
    assert (outcome.score, outcome.best, outcome.num_proposals, outcome.num_messages) == (15, 15, 2, 4)


ILLEGAL = {
    "propose": (FIRST, "[propose] user 0: 1, user 1: 0", "the agent alone may propose", "not_yours"),
    "answer": (FIRST, "[accept]", "there is no proposal to accept", "not_now"),
    "empty": (FIRST, "[message]", "the message is empty", "empty_message"),
    "no tag": (SECOND, "hello", "start with", "no_tag"),
    "agent accepts": (AGENT, "[accept]", "users alone may accept", "not_yours"),
    "no room": (AGENT, "[message] hello", "begin the message with the user", "no_room"),
    "empty in a room": (AGENT, "[message] user 0: ", "the message is empty", "empty_message"),
    "no pair": (AGENT, "[propose] user 0: 1", "write the proposal as", "malformed"),
    "no flight": (AGENT, "[propose] user 0: 0, user 1: 2", "user 1 has no flight 2", "no_flight"),
}


def test_a_person_as_the_agent_selects_the_user_to_whom_it_speaks_and_the_flights_that_it_proposes():
    session = GAME.start(STATE)
    for seat in USERS:
        session.step(seat, "[message] hello")
    message, proposal = GAME.choices(session, AGENT)
    assert [part.options for part in message.parts] == [("user 0", "user 1")]
    assert message.write([1]) == "[message] user 1: "
    assert [part.label for part in proposal.parts] == ["user 0", "user 1"]
    assert proposal.parts[1].options == ("0: $100, Wed 10:00-18:00", "1: $300, Wed 12:00-20:00")
    views = {view.title: view for view in GAME.draw_view(STATE, AGENT)}
    assert [len(views[part.table].rows) for part in proposal.parts] == [len(part.options) for part in proposal.parts]
    assert session.step(AGENT, proposal.write([1, 0])).decision == [1, 0]
    fixed = TWICE.start(drawn(TWICE, 0))
    for seat in USERS:
        fixed.step(seat, "[message] hello")
    (due,) = TWICE.choices(fixed, AGENT)
    assert (due.form, due.parts) == ("[message] user 0: ", ())


@pytest.mark.parametrize(("seat", "text", "words", "kind"), ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_turn_changes_nothing_and_its_author_alone_reads_why(seat, text, words, kind):
    session = GAME.start(STATE)
    for user in USERS if seat == AGENT else ():
        session.step(user, "[message] hi")
    before = session.seats, session.pending, [*map(len, session.rooms)]
    step = session.step(seat, text)
    assert words in step.error and step.error_kind == kind and kind in GAME.error_kinds
    assert step.observations[seat].startswith("Error: ") and sum(map(bool, step.observations)) == 1
    assert before == (session.seats, session.pending, [*map(len, session.rooms)])


def test_limits_of_errors_and_turns_and_a_cut_turn():
    session = MediationGame(MediationConfig(max_errors=2, max_length=4)).start(STATE)
    assert session.step(FIRST, "[message] hi", cut=True).error_kind == CUT
    assert "[message]" in session.step(FIRST, "hm").observations[FIRST]
    assert session.status == Status.ERROR_LIMIT and session.outcome().rewards == (0.0,) * 3
    session = MediationGame(MediationConfig(max_length=2)).start(STATE)
    for seat in USERS:
        session.step(seat, "[message] hi")
    assert session.status == Status.TURN_LIMIT


def test_the_fixed_protocol_has_the_same_turns_in_every_episode():
    session = TWICE.start(drawn(TWICE, 0))
    for seat in USERS:
        assert "[message]" in session.step(seat, "[accept]").error
        session.step(seat, "[message] hi")
    assert "this turn must be a [message]" in session.step(AGENT, "[propose] user 0: 0, user 1: 0").error
    assert "must be a message to user 0" in session.step(AGENT, "[message] user 1: hi").error
    assert "user 1" in session.step(AGENT, "[message] user 0: hi").observations[AGENT], "so that its prompt is new"
    session.step(AGENT, "[message] user 1: hi")
    assert session.seats == USERS
    heard = [session.step(seat, "[message] bye").observations[AGENT] for seat in USERS]
    assert "Propose when both" in heard[0] and session.seats == (AGENT,)
    assert session.step(AGENT, "[propose] user 0: 0, user 1: 0").observations == ("",) * 3
    assert session.status == "agreed" and session.outcome().num_turns == 7 + 4
    assert TWICE.silence_is_bound and not GAME.silence_is_bound


def test_a_muted_message_says_only_who_sent_it():
    session = MediationGame(MediationConfig(mute=True)).start(STATE)
    step = session.step(SECOND, "[message] my secret")
    assert step.observations[AGENT] == "User 1 said: [message]"


def test_a_muted_seat_knows_what_it_wrote_itself():
    session = MediationGame(MediationConfig(mute=True)).start(STATE)
    session.step(SECOND, "[message] my secret")
    assert [player_view(session, seat).heard(SECOND) for seat in (SECOND, AGENT)] == [
        ["[message] my secret"],
        ["[message]"],
    ]


# --- nothing of another room ----------------------------------------------------------------------------------


def changed(turns: list[tuple[int, str]], room: int) -> list[tuple[int, str]]:
    """Returns the turns with other words in all messages of one room."""
    own, found = {room: "[message]", AGENT: f"[message] user {room}:"}, []
    for seat, text in turns:
        head = own.get(seat, "\0")
        found.append((seat, f"{head} other words") if text.startswith(head) else (seat, text))
    return found


def test_points_that_a_user_tells_are_those_of_the_last_proposal():
    session = GAME.start(STATE)

    def told(words: str) -> list[tuple[tuple[int, int], int, int]]:
        for _ in USERS:
            take(session, f"[message] {words}")
        return _told_offers(player_view(session, AGENT), 0)

    def fails(pair: tuple[int, int]) -> None:
        take(session, format_proposal(pair))
        for _ in USERS:
            take(session, "[reject]")

    assert told("price -9 arrival -9, of nothing") == []
    fails((0, 0))
    assert told("no, another one please") == []
    fails((1, 0))
    assert told("price -4, arrival 0") == [((1, 0), -4, 0)]
    view = player_view(session, AGENT).with_message(0, "[message] price -5, arrival -1")
    assert _told_offers(view, 0) == [((1, 0), -4, 0), ((1, 0), -5, -1)]


@pytest.mark.parametrize(("game", "states"), [(GAME, 3), (TINY, 10)], ids=["default", "tiny"])
def test_no_seat_reads_what_only_another_one_knows(game, states):
    """All that a seat does not see is drawn anew, and the other room's words are changed: it reads the same.

    A user's points for a proposal may change: the rules tell it, and they depend on numbers that nobody sees.
    """
    names, seen = [*game.players], 0
    for seed in range(states):
        state, rng = drawn(game, seed), np.random.default_rng(seed)
        turns = [(turn.seat, turn.text) for turn in play(game, state, *rng.choice(names, 3), seed=seed).turns]
        for seat in range(3):
            own, others = streams(game, state, turns)[seat], turns if seat == AGENT else changed(turns, 1 - seat)
            assert streams(game, state, others)[seat] == own
            theirs = streams(game, game.redraw(state, seat, rng), others)[seat]
            for (_, text), one, two in zip([(seat, ""), *turns], own, theirs, strict=False):
                part = "Your points" if seat in USERS and text.startswith("[propose]") else "\0"
                assert one.split(part)[0] == two.split(part)[0]
                seen += bool(one)
    assert seen > 4 * states


def calendars(slots: list[int], p: float, most: int, first: int = 0) -> Iterator[tuple[float, list[tuple[int, int]]]]:
    """Yields all calendars of up to `most` events with their probabilities."""
    free = [slot for slot in slots if slot >= first]
    yield (1 - p) ** len(free), []
    for before, start in enumerate(free if most else []):
        for length in LENGTHS:
            for chance, later in calendars(free, p, most - 1, start + length):
                yield (1 - p) ** before * p / len(LENGTHS) * chance, [(start, start + length), *later]


def test_private_events_have_their_exact_chances():
    """One shared event of two or three, and a flight that clashes with none of it: all calendars are listed."""
    config = MediationConfig(flights=5, days=1, p_shared=0.5, p_event=0.3)
    event = Event(start=780, end=840, importance=5, shared=True)
    flight = Flight(carrier="Delta", price=50, start=600, end=720)
    found = Calendars(User(flights=[flight], events=[event], mean_price=100, price_pref=1), config)
    assert found.private == [1, 2], "the half of two and of three events is one"
    fitting = [
        (chance, spans)
        for chance, spans in calendars(found.slots, config.p_event, 3)
        if len(spans) > 1 and (780, 840) in spans and any(overlap(Span(*each), flight) for each in spans)
    ]
    for left in found.private:
        assert found.chance[0, left, 1] / len(LENGTHS) == pytest.approx(
            sum(c for c, spans in fitting if len(spans) == 1 + left)
        )
    weights = np.array([chance / len(spans) for chance, spans in fitting])
    rng, firsts = np.random.default_rng(0), np.array([spans[0][0] for _, spans in fitting])
    mean = weights @ firsts / weights.sum()
    drawn = np.array([found.one(rng)[0].start for _ in range(3000)])
    assert abs(drawn.mean() - mean) < 4.5 * drawn.std() / 3000**0.5


# --- texts ----------------------------------------------------------------------------------------------------


@given(st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_parsing_a_proposal_inverts_formatting_it(pair):
    assert parse_proposal(format_proposal(pair).removeprefix("[propose] "), STATE) == pair


@pytest.mark.parametrize(
    "text", ["user 0: id 1, user 1: id 0", "0: 1, 1: 0", "User 0: flight 1 and user 1: flight #0."]
)
def test_other_ways_to_write_a_proposal_are_read(text):
    assert parse_proposal(text, STATE) == (1, 0)


def test_rooms_times_and_told_points_are_read():
    assert split_room("to user 1, hello") == (1, "hello") and split_room("0: hi") == (0, "hi")
    with pytest.raises(ParseError):
        split_room("hello user 1")
    assert span(Flight(carrier="Delta", price=50, start=1254, end=1735)) == "Wed 20:54-Thu 04:55"
    assert told_costs("[message] 0 9 1 4") == {0: 9, 1: 4}
    assert told_costs("[message] Hi! flight 0 costs me 9 points, flight 12: 4.") == {0: 9, 12: 4}
    assert told_costs("[message] price -3 arrival -1") == {}
    assert told_offer("[message] price -3, arrival -1") == (-3, -1)


@pytest.mark.parametrize("digits", [10, 309, 5000])
def test_a_number_that_is_far_too_long_tells_nothing(digits):
    number = "9" * digits
    assert told_costs(f"[message] 0 {number}") == told_costs(f"[message] flight 0: {number}") == {}
    for text in (f"[message] price {number} arrival 1", f"[message] price 1 arrival {number}"):
        assert told_offer(text) is None


# --- players, figures, lines ----------------------------------------------------------------------------------


def rewards_of(game: MediationGame, name: str, states: int = 60) -> np.ndarray:
    return np.array(
        [play(game, drawn(game, seed), name, seed=seed).session.outcome().rewards[0] for seed in range(states)]
    )


@ANY_GAME
def test_players_are_ordered_random_silent_sharing_and_speaking_tells_as_much(game):
    states = 12 if game is GAME else 30
    found = {name: rewards_of(game, name, states).mean() for name in ("random", "silent", "sharing", "speaking")}
    assert found["random"] < found["silent"] - 0.1 and found["silent"] < found["sharing"]
    assert found["speaking"] == pytest.approx(found["sharing"], abs=1e-9)
    teachers = [rewards_of(game, name, states).mean() for name in ("teacher", "speaking-teacher")]
    assert max(teachers) < found["silent"] - 0.1, "a warm start does not contain how to plan"


def test_the_compact_view_of_the_agent_is_one_token_a_number_and_has_shared_meetings_only_where_they_can_be():
    opening = TINY.start(drawn(TINY, 0)).opening(AGENT).observation
    assert opening.splitlines()[0] == "user 0 8, 0 8 18, 1 14 20, 2 15 21, 3 3 23, 4 10 25"
    words = build_tokenizer(LESSONS["self-play"].words).tokenize(opening)
    assert [word.strip() for word in words if word.strip().isdigit()] == re.findall(r"\d+", opening)
    shared = MediationGame(TINY.config.model_copy(update={"p_shared": 0.5}))
    numbers = shared.start(drawn(shared, 0)).opening(AGENT).observation.splitlines()[0].split(",")[1:]
    assert {len(flight.split()) for flight in numbers} == {4}


def test_the_agent_plans_with_what_it_was_told():
    session = GAME.start(STATE)
    session.step(FIRST, "[message] 0 90 1 0")
    session.step(SECOND, "[message] flight 0 costs me 0 points, flight 1: 50")
    assert best_pair(player_view(session, AGENT)) == (1, 0)


def test_figures_tell_where_the_reward_was_lost():
    episode = play(GAME, STATE, "sharing", "sharing", "random", seed=1)
    record = scripts_record(GAME, STATE, episode)
    found = {name: above / below for name, (above, below) in measure(Measured(GAME, record, range(3))).items() if below}
    parts = [found[name] for name in ("lost_to_telling", "lost_to_planning", "lost_to_agreement")]
    assert sum(parts) + found["reward"] == pytest.approx(1)
    assert found["told"] == 1.0 and found["proposals"] == 3
    costs = [STATE.costs(user, tuple(record.outcome.proposal)) for user in USERS]
    assert found["meeting_points"] == sum(each.meetings for each in costs)


@pytest.mark.long
def test_silence_lies_between_random_and_the_optimum_and_is_the_value_of_the_best_pair_given_the_agents_view():
    for state in [drawn(TINY, seed) for seed in range(3)]:
        (line,) = wordless_rewards([state], TINY.config, np.random.default_rng(0))["silence"]
        values = mean_rewards(state.users, TINY.config, np.random.default_rng(1), 300)
        view = player_view(TINY.start(state), AGENT)
        planned, own = values[best_pair(view)], TINY.players["own-view"].act(view, np.random.default_rng(2))
        assert values[parse_proposal(own.removeprefix("[propose]"), state)] > values.max() - 0.05
        assert values.shape == state.rewards.shape and values.mean() < line < 1
        assert planned - 0.05 < line < values.max() + 0.05


@pytest.mark.parametrize("kind", long_but({CHANGED}, TINY.alterations))
@pytest.mark.parametrize("users", ["sharing", "speaking"])
def test_an_altered_message_names_the_same_flights_and_makes_another_pair_the_best(users, kind):
    tested = 0
    for seed in range(12):
        state = drawn(TINY, seed)
        turns = play(TINY, state, users, users, "sharing", seed=seed).turns
        found = TINY.alter(state, turns[:2], kind, np.random.default_rng(seed))
        cut = Said(turns[0].seat, "[message] my fl", INVALID)
        assert TINY.alter(state, [cut, *turns[:2]], kind, np.random.default_rng(seed)) == found, (
            "a cut turn stays illegal"
        )
        if found is None:
            continue
        tested += 1
        assert told_costs(found.text).keys() == told_costs(turns[1].text).keys()
        pairs = []
        for second in (turns[1].text, found.text):
            session = TINY.start(state)
            session.step(turns[0].seat, turns[0].text)
            session.step(turns[1].seat, second)
            pairs.append([*best_pair(player_view(session, AGENT))])
        assert pairs[0] != found.decision == pairs[1]
    assert tested >= 3


def test_a_message_can_keep_its_flights_and_tell_the_costs_of_another_state():
    other = TINY.redraw(drawn(TINY, 3), AGENT, np.random.default_rng(1))
    true = dict(enumerate((-other.users[FIRST].meeting_costs).tolist()))
    for text in ("[message] 0 90 1 91", "[message] Hi! flight 0 costs me 90 points, flight 1: 91."):
        kept = TINY.keep_named(other, FIRST, text)
        assert told_costs(kept) == {0: true[0], 1: true[1]}
    assert TINY.keep_named(other, FIRST, "[message] price 3 arrival -2") == "[message] price 3 arrival -2"
    assert TINY.keep_named(other, AGENT, "[message] user 0: flight 0 costs 3?").endswith("costs 3?")
