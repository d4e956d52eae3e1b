"""`make learn`: its arms, their comparison, and when it may be said that a policy learned to cooperate by talking."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from selfplay_pipeline.config.identity import differences, flatten
from selfplay_pipeline.evaluate.states import count_shared, key_of, sample_held_out
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.metrics.bootstrap import Interval, Totals
from studies.common.arms import ARMS, MODES, MUTED, NOISE, NOISE_REWARD, PLACEBO, SELF_PLAY, WARM, Played, Study
from studies.common.compared import compare, evidence
from studies.common.verdict import Evidence, conditions, verdict


def about(value, error=0.01):
    return Interval(value=value, low=value - error, high=value + error)


def both(value, error=0.01):
    return dict.fromkeys(MODES, about(value, error))


LEARNED = Evidence(
    seeds=3,
    protocol="fixed",
    silent=both(0.0),
    before=both(-0.09),
    reward=both(0.11),
    rise=both(0.2),
    swapped=both(-0.05),
    worth_over_warm=both(0.14),
    muted=both(-0.005),
    over_muted=both(0.12),
    placebo_rise=both(0.0),
    over_placebo=both(0.2),
)
NOT_LEARNED = {
    "the script of the silence line reaches it": [{"silent": both(-0.02)}],
    "protocol is fixed": [{"protocol": "free"}],
    "with swapped messages": [{"swapped": {}}, {"swapped": both(-0.05) | {"greedy": about(0.02)}}],
    "worth of words": [{"worth_over_warm": {}}, {"worth_over_warm": both(0.005)}],
    "messages muted reaches": [{"muted": {}}, {"muted": both(-0.02)}],
    "reward is above the silence line": [
        {"reward": both(0.11, 0.12)},
        {"reward": {"sampled": about(0.11), "greedy": about(0.0)}},
    ],
    "the reward rose": [{"rise": both(0.0)}, {"rise": both(0.005)}, {"rise": both(0.2) | {"greedy": about(-0.1)}}],
    "above the training": [{"over_muted": {}}, {"over_muted": both(0.005)}],
    "did not rise": [{"placebo_rise": {}}, {"placebo_rise": both(0.0) | {"greedy": about(0.02)}}],
    "above the placebo": [{"over_placebo": {}}, {"over_placebo": both(0.2, 0.3)}],
    "more than one seed": [{"seeds": 1}],
}


def failing(found):
    return [condition.name for condition in conditions(found) if not condition.holds]


@pytest.mark.parametrize(("name", "change"), [(name, change) for name, all_ in NOT_LEARNED.items() for change in all_])
def test_it_is_said_where_every_condition_holds_and_not_where_one_does_not_which_is_named(name, change):
    assert failing(LEARNED) == [] == failing(replace(LEARNED, placebo_rise=both(-0.1), silent={}))
    assert verdict(conditions(LEARNED)) == "The policy learned to cooperate by talking: every condition holds."
    found = replace(LEARNED, **change)
    (failed,) = failing(found)
    said = verdict(conditions(found))
    assert name in failed and said.startswith("It is not shown that the policy learned to cooperate by talking")


def test_a_warm_start_that_passes_silence_talks_already_and_is_named():
    found = conditions(replace(LEARNED, before=both(-0.09) | {"greedy": about(0.03)}))
    assert [one.name for one in found if not one.holds] == ["the warm start is not above the silence line"]
    assert verdict(found).startswith("The policy learned to cooperate better by talking than its warm start, which is")
    worse = conditions(replace(LEARNED, before=both(0.03), over_muted=both(0.0)))
    assert verdict(worse).startswith("It is not shown that the policy learned to cooperate by talking")


def outcomes(seeds, **reward):
    """Evaluations of so many seeds on 200 states each, by the player's name, with `_muted` or `_swapped` behind it."""
    rng, ones = np.random.default_rng(0), np.ones(200)
    found: dict[Played, dict] = {}
    for name, mean in reward.items():
        player = name.removesuffix("_muted").removesuffix("_swapped")
        player = {"self_play": SELF_PLAY, "warm_start": WARM}.get(player, player)
        for seed in range(1, seeds + 1):
            by_mode = {
                mode: Totals.of({"reward": (mean + 0.05 * rng.normal(size=200), ones), "agreed": (ones, ones)})
                for mode in MODES
            }
            found.setdefault(Played(player, name.endswith("_muted"), name.endswith("_swapped")), {})[seed] = by_mode
    return found


TALKS = {
    "warm_start": 0.7, "warm_start_muted": 0.68, "warm_start_swapped": 0.69,
    "self_play": 0.92, "self_play_muted": 0.74, "self_play_swapped": 0.76,
}  # fmt: skip
SILENT = {"muted": 0.75, "muted_muted": 0.84, "placebo": 0.7, "placebo_muted": 0.68}


@pytest.mark.long
def test_the_muted_training_is_compared_as_it_was_trained_and_all_others_with_messages():
    players = compare(outcomes(3, **TALKS, **SILENT), {}, 200)
    rises = {name: player.rise["greedy"]["reward"].value for name, player in players.items()}
    assert rises == pytest.approx({WARM: 0, SELF_PLAY: 0.22, MUTED: 0.16, PLACEBO: 0}, abs=0.01)
    found = evidence(players, about(0.84, 0.001), "fixed")
    assert found.over_muted["sampled"].value == pytest.approx(0.92 - 0.84, abs=0.01)
    assert found.worth_over_warm["sampled"].value == pytest.approx((0.92 - 0.76) - (0.7 - 0.69), abs=0.01)
    assert found.over_placebo["sampled"].value == pytest.approx(0.22, abs=0.01)
    noisy = {NOISE if name == PLACEBO else name: player for name, player in players.items()}
    assert evidence(noisy, about(0.84, 0.001), "fixed") == found
    assert players[SELF_PLAY].muting_costs["sampled"]["reward"].value == pytest.approx(0.18, abs=0.01)
    assert failing(found) == []


@pytest.mark.long
def test_what_was_not_trained_yet_is_missing_and_arms_are_compared_over_the_seeds_that_they_share():
    found = evidence(compare(outcomes(1, **TALKS), {}, 200), about(0.84, 0.001), "fixed")
    assert (found.seeds, found.over_muted, found.placebo_rise) == (1, {}, {})
    assert len(failing(found)) == 5
    players = compare(outcomes(3, **TALKS) | outcomes(2, **SILENT), {}, 200)
    assert (players[SELF_PLAY].seeds, players[MUTED].seeds) == ([1, 2, 3], [1, 2])
    assert players[MUTED].below_self_play["sampled"]["reward"].value == pytest.approx(0.08, abs=0.01)


@pytest.mark.parametrize(("seeds", "shared"), [([1, 2], 2), ([2, 3], 1), ([3, 4], 0)])
def test_seeds_count_that_all_arms_have(seeds, shared):
    players = compare(outcomes(2, **TALKS, **SILENT), {}, 50)
    players[PLACEBO] = players[PLACEBO].model_copy(update={"seeds": seeds})
    found = evidence(players, about(0.84, 0.001), "fixed")
    assert found.seeds == shared
    assert any("more than one seed" in name for name in failing(found)) == (shared < 2)


def test_messages_that_cannot_be_altered_have_no_figures_of_listening():
    tested, untested = (Totals.of({"follows": (np.ones(states), np.ones(states))}) for states in (20, 0))
    hearing = {SELF_PLAY: {seed: {"changed": tested, "swapped": untested} for seed in (1, 2)}}
    assert [*compare(outcomes(2, **TALKS), hearing, 50)[SELF_PLAY].listening] == ["changed"]


@pytest.mark.long
def test_rewards_are_compared_with_the_silent_script_on_the_same_states_where_it_played_them():
    rng, played, silent = np.random.default_rng(1), outcomes(3, **TALKS, **SILENT), {}
    for seed in (1, 2, 3):
        hard = 0.1 * rng.normal(size=200) - 0.05  # states differ, and one seed's may be harder than those of the line
        for by_seed in played.values():
            for mode in MODES:
                rewards = by_seed[seed][mode].select(["reward"]).numerators[:, 0]
                by_seed[seed][mode] = Totals.of({"reward": (rewards + hard, np.ones(200))})
        silent[seed] = {mode: Totals.of({"reward": (0.84 + hard, np.ones(200))}) for mode in MODES}
    played[Played("own-view", False)] = silent
    unpaired = evidence(compare(played, {}, 200), about(0.84, 0.001), "fixed")
    paired = evidence(compare(played, {}, 200, "own-view"), about(0.84, 0.001), "fixed")
    assert paired.reward["sampled"].value == pytest.approx(0.92 - 0.84, abs=0.01)
    assert paired.swapped["greedy"].value == pytest.approx(0.76 - 0.84, abs=0.01)
    assert paired.muted["greedy"].value == pytest.approx(0.0, abs=0.01)
    assert paired.before["greedy"].value == pytest.approx(0.7 - 0.84, abs=0.01)
    assert unpaired.reward["sampled"].value == pytest.approx(0.92 - 0.84 - 0.05, abs=0.03)

    def width(one):
        return one.high - one.low

    assert width(paired.reward["sampled"]) < width(unpaired.reward["sampled"]) * 0.75


@pytest.fixture
def study(tmp_path):
    return Study("tiny_honest", None, iterations=4, states=20, episodes=1, work=tmp_path)


def settings(study, arm):
    return flatten(study.config(1, ARMS[arm].changes).model_dump(mode="json"))


@pytest.mark.parametrize(
    ("arm", "key", "values"),
    [
        (PLACEBO, "convert.placebo", (False, True)), (NOISE, "reward.path", (None, str(Path(NOISE_REWARD).resolve()))),
    ],
)  # fmt: skip
def test_an_arm_differs_from_self_play_in_one_key(study, arm, key, values):
    assert differences(settings(study, SELF_PLAY), settings(study, arm)) == {key: values}


def test_each_seed_can_have_a_warm_start_of_its_own(tmp_path):
    study = Study("tiny_honest", "data/coded_{seed}", iterations=4, states=20, episodes=1, work=tmp_path)
    assert [study.config(seed).model for seed in (3, 4)] == ["data/coded_3", "data/coded_4"]


@pytest.mark.parametrize(("model", "shared"), [("data/coded_{seed}", False), ("data/tiny_model", True)])
def test_a_muted_training_begins_with_the_warm_start_of_its_seed(tmp_path, monkeypatch, model, shared):
    study = Study("tiny_honest", model, iterations=4, states=20, episodes=1, work=tmp_path)
    taught = {}

    def teach(self, config, folder):
        taught[folder] = config.model
        return str(folder / "checkpoint")

    monkeypatch.setattr(Study, "_teach", teach)
    starts = [study._changes(MUTED, seed)["model"] for seed in (3, 4)]
    assert (starts[0] == starts[1]) == shared
    assert [*taught.values()] == (["data/tiny_model"] if shared else ["data/coded_3", "data/coded_4"])


def test_the_muted_arm_hears_nothing_and_has_a_rate_of_its_own(study):
    changed = differences(settings(study, SELF_PLAY), settings(study, MUTED))
    assert changed == {"game.mute": (False, True), "train.learning_rate": (3e-4, 1e-4)}


def test_the_states_of_the_comparison_are_not_those_that_are_evaluated_while_it_trains(study):
    game, config = make_game(study.config(1).game), study.config(1)
    monitored = {key_of(game, game.state_to_json(state)) for state in sample_held_out(config, study.states).states}
    assert count_shared(game, study.held_out(1), monitored) == 0


def test_each_seed_is_evaluated_on_states_of_its_own_and_all_its_arms_on_the_same(study):
    assert study.held_out(1).fingerprint != study.held_out(2).fingerprint
    of_arms = {study._job(Played("warm start", mute), 1)[1].states.fingerprint for mute in (False, True)}
    assert of_arms == {study.held_out(1).fingerprint}
