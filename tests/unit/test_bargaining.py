"""Deal or No Deal: sampling, texts, turn-taking, rewards, scripted players, reference lines."""

import json
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from factories import play_scripts, take
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.bargaining.rules import (
    BargainingConfig,
    BargainingState,
    Split,
    all_values,
    possible_counts,
    possible_pairs,
    possible_values,
    rest,
    rewards,
    shares,
)
from selfplay_pipeline.games.bargaining.scripted import SCRIPTED, PlayerView, partners_values, tell
from selfplay_pipeline.games.bargaining.teacher import Teacher
from selfplay_pipeline.games.bargaining.text import (
    ErrorKind,
    asked_items,
    format_proposal,
    parse_share,
    told_values,
)
from selfplay_pipeline.games.bargaining.wordless import silent_plan, wordless_rewards
from selfplay_pipeline.games.base import CUT, HELD_OUT, Outcome, ParseError, Said, Status, Step, read_state, state_rng
from selfplay_pipeline.games.figures import Measures
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import GameConfig, game_named, make_game, parse_game_config
from selfplay_pipeline.games.silence import THRESHOLDS
from selfplay_pipeline.games.tagged_session import AGREED
from selfplay_pipeline.games.tags import tagged
from selfplay_pipeline.generate.records import OutcomeRecord
from selfplay_pipeline.metrics.figures import measure

GAME = BargainingGame()
REWARDS = {
    "cooperative": BargainingConfig(),
    "semi": BargainingConfig(reward="semi", semi_lambda=0.3),
    "selfish": BargainingConfig(reward="selfish"),
}
STATE = BargainingState(counts=(1, 2, 3), values=((4, 0, 2), (1, 3, 1)))
"""The best sum, 16, gives the book and the balls to player 0 and the hats to player 1."""
PINNED = ((3, 2, 2), ((2, 1, 1), (0, 2, 3)))
"""State 0 of seed 0: a change here changes every user's states."""
LINES = {
    "cooperative": {"random": 0.673, "best": 1.0, "silence": 0.929},
    "semi": {"random": 0.636, "best": 0.950, "silence": 0.885},
    "selfish": {"random": 0.5, "best": 0.760, "silence": 0.708},
}
"""Mean rewards of states 0 to 999 of seed 0."""

seeds = st.integers(0, 10_000)


@cache
def state_of(seed: int) -> BargainingState:
    return GAME.sample_state(state_rng(seed, 0))


def all_splits(state: BargainingState) -> list[Split]:
    return [(share, rest(state.counts, share)) for share in shares(state.counts)]


def play(game: BargainingGame, state: BargainingState, names: tuple[str, str], seed: int = 0) -> Outcome:
    rng = np.random.default_rng(seed)
    return play_scripts(game, state, [game.players[name] for name in names], rng).session.outcome()


# --- states -------------------------------------------------------------------------------------------------


def test_sampled_states_keep_to_the_papers_rules():
    for index in range(1000):
        state = GAME.sample_state(state_rng(0, index))
        assert 5 <= sum(state.counts) <= 7 and min(state.counts) >= 1 and max(state.counts) <= 4
        for values in state.values:
            assert sum(count * value for count, value in zip(state.counts, values, strict=True)) == 10
        assert all(one or other for one, other in zip(*state.values, strict=True))
        assert any(one and other for one, other in zip(*state.values, strict=True))
        GAME.check_fits(state)


def test_the_28_counts_and_their_values_are_those_of_the_papers_data():
    counts = possible_counts()
    assert len(counts) == 28, "as in its data.txt, whose 12,234 lines were compared with these rules"
    # Its selfplay.txt, where both orders of a type's counts are there, has pairs of values of these kinds only.
    assert [len(possible_pairs(each, 10)) for each in ((1, 1, 3), (2, 2, 2), (1, 2, 4))] == [513, 312, 84]


def test_all_counts_are_as_likely_and_so_is_every_state_given_its_counts():
    states = [GAME.sample_state(state_rng(1, index)) for index in range(20_000)]
    drawn = Counter(state.counts for state in states)
    assert drawn.keys() == set(possible_counts())
    assert all(0.85 < count * 28 / len(states) < 1.15 for count in drawn.values())
    values = Counter(state.values for state in states if state.counts == (1, 2, 4))
    assert values.keys() == set(possible_pairs((1, 2, 4), 10)), "all 84, about nine times each"
    assert max(values.values()) < 25


@pytest.mark.parametrize(
    ("counts", "values", "fits"),
    [
        ((1, 2, 2), ((2, 2, 2), (4, 1, 2)), True),
        ((1, 2, 4), ((2, 2, 1), (4, 1, 1)), True),
        ((1, 1, 2), ((2, 2, 3), (4, 2, 2)), False),
        ((2, 2, 4), ((1, 2, 1), (2, 1, 1)), False),
        ((1, 2, 2), ((1, 2, 2), (3, 1, 2)), False),
        ((1, 2, 2), ((3, 2, 2), (5, 1, 2)), False),
    ],
    ids=["5 items", "7 items", "4 items", "8 items", "worth 9", "worth 11"],
)
def test_a_state_fits_by_its_number_of_items_and_its_total_value(counts, values, fits):
    state = STATE.model_copy(update={"counts": counts, "values": values})
    with (
        nullcontext() if fits else pytest.raises(UserError, match=f"{sum(counts)} items that are worth {state.total},")
    ):
        GAME.check_fits(state)


@given(seeds)
def test_a_state_is_read_back_and_the_same_for_the_same_seed(seed):
    state = state_of(seed)
    assert state == GAME.sample_state(state_rng(seed, 0)) != GAME.sample_state(state_rng(seed, 0, HELD_OUT))
    assert read_state(GAME, json.dumps(state.to_dict())) == state
    assert GAME.problem_of(state.to_dict()) == [list(state.counts), [list(values) for values in state.values]]


def test_a_sampled_state_is_pinned():
    assert (state_of(0).counts, state_of(0).values) == PINNED


@given(seeds, st.sampled_from(["counts", "values"]), st.data())
def test_every_damaged_field_is_refused_by_name(seed, name, data):
    written = state_of(seed).to_dict()
    row = written["counts"] if name == "counts" else written["values"][data.draw(st.integers(0, 1))]
    place = data.draw(st.integers(0, 2))
    damages = [1.5, True, None, "1", -1, 2**40, "drop", "more", "missing", "text"]
    if name == "values":  # another count of an item that is worth as much to both players makes a state too
        damages.append(row[place] + 1)
    damage = data.draw(st.sampled_from(damages))
    if damage == "drop":
        del row[place]
    elif damage == "more":
        row.append(1)
    elif damage == "missing":
        del written[name]
    elif damage == "text":
        written[name] = "1 2 3"
    else:
        row[place] = damage
    with pytest.raises(UserError, match=f"^game state: field '{name}"):
        GAME.state_from_json(written)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": [1, 2, 5]}, "field 'counts.2'"),
        ({"counts": [0, 2, 4]}, "field 'counts.0'"),
        ({"values": [[4, 0, 2], [1, 3, 2]]}, "'values': all items are worth 10 to one player, 13 to the other"),
        ({"values": [[10, 0, 0], [0, 5, 0]]}, "'values': each item must be worth something to a player"),
        ({"values": [[4, 3, 0], [1, 0, 3]]}, None),
        ({"values": [[10, 0, 0], [0, 2, 2]]}, "some item to both"),
    ],
)
def test_a_state_against_the_rules_is_refused(change, words):
    with pytest.raises(UserError, match=words) if words else nullcontext():
        GAME.state_from_json(STATE.to_dict() | change)


# --- splits and rewards -------------------------------------------------------------------------------------


@given(seeds)
def test_a_split_and_its_rest_are_worth_everything(seed):
    state = state_of(seed)
    for one, other in all_splits(state):
        forth, back = state.worth((one, other)), state.worth((other, one))
        assert [a + b for a, b in zip(forth, back, strict=True)] == [10, 10]


@given(seeds, st.sampled_from([*REWARDS]), st.floats(0, 1))
def test_rewards_lie_in_0_to_1_and_the_best_split_reaches_1(seed, kind, part):
    state, config = state_of(seed), BargainingConfig(reward=kind, semi_lambda=part)
    found = np.array([rewards(config, state, split) for split in all_splits(state)])
    assert found.min() >= 0 and found.max(axis=0) == pytest.approx([1, 1], abs=1e-9)


@settings(max_examples=30)
@given(seeds)
def test_the_three_rewards_are_what_they_are_said_to_be(seed):
    state = state_of(seed)
    sums = [sum(state.worth(split)) for split in all_splits(state)]
    assert state.best == max(sums)
    for split in all_splits(state):
        one, other = state.worth(split)
        assert rewards(REWARDS["cooperative"], state, split) == ((one + other) / max(sums),) * 2, "to the bit"
        assert rewards(REWARDS["selfish"], state, split) == (one / 10, other / 10)
        semi = [[a + 0.3 * b, b + 0.3 * a] for a, b in map(state.worth, all_splits(state))]
        assert rewards(REWARDS["semi"], state, split) == pytest.approx(
            ((one + 0.3 * other) / np.max(semi, axis=0)[0], (other + 0.3 * one) / np.max(semi, axis=0)[1])
        )


# --- texts --------------------------------------------------------------------------------------------------


def read_share(body, counts):
    return parse_share(tagged(f"[propose] {body}")[1], counts)


@given(seeds)
def test_a_proposal_is_read_back_exactly(seed):
    counts = state_of(seed).counts
    for share in shares(counts):
        assert read_share(format_proposal(share).removeprefix("[propose]"), counts) == share


@pytest.mark.parametrize(
    "body",
    [
        "Proposal: book 1, hat 0, ball 2",
        "proposal: 2 balls, 1 book and 0 hats.",
        "**Proposal:** Books: 1; Hats: 0; Balls: 2",
        "Proposal:\n- 1 book\n- 0 hats\n- 2 balls",
        "book 1 hat 0 ball 2",
        "BOOK=1, HAT=0, BALL=2",
        "I propose: book 1, hat 0, ball 2. What do you think?",
    ],
)
def test_other_ways_to_write_a_proposal_are_read_too(body):
    assert read_share(body, (1, 2, 3)) == (1, 0, 2)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("Proposal: book 1", "incomplete", "no number for hat, ball; write what you take as .* book 0..1, hat 0..2"),
        ("", "incomplete", "no number for book, hat, ball"),
        ("book 2, hat 0, ball 0", "too_many", "book 2, but there are 1"),
        ("book 1, hat 99999999, ball 0", "malformed", "'hat 99999999"),
        ("book 1, book 1, hat 0, ball 0", "repeated_item", "the book is named twice"),
        ("book 1, hat 0, ball -1", "malformed", "'ball -1' is not clear"),
        ("book 1, hat 0, ball 1.5", "malformed", "'ball 1.5'"),
        ("book 1, hat 0, ball 2, you get the hats", "malformed", "'you get the hats'"),
        ("you get book 1, hat 0, ball 2", "malformed", "'you get book 1"),
        ("not book 1, hat 0, ball 2", "malformed", "'not book 1"),
        ("book 1, hat 0, ball", "malformed", "'ball'"),
        ("book 1 hat 2 ball 1 2", "malformed", "'2' is not clear"),
        ("book one, hat 0, ball 2", "malformed", "'book one"),
        ("basketball 1, book 1, hat 0", "malformed", "'basketball 1"),
        ("book 1, hat 0, ball 2. My book is worth 7.", "malformed", "'My book is worth 7.' .* in a .message."),
        ("book 1, hat 0, ball 2 was what you said", "malformed", "'was what you said'"),
        ("book 1, hat 0, ball 2 as long as you agree to share", "malformed", "'as long as"),
    ],
)
def test_what_is_no_clear_proposal_is_an_error_that_says_what_to_write(body, kind, words):
    with pytest.raises(ParseError, match=words) as refused:
        read_share(body, (1, 2, 3))
    assert refused.value.kind == kind in set(ErrorKind)


@pytest.mark.parametrize("answer", ["accept", "reject"])
def test_words_behind_an_answer_are_refused(answer):
    session = GAME.start(state_of(0))
    take(session, format_proposal((0, 0, 0)))
    for words in ("as long as I get the hats", "my book is worth 7", "?"):
        step = take(session, f"[{answer}] {words}")
        assert step.error_kind == "malformed" and f"write [{answer}] alone" in step.error
    assert take(session, f"[{answer}] Thanks!").error is None


@given(st.text(max_size=60))
def test_any_text_is_read_without_another_error(text):
    told_values(text), asked_items(text)
    with suppress(ParseError):
        parse_share(text, (1, 2, 3))


@given(seeds, st.integers(0, 1))
def test_told_values_are_read_back_exactly(seed, seat):
    state = state_of(seed)
    view = PlayerView(seat, state.counts, state.values[seat])
    assert told_values(tell(view)) == dict(enumerate(view.values))
    hearer = PlayerView(1 - seat, state.counts, state.values[1 - seat], history=((seat, tell(view)),))
    assert tuple(partners_values(hearer)) == view.values


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[message] book 1 hat 2 ball 0", {0: 1, 1: 2, 2: 0}),
        ("my books are worth 3 each", {0: 3}),
        ("The hat is worth 4 points to me, and balls are worth nothing.", {1: 4, 2: 0}),
        ("I value hats at 2 and the ball at 1", {1: 2, 2: 1}),
        ("2 hats at 3 each, 1 book at 4", {1: 3, 0: 4}),
        ("I get 3 points for each book", {}),
        ("3 points per book, 1 point for a ball", {0: 3, 2: 1}),
        ("book: 0; hats = 5", {0: 0, 1: 5}),
        ("book 1. I mean book 2", {0: 2}),
        ("I want 2 hats and 1 ball", {}),
        ("I take book 1 hat 2 ball 0", {}),
        ("2 hats 1 book 3 balls", {}),
        ("one ball 2 hats and the book", {}),
        ("how about the ball 3", {}),
        ("the balls are of 0 value, and books only 1 point", {2: 0, 0: 1}),
        ("are your hats worth 3?", {}),
        ("your books are worth 3", {}),
        ("both hats are worth 6 together", {}),
        ("my hats are not worth 3", {}),
        ("hello", {}),
    ],
)
def test_common_ways_to_tell_values_are_read(text, told):
    assert told_values(text) == told


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("[message] what are your hats worth?", {1}),
        ("how much do you value the book and the balls?", {0, 2}),
        ("book? hat?", {0, 1}),
        ("what are your values?", {0, 1, 2}),
        ("do you care about the hats", {1}),
        ("tell me what your books are worth", {0}),
        ("which one is worth more to you, hat or ball?", {1, 2}),
        ("can I have the hats if you prefer the books?", set()),
        ("I'd like the books and 1 ball?", set()),
        ("would you like the book?", set()),
        ("what do you want?", set()),
        ("deal?", set()),
        ("my hats are worth 3", set()),
    ],
)
def test_what_a_message_asks_for(text, asked):
    assert asked_items(text) == asked


# --- turn-taking --------------------------------------------------------------------------------------------


def test_a_proposal_reaches_the_partner_from_its_own_point_of_view():
    session = GAME.start(STATE)
    step = take(session, "[propose] so then: Proposal: book 1, hat 0, ball 3")
    assert step.error is not None and session.seats == (0,)
    step = take(session, "[propose] Proposal: 1 book, 0 hats, 3 balls")
    assert step.observations[0] == "" and step.decision == [[1, 0, 3], [0, 2, 0]]
    assert step.observations[1].startswith("The other player said: [propose] Proposal: book 0, hat 2, ball 0")
    assert GAME.view(session, 1).pending == (0, 2, 0)
    take(session, "[accept]")
    outcome = session.outcome()
    assert (outcome.status, outcome.score, outcome.best, outcome.rewards) == (AGREED, 16, 16, (1.0, 1.0))
    assert outcome.decision == [[1, 0, 3], [0, 2, 0]]


def test_seat_1_proposes_its_own_share_and_a_muted_message_arrives_empty():
    session = BargainingGame(BargainingConfig(reward="selfish", mute=True)).start(STATE)
    assert take(session, "[message] book 4 hat 0 ball 2").observations[1] == "The other player said: [message]"
    assert take(session, "[propose] Proposal: book 0, hat 2, ball 1").decision == [[1, 0, 2], [0, 2, 1]]
    take(session, "[accept]")
    assert session.outcome().rewards == (0.8, 0.7)


def test_seats_alternate_and_seat_0_is_first():
    session = GAME.start(STATE)
    seen = []
    while session.status is None:
        seen += session.seats
        take(session, "[message] hm")
    assert seen == [0, 1] * 10 and session.outcome().status is Status.TURN_LIMIT
    assert session.outcome().rewards == (0.0, 0.0) and session.outcome().decision is None
    with pytest.raises(RuntimeError, match="ended"):
        session.step(0, "[message] hm")


def test_errors_in_a_row_end_the_episode_and_a_legal_turn_forgets_them():
    session = BargainingGame(BargainingConfig(max_errors=2)).start(STATE)
    for text in ("hm", "[message] a", "hm", "[message] b", "hm", "hm"):
        take(session, text)
    assert (session.outcome().status, session.outcome().num_illegal) == (Status.ERROR_LIMIT, 4)


TEXTS = st.sampled_from(
    ["", "hello", "[message]", "[message] hi", "[accept]", "[reject]", "[accept] [reject]", "[propose] book 1"]
    + [f"[propose] {items}" for items in ("book 9, hat 0, ball 0", "book 0, hat 1, ball 2", "book 1, hat 0, ball 0")]
)


@given(st.lists(st.tuples(TEXTS, st.booleans()), max_size=25))
def test_an_illegal_action_changes_nothing_but_the_counts(turns):
    session = BargainingGame(BargainingConfig(max_errors=4, max_length=12)).start(STATE)
    for text, cut in turns:
        if session.status is not None:
            break
        before = (session.seats, session.pending, session.decision, list(session.history))
        waits = session.pending is not None
        step = take(session, text, cut=cut)
        if step.error is None:
            assert session.seats in (before[0], ()) or step.action in ("message", "propose")
            assert waits == (step.action in ("accept", "reject"))
        else:
            assert (session.seats or before[0], session.pending, session.decision, session.history) == before
            assert step.observations[1 - before[0][0]] == "" and step.error_kind in {CUT, *ErrorKind}
    assert session.counts.turns <= 12


@pytest.mark.parametrize("prompts", ["default", "compact"])
@pytest.mark.parametrize("kind", REWARDS)
def test_prompts_show_the_own_values_alone(prompts, kind):
    game = BargainingGame(BargainingConfig(prompts=prompts, reward=kind))
    other = STATE.model_copy(update={"values": (STATE.values[0], (4, 3, 0))})
    for state in (STATE, other):
        assert game.start(state).opening(0) == game.start(STATE).opening(0)
    assert game.start(other).opening(1) != game.start(STATE).opening(1)
    session = game.start(STATE)
    for text in ("hm", "hm", "[propose] Proposal: book 1, hat 0, ball 0"):
        step: Step = take(session, text)
    assert step.error is None
    assert all(take(session, "hm").observations[1] for _ in range(2))
    assert take(session, "[reject]").observations[1]


# --- scripted players and what is measured ------------------------------------------------------------------


@given(seeds, *[st.sampled_from(list(BargainingGame.players))] * 2, st.sampled_from(list(REWARDS)))
def test_any_two_scripted_players_finish_without_an_illegal_action(seed, one, other, kind):
    game, state = BargainingGame(REWARDS[kind]), state_of(seed)
    outcome = play(game, state, (one, other), seed)
    assert outcome.status == AGREED or (one, other) == ("greedy", "greedy")
    assert all(0 <= reward <= 1 for reward in outcome.rewards)
    if outcome.status == AGREED:
        game.check_outcome(state, OutcomeRecord.of(outcome))


@settings(max_examples=30)
@given(seeds)
def test_sharing_reaches_the_best_sum_and_greedy_takes_all_from_one_who_accepts_but_never_from_greedy(seed):
    state, selfish = state_of(seed), BargainingGame(REWARDS["selfish"])
    assert play(GAME, state, ("sharing", "sharing")).rewards == (1.0, 1.0)
    assert play(selfish, state, ("greedy", "random")).rewards[0] == 1.0
    assert play(selfish, state, ("greedy", "greedy")).status is Status.TURN_LIMIT


@settings(max_examples=30)
@given(seeds)
def test_players_know_no_more_than_their_own_values_and_what_they_heard(seed):
    state = state_of(seed)
    changed = state.model_copy(update={"values": (state.values[0], possible_pairs(state.counts, 10)[0][1])})
    views = [GAME.view(GAME.start(each), 0) for each in (state, changed)]
    assert views[0] == views[1]
    told = PlayerView(0, STATE.counts, STATE.values[0], history=((1, "[message] book 1 hat 3 ball 1"),))
    untold = PlayerView(0, STATE.counts, STATE.values[0])
    said = [SCRIPTED["fair"].act(view, np.random.default_rng(0)) for view in (told, untold)]
    assert said[0] == format_proposal((1, 0, 2)), "worth 8 and 7"
    assert said[1] != said[0]


@settings(max_examples=30)
@given(seeds)
def test_the_teacher_of_the_warm_start_tells_truly_and_proposes_and_answers_blindly(seed):
    state, rng = state_of(seed), np.random.default_rng(seed)
    session = GAME.start(state)
    while session.status is None:
        view = GAME.view(session, session.seats[0])
        others = possible_values(state.counts, view.values)
        blind = replace(view, values=others[seed % len(others)])
        here, there = np.random.default_rng(seed), np.random.default_rng(seed)
        assert Teacher(tell=0).act(view, here) == Teacher(tell=0).act(blind, there)
        text = Teacher().act(view, rng)
        assert text in (tell(view), "[accept]", "[reject]") or text.startswith("[propose]")
        assert take(session, text).error is None


@pytest.mark.parametrize("kind", REWARDS)
def test_reference_lines_of_a_thousand_states(kind):
    config = BargainingConfig(reward=kind)
    game = BargainingGame(config)
    states = [game.sample_state(state_rng(0, index)) for index in range(1000)]
    lines = {**game.references(states), "silence": game.wordless_rewards(states, np.random.default_rng(0))["silence"]}
    means = {name: float(np.mean(values)) for name, values in lines.items()}
    assert means == pytest.approx(LINES[kind], abs=0.001)
    assert all(silent <= best + 1e-9 for silent, best in zip(lines["silence"], lines["best"], strict=True))
    for state, random, best in zip(states[:30], lines["random"], lines["best"], strict=False):
        found = [float(np.mean(rewards(config, state, split))) for split in all_splits(state)]
        assert (random, best) == pytest.approx((np.mean(found), max(found)))


@pytest.mark.long
@pytest.mark.parametrize("kind", REWARDS)
@pytest.mark.parametrize("counts", [(1, 1, 3), (2, 2, 2), (4, 2, 1)])
def test_silence_is_the_best_expectation_of_who_knows_only_its_own_values(kind, counts):
    config = REWARDS[kind]
    states = [BargainingState(counts=counts, values=pair) for pair in possible_pairs(counts, 10)]
    best = []
    for seat in (0, 1):
        for own in all_values(counts, 10):
            alike = [state for state in states if state.values[seat] == own]
            if alike:
                splits = all_splits(alike[0])
                best.append(max(sum(np.mean(rewards(config, state, split)) for state in alike) for split in splits))
    assert np.mean(wordless_rewards(states, config)["silence"]) == pytest.approx(sum(best) / 2 / len(states))


@pytest.mark.parametrize("kind", REWARDS)
def test_pass_and_counter_are_the_best_answers_to_what_the_first_player_tells(kind):
    """From the definition: expectations over all states that a player cannot tell apart, over all splits."""
    config, counts, threshold = REWARDS[kind], (1, 1, 3), THRESHOLDS[18]
    states = [BargainingState(counts=counts, values=pair) for pair in possible_pairs(counts, 10)]
    splits = all_splits(states[0])
    reached = np.array([[np.mean(rewards(config, state, split)) for split in splits] for state in states])

    def best_by(known):
        """Returns the best split of each state, and its expected reward, for a player who knows this of the state."""
        alike = {}
        for number, one in enumerate(known):
            alike.setdefault(one, []).append(number)
        means = {one: reached[numbers].mean(axis=0) for one, numbers in alike.items()}
        return [int(means[one].argmax()) for one in known], np.array([means[one].max() for one in known])

    expected = {"pass": [], "counter": []}
    for seat in (0, 1):
        first, promised = best_by([state.values[seat] for state in states])
        own = [state.values[1 - seat] for state in states]
        after_pass, _ = best_by(list(zip(own, promised >= threshold, strict=True)))
        told = [silent_plan(config, counts, state.values[seat], seat).plan for state in states]
        answer, _ = best_by(list(zip(own, told, strict=True)))
        at = np.arange(len(states))
        expected["pass"].append(np.where(promised >= threshold, reached[at, first], reached[at, after_pass]))
        expected["counter"].append(reached[at, answer])
    found = wordless_rewards(states, config)
    assert found["pass"][:, 18].mean() == pytest.approx(np.mean(expected["pass"]))
    assert found["counter"].mean() == pytest.approx(np.mean(expected["counter"]))
    assert found["counter"].mean() > found["silence"].mean() + 0.01


def figures_of(state: BargainingState, turns: list[Said], *seats: int, agreed: Split | None) -> Measures:
    status = AGREED if agreed else Status.TURN_LIMIT
    outcome = SimpleNamespace(status=status, proposal=agreed, mean_reward_of=lambda seats: 0.9)
    spoken = [SimpleNamespace(**asdict(turn), error=None, error_kind=None) for turn in turns]
    record = SimpleNamespace(state=state.to_dict(), turns=spoken, outcome=outcome, trajectories=[])
    return measure(Measured(GAME, record, seats))


def test_figures_of_an_episode():
    turns = [
        Said(0, "[message] what are your hats worth?"),
        Said(1, "[message] hats are worth 3, book 1"),
        Said(0, "[message] book 4 hat 1"),
        Said(1, "[propose] Proposal: book 0, hat 2, ball 1", "propose"),
        Said(0, "[accept]", "accept"),
    ]
    split = ((1, 0, 2), (0, 2, 1))
    found = figures_of(STATE, turns, 0, agreed=split)
    assert {figure.name for figure in GAME.figures} <= set(found)
    assert found["sum"] == (15, 1) and found["own"] == (8, 1) and found["pareto"] == (True, True)
    assert found["told"] == (1, 3), "that of the hats was not true"
    assert found["questions"] == (1, 1) and found["specific"] == (1, 1) and found["learned"] == (1, 1)
    assert found["leaks"] == (1, 1) and found["proposals"] == (0, 1)
    assert figures_of(STATE, turns, 0, 1, agreed=split)["own"] == (7.5, 1)
    unagreed = figures_of(STATE, turns[:-1], 0, 1, agreed=None)
    assert unagreed["sum"] == (0, 1) and unagreed["pareto"] == (False, False)


@settings(max_examples=30)
@given(seeds)
def test_the_best_sum_is_pareto_optimal_and_a_worse_split_for_both_is_not(seed):
    state = state_of(seed)
    for split in all_splits(state):
        found = [state.worth(each) for each in all_splits(state)]
        one, other = state.worth(split)
        turns = [Said(0, format_proposal(split[0]), "propose"), Said(1, "[accept]", "accept")]
        beaten = any(a >= one and b >= other and (a, b) != (one, other) for a, b in found)
        assert figures_of(state, turns, 0, agreed=split)["pareto"] == (not beaten, True)


@pytest.mark.parametrize("decision", [None, [[1, 0, 2], [0, 2, 1]]])
def test_drawings_show_each_seat_its_own_table_and_what_the_split_brings(decision):
    drawn = GAME.draw_state(STATE)
    assert [view.cells for view in drawn.views] == [
        [["1", "4"], ["2", "0"], ["3", "2"]],
        [["1", "1"], ["2", "3"], ["3", "1"]],
    ]
    assert drawn.whole[0].cells == [["1", "4", "1"], ["2", "0", "3"], ["3", "2", "1"]]
    drawn = GAME.draw_episode(STATE, [], decision)
    if decision is None:
        assert not drawn.results
        return
    assert [" ".join(row) for row in drawn.results[0].cells] == ["1 0 1 0", "0 2 0 2", "2 1 3 0", "8 7 10 6", "15  16 "]


@pytest.mark.parametrize(
    "decision",
    [None, [], [[1, 0, 2]], [[1, 0, 2], [0, 2, 2]], [[True, 0, 2], [0, 2, 1]], [[1.0, 0, 2], [0, 2, 1]], "ab"],
)
def test_what_is_no_split_is_refused(decision):
    with pytest.raises(ValueError, match="no split"):
        GAME.check_decision(STATE, decision)
    GAME.check_decision(STATE, [[1, 0, 2], [0, 2, 1]])


@pytest.mark.parametrize("kind", REWARDS)
def test_an_outcome_that_its_split_does_not_give_is_refused(kind):
    game = BargainingGame(REWARDS[kind])
    outcome = play(game, STATE, ("fair", "sharing"))
    GAME.check_outcome(STATE, OutcomeRecord.of(outcome))
    first, second = outcome.rewards
    changes = [
        (
            {"score": outcome.score + 1},
            f"'outcome.score': {outcome.score + 1}, but the proposal scores {outcome.score}",
        ),
        ({"decision": [[1, 0, 3]]}, "'outcome.proposal': .* no split"),
        ({"rewards": (first - 0.1, second)}, "'outcome.rewards': .* are not what a split that is worth"),
        ({"rewards": (0.3, 0.3)}, "'outcome.normalized_reward'"),
    ]
    for change, words in changes:
        with pytest.raises(ValueError, match=words):
            GAME.check_outcome(STATE, OutcomeRecord.of(replace(outcome, **change)))


@given(seeds)
def test_the_solution_is_a_split_of_the_best_sum(seed):
    state = state_of(seed)
    one, other = GAME.solution(state)
    assert rest(state.counts, one) == other and sum(state.worth((one, other))) == state.best


# --- registry -----------------------------------------------------------------------------------------------


class Run(BaseModel):
    game: GameConfig = MatchingConfig()


def test_the_section_game_is_that_of_its_name_and_of_matching_without_one():
    assert isinstance(Run().game, MatchingConfig) and isinstance(Run.model_validate({"game": {}}).game, MatchingConfig)
    assert Run.model_validate({"game": {"size": 3}}).game == MatchingConfig(size=3)
    bargaining = BargainingConfig(reward="selfish")
    assert Run.model_validate({"game": {"name": "bargaining", "reward": "selfish"}}).game == bargaining
    assert Run(game=bargaining).game is bargaining
    assert parse_game_config(bargaining.model_dump_json()) == bargaining == parse_game_config(bargaining.model_dump())
    assert Run.model_validate_json(Run(game=bargaining).model_dump_json()).game == bargaining
    assert isinstance(make_game(bargaining), BargainingGame) and isinstance(game_named("bargaining"), BargainingGame)


@pytest.mark.parametrize(
    ("game", "place", "words"),
    [
        ({"name": "chess"}, ("game",), "the games are matching, bargaining"),
        ({"name": "bargaining", "size": 3}, ("game", "size"), "Extra inputs"),
        ({"reward": "selfish"}, ("game", "reward"), "Extra inputs"),
        ({"name": "bargaining", "max_errors": 1.5}, ("game", "max_errors"), "whole number"),
        (3, ("game",), "should be a valid dictionary"),
    ],
)
def test_what_is_no_games_section_is_refused_where_it_is_wrong(game, place, words):
    with pytest.raises(ValidationError) as refused:
        Run.model_validate({"game": game})
    first = refused.value.errors()[0]
    assert first["loc"] == place and words in first["msg"]
