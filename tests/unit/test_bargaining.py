"""Deal or No Deal: states, rewards, texts, turn-taking, scripted players, figures and reference lines."""

from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from factories import drawn, play, take
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from quick import examples

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
from selfplay_pipeline.games.bargaining.text import ErrorKind, asked_items, format_proposal, parse_share, told_values
from selfplay_pipeline.games.bargaining.wordless import silent_plan, wordless_rewards
from selfplay_pipeline.games.base import ParseError, Said, Status, state_rng
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
ANY_REWARD = pytest.mark.parametrize("kind", REWARDS)
STATE = BargainingState(counts=(1, 2, 3), values=((4, 0, 2), (1, 3, 1)))
"""The best sum, 16, gives the book and the balls to player 0 and the hats to player 1."""
SPLIT = ((1, 0, 2), (0, 2, 1))
"""Worth 8 and 7."""
PROPOSED, OFFERED = format_proposal(SPLIT[0]), format_proposal(SPLIT[1])
"""The same split as player 0 and as player 1 would propose it."""
PINNED = ((3, 2, 2), ((2, 1, 1), (0, 2, 3)))
"""State 0 of seed 0: a change here changes every user's states."""
LINES = {
    "cooperative": {"random": 0.673, "best": 1.0, "silence": 0.929},
    "semi": {"random": 0.636, "best": 0.950, "silence": 0.885},
    "selfish": {"random": 0.5, "best": 0.760, "silence": 0.708},
}
"""Mean rewards of states 0 to 999 of seed 0."""

seeds = st.integers(0, 10_000)


def with_values(*values: tuple[int, int, int]) -> BargainingState:
    return STATE.model_copy(update={"values": values})


def all_splits(state: BargainingState) -> list[Split]:
    return [(share, rest(state.counts, share)) for share in shares(state.counts)]


def refused(words: str | None, error: type[Exception] = UserError):
    """Expects the error, or none without words."""
    return pytest.raises(error, match=words) if words else nullcontext()


# --- states -------------------------------------------------------------------------------------------------


@given(seeds)
def test_a_sampled_state_keeps_to_the_papers_rules(seed):
    state = drawn(GAME, seed)
    assert 5 <= sum(state.counts) <= 7 and min(state.counts) >= 1 and max(state.counts) <= 4
    assert [int(np.dot(state.counts, values)) for values in state.values] == [10, 10]
    assert np.max(state.values, axis=0).min() > 0, "each item has a value to somebody"
    assert np.min(state.values, axis=0).max() > 0, "some item has one to both"
    assert GAME.problem_of(state.to_dict()) == [list(state.counts), [list(values) for values in state.values]]


def test_a_sampled_state_is_pinned():
    assert (drawn(GAME, 0).counts, drawn(GAME, 0).values) == PINNED


def test_the_28_counts_and_their_values_are_those_of_the_papers_data():
    counts = possible_counts()
    assert len(counts) == 28, "as in its data.txt, whose 12,234 lines were compared with these rules"
    # Its selfplay.txt, where both orders of a type's counts are there, has pairs of values of these kinds only.
    assert [len(possible_pairs(each, 10)) for each in ((1, 1, 3), (2, 2, 2), (1, 2, 4))] == [513, 312, 84]


@pytest.mark.long
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
    with refused(None if fits else f"{sum(counts)} items that are worth {state.total},"):
        GAME.check_fits(state)


@given(seeds, st.integers(0, 2), st.sampled_from([1.5, 1.0, True, None, "1", -1, 2**40, ..., "more"]), st.data())
def test_every_damaged_number_of_a_state_is_refused_by_its_field(seed, place, damage, data):
    written = drawn(GAME, seed).to_dict()
    row = data.draw(st.sampled_from([written["counts"], *written["values"]]))
    name = "counts" if row is written["counts"] else "values"
    if damage is ...:
        del row[place]
    elif damage == "more":
        row.append(1)
    else:
        row[place] = damage
    with pytest.raises(UserError, match=f"^game state: field '{name}"):
        GAME.state_from_json(written)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": None}, "field 'counts'"),
        ({"values": "1 2 3"}, "field 'values'"),
        ({"counts": [1, 2, 5]}, "field 'counts.2'"),
        ({"counts": [0, 2, 4]}, "field 'counts.0'"),
        ({"values": [[4, 0, 2], [1, 3, 2]]}, "'values': all items are worth 10 to one player, 13 to the other"),
        ({"values": [[10, 0, 0], [0, 5, 0]]}, "'values': each item must be worth something to a player"),
        ({"values": [[10, 0, 0], [0, 2, 2]]}, "some item to both"),
        ({"values": [[4, 3, 0], [1, 0, 3]]}, None),
    ],
)
def test_a_state_against_the_rules_is_refused(change, words):
    with refused(words):
        GAME.state_from_json(STATE.to_dict() | change)


# --- splits and rewards -------------------------------------------------------------------------------------


@examples(30)
@given(seeds, st.sampled_from(["cooperative", "semi", "selfish"]), st.floats(0, 1))
def test_a_reward_is_the_own_value_and_a_part_of_the_partners_divided_by_the_most_of_it(seed, kind, part):
    state, config = drawn(GAME, seed), BargainingConfig(reward=kind, semi_lambda=part)
    worth = np.array([state.worth(split) for split in all_splits(state)])
    weight = {"cooperative": 1, "semi": part, "selfish": 0}[kind]
    wanted = worth + weight * worth[:, ::-1]
    found = np.array([rewards(config, state, split) for split in all_splits(state)])
    assert found == pytest.approx(wanted / wanted.max(axis=0))
    assert found.min() >= 0 and found.max() <= 1
    assert state.best == worth.sum(axis=1).max()
    assert kind != "cooperative" or all(one == other for one, other in found), "to the bit"
    assert (worth[::-1] == 10 - worth).all(), "a share and its rest are worth everything"


# --- texts --------------------------------------------------------------------------------------------------


def read_share(body, counts):
    return parse_share(tagged(f"[propose] {body}")[1], counts)


@given(seeds)
def test_a_proposal_is_read_back_exactly(seed):
    counts = drawn(GAME, seed).counts
    for share in shares(counts):
        assert read_share(format_proposal(share).removeprefix("[propose]"), counts) == share


@pytest.mark.parametrize(
    "body",
    [
        "proposal: 2 balls, 1 book and 0 hats.", "**Proposal:** Books: 1; Hats: 0; Balls: 2",
        "Proposal:\n- 1 book\n- 0 hats\n- 2 balls", "book 1 hat 0 ball 2", "BOOK=1, HAT=0, BALL=2",
        "I propose: book 1, hat 0, ball 2. What do you think?",
    ],
)  # fmt: skip
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
        ("book 1, hat 0, ball", "malformed", "'ball'"),
        ("book 1 hat 2 ball 1 2", "malformed", "'2' is not clear"),
        ("basketball 1, book 1, hat 0", "malformed", "'basketball 1"),
        ("book 1, hat 0, ball 2. My book is worth 7.", "malformed", "'My book is worth 7.' .* in a .message."),
    ],
)
def test_what_is_no_clear_proposal_is_an_error_that_says_what_to_write(body, kind, words):
    with pytest.raises(ParseError, match=words) as error:
        read_share(body, (1, 2, 3))
    assert error.value.kind == kind in set(ErrorKind)


@given(st.text(max_size=60))
def test_any_text_is_read_without_another_error(text):
    told_values(text), asked_items(text)
    with suppress(ParseError):
        parse_share(text, (1, 2, 3))


@given(seeds, st.integers(0, 1))
def test_told_values_are_read_back_exactly(seed, seat):
    state = drawn(GAME, seed)
    view = PlayerView(seat, state.counts, state.values[seat])
    assert told_values(tell(view)) == dict(enumerate(view.values))
    hearer = PlayerView(1 - seat, state.counts, state.values[1 - seat], history=((seat, tell(view)),))
    assert tuple(partners_values(hearer)) == view.values


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[message] book 1 hat 2 ball 0", {0: 1, 1: 2, 2: 0}),
        ("The hat is worth 4 points to me, and balls are worth nothing.", {1: 4, 2: 0}),
        ("I value hats at 2 and the ball at 1", {1: 2, 2: 1}),
        ("2 hats at 3 each, 1 book at 4", {1: 3, 0: 4}),
        ("3 points per book, 1 point for a ball", {0: 3, 2: 1}),
        ("book: 0; hats = 5", {0: 0, 1: 5}),
        ("book 1. I mean book 2", {0: 2}),
        ("the balls are of 0 value, and books only 1 point", {2: 0, 0: 1}),
        *((text, {}) for text in (
            "I get 3 points for each book", "I want 2 hats and 1 ball", "I take book 1 hat 2 ball 0",
            "2 hats 1 book 3 balls", "one ball 2 hats and the book", "how about the ball 3", "are your hats worth 3?",
            "your books are worth 3", "both hats are worth 6 together", "my hats are not worth 3", "hello")),
    ],
)  # fmt: skip
def test_common_ways_to_tell_values_are_read_and_others_are_not_taken_for_them(text, told):
    assert told_values(text) == told


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("[message] what are your hats worth?", {1}), ("how much do you value the book and the balls?", {0, 2}),
        ("book? hat?", {0, 1}), ("what are your values?", {0, 1, 2}), ("do you care about the hats", {1}),
        ("tell me what your books are worth", {0}), ("which one is worth more to you, hat or ball?", {1, 2}),
        *((text, set()) for text in (
            "can I have the hats if you prefer the books?", "I'd like the books and 1 ball?",
            "would you like the book?", "what do you want?", "deal?", "my hats are worth 3")),
    ],
)  # fmt: skip
def test_what_a_message_asks_for(text, asked):
    assert asked_items(text) == asked


# --- turn-taking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["accept", "reject"])
def test_an_answer_has_no_words_but_thanks_behind_it(answer):
    session = GAME.start(STATE)
    take(session, PROPOSED)
    for words in ("as long as I get the hats", "my book is worth 7", "?"):
        step = take(session, f"[{answer}] {words}")
        assert step.error_kind == "malformed" and f"write [{answer}] alone" in step.error
    assert take(session, f"[{answer}] Thanks!").error is None


@pytest.mark.parametrize("turns", [[PROPOSED, "[accept]"], ["[message] hi", OFFERED, "[accept]"]])
def test_whoever_proposes_names_its_own_share_and_each_seat_gets_the_reward_of_its_own(turns):
    session = BargainingGame(REWARDS["selfish"]).start(STATE)
    steps = [take(session, text) for text in turns]
    assert steps[-2].decision == [list(share) for share in SPLIT]
    assert session.outcome().rewards == (0.8, 0.7) and session.outcome().score == 15


def test_seats_alternate_from_seat_0_and_without_agreement_both_rewards_are_0():
    session, seen = GAME.start(STATE), []
    while session.status is None:
        seen += session.seats
        take(session, "[message] hm")
    assert seen == [0, 1] * 10 and session.outcome().status is Status.TURN_LIMIT
    assert session.outcome().rewards == (0.0, 0.0) and session.outcome().decision is None
    with pytest.raises(RuntimeError, match="ended"):
        session.step(0, "[message] hm")


def test_errors_in_a_row_end_the_episode_and_a_legal_turn_forgets_them():
    session = BargainingGame(BargainingConfig(max_errors=2)).start(STATE)
    for text in ("hm", "[message] a", "hm", "[message] b", "hm"):
        take(session, text)
        assert session.status is None
    take(session, "hm")
    assert (session.outcome().status, session.outcome().num_illegal) == (Status.ERROR_LIMIT, 4)


# --- scripted players and what is measured ------------------------------------------------------------------


@given(seeds, *[st.sampled_from(list(BargainingGame.players))] * 2, st.sampled_from(list(REWARDS)))
def test_any_two_scripted_players_finish_without_an_illegal_action(seed, one, other, kind):
    game, state = BargainingGame(REWARDS[kind]), drawn(GAME, seed)
    outcome = play(game, state, one, other, seed=seed).session.outcome()
    assert outcome.status == AGREED or (one, other) == ("greedy", "greedy")
    assert all(0 <= reward <= 1 for reward in outcome.rewards)
    if outcome.status == AGREED:
        game.check_outcome(state, OutcomeRecord.of(outcome))


@examples(30)
@given(seeds)
def test_sharing_reaches_the_best_sum_and_greedy_takes_all_from_one_who_accepts_but_never_from_greedy(seed):
    state, selfish = drawn(GAME, seed), BargainingGame(REWARDS["selfish"])
    assert play(GAME, state, "sharing").session.outcome().rewards == (1.0, 1.0)
    assert play(selfish, state, "greedy", "random").session.outcome().rewards[0] == 1.0
    assert play(selfish, state, "greedy").session.status is Status.TURN_LIMIT


@examples(30)
@given(seeds)
def test_sharing_proposes_the_most_equal_of_the_best_splits_that_it_knows(seed):
    state = drawn(GAME, seed)
    partner, me = (PlayerView(seat, state.counts, state.values[seat]) for seat in (0, 1))
    said = SCRIPTED["sharing"].act(replace(me, history=((0, tell(partner)),)), np.random.default_rng(0))
    share = read_share(said.removeprefix("[propose]"), state.counts)
    reached = state.worth((rest(state.counts, share), share))
    best = [worth for split in all_splits(state) if sum(worth := state.worth(split)) == state.best]
    assert sum(reached) == state.best and abs(reached[0] - reached[1]) == min(abs(a - b) for a, b in best)


def test_players_know_no_more_than_their_own_values_and_what_they_heard():
    other = with_values(STATE.values[0], (2, 1, 2))
    assert GAME.view(GAME.start(STATE), 0) == GAME.view(GAME.start(other), 0)
    untold = PlayerView(0, STATE.counts, STATE.values[0])
    told = replace(untold, history=((1, "[message] book 1 hat 3 ball 1"),))
    said = [SCRIPTED["fair"].act(view, np.random.default_rng(0)) for view in (told, untold)]
    assert said[0] == PROPOSED != said[1], "worth 8 and 7"


@pytest.mark.parametrize(
    ("player", "offered", "said", "answer"),
    [
        ("fair", (1, 0, 1), (), "accept"),  # worth 6
        ("fair", (1, 0, 0), (), "reject"),  # worth 4
        ("fair", (1, 0, 0), ("[reject]",), "accept"),
        ("fair", (0, 0, 0), ("[message] hi",), "reject"),
        ("sharing", (0, 0, 0), (), "reject"),
        ("sharing", (0, 0, 0), ("[message] book 4 hat 0 ball 2",), "accept"),
        ("sharing", (0, 0, 0), ("[reject]",), "accept"),
        ("greedy", (1, 0, 3), (), "accept"),  # all that has a value
        ("greedy", (1, 2, 2), ("[reject]",), "reject"),
        ("random", (0, 0, 0), (), "accept"),
    ],
)
def test_each_player_accepts_by_its_own_rule(player, offered, said, answer):
    history = (*((0, text) for text in said), (1, PROPOSED))
    view = PlayerView(0, STATE.counts, STATE.values[0], history=history, pending=offered)
    assert SCRIPTED[player].act(view, np.random.default_rng(0)) == f"[{answer}]"


def test_sharing_takes_as_good_an_offer_as_it_can_expect_from_what_it_was_told_and_no_worse_one():
    heard = ((1, "[message] book 1 hat 3 ball 1"), (0, "[message] book 4 hat 0 ball 2"), (1, PROPOSED))
    for share in shares(STATE.counts):
        view = PlayerView(0, STATE.counts, STATE.values[0], history=heard, pending=share)
        best = sum(STATE.worth((share, rest(STATE.counts, share)))) == STATE.best
        assert SCRIPTED["sharing"].act(view, np.random.default_rng(0)) == ("[accept]" if best else "[reject]")


@examples(30)
@given(seeds)
def test_the_teacher_of_the_warm_start_tells_truly_and_proposes_and_answers_blindly(seed):
    state, rng = drawn(GAME, seed), np.random.default_rng(seed)
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


@pytest.mark.long
@ANY_REWARD
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


@ANY_REWARD
@pytest.mark.parametrize("counts", [(1, 1, 3), (2, 2, 2), (4, 2, 1)])
@pytest.mark.long
def test_each_line_is_the_best_expectation_of_who_knows_its_own_values_and_what_the_first_player_did(kind, counts):
    """From the definition: expectations over all states that a player cannot tell apart, over all splits."""
    config, threshold = REWARDS[kind], THRESHOLDS[18]
    states = [BargainingState(counts=counts, values=pair) for pair in possible_pairs(counts, 10)]
    splits, at = all_splits(states[0]), np.arange(len(states))
    reached = np.array([[np.mean(rewards(config, state, split)) for split in splits] for state in states])

    def best_by(known):
        """Returns the best split of each state, and its expected reward, for a player who knows this of the state."""
        alike = {}
        for number, one in enumerate(known):
            alike.setdefault(one, []).append(number)
        means = {one: reached[numbers].mean(axis=0) for one, numbers in alike.items()}
        return [int(means[one].argmax()) for one in known], np.array([means[one].max() for one in known])

    expected = {"silence": [], "pass": [], "counter": []}
    for seat in (0, 1):
        first, promised = best_by([state.values[seat] for state in states])
        own = [state.values[1 - seat] for state in states]
        after_pass, _ = best_by(list(zip(own, promised >= threshold, strict=True)))
        told = [silent_plan(config, counts, state.values[seat], seat).plan for state in states]
        answer, _ = best_by(list(zip(own, told, strict=True)))
        expected["silence"].append(reached[at, first])
        expected["pass"].append(np.where(promised >= threshold, reached[at, first], reached[at, after_pass]))
        expected["counter"].append(reached[at, answer])
    found = wordless_rewards(states, config)
    means = {
        "silence": found["silence"].mean(),
        "pass": found["pass"][:, 18].mean(),
        "counter": found["counter"].mean(),
    }
    assert means == pytest.approx({name: np.mean(values) for name, values in expected.items()})
    assert counts != (1, 1, 3) or means["counter"] > means["silence"] + 0.01
    assert {name in all_values(counts, 10) for state in states for name in state.values} == {True}


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
        Said(1, OFFERED, "propose"),
        Said(0, "[accept]", "accept"),
    ]
    found = figures_of(STATE, turns, 0, agreed=SPLIT)
    assert {figure.name for figure in GAME.figures} <= set(found)
    assert found["sum"] == (15, 1) and found["own"] == (8, 1) and found["pareto"] == (True, True)
    assert found["told"] == (1, 3), "that of the hats was not true"
    assert found["questions"] == (1, 1) and found["specific"] == (1, 1) and found["learned"] == (1, 1)
    assert found["leaks"] == (1, 1) and found["proposals"] == (0, 1)
    both, other = (figures_of(STATE, turns, *seats, agreed=SPLIT) for seats in ((0, 1), (1,)))
    assert (both["own"], other["own"], both["told"], other["told"]) == ((7.5, 1), (7, 1), (3, 6), (2, 3))
    unagreed = figures_of(STATE, turns[:-1], 0, 1, agreed=None)
    assert unagreed["sum"] == (0, 1) and unagreed["pareto"] == (False, False)


@examples(30)
@given(seeds)
def test_a_split_is_pareto_optimal_if_no_other_is_as_good_for_both_and_the_solution_has_the_best_sum(seed):
    state = drawn(GAME, seed)
    found = [state.worth(each) for each in all_splits(state)]
    for split in all_splits(state):
        one, other = state.worth(split)
        beaten = any(a >= one and b >= other and (a, b) != (one, other) for a, b in found)
        assert figures_of(state, [], 0, agreed=split)["pareto"] == (not beaten, True)
    solution = GAME.solution(state)
    assert solution in all_splits(state) and sum(state.worth(solution)) == state.best


def test_drawings_show_each_seat_its_own_table_and_what_the_split_brings():
    drawn = GAME.draw_state(STATE)
    assert [view.cells for view in drawn.views] == [
        [["1", "4"], ["2", "0"], ["3", "2"]],
        [["1", "1"], ["2", "3"], ["3", "1"]],
    ]
    assert drawn.whole[0].cells == [["1", "4", "1"], ["2", "0", "3"], ["3", "2", "1"]]
    assert not GAME.draw_episode(STATE, [], None).results
    (result,) = GAME.draw_episode(STATE, [], [list(share) for share in SPLIT]).results
    assert [" ".join(row) for row in result.cells] == ["1 0 1 0", "0 2 0 2", "2 1 3 0", "8 7 10 6", "15  16 "]


# --- what is recorded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "decision",
    [None, [], [[1, 0, 2]], [[1, 0, 2], [0, 2, 2]], [[1, 0, 2], [0, 2, 0]], [[2, 0, 2], [-1, 2, 1]],
     [[True, 0, 2], [0, 2, 1]], [[1.0, 0, 2], [0, 2, 1]], "ab"],
)  # fmt: skip
def test_what_is_no_split_is_refused(decision):
    with pytest.raises(ValueError, match="is not a split"):
        GAME.check_decision(STATE, decision)
    GAME.check_decision(STATE, [list(share) for share in SPLIT])


@ANY_REWARD
def test_an_outcome_that_its_split_does_not_give_is_refused_whichever_figure_is_off_and_in_either_direction(kind):
    game = BargainingGame(REWARDS[kind])
    session = game.start(STATE)
    take(session, PROPOSED), take(session, "[accept]")
    outcome = session.outcome()
    GAME.check_outcome(STATE, OutcomeRecord.of(outcome))
    first, second = outcome.rewards
    changes = [
        *(({"score": 15 + off}, f"'outcome.score': {15 + off}, but the proposal scores 15") for off in (1, -1)),
        ({"decision": [[1, 0, 3]]}, "'outcome.proposal': .* is not a split"),
        *(({"rewards": (first + off, second)}, "'outcome.rewards': .* are not what a split") for off in (0.02, -0.1)),
        *(({"rewards": (first, second + off)}, "'outcome.rewards'") for off in (0.05, -0.1)),
    ]
    for change, words in changes:
        with pytest.raises(ValueError, match=words):
            GAME.check_outcome(STATE, OutcomeRecord.of(replace(outcome, **change)))


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
    ("game", "place"),
    [
        (3, []), ({"name": "chess"}, []), ({"reward": "selfish"}, ["reward"]),
        *(({"name": "bargaining", key: value}, [key]) for key, value in (("size", 3), ("max_errors", 1.5))),
    ],
)  # fmt: skip
def test_what_is_no_games_section_is_refused_where_it_is_wrong(game, place):
    with pytest.raises(ValidationError) as error:
        Run.model_validate({"game": game})
    assert error.value.errors()[0]["loc"] == ("game", *place)
