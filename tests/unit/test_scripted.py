"""Scripted partners: what they say is legal, read back exactly, and worth what their names promise."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from factories import play

from selfplay_pipeline.games.base import HELD_OUT, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.mentions import retold, told_cells
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.scripted import (
    PlayerView,
    estimate,
    heard_cells,
    likely_scale,
    own_cells,
    tell,
)
from selfplay_pipeline.games.tags import ActionKind

BOARDS = {
    "tiny": MatchingConfig(size=3, max_score=9, scale_max=1, prompts="compact"),
    "fixed scale": MatchingConfig(size=4, max_score=99, scale_max=1),
    "DialOp's": MatchingConfig(hard_factor=0),
    "largest": MatchingConfig(size=16, hard_factor=0),
    "small scales": MatchingConfig(size=2, max_score=3, scale_max=2, hard_factor=0),
}


GAMES = {"tiny": MatchingGame(BOARDS["tiny"]), "DialOp's own": MatchingGame(MatchingConfig())}
TINY, DIALOP = GAMES


@cache
def held_out(board: str, number: int) -> list[MatchingState]:
    return [GAMES[board].sample_state(state_rng(5, index, HELD_OUT)) for index in range(number)]


@pytest.mark.parametrize(
    ("board", "names", "episodes", "low", "high"),
    [
        (TINY, ("sharing", "sharing"), 100, 1.0, 1.0),  # the pooled optimum, where scales are known
        (TINY, ("own-view", "silent"), 50, 1.0, 1.0),  # one who tells and one who listens are enough
        (TINY, ("silent", "sharing"), 50, 1.0, 1.0),
        (TINY, ("own-view", "own-view"), 100, 0.5, 0.8),  # who does not listen stays below the hard filter
        (TINY, ("silent", "silent"), 100, 0.5, 0.8),  # so does who is told nothing
        pytest.param(DIALOP, ("random", "random"), 50, 0.57, 0.65, marks=pytest.mark.long),
        pytest.param(DIALOP, ("own-view", "own-view"), 50, 0.74, 0.8, marks=pytest.mark.long),
        pytest.param(DIALOP, ("sharing", "sharing"), 50, 0.99, 1.0, marks=pytest.mark.long),
    ],
)
def test_players_are_worth_what_their_names_promise(board, names, episodes, low, high) -> None:
    game, rng = GAMES[board], np.random.default_rng(0)
    outcomes = [play(game, state, *names, seed=rng).session.outcome() for state in held_out(board, episodes)]
    rewards = [outcome.rewards[0] for outcome in outcomes]
    assert low <= np.mean(rewards) <= high


def view_of(table: list[list[int | None]], **known: object) -> PlayerView:
    size = len(table)
    return PlayerView(0, tuple(map(tuple, table)), PAPERS[:size], REVIEWERS[:size], **known)  # type: ignore[arg-type]


SLOW, OPPOSITE = "passing", ("random", "sharing", "shy", "asker", "passing")
"""A player that draws thousands of states to judge its plan, and its partners on all boards but the smallest."""


def is_long(board: str, first: str) -> bool:
    return first == SLOW or (board != "tiny" and first != "sharing")


PAIRS = [
    pytest.param(board, first, id=f"{first}-{board}", marks=[pytest.mark.long] * is_long(board, first))
    for board in BOARDS
    for first in SCRIPTED
]


@pytest.mark.parametrize(("board", "first"), PAIRS)
def test_any_two_partners_agree_on_any_board_without_an_illegal_action(board: str, first: str) -> None:
    game, names = MatchingGame(BOARDS[board]), [*SCRIPTED]
    for number, second in enumerate(names, len(names) * names.index(first)):  # another state for each pair
        if SLOW in (first, second) and board != "tiny" and not {first, second} <= {*OPPOSITE}:
            continue
        outcome = play(game, game.sample_state(state_rng(0, number)), first, second, seed=1).session.outcome()
        # `shy` answers a plan that it finds bad with a rejection, however often it is proposed.
        assert outcome.status == "agreed" or "shy" in (first, second), second
        assert 0 <= outcome.rewards[0] <= 1


def test_the_same_view_and_seed_give_the_same_words() -> None:
    view = view_of([[1, None], [None, 4]], rules=MatchingConfig(size=2, hard_factor=0))
    for player in SCRIPTED.values():
        assert player.act(view, np.random.default_rng(3)) == player.act(view, np.random.default_rng(3))


@pytest.mark.parametrize(
    ("table", "reviewers", "said"),
    [
        ([[1, None, 3], [None, 55, None], [None, None, 0]], REVIEWERS[:3],
         "Ava BLEU 1 Ava GloVe 3 Daniel Electra 55 Sofia GloVe 0"),
        ([[5, None], [None, 6]], ("Ava Li", "Ava Reed"), "Ava Li BLEU 5 Ava Reed Electra 6"),  # of one first name
        ([[5, None], [None, 6]], ("Will Reed", "May Will"), "Will Reed BLEU 5 May Electra 6"),
    ],
)  # fmt: skip
def test_a_message_is_read_back_exactly(table, reviewers, said) -> None:
    view = PlayerView(0, tuple(map(tuple, table)), PAPERS[: len(table)], reviewers)
    text = tell(view, own_cells(view))
    assert text == f"[message] {said}"
    assert told_cells(text, view.papers, view.reviewers) == own_cells(view)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        (f"I have ava li, {PAPERS[0]}: 12", {(0, 0): 12}),
        ("Sofia - GloVe = 7; Sofia/GloVe is 7, now Sofia GloVe 8", {(2, 2): 8}),
        ("[message] none", {}),
        ("Ava BLEU nine, Daniel has zero for Electra; Sofia GloVe Nine", {(0, 0): 9, (1, 1): 0, (2, 2): 9}),
        ("[message] Ava BLEU none Daniel GloVe none", {}),
        ("Ava BLEU ninety, Daniel Electra oneness", {}),
    ],
)
def test_other_ways_to_name_a_cell_are_read_too(text, cells) -> None:
    assert told_cells(text, PAPERS[:3], REVIEWERS[:3]) == cells


def test_scores_can_be_told_in_words_and_a_changed_score_stays_a_word() -> None:
    view = view_of([[1, None], [None, 9]])
    text = tell(view, own_cells(view), in_words=True)
    assert text == "[message] Ava BLEU one Daniel Electra nine"
    assert told_cells(text, view.papers, view.reviewers) == own_cells(view)
    changed = retold(text, view.papers, view.reviewers, {(0, 0): 3, (1, 1): 12})
    assert changed == "[message] Ava BLEU three Daniel Electra 12"


def test_only_the_partners_messages_count_as_heard() -> None:
    history = ((0, "[message] Ava BLEU 1"), (1, "[message] Ava Electra 2"), (1, "[propose] Daniel BLEU 3"))
    assert heard_cells(view_of([[None, None], [None, None]], history=history)) == {(0, 1): 2}


@pytest.mark.parametrize("scale", [1.3, 2.0, 5.37, 9.9])
def test_a_scale_is_read_off_the_numbers_shown_under_it(scale: float) -> None:
    values = np.random.default_rng(0).integers(0, 100, (5, 5))
    view = view_of([[int(value * scale) for value in row] for row in values], scales=(1.0, 10.0))
    assert likely_scale(own_cells(view), 99, view.scales) == pytest.approx(scale, rel=0.02)
    assert estimate(view, {}) == pytest.approx(values, abs=3)


def test_estimates_join_both_views_and_take_the_mean_elsewhere() -> None:
    view = view_of([[2, None], [None, None]], max_score=9, mean_score=5, scales=(1.0, 1.0))
    assert estimate(view, {(1, 1): 8, (0, 0): 9}).tolist() == [[2, 5], [5, 8]]


def test_sharing_rejects_what_it_cannot_judge_once_then_tells() -> None:
    sharing, rng = SCRIPTED["sharing"], np.random.default_rng(0)
    proposal, diagonal = (1, "[propose] Proposal: BLEU: Ava\nElectra: Daniel"), ((0, 0), (1, 1))
    view = view_of([[0, 9], [None, None]], history=(proposal,), pending=diagonal)
    assert sharing.act(view, rng) == "[reject]"
    view = view_of([[0, 9], [None, None]], history=(proposal, (0, "[reject]")))
    assert sharing.act(view, rng) == "[message] Ava BLEU 0 Ava Electra 9"


KNOWN = {"max_score": 99, "mean_score": 50, "scales": (1.0, 1.0)}


@pytest.mark.parametrize(
    ("other", "further", "answer"),
    [
        (48, (), "accept"),  # 96 of the 100 of its own plan
        (47, (), "reject"),
        (53, (), "accept"),
        (0, ((0, "[reject]"),), "accept"),  # it rejects once
    ],
)
def test_sharing_accepts_what_comes_near_its_own_plan_by_all_that_it_was_told(other, further, answer) -> None:
    history = ((1, f"[message] Daniel BLEU {other} Daniel Electra 50"), *further)
    view = view_of([[50, other], [None, None]], pending=((0, 1), (1, 0)), history=history, **KNOWN)
    assert SCRIPTED["sharing"].act(view, np.random.default_rng(0)) == f"[{answer}]"


@pytest.mark.parametrize("history", [((1, "[message] Daniel BLEU 60"),), ((0, "[message] none"), (1, "[message] hi"))])
def test_sharing_tells_nothing_once_it_was_told_or_has_told(history) -> None:
    view = view_of([[0, 9], [None, None]], history=history, **KNOWN)
    said = SCRIPTED["sharing"].act(view, np.random.default_rng(0))
    assert said == "[propose] Proposal: BLEU: Daniel\nElectra: Ava", "in the order of the papers"


def test_random_proposes_each_plan_and_says_something_where_a_message_is_due() -> None:
    view, random = view_of([[None] * 3] * 3), SCRIPTED["random"]
    assert len({random.act(view, np.random.default_rng(seed)) for seed in range(60)}) == 6
    assert random.act(replace(view, due=ActionKind.MESSAGE), np.random.default_rng(0)) == "[message] none"
