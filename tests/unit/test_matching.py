"""The reviewer-matching game: sampling, views, turn-taking, scoring."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import take
from hypothesis import given, settings
from hypothesis import strategies as st

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import HELD_OUT, INVALID, TRAIN, Status, state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.proposals import format_proposal
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, best_matching, own_view_matching
from selfplay_pipeline.games.matching.states import MAX_TRIES, sample_state

HUMAN_GAMES = [
    json.loads(line) for line in Path("data/dialop/optimization_human.jsonl").read_text().splitlines() if line
]
PINNED = ([31, 81, 77, 19, 25, 50, 8, 50], 6.078063, 622)
"""First row, first scale and best score of state 0 of seed 0: a change here changes every user's states."""
SAMPLED_BEFORE = ["a7ef9f05ef97", "049ea688b475"]
"""Digests of the states that revision 671181a sampled."""
SMALL = MatchingGame(MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0))
FULL = MatchingGame()
HONEST = MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0, visibility="complementary", score_power=3)


def small_state(index: int = 0) -> MatchingState:
    return SMALL.sample_state(state_rng(0, index))


def optimal_text(state: MatchingState) -> str:
    return format_proposal(best_matching(state.table)[0], state.papers, state.reviewers)


def play_proposal(game: MatchingGame, state: MatchingState, text: str) -> float:
    session = game.start(state)
    proposed = take(session, text)
    assert proposed.error is None, proposed.error
    take(session, "[accept]")
    return session.outcome().rewards[0]


# --- sampling -----------------------------------------------------------------------------------------------


def test_same_seed_gives_same_states_in_any_order():
    forward = [SMALL.sample_state(state_rng(7, i)).to_dict() for i in range(5)]
    backward = [SMALL.sample_state(state_rng(7, i)).to_dict() for i in reversed(range(5))]
    assert forward == backward[::-1]


def test_sampled_state_is_pinned():
    state = FULL.sample_state(state_rng(0, 0))
    assert state.best == int(best_matching(state.table)[1])
    assert (state.table[0].tolist(), round(state.scales[0], 6), state.best) == PINNED


def test_training_and_held_out_states_differ():
    train = {json.dumps(SMALL.sample_state(state_rng(0, i, TRAIN)).to_dict()) for i in range(50)}
    held_out = {json.dumps(SMALL.sample_state(state_rng(0, i, HELD_OUT)).to_dict()) for i in range(50)}
    assert not train & held_out


@pytest.mark.long
def test_hard_filter_leaves_at_most_four_fifths_to_one_player_alone():
    for index in range(20):
        state = FULL.sample_state(state_rng(3, index))
        for seat in (0, 1):
            assert state.score(own_view_matching(state, seat, 50)) / state.best < 0.8


def test_cells_that_nobody_sees_hold_the_mean_and_scales_stay_in_range():
    state = FULL.sample_state(state_rng(5, 0))
    unseen = ~(state.masks[0] | state.masks[1])
    assert (state.table[unseen] == 50).all()
    assert all(1 <= scale <= 10 for scale in state.scales)


@pytest.mark.long
def test_a_configuration_without_hard_states_is_refused():
    game = MatchingGame(MatchingConfig(size=2, hard_factor=1e9))
    with pytest.raises(UserError, match="hard filter"):
        game.sample_state(state_rng(0, 0))


def test_without_the_fallback_states_are_those_of_before():
    full = json.dumps([FULL.sample_state(state_rng(0, i)).to_dict() for i in range(5)])
    small = json.dumps([small_state(i).to_dict() for i in range(50)])
    assert [hashlib.sha256(text.encode()).hexdigest()[:12] for text in (full, small)] == SAMPLED_BEFORE


def test_the_fallback_keeps_the_state_after_so_many_that_failed():
    never, after = (MatchingGame(MatchingConfig(size=3, hard_factor=factor)) for factor in (1.25, 0))
    config = MatchingConfig(size=3, unfiltered_after=3)
    kinds = set()
    for index in range(40):
        state = MatchingGame(config).sample_state(state_rng(2, index))
        assert state.best == best_matching(state.table)[1] > 0
        hard = state.to_dict() == never.sample_state(state_rng(2, index)).to_dict()
        first = state.to_dict() == after.sample_state(state_rng(2, index)).to_dict()
        assert hard or not first, "a first state that fails is not kept"
        kinds.add(hard)
    assert kinds == {True, False}


def test_the_fallback_gives_a_state_where_none_is_hard():
    assert MatchingGame(MatchingConfig(size=2, hard_factor=1e9, unfiltered_after=10)).sample_state(state_rng(0, 0)).best


def test_a_large_fallback_changes_no_state_that_passes_sooner():
    game = MatchingGame(MatchingConfig(size=3, unfiltered_after=10_001))
    plain = MatchingGame(MatchingConfig(size=3))
    for index in range(20):
        assert game.sample_state(state_rng(4, index)).to_dict() == plain.sample_state(state_rng(4, index)).to_dict()


def test_on_honest_states_each_cell_is_seen_by_exactly_one_player_and_nothing_is_filtered():
    game = MatchingGame(HONEST)
    states = [game.sample_state(state_rng(0, index)) for index in range(500)]
    first, second = (np.array([state.masks[seat] for state in states]) for seat in (0, 1))
    assert (first ^ second).all()
    assert first.mean() == pytest.approx(0.5, abs=0.03)
    for state in states:
        game.check_fits(game.state_from_json(state.to_dict()))


def test_skewed_scores_have_the_distribution_and_the_mean_that_the_configuration_says():
    cells = np.array([MatchingGame(HONEST).sample_state(state_rng(0, index)).table for index in range(2000)])
    assert cells.min() == 0
    assert cells.max() == 9
    # P(⌊10u³⌋ ≥ s) = 1 - (s / 10)^(1/3); a state without any score is not kept, which is rare.
    for score in (1, 5, 9):
        assert (cells >= score).mean() == pytest.approx(1 - (score / 10) ** (1 / 3), abs=0.015)
    assert cells.mean() == pytest.approx(HONEST.mean_score, abs=0.05)
    assert MatchingConfig().mean_score == 50
    assert MatchingConfig(max_score=9).mean_score == 5
    assert MatchingConfig(max_score=2, score_power=2).mean_score == pytest.approx(2 - (1 / 3) ** 0.5 - (2 / 3) ** 0.5)


def test_states_of_another_visibility_are_refused():
    state = SMALL.sample_state(state_rng(0, 0))
    with pytest.raises(UserError, match=r"'mask1' and 'mask2'.*game\.visibility is complementary"):
        MatchingGame(HONEST).check_fits(state)


# --- DialOp's human games -----------------------------------------------------------------------------------


def test_all_134_human_games_agree_with_the_file():
    assert len(HUMAN_GAMES) == 134
    for data in HUMAN_GAMES:
        state = FULL.state_from_json(data)
        final = [entry for entry in data["action_log"] if entry["type"] == "proposal"][-1]
        assert state.score([tuple(pair) for pair in final["proposal_ids"]]) == data["proposal_reward"]


def test_human_final_proposals_read_as_text_give_their_recorded_scores():
    titles = [title.split(":")[0] for title in PAPERS[:8]]
    others = []
    for number, data in enumerate(HUMAN_GAMES):
        final = [entry for entry in data["action_log"] if entry["type"] == "proposal"][-1]
        shown = dict(re.findall(r"- (\w+): ([^<]+)", final["proposal"]))
        names = {reviewer: shown[titles[paper]] for reviewer, paper in final["proposal_ids"]}
        reviewers = [names[reviewer] for reviewer in range(8)]
        if reviewers != list(REVIEWERS[:8]):
            others.append(number)
        state = FULL.state_from_json(data | {"reviewers": reviewers})
        reward = play_proposal(FULL, state, "[propose] " + final["proposal"])
        assert reward == data["proposal_reward"] / data["best_assignment_reward"]
    assert others == [32], "one game, counted from 0, showed other names"


def test_six_human_games_are_of_dialops_fallback():
    states = [FULL.state_from_json(data) for data in HUMAN_GAMES]
    own = [max(state.score(own_view_matching(state, seat, 50)) for seat in (0, 1)) for state in states]
    unfiltered = [number for number, state in enumerate(states) if own[number] * 1.25 >= state.best]
    assert unfiltered == [18, 25, 36, 79, 82, 93]


def test_states_survive_a_round_trip_through_dialops_field_names():
    for data in HUMAN_GAMES[:10]:
        state = FULL.state_from_json(data)
        assert FULL.state_from_json(state.to_dict()).to_dict() == state.to_dict()
        assert state.to_dict()["table"] == data["table"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask1": [[1]]}, "mask1"),
        ({"best_assignment_reward": 1}, "best_assignment_reward"),
        ({"table": [[1, 2]]}, r"field 'table' has shape \(1, 2\), expected a square"),
        ({name: [[1] * 17] * 17 for name in ("table", "mask1", "mask2")}, "a board of 17 needs fields 'papers'"),
        ({"scale1": None}, "game state"),
        ({"papers": ["a"] * 8}, "papers"),
    ],
)
def test_a_bad_state_is_named(change, words):
    with pytest.raises(UserError, match=words):
        FULL.state_from_json({**HUMAN_GAMES[0], **change})


@pytest.mark.parametrize(("scales", "wrong"), [((1.0, 2.5), 2.5), ((0.5, 1.0), 0.5)])
def test_scales_of_another_configuration_are_refused(scales, wrong):
    game = MatchingGame(SMALL.config.model_copy(update={"scale_max": 2}))
    game.check_fits(replace(small_state(), scales=(1.0, 2.0)))
    with pytest.raises(UserError, match=rf"scale {wrong} is not in 1\.\.2"):
        game.check_fits(replace(small_state(), scales=scales))


# --- scoring written proposals ------------------------------------------------------------------------------


def written_forms(state: MatchingState) -> list[str]:
    pairs = best_matching(state.table)[0]
    short = [f"{state.papers[p].split(':')[0]}: {state.reviewers[r]}" for r, p in pairs]
    full = [f"{state.papers[p]}: {state.reviewers[r]}" for r, p in pairs]
    shuffled = list(np.random.default_rng(0).permutation(short))
    return [
        optimal_text(state),
        "[propose] Proposal:\n" + "\n".join(full),
        "[propose] Proposal:<br/>" + "<br/>".join(f"&emsp; - {line}" for line in shuffled),
        "[Propose] proposal:\n\n" + "\n".join(f"* {line.upper()}" for line in full[::-1]),
        "[propose]\nProposal:\n" + "\n".join(f"{i + 1}. **{line.replace(':', ':** ')}" for i, line in enumerate(short)),
    ]


@pytest.mark.parametrize("form", range(5))
def test_the_optimal_matching_scores_one_for_all_human_states(form):
    for data in HUMAN_GAMES:
        state = FULL.state_from_json(data)
        assert play_proposal(FULL, state, written_forms(state)[form]) == 1.0


@pytest.mark.long
def test_the_optimal_matching_scores_one_for_a_thousand_sampled_states():
    game = MatchingGame(MatchingConfig(hard_factor=0))
    for index in range(1000):
        state = game.sample_state(state_rng(11, index))
        for text in written_forms(state):
            assert play_proposal(game, state, text) == 1.0


@given(st.integers(0, 200), st.permutations(range(3)))
def test_no_legal_play_scores_above_one(index, reviewers):
    state = small_state(index)
    reward = play_proposal(
        SMALL, state, format_proposal(list(zip(reviewers, range(3), strict=True)), state.papers, state.reviewers)
    )
    assert 0.0 <= reward <= 1.0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("BLEU: Ava Li\nElectra: Daniel Nguyen", "no reviewer for GloVe; write"),
        ("BLEU: Ava Li\nBLEU: Daniel Nguyen\nGloVe: Sofia Patel", "'BLEU: Daniel Nguyen' repeats BLEU"),
        ("BLEU: Ava Li\nElectra: Ava Li\nGloVe: Sofia Patel", "'Electra: Ava Li' repeats Ava Li"),
        ("BLEU: Ava Li\nElectra: Nobody\nGloVe: Sofia Patel", "'Electra: Nobody' is unclear"),
        ("BLEU: Ava Li\nBERT: Daniel Nguyen\nGloVe: Sofia Patel", "'BERT: Daniel Nguyen' is unclear"),
        ("BLEU Ava Li", "no reviewer for Electra, GloVe; .*'Paper: Reviewer'"),
        ("Ava Li: BLEU", "no reviewer for Electra, GloVe"),
    ],
)
def test_a_bad_proposal_is_an_error_that_names_the_line(lines, words):
    step = take(SMALL.start(small_state()), "[propose] Proposal:\n" + lines)
    assert step.action == INVALID
    assert step.error is not None
    assert re.search(words, step.error), step.error


def test_a_name_that_two_reviewers_share_is_ambiguous():
    data = small_state().to_dict() | {"reviewers": ["Ava Li", "Ava Thompson", "Noah Lee"]}
    session = SMALL.start(SMALL.state_from_json(data))
    step = take(session, "[propose] Proposal:\nBLEU: Ava\nElectra: Ava Thompson\nGloVe: Noah")
    assert step.error is not None and "ambiguous" in step.error


# --- turn-taking --------------------------------------------------------------------------------------------


def test_a_message_and_a_proposal_pass_the_turn_and_an_accept_ends_the_episode():
    state = small_state()
    session = SMALL.start(state)
    assert session.seats == (0,)
    heard = take(session, "[message] hello")
    assert (session.seats, heard.observations) == ((1,), ("", "The other player said: [message] hello"))
    take(session, optimal_text(state))
    assert session.seats == (0,)
    take(session, "[accept]")
    outcome = session.outcome()
    assert (outcome.status, outcome.rewards[0], outcome.num_turns) == ("agreed", 1.0, 3)


def test_after_a_proposal_only_an_answer_is_legal_and_reject_keeps_the_turn():
    state = small_state()
    session = SMALL.start(state)
    take(session, optimal_text(state))
    refused = take(session, "[message] wait")
    assert refused.error is not None and session.seats == (1,)
    rejected = take(session, "[reject] Sorry.")
    assert session.seats == (1,)
    assert rejected.observations[0].startswith("The other player said: [reject]")
    assert take(session, "[accept]").error is not None, "a rejected proposal cannot be accepted"
    assert take(session, "[message] let us talk").error is None


def test_an_error_is_seen_by_its_author_alone_and_keeps_the_turn():
    session = SMALL.start(small_state())
    step = take(session, "hello")
    assert session.seats == (0,)
    assert step.observations[0].startswith("Error: start with [message]") and step.observations[1] == ""


def test_a_cut_turn_is_an_error_even_if_it_could_be_read():
    session = SMALL.start(small_state())
    assert take(session, "[message] hello", cut=True).error is not None


def test_limits_end_the_episode_with_their_cause():
    game = MatchingGame(MatchingConfig(size=3, hard_factor=0, max_length=4, max_errors=3))
    session = game.start(game.sample_state(state_rng(0, 0)))
    for _ in range(4):
        take(session, "[message] hm")
    assert session.outcome().status == Status.TURN_LIMIT
    session = game.start(game.sample_state(state_rng(0, 0)))
    for _ in range(3):
        take(session, "hm")
    assert (session.outcome().status, session.outcome().rewards[0]) == (Status.ERROR_LIMIT, 0.0)


def test_an_ended_episode_takes_no_turn():
    session = SMALL.start(small_state())
    session.abort(Status.CONTEXT_LENGTH)
    assert session.seats == ()
    with pytest.raises(RuntimeError, match="the episode has ended: context_length"):
        session.step(0, "[message] hello")


def test_a_seat_whose_turn_it_is_not_takes_none():
    session = SMALL.start(small_state())
    with pytest.raises(RuntimeError, match="seat 1 may not act now"):
        session.step(1, "[message] hello")
    assert session.counts.turns == 0
    with pytest.raises(RuntimeError, match="the episode is still running"):
        session.outcome()


# --- what a player may see ----------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(0, 1))
def test_an_observation_shows_scaled_visible_cells_and_nothing_else(index, seat):
    game = MatchingGame(MatchingConfig(size=4, hard_factor=0))
    state = game.sample_state(state_rng(1, index))
    rows = game.start(state).opening(seat).observation.splitlines()[2:6]
    for row, values, seen in zip(rows, state.table, state.masks[seat], strict=True):
        cells = [cell.strip() for cell in row.split("|")[1:]]
        assert cells == [str(int(v * state.scales[seat])) if s else "??" for v, s in zip(values, seen, strict=True)]


@given(st.integers(0, 300))
def test_hidden_cells_do_not_change_what_a_player_reads(index):
    state = small_state(index)
    other = np.where(state.masks[0], state.table, (state.table + 3) % 10)
    changed = MatchingState(other, state.masks, state.scales, state.best, state.papers, state.reviewers)
    assert SMALL.start(state).opening(0) == SMALL.start(changed).opening(0)


def test_unknown_prompt_set_is_refused():
    with pytest.raises(UserError, match="built-in sets: compact, default"):
        MatchingGame(MatchingConfig(prompts="nothing"))


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "size": st.sampled_from([2, 3, 8, 16]),
            "max_score": st.sampled_from([1, 9, 99, 2**31 - 1]),
            "scale_max": st.sampled_from([1.0, 2.0**31 - 1]),
            "hard_factor": st.sampled_from([0.0, 1e-300, 1.0, 1.25, 1e9]),
            "unfiltered_after": st.sampled_from([0, 1, 500, 2**31 - 1]),
        }
    )
)
def test_every_board_gives_a_state_or_is_refused_after_a_bounded_number_of_draws(keys):
    game = MatchingGame(MatchingConfig(**keys))
    refused = ""
    try:
        state = sample_state(game.config, np.random.default_rng(0), tries=1_000)
        assert game.state_from_json(state.to_dict()).best == state.best > 0
    except UserError as error:
        refused = str(error)
    assert not refused or ("game.hard_factor" in refused and "\n" not in refused)


def test_the_bound_on_draws_is_far_above_what_dialops_board_needs_and_far_below_a_wait():
    assert 30 * 2_700 < MAX_TRIES <= 100_000
