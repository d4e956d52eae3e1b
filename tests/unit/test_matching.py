"""The reviewer-matching game: sampling, views, turn-taking, scoring."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import take
from hypothesis import given
from hypothesis import strategies as st
from quick import examples

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.proposals import format_proposal
from selfplay_pipeline.games.matching.rules import (
    MatchingConfig,
    MatchingState,
    best_matching,
    check_matching,
    own_view_matching,
)
from selfplay_pipeline.games.matching.states import sample_state

HUMAN_GAMES = [
    json.loads(line) for line in Path("data/dialop/optimization_human.jsonl").read_text().splitlines() if line
]
SAMPLED_BEFORE = ["a7ef9f05ef97", "049ea688b475"]
"""Digests of sampled states; a change here changes every user's states."""
SMALL = MatchingGame(MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0))
FULL = MatchingGame()
HONEST = MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0, visibility="complementary", score_power=3)


def small_state(index: int = 0) -> MatchingState:
    return SMALL.sample_state(state_rng(0, index))


def optimum(state: MatchingState) -> str:
    return format_proposal(best_matching(state.table)[0], state.papers, state.reviewers)


def play_proposal(game: MatchingGame, state: MatchingState, text: str) -> float:
    session = game.start(state)
    proposed = take(session, text)
    assert proposed.error is None, proposed.error
    take(session, "[accept]")
    return session.outcome().rewards[0]


# --- sampling -----------------------------------------------------------------------------------------------


def test_states_of_a_seed_are_what_they_always_were_in_any_order():
    states = [
        [game.sample_state(state_rng(0, i)).to_dict() for i in range(count)] for game, count in ((FULL, 5), (SMALL, 50))
    ]
    digests = [hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12] for found in states]
    assert digests == SAMPLED_BEFORE
    assert [SMALL.sample_state(state_rng(0, i)).to_dict() for i in reversed(range(5))] == states[1][:5][::-1]


def test_the_hard_filter_leaves_at_most_four_fifths_to_one_player_alone():
    game = MatchingGame(MatchingConfig(size=3, max_score=9))
    for index in range(100):
        state = game.sample_state(state_rng(3, index))
        assert max(state.score(own_view_matching(state, seat, 5)) for seat in (0, 1)) < 0.8 * state.best


def test_cells_that_nobody_sees_hold_the_mean_and_scales_stay_in_range():
    state = FULL.sample_state(state_rng(5, 0))
    unseen = ~(state.masks[0] | state.masks[1])
    assert (state.table[unseen] == 50).all()
    assert all(1 <= scale <= 10 for scale in state.scales)


def test_a_state_does_not_keep_in_memory_what_was_drawn_with_it():
    state = MatchingGame(MatchingConfig(size=3)).sample_state(state_rng(0, 0))
    assert all(array.base is None for array in (state.table, *state.masks))


def test_the_fallback_keeps_the_state_after_so_many_that_failed_and_changes_none_that_passes_sooner():
    never, first = (MatchingGame(MatchingConfig(size=3, hard_factor=factor)) for factor in (1.25, 0))
    soon, late = (MatchingGame(MatchingConfig(size=3, unfiltered_after=after)) for after in (3, 10_001))
    kinds = set()
    for index in range(40):
        hard, state, any_state = (game.sample_state(state_rng(2, index)).to_dict() for game in (never, soon, first))
        assert late.sample_state(state_rng(2, index)).to_dict() == hard
        assert state == hard or state != any_state, "a first state that fails is not kept"
        kinds.add(state == hard)
    assert kinds == {True, False}


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


def test_a_one_sided_state_shows_every_cell_to_one_player_and_is_refused_if_it_does_not():
    game = MatchingGame(HONEST.model_copy(update={"visibility": "one_sided", "protocol": "fixed"}))
    state = game.sample_state(state_rng(0, 0))
    assert state.masks[0].all() and not state.masks[1].any()
    game.check_fits(state)
    with pytest.raises(UserError, match=r"'mask1' and 'mask2'.*game\.visibility is one_sided"):
        game.check_fits(replace(state, masks=state.masks[::-1]))


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"best_assignment_reward": 1}, "best_assignment_reward"),
        ({name: [[1] * 17] * 17 for name in ("table", "mask1", "mask2")}, "a board of 17 needs fields 'papers'"),
        ({"papers": ["a"] * 8}, "papers"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_others_survive_a_round_trip(change, words):
    assert FULL.state_from_json(HUMAN_GAMES[0]).to_dict()["table"] == HUMAN_GAMES[0]["table"]
    for data in HUMAN_GAMES[:10]:
        state = FULL.state_from_json(data).to_dict()
        assert FULL.state_from_json(state).to_dict() == state
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
        format_proposal(pairs, state.papers, state.reviewers),
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


@given(st.integers(0, 200), st.permutations(range(3)))
def test_no_legal_play_scores_above_one(index, reviewers):
    state = small_state(index)
    reward = play_proposal(
        SMALL, state, format_proposal(list(zip(reviewers, range(3), strict=True)), state.papers, state.reviewers)
    )
    assert 0.0 <= reward <= 1.0


# --- turn-taking --------------------------------------------------------------------------------------------


def test_a_message_and_a_proposal_pass_the_turn_and_an_accept_ends_the_episode():
    state = small_state()
    session = SMALL.start(state)
    assert session.seats == (0,)
    heard = take(session, "[message] hello")
    assert (session.seats, heard.observations) == ((1,), ("", "The other player said: [message] hello"))
    take(session, optimum(state))
    with pytest.raises(RuntimeError, match="the episode is still running"):
        session.outcome()
    assert session.seats == (0,)
    take(session, "[accept]")
    outcome = session.outcome()
    assert (outcome.status, outcome.rewards, outcome.num_turns) == ("agreed", (1.0, 1.0), 3)


def test_after_a_proposal_only_an_answer_is_legal_and_reject_keeps_the_turn():
    state = small_state()
    session = SMALL.start(state)
    take(session, optimum(state))
    assert take(session, "[message] wait").error is not None and session.seats == (1,)
    rejected = take(session, "[reject] Sorry.")
    assert session.seats == (1,)
    assert rejected.observations[0].startswith("The other player said: [reject]")
    assert take(session, "[accept]").error is not None, "a rejected proposal cannot be accepted"
    assert take(session, "[message] let us talk").error is None


# --- what a player may see ----------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(0, 1))
def test_an_observation_shows_scaled_visible_cells_and_nothing_else(index, seat):
    game = MatchingGame(MatchingConfig(size=4, hard_factor=0))
    state = game.sample_state(state_rng(1, index))
    rows = game.start(state).opening(seat).observation.splitlines()[2:6]
    for row, values, seen in zip(rows, state.table, state.masks[seat], strict=True):
        cells = [cell.strip() for cell in row.split("|")[1:]]
        assert cells == [str(int(v * state.scales[seat])) if s else "??" for v, s in zip(values, seen, strict=True)]


@pytest.mark.parametrize(("scale_max", "said"), [(10, "are on different scales"), (1, "are on the same scale")])
def test_the_rules_say_whether_scales_differ(scale_max, said):
    game = MatchingGame(MatchingConfig(size=3, scale_max=scale_max))
    state = game.sample_state(np.random.default_rng(1))
    for seat in (0, 1):
        assert said in game.start(state).opening(seat).system


@examples(60)
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


@pytest.mark.parametrize("pairs", [[(0, 0)], [(0, 0), (0, 1)], [(0, 1), (1, 1)], [(0, 0), (1, 2)], [(0,), (1,)], 3])
def test_pairs_that_leave_out_or_repeat_somebody_are_no_matching(pairs):
    check_matching([(0, 1), (1, 0)], 2)
    with pytest.raises(ValueError, match="is not a matching of 2 and 2"):
        check_matching(pairs, 2)
