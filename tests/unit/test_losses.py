"""Where reward is lost: the three parts add up, and each scripted fault loses to its own part."""

import re
from dataclasses import astuple, dataclass
from itertools import product

import numpy as np
import pytest
from factories import BOARD, episode_records, play
from hypothesis import given

from selfplay_pipeline.games.base import HELD_OUT, Outcome, Said, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.lost_reward import Losses, known_cells, lost, notes, told_truly
from selfplay_pipeline.games.matching.names import short_titles
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.scripted import PlayerView, Sharing, propose, random_matching
from selfplay_pipeline.games.matching.teacher import Teacher
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.metrics.figures import measure

HONEST = BOARD.model_copy(update={"visibility": "complementary", "score_power": 3})
GAME = MatchingGame(HONEST)
PARTS = ("telling", "planning", "agreement")


@dataclass(frozen=True)
class Planless(Sharing):
    """Tells all that it sees as `Sharing` does, then proposes anything, and accepts anything."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        text = super().act(view, rng)
        return text if text.startswith("[message]") else propose(view, random_matching(view, rng))


@dataclass(frozen=True)
class Stubborn(Sharing):
    """Rejects whatever is proposed."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        return "[reject]" if view.pending is not None else super().act(view, rng)


def found_in(number, *players, game=GAME) -> tuple[Losses, Outcome]:
    """Where an episode of these two players on the state of this number lost its reward, and how it ended."""
    state = game.sample_state(state_rng(0, number, HELD_OUT))
    episode = play(game, state, *players, seed=number)
    outcome = episode.session.outcome()
    found = lost(state, episode.turns, game.config, agreed=outcome.status in game.goals)
    assert found is not None
    assert sum(astuple(found)) == pytest.approx(1 - outcome.rewards[0], abs=1e-12), (number, players)
    return found, outcome


@pytest.mark.parametrize(
    ("player", "only"),
    [
        (Planless(), "planning"),
        (SCRIPTED["own-view"], "planning"),  # deaf to what it was told
        (SCRIPTED["quiet"], "telling"),
        (Stubborn(), "agreement"),
        (Sharing(), None),
    ],
)
def test_each_fault_loses_to_its_own_part_alone(player, only):
    found = dict(
        zip(PARTS, np.mean([astuple(found_in(number, player, player)[0]) for number in range(40)], axis=0), strict=True)
    )
    assert only is None or found.pop(only) > 0.1
    assert set(found.values()) == {0.0}


@pytest.mark.long
def test_the_parts_of_any_two_players_add_up_and_only_planning_may_gain():
    """A plan that looked worse to its proposer may be better."""
    players = [*SCRIPTED.values(), Planless(), Stubborn(), Teacher()]
    losses = [found_in(number, *pair)[0] for number, pair in enumerate(product(players, repeat=2))]
    assert min(loss.telling for loss in losses) >= 0 and min(loss.agreement for loss in losses) >= 0
    assert min(loss.planning for loss in losses) < 0


@given(episode_records())
def test_the_figures_of_any_episode_add_up_to_what_its_reward_lacks(record):
    figures = measure(Measured(MatchingGame(BOARD), record, (0, 1)))
    parts = [figures[f"lost_to_{part}"] for part in PARTS]
    assert sum(above for above, _ in parts) == pytest.approx(1 - record.outcome.normalized_reward)
    assert {below for _, below in parts} == {1}
    of_other_rules = measure(Measured(MatchingGame(MatchingConfig()), record, (0, 1)))
    assert of_other_rules["lost_to_telling"] == (0, 0)


@given(episode_records())
def test_losses_are_unknown_if_a_subclass_has_other_rewards(record):
    outcome = record.outcome.model_copy(update={"normalized_reward": record.outcome.normalized_reward / 2})
    halved = measure(Measured(MatchingGame(BOARD), record.model_copy(update={"outcome": outcome}), (0, 1)))
    known = int(record.outcome.normalized_reward == 0)
    assert [halved[f"lost_to_{part}"][1] for part in PARTS] == [known] * 3


def test_a_seat_knows_what_it_sees_and_what_it_was_told_truly():
    state = GAME.sample_state(state_rng(0, 0, HELD_OUT))
    (row, column), *_ = np.argwhere(state.masks[0] & ~state.masks[1]).tolist()
    name, title, score = state.reviewers[row], state.papers[column], state.table[row, column]
    said = [Said(0, f"[message] {name} {title} {number}") for number in (score + 1, score)]
    before, lied_to, told = (known[1] for known in known_cells(state, said, HONEST))
    assert not before[row, column] and not lied_to[row, column] and told[row, column]
    assert told.sum() == state.masks[1].sum() + 1
    assert [told_truly(state, message) for message in said] == [set(), {(row, column)}]
    muted = HONEST.model_copy(update={"mute": True})
    assert (known_cells(state, said, muted)[-1] == np.stack(state.masks)).all(), "who hears nothing learns nothing"


def test_a_false_claim_is_marked_and_a_true_one_is_not():
    state = GAME.sample_state(state_rng(0, 0, HELD_OUT))
    row, column = np.argwhere(state.masks[0]).tolist()[0]
    hidden, unseen = np.argwhere(~state.masks[0]).tolist()[0]
    name, title, score = state.reviewers[row], short_titles(state.papers)[column], state.view(0)[row][column]
    other = f"{state.reviewers[hidden]} {short_titles(state.papers)[unseen]}"
    said = [f"{name} {title} {score + 2}", f"{name} {title} {score}", f"{name} {title} {score + 1} {other} 4"]
    for config in (HONEST, MatchingConfig()):  # by rules that are the state's, and by others
        false, true, both = notes(state, [Said(0, f"[message] {text}") for text in said], config)
        assert false.startswith(f"false: {name} {title} {score + 2} (sees {score})")
        assert "false" not in true
        assert both.startswith(f"false: {name} {title} {score + 1} (sees {score}), {other} 4 (does not see it)")


def test_values_are_points_so_that_none_is_a_share_above_1():
    """A seat may expect more than the best score, which it does not know."""
    poor = min(
        (GAME.sample_state(state_rng(0, number, HELD_OUT)) for number in range(40)), key=lambda state: state.best
    )
    (note,) = notes(poor, [Said(0, "[message] hello")], HONEST)
    expected = re.fullmatch(r"value told: the partner expects (.+) → (.+) points of its best plan", note)
    assert float(expected[1]) > poor.best, "this state shows nothing"
    assert expected[1] == expected[2]


def test_messages_show_the_value_told_and_proposals_the_value_used_if_they_say_what_was_agreed():
    state = GAME.sample_state(state_rng(0, 3, HELD_OUT))
    turns = play(GAME, state, Sharing()).turns
    told, used, accepted = notes(state, turns, HONEST)
    best = f"{state.best:.1f}"
    assert told.startswith("value told") and told.endswith(f"→ {best} points of its best plan")
    assert used == f"value used: its proposer expects {best} points of it, and {best} of its best plan"
    assert accepted == ""
    silent = [turn.model_copy(update={"proposal": None}) for turn in turns]
    assert lost(state, silent, HONEST, agreed=True) is None
    assert [bool(note) for note in notes(state, silent, HONEST)] == [True, False, False]


def test_who_heard_another_message_planned_with_that_one():
    """Seat 1 hears nothing of what seat 0 said, so that what it lacks is lost to telling, and not to planning."""
    state = GAME.sample_state(state_rng(0, 0, HELD_OUT))
    turns = play(GAME, state, Sharing()).turns
    told = known_cells(state, turns, HONEST)[1]
    swapped = [turns[0].with_extra(heard={"1": "[message] none"}), *turns[1:]]
    assert told[1].all() and (known_cells(state, swapped, HONEST)[1] == np.stack(state.masks)).all()
