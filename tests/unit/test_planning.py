"""Planning: states, scores, people's games, searches, turns, scripted players, figures and the silence line."""

import asyncio
import re
from collections import Counter

import numpy as np
import pytest
from factories import POLICY, alike, byte_chat, completion, drawn, play, player_of, scripts_record
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from quick import examples

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import CUT, Status
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.planning import humans
from selfplay_pipeline.games.planning.catalogue import CATEGORIES, CATEGORY, FEATURES, first_places
from selfplay_pipeline.games.planning.game import PlanningGame
from selfplay_pipeline.games.planning.rules import (
    AGENT,
    USER,
    Budget,
    Liking,
    OfCategory,
    Place,
    PlanningConfig,
    PlanningState,
    Points,
    Visit,
)
from selfplay_pipeline.games.planning.scripted import best_itinerary, player_view, told_offers
from selfplay_pipeline.games.planning.search import query_in, search
from selfplay_pipeline.games.planning.text import (
    brief,
    features_of,
    format_points,
    format_proposal,
    parse_itinerary,
    told_points,
    told_preferences,
)
from selfplay_pipeline.games.planning.wordless import mean_rewards, wordless_rewards
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.human_episodes import replayed
from selfplay_pipeline.generate.players import policy_player
from selfplay_pipeline.metrics.figures import measure

GAME = PlanningGame()
TINY = PlanningGame(
    PlanningConfig(
        places=5, features=("touristy", "good for kids", "good for groups"), features_per_place=3, preferences=3,
        max_searches=1, protocol="fixed", max_length=4, prompts="compact",
    )
)  # fmt: skip


def place(name: str, price: int, east: float, **features: bool) -> Place:
    return Place(
        name=name,
        category=CATEGORY[name],
        price=price,
        location=(-122.0 + east / 69, 37.0),
        features={key.replace("_", " "): value for key, value in features.items()},
    )


STATE = PlanningState(
    places=(
        place("The Dive", 30, 0, live_music=True, touristy=False),
        place("Saul's", 10, 2.0),
        place("The Mall", 100, 3.0, touristy=True),
        place("Atlas Park", 0, 3.5, touristy=False),
    ),
    preferences=(
        Liking(weight=4, feature="touristy", bad=(True,), good=(False,)),
        Budget(weight=3, dollars=60),
        Visit(weight=2, names=("The Mall",), penalize=True),
        OfCategory(weight=5, category="bar", penalize=False),
    ),
    travel=3,
)
"""Points by hand: features 4, 0, -4, 4; three points for each mile."""
PINNED = (120, "minimize", 10)
"""Price of the first place, first word of the last preference, preferences of state 0 of seed 0: a change changes all
users' states."""

seeds = st.integers(0, 10_000)


# --- states and scores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", [GAME, TINY], ids=["default", "tiny"])
@given(seed=seeds)
@examples(15)
def test_the_best_itinerary_has_the_reward_1_and_the_worst_0(game, seed):
    state = drawn(game, seed)
    assert game.rewards(state, [*state.best_itinerary]) == (1.0,) * 2
    assert np.nanmin(state.rewards) == 0
    assert (
        game.best(state)
        == game.score(state, [*state.best_itinerary])
        == state.points(state.best_itinerary).total - state.worst
    )


def test_a_sampled_state_is_pinned():
    first = drawn(GAME, 0)
    shown = GAME.start(first).opening(USER).observation
    assert (first.places[0].price, shown.split("\n- ")[-1].split()[0], len(first.preferences)) == PINNED


def test_small_cities_have_places_of_all_categories_in_turn():
    assert [CATEGORY[name] for name in first_places(7)] != sorted(CATEGORIES) and len({*first_places(7)}) == 7
    assert {CATEGORY[name] for name in first_places(7)} == {*CATEGORIES}
    assert first_places(39) == [*CATEGORY]


def test_the_points_of_an_itinerary_are_computed_by_hand():
    points = STATE.points(("The Dive", "Saul's", "The Mall"))
    assert points == Points((4, 0, -4), (-6, -3), (-3, 2, 5)), "over the budget, a named place, a bar"
    assert points.total == -5 == STATE.scores[0, 1, 2]
    points = STATE.points(("Saul's", "Atlas Park", "The Dive"))
    assert points == Points((0, 4, 4), (-4, -10), (0, -2, 5)), "4.5 and 10.5 points for travel are cut"
    assert np.isnan(STATE.scores[0, 0, 1]) and np.isfinite(STATE.scores).sum() == 4 * 3 * 2
    assert STATE.rewards[STATE.at(STATE.best_itinerary)] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"travel": 11}, "'travel': Input should be less than or equal to 10"),
        ({"places": STATE.places[:3]}, "'places': Tuple should have at least 4 items"),
        ({"places": (*STATE.places, STATE.places[0])}, "two places have the same name"),
        ({"places": [{**STATE.places[0].model_dump(), "category": "park"}] * 4}, "there is no park 'The Dive'"),
        ({"places": [{**STATE.places[0].model_dump(), "features": {"rating": 7}}] * 4}, "cannot have 'rating': 7"),
        ({"preferences": [{"kind": "visit", "weight": 1, "names": ["X"], "penalize": True}]}, "there is no place 'X'"),
        ({"preferences": [{"kind": "liking", "weight": 1, "feature": "live music", "good": [1]}]}, "can wish this"),
    ],
)
def test_a_damaged_state_is_refused_by_its_field(change, words):
    with pytest.raises(UserError, match=words):
        GAME.state_from_json({**STATE.model_dump(), **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"places": 38}, "not the 38 places of game.places"),
        ({"features_per_place": 4}, "must have 4 of the features of game.features"),
        ({"features": ("rating", "touristy")}, "of the features of game.features"),
        ({"preferences": 1}, "preferences, but game.preferences is 1"),
    ],
)
def test_a_state_of_another_configuration_is_refused(change, words):
    with pytest.raises(UserError, match=words):
        PlanningGame(PlanningConfig(**change)).check_fits(drawn(GAME, 0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": ("colour",)}, "there is no feature 'colour'; the features are rating"),
        ({"protocol": "fixed", "messages": 2}, "messages 2 is even, so that the user would propose"),
    ],
)
def test_a_configuration_that_makes_no_game_is_refused(change, words):
    with pytest.raises(ValidationError, match=words):
        PlanningConfig(**change)


# --- people ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people():
    return list(zip(humans.recorded(), humans.human_episodes(), strict=True))


def test_scores_of_the_113_recorded_games_and_points_of_their_full_proposals_are_ours_but_for_two_games(people):
    """In two games the server gave 0 points for a missing category, which their preferences say costs points."""
    proposals, other = 0, Counter()
    for number, (game, episode) in enumerate(people):
        state, result = episode.state, game["result"]
        GAME.check_fits(state)
        assert [wish.text for wish in state.preferences] == [text for text, *_ in game["preferences"][:-1]]
        for entry in game["action_log"]:
            if entry["type"] != "proposal" or (stops := humans.places_of(entry)) is None:
                continue
            points, recorded = state.points(stops), entry["scores"]
            lost = [
                ours - theirs["score"] for ours, theirs in zip(points.whole, recorded["itinerary_scores"], strict=True)
            ]
            assert recorded["scores_by_event"] == [
                points.places[0], points.legs[0], points.places[1], points.legs[1], points.places[2],
            ]  # fmt: skip
            assert points.total - recorded["total"] == sum(lost) and points.total == state.scores[state.at(stops)]
            if any(lost):
                missing = [wish.weight for wish in state.preferences if isinstance(wish, OfCategory) and wish.penalize]
                assert [-each for each in lost if each] == missing
                other[number] += 1
            proposals += 1
        assert (state.worst + state.span, state.worst) == (result["best"], result["worst"])
        if number not in other:
            assert points.total == result["score"]
            assert state.rewards[state.at(stops)] == pytest.approx(result["norm"], abs=1e-12) == episode.reward
    assert (len(people), other, proposals) == (113, {9: 1, 10: 2}, 289)


def test_people_play_by_our_rules_and_each_action_is_kept_or_counted(people):
    left_out, kept, same = Counter(), 0, 0
    for number, (game, episode) in enumerate(people):
        record = replayed(GAME, number, episode)
        assert all(turn.error is None for turn in record.turns) and record.outcome.status == "agreed"
        same += abs(record.outcome.normalized_reward - episode.reward) < 1e-9
        left_out.update(episode.left_out)
        kept += len(episode.legal)
        assert len(episode.legal) + sum(episode.left_out.values()) == len(game["action_log"])
    assert (len(people), same) == (113, 111)
    assert kept + left_out.total() == 1516 and left_out[humans.NOT_ALL] == 0


@pytest.mark.long
def test_our_states_look_like_those_that_people_played(people):
    """Means over 113 states, and over 150 of ours (fixed seeds): within four standard errors of the difference."""
    ours, theirs = [drawn(GAME, seed) for seed in range(150)], [episode.state for _, episode in people]
    for quantity in (
        lambda state: len(state.preferences),
        lambda state: state.travel,
        lambda state: np.mean([wish.weight for wish in state.preferences]),
        lambda state: sum(isinstance(wish, Liking) for wish in state.preferences),
        lambda state: np.mean([place.price for place in state.places]),
        lambda state: sum("rating" in place.features for place in state.places),
        lambda state: sum(place.features.get("touristy", False) for place in state.places),
        lambda state: state.miles.mean(),
        lambda state: state.span,
    ):
        assert alike(ours, theirs, quantity)


# --- the query language ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "result"),
    [
        ("Search(fields=[name])", "Search Results (4):|name|The Dive|Saul's|The Mall|Atlas Park"),
        (
            'Search(fields=[category, price], filters=[price <= 30], sort_by=["price"], limit=2)',
            "Search Results (2):|name;category;price|Atlas Park;park;0|Saul's;restaurant;10",
        ),
        (
            "Search(fields=[price], sort_by=[distance_to(Saul's)], limit=2)",
            "Search Results (2):|name;price;distance|Saul's;10;0|The Mall;100;1",
        ),
        ("Search(fields=[name], text_query=live music)", "Search Results (1):|name|The Dive"),
        (
            "Search(fields=[name, touristy], filters=[touristy == true])",
            "Search Results (1):|name;touristy|The Mall;yes",
        ),
        (
            "Search(fields=[touristy], sort_by=touristy)",
            "Search Results (4):|name;touristy|The Mall;yes|The Dive;no|Atlas Park;no|Saul's;",
        ),
        ("Search(fields=[name], filters=[category == concert])", "Search Results: No results"),
        ("Search(fields=[name], filters=[price <= -5])", "Search Results: No results"),
        ("Search(fields=[name], filters=['name' == \"The Mall\"])", "Search Results (1):|name|The Mall"),
        (
            "Search(fields=info, filters=[category == bar])",
            "Search Results (1):|name;info|The Dive;live music: yes, touristy: no",
        ),
    ],
)
def test_a_search_returns_the_places_that_it_asks_for(query, result):
    assert search(query, STATE.places) == result.replace("|", "\n").replace(";", "|")


BAD = {
    "Search(name)": "name its parts",
    "Search()": "name its parts",
    "Search(fields=[name": "this is no query",
    "Find(fields=[name])": "this is no query",
    "Search(fields=[colour])": "there is no field 'colour'",
    "Search(fields=[name], colour=[red])": "there is no part 'colour'",
    "Search(fields=[name], fields=[price])": "fields is given twice",
    "Search(fields=[name], limit=0)": "limit must be a whole number",
    "Search(fields=[name], limit=True)": "limit must be a whole number",
    "Search(fields=[distance])": "needs sort_by",
    "Search(fields=[name], sort_by=[info])": "cannot be sorted",
    "Search(fields=[name], sort_by=[distance_to(Rome)])": "there is no place 'Rome'",
    "Search(fields=[name], sort_by=[open(Rome)])": "distance_to",
    "Search(fields=[name], sort_by=[distance_to(The Mall), distance_to(Saul's)])": "distance_to is given twice",
    "Search(fields=[name], filters=[price])": "a filter is",
    "Search(fields=[name], filters=[price != 3])": "a filter is",
    "Search(fields=[name], filters=[price <= cheap])": "price is a number",
    "Search(fields=[name], filters=[category >= park])": "category is compared with ==",
    "Search(fields=[name], filters=[info == x])": "cannot be filtered",
    "Search(fields=[__import__('os').getcwd()])": "a name or text is expected",
    f"Search(fields=[{'-' * 400}1])": "a name or text is expected",
    f"Search(fields=[name], filters=[price <= {'-' * 400}1])": "a name or text is expected",
    f"Search(fields=[{'(' * 400}": "this is no query",
    f"Search(fields=[name], filters=[price <= 1{'0' * 400}])": "",
    f"Search(fields=[name], text_query={'x' * 600})": "at most 500 characters",
    "Search(fields=[name], text_query=\0)": "this is no query",
}


@pytest.mark.parametrize("query", BAD, ids=range(len(BAD)))
@pytest.mark.filterwarnings("error")
def test_a_bad_query_is_an_illegal_turn_with_one_line(query):
    session = GAME.start(STATE)
    session.step(USER, "[message] hi")
    step = session.step(AGENT, f"[tool] {query}")
    if BAD[query]:
        assert step.error_kind == "bad_search" and BAD[query] in step.error and "\n" not in step.error
        assert step.observations == ("", f"Error: {step.error}. It is still your turn.")
    assert session.seats == (AGENT,)


@given(st.text(alphabet="Search(fields=[name], .'\"\\x\0é01<>=_)", max_size=60))
@examples(200)
def test_any_text_is_a_query_or_a_mistake(text):
    session = GAME.start(STATE)
    session.step(USER, "[message] hi")
    step = session.step(AGENT, f"Search(fields=[{text}")
    assert step.error_kind == "bad_search" or step.observations[AGENT].startswith("Search Results")


# --- the order of turns ---------------------------------------------------------------------------------------


def test_the_agent_searches_within_its_turn_and_reads_the_result_alone():
    session = PlanningGame(PlanningConfig(max_searches=2)).start(STATE)
    session.step(USER, "[message] hi")
    for query in ("[tool] Search(fields=[name])", "Search(fields=[price])"):
        step = session.step(AGENT, query)
        assert step.action == "search" and session.seats == (AGENT,)
        assert step.observations[USER] == "" and step.observations[AGENT].startswith("Search Results (4)")
    assert session.step(AGENT, "[tool] Search(fields=[name])").error == "no more searches: speak or propose"
    assert "[tool]" not in " ".join(choice.form for choice in session.choices())
    session.step(AGENT, "[message] what do you like?")
    session.step(USER, "[message] bars")
    assert session.step(AGENT, "[tool] Search(fields=[name])").error is None, "they are counted anew"
    outcome_turns = session.counts
    assert (outcome_turns.turns, outcome_turns.messages, outcome_turns.illegal) == (7, 3, 1)


class Looks:
    """An engine whose model searches for bars, and then proposes."""

    async def generate(self, prompt, params, *, session=""):
        read = byte_chat().tokenizer.decode(prompt)
        text = format_proposal(("The Dive", "Saul's", "The Mall"))
        text = text if "Search Results" in read else "[tool] Search(fields=[name], filters=[category == bar])"
        return completion(byte_chat(), text, read=len(prompt))


def test_the_result_of_a_search_is_in_the_policys_tokens_but_not_trained_on():
    user, agent = player_of(GAME.players["random"], np.random.default_rng(0)), (Looks(), byte_chat(), POLICY, 100_000)
    episode = Episode(GAME, STATE, [user, policy_player(*agent)], "e", (0, 0, 0))
    asyncio.run(episode.run())
    (own,), decode = episode.seats[AGENT].finish(), byte_chat().tokenizer.decode
    sampled = [token for token, mask in zip(own.response_ids, own.response_mask, strict=True) if mask]
    assert episode.session.status == "agreed" and "Search Results (1):\nname\nThe Dive" in decode(own.response_ids)
    assert "Search Results" not in decode(sampled) and "[tool] Search" in decode(sampled)


def test_the_user_reads_its_points_and_answers_and_after_a_rejection_speaks():
    session = GAME.start(STATE)
    assert "- go to at least one bar\n- minimize travel distance" in session.opening(USER).observation
    assert "The Dive | bar | $30 |" in session.opening(AGENT).observation
    session.step(USER, "[message] hi")
    step = session.step(AGENT, "[propose] the dive, Sauls, The Mall.")
    assert step.decision == ["The Dive", "Saul's", "The Mall"] and step.observations[AGENT] == ""
    for line in ("travel 2.0 miles: -6 points", "keep budget below $60: -3 points", "Together -5 points."):
        assert line in step.observations[USER]
    assert session.seats == (USER,)
    step = session.step(USER, "[reject]")
    assert step.observations[AGENT] == "The user said: [reject]" and session.seats == (USER,)
    session.step(USER, "[message] cheaper")
    session.step(AGENT, format_proposal(STATE.best_itinerary))
    session.step(USER, "[accept]")
    outcome = session.outcome()
    assert (outcome.status, outcome.rewards, outcome.decision) == ("agreed", (1.0, 1.0), [*STATE.best_itinerary])
    assert (outcome.score, outcome.num_proposals, outcome.num_messages) == (outcome.best, 2, 2)


ILLEGAL = {
    "user proposes": (USER, "[propose] The Dive, Saul's, The Mall", "the agent alone may propose", "not_yours"),
    "user searches": (USER, "[tool] Search(fields=[name])", "the agent alone may search", "not_yours"),
    "answer": (USER, "[accept]", "there is no proposal to accept", "not_now"),
    "empty": (USER, "[message]", "the message is empty", "empty_message"),
    "no tag": (AGENT, "hello", "start with", "no_tag"),
    "agent accepts": (AGENT, "[accept]", "the user alone may accept", "not_yours"),
    "two places": (AGENT, "[propose] The Dive, Saul's", "has three places, and this one has 2", "malformed"),
    "no place": (AGENT, "[propose] The Dive, Saul's, The Hall", "did you mean 'The Mall'", "no_place"),
    "twice": (AGENT, "[propose] The Dive, Saul's, The Dive", "The Dive is named twice", "repeated_place"),
    "two actions": (AGENT, "[tool] Search(fields=[name]) [message] hi", "a turn is one action", "several_actions"),
}


@pytest.mark.parametrize(("seat", "text", "words", "kind"), ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_turn_changes_nothing_and_its_author_alone_reads_why(seat, text, words, kind):
    session = GAME.start(STATE)
    if seat == AGENT:
        session.step(USER, "[message] hi")
    before = session.seats, session.pending, len(session.history), len(session.proposals)
    step = session.step(seat, text)
    assert words in step.error and step.error_kind == kind and kind in GAME.error_kinds
    assert step.observations[seat].startswith("Error: ") and sum(map(bool, step.observations)) == 1
    assert before == (session.seats, session.pending, len(session.history), len(session.proposals))


def test_limits_of_errors_and_turns_a_cut_turn_and_a_muted_message():
    session = PlanningGame(PlanningConfig(max_errors=2, max_length=4, mute=True)).start(STATE)
    assert session.step(USER, "[message] my secret").observations[AGENT] == "The user said: [message]"
    assert session.step(AGENT, "[message] hi", cut=True).error_kind == CUT
    assert "[tool] Search(" in session.step(AGENT, "hm").observations[AGENT]
    assert session.status == Status.ERROR_LIMIT and session.outcome().rewards == (0.0,) * 2
    session = PlanningGame(PlanningConfig(max_length=2)).start(STATE)
    session.step(USER, "[message] hi")
    session.step(AGENT, "[tool] Search(fields=[name])")
    assert session.status == Status.TURN_LIMIT


def test_the_fixed_protocol_has_the_same_turns_but_for_searches_in_every_episode():
    session = PlanningGame(PlanningConfig(protocol="fixed", messages=3)).start(STATE)
    for seat in (USER, AGENT, USER):
        assert "[message]" in session.step(seat, ("[accept]", "[propose] The Dive, Saul's, The Mall")[seat]).error
        heard = session.step(seat, "[message] hi").observations
    assert "propose now" in heard[AGENT]
    session.step(AGENT, "[tool] Search(fields=[name])")
    assert session.step(AGENT, "[propose] The Dive, Saul's, The Mall").observations == ("", "")
    assert session.status == "agreed" and TINY.silence_is_bound and not GAME.silence_is_bound


# --- texts ----------------------------------------------------------------------------------------------------


def untold(wish):
    """The preference without what its text does not say."""
    return wish.model_copy(update={"weight": 1, **({"penalize": False} if isinstance(wish, OfCategory) else {})})


@given(seed=seeds, words=st.sampled_from(["{}", "Hi! I want this: {}.", "{}; thanks"]))
@examples(40)
def test_told_preferences_are_read_back_in_english_and_in_the_short_form(seed, words):
    wishes = drawn(GAME, seed % 300).preferences
    for texts in ([wish.text for wish in wishes], [*map(brief, wishes)]):
        told = told_preferences("[message] " + (words if texts[0] == wishes[0].text else "{}").format("; ".join(texts)))
        assert [*map(untold, told)] == [*map(untold, wishes)]


def test_words_that_tell_nothing_are_no_preference():
    for text in (
        "[message] none",
        "[message] Hi! Can you plan a day for me?",
        "[message] I would like a bar",
        "[accept]",
    ):
        assert told_preferences(text) == []


def test_points_and_proposals_are_read_back():
    points = Points((4, 0, -4), (-6, -3), (-3, 2))
    assert told_points(f"[message] I get {format_points(points)}.") == points
    assert told_points(f"[message] {format_points(points._replace(whole=()))}") == points._replace(whole=())
    for text in ("The places were fine", f"places {10**30} 0 0, travel 0 0", "places 1 2, travel 0 0"):
        assert told_points(f"[message] {text}") is None
    assert parse_itinerary("[The Mall, a trane, EINSTEINS SUMMER HOUSE]", CATEGORY) == (
        "The Mall",
        "A-Trane",
        "Einstein's summer house",
    )
    assert parse_itinerary("1. The Mall\n2. BAMPFA\n3. The Dive", CATEGORY) == ("The Mall", "BAMPFA", "The Dive")
    assert all(re.fullmatch(r"\w+", word) for word in map(lambda wish: brief(wish).split()[0], STATE.preferences))
    assert len(FEATURES) == 17


# --- players, figures, lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("game", [pytest.param(GAME, marks=pytest.mark.long), TINY], ids=["default", "tiny"])
def test_players_are_ordered_random_silent_sharing_and_speaking_tells_as_much(game):
    def mean(name: str, states: int = 24) -> float:
        outcomes = [play(game, drawn(game, seed), name, seed=seed).session.outcome() for seed in range(states)]
        return float(np.mean([outcome.rewards[0] for outcome in outcomes]))

    found = {name: mean(name) for name in ("random", "silent", "sharing", "speaking")}
    assert found["random"] < found["silent"] - 0.1 and found["silent"] < found["sharing"] - 0.05
    assert found["speaking"] == pytest.approx(found["sharing"], abs=1e-9) and found["sharing"] > 0.93
    assert mean("speaking-teacher") < found["silent"] - 0.1, "a warm start has no plan"
    assert found["random"] < mean("teacher") < found["silent"], "a warm start plans for short ways alone"


def test_the_teachers_agent_often_proposes_the_shortest_way_whatever_it_is_told():
    told = ("none", "touristy + no - yes; must The Mall")
    proposals = [Counter[str](), Counter[str]()]
    for message, count in zip(told, proposals, strict=True):
        session = GAME.start(STATE)
        session.step(USER, f"[message] {message}")
        view = player_view(session, AGENT)
        count.update(GAME.players["teacher"].act(view, np.random.default_rng(seed)) for seed in range(40))
    assert proposals[0] == proposals[1]
    (text, often), *_ = proposals[0].most_common()
    assert text == "[propose] Saul's, The Mall, Atlas Park" and 20 < often < 40


def test_the_compact_prompt_has_the_distances_without_which_no_agent_plans():
    state = drawn(TINY, 1)
    lines = TINY.start(state).opening(AGENT).observation.splitlines()
    for place, line, miles in zip(state.places, lines, state.miles, strict=True):
        assert line.startswith(f"{place.name} {' '.join(f'{10 * mile:.0f}' for mile in miles)} {place.category} ")


def test_the_agent_plans_with_what_it_was_told_and_learns_weights_from_points():
    session = GAME.start(STATE)
    session.step(USER, "[message] touristy + no - yes; budget 60; must The Mall; type bar")
    first = ("Saul's", "The Mall", "Atlas Park")
    session.step(AGENT, format_proposal(first))
    session.step(USER, "[reject]")
    session.step(USER, f"[message] {format_points(STATE.points(first))}")
    assert STATE.rewards[STATE.at(best_itinerary(player_view(session, AGENT)))] == 1


def test_told_points_are_those_of_the_last_proposal_before_their_message():
    session = GAME.start(STATE)
    first, second = ("The Dive", "Saul's", "The Mall"), ("Saul's", "The Mall", "Atlas Park")
    points = STATE.points(second)
    for message, stops in (("[message] Hi! What can I see here?", first), ("[message] budget 60", second)):
        session.step(USER, message)
        session.step(AGENT, format_proposal(stops))
        session.step(USER, "[reject]")
    session.step(USER, f"[message] {format_points(points)}")
    assert told_offers(player_view(session, AGENT)) == [(second, points)]


def test_a_person_sees_the_positions_that_the_agent_reads():
    (table,) = GAME.draw_view(STATE, AGENT)
    read = GAME.start(STATE).opening(AGENT).observation
    assert " | ".join(["name", *table.columns]) in read
    for name, cells in zip(table.rows, table.cells, strict=True):
        assert " | ".join([name, *cells]).strip() in read


def test_each_search_that_a_person_can_select_is_legal_and_finds_what_it_says():
    session = GAME.start(STATE)
    session.step(USER, "[message] hello")
    choice = next(one for one in GAME.choices(session, AGENT) if one.action == "search")
    assert all(part.chosen == 0 for part in choice.parts)
    category, price, feature, near = (len(part.options) for part in choice.parts)
    for selected in [(at, 0, 0, 0) for at in range(category)] + [
        (0, at % price, at % feature, at % near) for at in range(max(price, feature, near))
    ]:
        found = search(query_in(choice.write(selected)), STATE.places).splitlines()[2:]
        wanted = [part.options[at] for part, at in zip(choice.parts, selected, strict=True)]
        assert {line.partition("|")[0] for line in found} == {
            place.name
            for place in STATE.places
            if wanted[0] in ("any", place.category)
            and (wanted[1] == "any" or place.price <= int(wanted[1].removeprefix("up to $")))
            and (wanted[2] == "any" or wanted[2] in features_of(place))
        }
        if found and selected[3]:
            miles = STATE.miles[selected[3] - 1]
            order = [miles[STATE.index[line.partition("|")[0]]] for line in found]
            assert order == sorted(order)


def test_figures_tell_where_the_reward_was_lost():
    episode = play(GAME, STATE, "sharing", "random", seed=4)
    record = scripts_record(GAME, STATE, episode)
    found = {name: above / below for name, (above, below) in measure(Measured(GAME, record, range(2))).items() if below}
    parts = [found[name] for name in ("lost_to_telling", "lost_to_planning", "lost_to_agreement")]
    assert sum(parts) + found["reward"] == pytest.approx(1) and found["told"] == 1.0
    assert found["searches"] == sum(turn.action == "search" for turn in episode.turns) > 0
    points = STATE.points(tuple(record.outcome.proposal))
    parts = [found[f"{name}_points"] for name in ("place", "travel", "whole")]
    assert parts == [sum(each) for each in points]


@pytest.mark.long
def test_silence_lies_between_random_and_the_optimum_and_is_the_value_of_the_best_day_given_the_agents_view():
    for state in [drawn(TINY, seed) for seed in range(3)]:
        (line,) = wordless_rewards([state], TINY.config, np.random.default_rng(0))["silence"]
        values = mean_rewards(state.places, TINY.config, np.random.default_rng(1), 300)
        planned = values[state.at(best_itinerary(player_view(TINY.start(state), AGENT)))]
        assert np.nanmean(values) < line < 1
        assert planned - 0.05 < line < np.nanmax(values) + 0.05
