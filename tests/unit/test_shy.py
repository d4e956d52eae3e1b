"""The shy partner keeps its four rules, and those who ask it do better than those who do not."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from factories import play
from hypothesis import given
from hypothesis import strategies as st

from selfplay_pipeline.games.base import HELD_OUT, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.mentions import told_cells
from selfplay_pipeline.games.matching.questions import asked_pairs, asking
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, best_matching
from selfplay_pipeline.games.matching.scripted import PlayerView, ask, player_view, random_matching
from selfplay_pipeline.games.matching.shy import Shy
from selfplay_pipeline.games.matching.teacher import CountingTeacher
from selfplay_pipeline.games.tags import ActionKind
from selfplay_pipeline.generate.records import TurnRecord

BOARD = MatchingConfig(size=3, max_score=9, scale_max=1, max_length=20)
GAME = MatchingGame(BOARD)
RNG = np.random.default_rng(0)
SHY = Shy()
PIECES = ("Ava", "Sofıa", "İ", "Daniel", "BLEU", "GloVe?", "?", "5", "9" * 5000, "what", "[propose]", "<br/>")


@cache
def state_of(index: int) -> MatchingState:
    return GAME.sample_state(state_rng(1, index, HELD_OUT))


def view_of(index: int, *history: tuple[int, str], **known: object) -> PlayerView:
    """What seat 1 knows of state number `index`."""
    view = player_view(GAME.start(state_of(index)), 1)
    return PlayerView(**{**view.__dict__, "history": history, **known})


def test_who_asks_knows_what_it_asked_although_nobody_hears_it() -> None:
    muted = MatchingGame(BOARD.model_copy(update={"mute": True}))
    session = muted.start(state_of(0))
    asked = SCRIPTED["asker"].act(player_view(session, 0), RNG)
    session.step(0, asked)
    assert [player_view(session, seat).said(0) for seat in (0, 1)] == [[asked], ["[message]"]]
    session.step(1, "[message] Ava BLEU 5")
    assert SCRIPTED["asker"].act(player_view(session, 0), RNG) != asked


@given(st.integers(0, 50), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_it_tells_exactly_the_scores_that_it_was_asked_for_and_sees(index: int, cells: set[tuple[int, int]]) -> None:
    view = view_of(index)
    answer = SHY.act(view_of(index, (0, ask(view, sorted(cells)))), RNG)
    visible = {cell: view.table[cell[0]][cell[1]] for cell in cells if view.table[cell[0]][cell[1]] is not None}
    assert told_cells(answer, view.papers, view.reviewers) == visible
    assert answer.count("none") == len(cells) - len(visible)


@pytest.mark.parametrize(
    ("history", "answer"),
    [
        ([], Shy.HELLO),
        ([(0, "[propose] …"), (1, "[reject]")], Shy.REJECTED),
        ([(0, "[message] What are your scores for Ava?")], Shy.VAGUE),
        ([(0, "[message] Which reviewer is best for BLEU?")], Shy.VAGUE),
        ([(0, "[message] Tell me everything, please")], Shy.VAGUE),
        ([(0, "[message] Ava BLEU 5")], Shy.HEARD),
        ([(0, "[message] I like Ava on BLEU")], Shy.HEARD),
        ([(0, "[message] Ava on BLEU?"), (1, "[message] ok"), (0, "[message] thanks")], Shy.HEARD),
    ],
)
def test_it_answers_other_questions_vaguely_and_volunteers_nothing(history: list[tuple[int, str]], answer: str) -> None:
    assert SHY.act(view_of(0, *history), RNG) == answer
    assert not any(character.isdigit() for character in answer)


@given(st.integers(0, 50), st.integers(0, 10))
def test_it_judges_by_what_it_sees_and_was_told(index: int, seed: int) -> None:
    view = view_of(index)
    known = np.array([[5 if score is None else score for score in row] for row in view.table])
    plan = random_matching(view, np.random.default_rng(seed))
    good = sum(known[pair] for pair in plan) >= Shy.GOOD_ENOUGH * best_matching(known)[1]
    assert SHY.act(view_of(index, pending=plan), RNG) == ("[accept]" if good else "[reject]")


def test_what_it_was_told_changes_its_judgement() -> None:
    plan, table = ((0, 0), (1, 1)), ((None, 9), (None, None))
    view = PlayerView(
        1, table, ("A", "B"), ("Ava", "Daniel"), pending=plan, max_score=9, mean_score=5, scales=(1.0, 1.0)
    )
    assert SHY.act(view, RNG) == "[accept]"
    told = ((0, "[message] Ava A 0 Daniel B 0 Daniel A 9"),)
    assert SHY.act(PlayerView(**{**view.__dict__, "history": told}), RNG) == "[reject]"


def test_the_leak_meter_notices_a_partner_that_spoon_feeds() -> None:
    state = GAME.sample_state(state_rng(7, 0, HELD_OUT))
    told = SCRIPTED["sharing"].act(player_view(GAME.start(state), 1), RNG)
    said = [TurnRecord(seat=1, text=told, action=ActionKind.MESSAGE, finish_reason="scripted")]
    assert asking(said, state, 0).leaks == 1


def test_a_plan_that_was_rejected_is_followed_by_another() -> None:
    first = SCRIPTED["quiet"].act(view_of(0, seat=0), RNG)
    history = ((0, first), (1, "[reject]")) * 12
    assert SCRIPTED["quiet"].act(view_of(0, *history, seat=0), RNG) != first


@pytest.mark.long
def test_who_asks_does_clearly_better_and_nothing_leaks() -> None:
    rewards: dict[str, list[float]] = {"asker": [], "quiet": []}
    for index, agent in product(range(100), rewards):
        state = GAME.sample_state(state_rng(7, index, HELD_OUT))
        episode = play(GAME, state, agent, SHY, seed=index)
        outcome, counts = episode.session.outcome(), asking(episode.turns, state, 0)
        rewards[agent].append(outcome.rewards[0])
        assert counts.leaks == 0 and bool(counts.learned) == bool(counts.questions) == (agent == "asker")
        assert agent == "quiet" or outcome.status == "agreed"
    assert np.mean(rewards["asker"]) > 0.98 and np.mean(rewards["quiet"]) < 0.85


@given(st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_whatever_is_said_is_answered(text: str) -> None:
    view, said = view_of(0), (0, f"[message] {text}")
    told = told_cells(SHY.act(view_of(0, said), RNG), view.papers, view.reviewers)
    assert told.keys() <= asked_pairs(text, view.papers, view.reviewers)
    assert SHY.act(view_of(0, said, pending=((0, 0), (1, 1), (2, 2))), RNG) in ("[accept]", "[reject]")


def test_the_counting_teacher_asks_for_one_cell_that_it_neither_sees_nor_asked_for_before() -> None:
    asked = 0
    for index in range(100):
        state, before = GAME.sample_state(state_rng(8, index, HELD_OUT)), set[tuple[int, int]]()
        episode = play(GAME, state, CountingTeacher(), SHY, seed=index)
        for turn in episode.turns:
            if turn.seat == 0 and turn.text.startswith("[message]"):
                (cell,) = asked_pairs(turn.text, state.papers, state.reviewers)
                assert not state.masks[0][cell] and cell not in before
                before.add(cell)
        asked += len(before)
    assert asked > 50
