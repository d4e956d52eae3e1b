"""Players that speak English: all that they say is read back without loss, and who listens to it plans well."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from factories import play

from selfplay_pipeline.games.base import HELD_OUT, state_rng
from selfplay_pipeline.games.matching import speaking
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.mentions import told_cells
from selfplay_pipeline.games.matching.proposals import parse_action
from selfplay_pipeline.games.matching.questions import NOUNS, asked_pairs
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.scripted import PlayerView, own_cells, player_view, random_matching
from selfplay_pipeline.games.matching.shy import Asker, unasked_cells
from selfplay_pipeline.games.questions import is_question

SMALL = MatchingConfig(size=3, max_score=9, score_power=3, visibility="complementary", hard_factor=0, scale_max=1)
LARGE = MatchingConfig(hard_factor=0)
TURNS = 200
"""Of each kind, seen from both seats of both boards."""


def views(config: MatchingConfig, count: int) -> list[PlayerView]:
    game = MatchingGame(config)
    states = [game.sample_state(state_rng(3, index, HELD_OUT)) for index in range(count)]
    return [player_view(game.start(state), seat) for state in states for seat in (0, 1)]


@pytest.fixture(scope="module", params=[SMALL, LARGE], ids=["3x3", "8x8"])
def some_views(request: pytest.FixtureRequest) -> list[PlayerView]:
    return views(request.param, TURNS // 2)


def read(text: str, view: PlayerView) -> dict[tuple[int, int], int]:
    action = parse_action(text, view.papers, view.reviewers)
    assert action.kind == "message"
    return told_cells(action.words, view.papers, view.reviewers)


def test_what_is_told_asked_answered_or_proposed_is_read_back_and_is_nothing_else(some_views: list[PlayerView]) -> None:
    rng = np.random.default_rng(0)
    for view in some_views:
        seen = own_cells(view)
        cells = {cell for cell in product(range(len(view.papers)), repeat=2) if rng.random() < 0.3}
        asked_for = {cell: seen[cell] for cell in (cells & seen.keys() if cells else seen)}
        for text, told in ((speaking.tell(view, seen, rng), seen), (speaking.answer(view, cells, rng), asked_for)):
            assert read(text, view) == told and not is_question(text, NOUNS), text
        wanted = unasked_cells(view)[: Asker.PAIRS_A_MESSAGE]
        for cells in ([], wanted, wanted[:1]):
            text = speaking.ask(view, cells, rng)
            assert asked_pairs(text, view.papers, view.reviewers) == {*cells}, text
            assert is_question(text, NOUNS) and not read(text, view), text
        plan = random_matching(view, rng)
        text = speaking.propose(view, plan, rng)
        assert parse_action(text, view.papers, view.reviewers).proposal == plan, text


@pytest.mark.parametrize("text", [*speaking.ACCEPTING, *speaking.REJECTING])
def test_an_answer_to_a_proposal_is_one(text: str) -> None:
    expected = "accept" if text in speaking.ACCEPTING else "reject"
    assert parse_action(text, SHARED.papers, SHARED.reviewers).kind == expected


SHARED = views(SMALL, 1)[0]


def test_it_turns_down_what_it_was_told_to_be_worse_and_what_nobody_could_know_to_be_good() -> None:
    view = replace(SHARED, table=((0, 9, None), (None, None, None), (None, None, None)), mean_score=1)
    good, bad = ((0, 1), (1, 0), (2, 2)), ((0, 0), (1, 1), (2, 2))
    told = ((1, "[message] Daniel has 9 for BLEU."),)
    for offered, history, agrees in [
        (good, told, True), (bad, told, False), (good, (), False), (bad, ((0, "[reject]"),), True),
        (bad, ((0, "[message] Ava has 0 for BLEU."),), True),
    ]:  # fmt: skip
        asked = replace(view, pending=offered, history=history)
        said = SCRIPTED["speaking"].act(asked, np.random.default_rng(0))
        assert said.startswith("[accept]" if agrees else "[reject]")


def rewards(config: MatchingConfig, name: str, episodes: int) -> list[float]:
    game, rng = MatchingGame(config), np.random.default_rng(0)
    states = [game.sample_state(state_rng(7, index)) for index in range(episodes)]
    sessions = [play(game, state, name, seed=rng).session for state in states]
    assert {session.status for session in sessions} == {"agreed"}
    return [session.outcome().rewards[0] for session in sessions]


ONE_SIDED = SMALL.model_copy(update={"visibility": "one_sided", "protocol": "fixed"})


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_brief_speaker_tells_its_largest_cells_in_any_order(most: int) -> None:
    orders = set()
    for view in views(ONE_SIDED, 40)[::2]:
        rng = np.random.default_rng(0)
        told = read(SCRIPTED[f"speaking-{most}"].act(replace(view, due="message"), rng), view)
        cells = own_cells(view)
        assert told.items() <= cells.items()
        assert sorted(told.values()) == sorted(cells.values())[-most:]
        orders.add(tuple(np.argsort([*told.values()])))
    assert len(orders) > 1 or most == 1


@pytest.mark.parametrize(("most", "reward"), [(1, 0.861), (2, 0.933), (3, 0.981)])
def test_brief_speakers_reach_what_their_words_allow(most: int, reward: float) -> None:
    """The rewards were counted on 20,000 states or more: telling the largest cells, and following them."""
    found = rewards(ONE_SIDED, f"speaking-{most}", 400)
    assert np.mean(found) == pytest.approx(reward, abs=4 * np.std(found) / 400**0.5 + 0.004)


@pytest.mark.parametrize("protocol", ["free", "fixed"])
def test_two_who_speak_and_listen_find_the_best_plan(protocol: str) -> None:
    assert rewards(SMALL.model_copy(update={"protocol": protocol}), "speaking", 200) == [1.0] * 200


def test_they_do_so_on_a_large_board_too() -> None:
    assert np.mean(rewards(LARGE, "speaking", 20)) > 0.995


def test_the_teacher_speaks_but_does_not_plan_with_what_it_hears() -> None:
    silence = 0.84  # one unheard proposal on these states
    assert 0.7 < np.mean(rewards(SMALL, "speaking-teacher", 300)) < silence
    views = [replace(SHARED, history=((1, f"[message] Sofia has {score} for BLEU."),)) for score in (0, 9)]
    for number in range(20):
        texts = {SCRIPTED["speaking-teacher"].act(view, np.random.default_rng(number)) for view in views}
        assert len(texts) == 1, "the number that it was told changes nothing"
