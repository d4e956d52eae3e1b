"""The lines of play without words: sampled posteriors equal sums over all states, and players reach the lines."""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import selfplay
from factories import play

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.silence import compute_lines, line_of
from selfplay_pipeline.games.base import HELD_OUT, Game, state_rng
from selfplay_pipeline.games.matching.rules import VISIBLE, MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.states import _best, draw_masks, draw_scores, sample_state
from selfplay_pipeline.games.matching.wordless import (
    REDRAWN,
    Posterior,
    Readings,
    Tables,
    best_plans,
    draws_for,
    own_view_plans,
    passes_filter,
    values_of,
    wordless_rewards,
)
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.silence import STORED, THRESHOLDS, Line, LinesFile, hashes_of
from selfplay_pipeline.metrics.figures import talk_score

TWO = {"size": 2, "scale_max": 1}
CELLS = {
    "scores 0 and 1": MatchingConfig(**TWO, max_score=1, hard_factor=0),
    "scores 0 and 1, filtered": MatchingConfig(**TWO, max_score=1, hard_factor=1),
    "scores 0 to 2": MatchingConfig(**TWO, max_score=2, hard_factor=0),
    "scores 0 to 2, filtered": MatchingConfig(**TWO, max_score=2, hard_factor=1.25),
    "honest": MatchingConfig(**TWO, max_score=2, hard_factor=0, visibility="complementary", score_power=3),
    "skewed, filtered": MatchingConfig(**TWO, max_score=2, hard_factor=1.1, score_power=2),
}
TINY = MatchingConfig(size=3, max_score=9, scale_max=1)
ByView = dict[tuple[bytes, bytes], tuple[float, Tables]]


def sample(config: MatchingConfig, count: int) -> list[MatchingState]:
    return [sample_state(config, state_rng(11, index, HELD_OUT)) for index in range(count)]


def posterior_of_all(config: MatchingConfig) -> ByView:
    """By view of player 0: its chance, and the mean of table / best, from the sum over all 2×2 states."""
    power, top = 1 / config.score_power, config.max_score + 1
    scores = np.array(list(product(range(top), repeat=4))).reshape(-1, 2, 2)
    chances = (((scores + 1) / top) ** power - (scores / top) ** power).prod(axis=(1, 2))
    every_mask = np.array(list(product([False, True], repeat=4))).reshape(-1, 2, 2)
    sums: dict[tuple[bytes, bytes], list[tuple[float, Tables]]] = {}
    for one, other in product(every_mask, every_mask):
        if config.visibility == "complementary":
            if (one == other).any():
                continue
            masks_chance = 1 / len(every_mask)
        else:
            seen = int(one.sum() + other.sum())
            masks_chance = VISIBLE**seen * (1 - VISIBLE) ** (8 - seen)
        tables = np.where(one | other, scores, round(config.mean_score)).astype(float)
        best, hard = passes_filter(
            tables, (np.broadcast_to(one, tables.shape), np.broadcast_to(other, tables.shape)), config
        )
        for table, value, chance in zip(tables[hard], best[hard], chances[hard], strict=True):
            view = (one.tobytes(), np.where(one, table, -1).tobytes())
            sums.setdefault(view, []).append((chance * masks_chance, table / value))
    total = sum(chance for found in sums.values() for chance, _ in found)
    return {
        view: (
            sum(chance for chance, _ in found) / total,
            np.average([share for _, share in found], axis=0, weights=[chance for chance, _ in found]),
        )
        for view, found in sums.items()
    }


def sampled_posterior(state: MatchingState, config: MatchingConfig, draws: int) -> Tables:
    """The posterior of player 0, mean of 50 chains."""
    shares = Posterior([(state, 0)] * 50, config, np.random.default_rng(0)).mean_shares(draws)
    return np.asarray(shares.mean(axis=0))


@pytest.mark.long
@pytest.mark.parametrize("config", CELLS.values(), ids=CELLS.keys())
def test_the_posterior_and_the_line_equal_sums_over_all_states(config: MatchingConfig) -> None:
    exact = posterior_of_all(config)
    for state in sample(config, 4):
        mask = state.masks[0]
        expected = exact[mask.tobytes(), np.where(mask, state.table, -1.0).tobytes()][1]
        assert sampled_posterior(state, config, 100) == pytest.approx(expected, abs=0.05)
    line = sum(chance * values_of(share[None], best_plans(share[None]))[0] for chance, share in exact.values())
    rewards = wordless_rewards(sample(config, 60), config, np.random.default_rng(0), 100)["silence"]
    assert rewards.mean() == pytest.approx(line, abs=4 * rewards.std() / len(rewards) ** 0.5 + 0.004)


@pytest.mark.parametrize(("size", "line"), [(2, 0.662), (3, 0.543), (4, 0.475)])
def test_silence_of_one_sided_states_is_the_reward_of_any_fixed_plan(size: int, line: float) -> None:
    """The lines were counted on 20,000 states or more; no other play without words exists."""
    config = MatchingConfig(
        size=size, max_score=9, score_power=3, scale_max=1, hard_factor=0, visibility="one_sided", protocol="fixed"
    )
    states = sample(config, 1500)
    found = wordless_rewards(states[:60], config, np.random.default_rng(0), 300)
    assert [*found] == ["silence"]
    assert found["silence"].mean() == pytest.approx(line, abs=0.01)
    fixed_plan = [np.trace(state.table) / state.best for state in states]
    assert np.mean(fixed_plan) == pytest.approx(line, abs=4 * np.std(fixed_plan) / 1500**0.5)


@pytest.mark.parametrize("name", ["scores 0 to 2", "honest"])
def test_a_line_of_few_draws_promises_no_more_than_the_best(name: str) -> None:
    config = CELLS[name]
    exact, states = posterior_of_all(config), sample(config, 150)
    line = sum(chance * values_of(share[None], best_plans(share[None]))[0] for chance, share in exact.values())
    for draws in (1, 4):
        rewards = wordless_rewards(states, config, np.random.default_rng(1), draws)["silence"]
        assert rewards.mean() < line + 3 * rewards.std() / len(rewards) ** 0.5 + 1e-9


def test_on_each_board_a_hidden_cell_is_drawn_anew_equally_often() -> None:
    for factor in (1.25, 0.0):
        boards = [TINY.model_copy(update={"size": size, "hard_factor": factor}) for size in (3, 4, 5, 8)]
        assert len({draws_for(board) / (board.size**2 if factor else 1) for board in boards}) == 1
    assert draws_for(TINY) > draws_for(TINY.model_copy(update={"hard_factor": 0.0}))


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_a_step_of_a_chain_draws_as_many_cells_anew_on_each_board(size: int) -> None:
    """Counted by what the partner sees, where a filter is on that every state passes."""
    config = TINY.model_copy(update={"size": size, "hard_factor": 1e-9})
    chains = Posterior([(state, 0) for state in sample(config, 400)], config, np.random.default_rng(0))
    before, changed = chains.partners.copy(), []
    for _ in range(10):
        chains.mean_shares(1)
        changed.append((chains.partners != before).sum() / len(before))
        before = chains.partners.copy()
    assert np.mean(changed) == pytest.approx(min(size**2, REDRAWN) / 2, rel=0.05), "half of them come out as they were"


def test_chains_agree_with_rejection_where_the_filter_is_on() -> None:
    rng = np.random.default_rng(0)
    for state in sample(TINY, 3):
        own = np.broadcast_to(state.masks[0], (40_000, 3, 3))
        seen = draw_masks(TINY, (40_000, 2, 3, 3), rng)[:, 1]
        drawn = np.where(seen, draw_scores(TINY, own.shape, rng), TINY.mean_score)
        tables = np.where(own, state.table, drawn).astype(float)
        best, hard = passes_filter(tables, (own, seen), TINY)
        rejection = (tables[hard] / best[hard, None, None]).mean(axis=0)
        assert sampled_posterior(state, TINY, 200) == pytest.approx(rejection, abs=0.03)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_states_pass_the_filter_as_they_do_when_they_are_sampled(size: int) -> None:
    config = TINY.model_copy(update={"size": size, "max_score": 3, "hard_factor": 1.1})
    rng = np.random.default_rng(0)
    masks = draw_masks(config, (300, 2, size, size), rng)
    tables = np.where(masks.any(axis=1), draw_scores(config, (300, size, size), rng), config.mean_score)
    best, hard = passes_filter(tables.astype(float), (masks[:, 0], masks[:, 1]), config)
    expected = [_best(table, mask, config.mean_score, 1.1) for table, mask in zip(tables, masks, strict=True)]
    assert [(value, bool(kept)) for value, kept in zip(best, hard, strict=True)] == expected
    assert 0 < hard.sum() < 300


def test_a_view_is_read_as_often_as_its_scores_and_scales_occur() -> None:
    config = MatchingConfig(size=2, max_score=5, scale_max=3, hard_factor=0, score_power=2)
    state = MatchingState(np.array([[3, 1], [4, 5]]), (np.array([[1, 1], [0, 0]], bool),) * 2, (1.7, 1.7), 8, (), ())
    rng = np.random.default_rng(0)
    scores, scales = draw_scores(config, (300_000, 2), rng), rng.uniform(1, 3, (300_000, 1))
    alike = scores[((scores * scales).astype(int) == [5, 1]).all(axis=1)]
    readings = Readings.of(state, 0, config)
    drawn = np.array([readings.draw(rng) for _ in range(5_000)])
    for score in range(6):
        assert (drawn == score).mean(axis=0) == pytest.approx((alike == score).mean(axis=0), abs=0.03)


def test_the_true_scores_are_among_the_readings_of_dialops_views() -> None:
    config = MatchingConfig(hard_factor=0)
    for state in sample(config, 20):
        readings = Readings.of(state, 0, config)
        true = state.table[state.masks[0]]
        assert ((readings.first <= true) & (true <= readings.last)).all(axis=1).any()
        assert readings.chances.sum() == pytest.approx(1)


# --- pass and counter ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Board:
    """A 2×2 state of an enumeration: its chance, and its views as hashable values."""

    state: MatchingState
    chance: float
    views: tuple[bytes, bytes]


def every_board(config: MatchingConfig) -> list[Board]:
    """Returns all states of an unfiltered 2×2 configuration whose masks are complementary."""
    power, top = 1 / config.score_power, config.max_score + 1
    found = []
    for cells, seen in product(product(range(top), repeat=4), product([False, True], repeat=4)):
        table, mask = np.array(cells).reshape(2, 2), np.array(seen).reshape(2, 2)
        best = int(max(np.trace(table), np.trace(table[::-1])))
        if best:
            chance = float((((table + 1) / top) ** power - (table / top) ** power).prod())
            views = tuple(np.where(one, table, -1).tobytes() for one in (mask, ~mask))
            found.append(Board(MatchingState(table, (mask, ~mask), (1, 1), best, (), ()), chance, views))
    total = sum(board.chance for board in found)
    return [replace(board, chance=board.chance / total) for board in found]


def expectations(boards: list[Board], knows: Callable[[Board], Hashable]) -> dict[Hashable, Tables]:
    """Returns the expected reward of both plans by what a player knows of a state."""
    sums: dict[Hashable, Tables] = {}
    for board in boards:
        table = board.state.table
        rewards = np.array([np.trace(table), np.trace(table[::-1]), board.state.best]) / board.state.best
        sums[knows(board)] = sums.get(knows(board), np.zeros(3)) + board.chance * rewards
    return {known: (found / found[2])[:2] for known, found in sums.items()}


def own_view_plan(board: Board, seat: int, config: MatchingConfig) -> int:
    """Returns 0 for the plan of the main diagonal, 1 for the other one."""
    plans = own_view_plans(board.state.table[None], board.state.masks[seat][None], config)
    return int(plans[0, 0])


def enumerated(config: MatchingConfig) -> tuple[Tables, float]:
    """Returns the lines `pass`, at each threshold, and `counter`, from sums over all states; seat 0 is first."""
    boards = every_board(config)
    first, second = (expectations(boards, lambda board, seat=seat: board.views[seat]) for seat in (0, 1))
    told = expectations(boards, lambda board: (board.views[1], own_view_plan(board, 0, config)))
    passing, counter = np.zeros(len(THRESHOLDS)), 0.0
    for board in boards:
        table = board.state.table
        rewards = np.array([np.trace(table), np.trace(table[::-1])]) / board.state.best
        own, partners = first[board.views[0]], second[board.views[1]]
        proposes = own.max() >= THRESHOLDS
        passing += board.chance * np.where(proposes, rewards[own.argmax()], rewards[partners.argmax()])
        counter += board.chance * rewards[told[board.views[1], own_view_plan(board, 0, config)].argmax()]
    return passing, counter


@pytest.mark.long
def test_pass_and_counter_equal_sums_over_all_states() -> None:
    config = CELLS["honest"]
    passing, counter = enumerated(config)
    found = wordless_rewards(sample(config, 1500), config, np.random.default_rng(0), 400)
    for number in range(0, len(THRESHOLDS), 6):
        rewards = found["pass"][:, number]
        assert rewards.mean() == pytest.approx(passing[number], abs=4 * rewards.std() / 1500**0.5 + 0.002)
    rewards = found["counter"]
    assert rewards.mean() == pytest.approx(counter, abs=4 * rewards.std() / 1500**0.5 + 0.002)
    assert counter > passing.max() > passing[0] + 0.01


def test_a_view_that_no_state_of_the_rules_agrees_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfplay_pipeline.games.matching.wordless.MAX_ROUNDS", 3)
    seen = np.ones((3, 3), bool)
    state = MatchingState(np.eye(3, dtype=int) * 9, (seen, ~seen), (1.0, 1.0), 27, (), ())
    with pytest.raises(UserError, match=r"none passed the hard filter with what a seat sees"):
        Posterior([(state, 0)], TINY, np.random.default_rng(0))


def test_the_threshold_is_chosen_on_other_states_than_it_is_measured_on() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0.5, 0.1, (200, len(THRESHOLDS)))
    assert noise.mean(axis=0).max() > 0.51, "the best of many equal means looks better"
    assert line_of(noise).value == pytest.approx(0.5, abs=0.015)
    noise[:, 7] += 0.3
    line = line_of(noise)
    assert line.threshold == pytest.approx(THRESHOLDS[7]) and line.value == pytest.approx(0.8, abs=0.02)


def free(name: str, **changes: Any) -> Game:
    """Returns the game of a built-in configuration in the free protocol."""
    options = {f"game.{key}": value for key, value in changes.items()}
    return make_game(load_config(name, {"game.protocol": "free"} | options).game)


@pytest.mark.parametrize(
    ("name", "episodes"),
    [
        ("tiny_bargaining", 1000),
        ("tiny_honest", 150),
        ("tiny", 60),
    ],
)
@pytest.mark.parametrize(("player", "line"), [("proposing", "silence"), ("passing", "pass"), ("countering", "counter")])
@pytest.mark.long
def test_scripted_players_reach_the_lines_in_muted_play(name: str, episodes: int, player: str, line: str) -> None:
    game = free(name, mute=True)
    played = [play(game, game.sample_state(state_rng(21, number)), player, seed=number) for number in range(episodes)]
    rewards = [np.mean(episode.session.outcome().rewards) for episode in played]
    error = float(np.std(rewards) / episodes**0.5)
    assert np.mean(rewards) == pytest.approx(game.wordless[line].value, abs=3.5 * error + 0.002)


# --- the stored lines -----------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["tiny", "tiny4x4", "tiny_honest", "studies/planner/4x4.yaml", "default", "tiny_bargaining"]
)
def test_built_in_configurations_and_studies_come_with_their_lines(name: str) -> None:
    game = free(name)
    assert game.silence is not None and 0 < game.silence.standard_error < 0.003
    expected = ["silence"] if name == "default" else ["silence", "pass", "counter"]
    assert list(game.wordless) == expected, "on 8×8 no drawn state agrees with a proposal"
    assert all(line.value >= game.silence.value for line in game.wordless.values()), "actions tell something"
    assert all(line.standard_error < 0.007 for line in game.wordless.values())


@pytest.mark.parametrize("name", ["tiny_honest", "tiny_bargaining"])
def test_in_the_fixed_protocol_silence_is_the_one_line_and_a_bound(name: str) -> None:
    game = free(name)
    fixed = make_game(load_config(name, {"game.protocol": "fixed"}).game)
    assert list(fixed.wordless) == ["silence"] and fixed.silence == game.silence
    assert fixed.silence_is_bound and not game.silence_is_bound


@pytest.mark.parametrize("name", [pytest.param("tiny_honest", marks=pytest.mark.long), "tiny_bargaining"])
def test_stored_lines_are_what_the_command_computes(name: str) -> None:
    game = free(name)
    found = compute_lines(game, 200, seed=3)
    assert list(found) == list(game.wordless)
    for line, stored in zip(found.values(), game.wordless.values(), strict=True):
        assert line.value == pytest.approx(stored.value, abs=4 * line.standard_error)


def test_a_line_is_of_the_states_and_the_reward_whatever_else_is_configured() -> None:
    honest = load_config("tiny_honest", {}).game
    muted = honest.model_copy(update={"mute": True, "max_length": 7, "prompts": "default"})
    assert make_game(muted).silence == make_game(honest).silence
    assert make_game(honest.model_copy(update={"score_power": 2})).silence is None
    planning = load_config("tiny_planning", {}).game
    assert make_game(planning.model_copy(update={"max_searches": 2})).silence == make_game(planning).silence


@pytest.mark.parametrize("size", [2, 3])
def test_one_sided_states_find_their_line_although_they_need_the_fixed_protocol(size: int) -> None:
    game = make_game(load_config("smollm2", {"game.size": size}).game)
    assert game.silence_is_bound and game.silence is not None


def test_the_command_stores_a_line_that_the_configuration_finds_again(here: Path) -> None:
    Path("mine.yaml").write_text("base: tiny_honest\ngame:\n  size: 2\n  max_score: 8\n  protocol: free\n")
    for seed in ("1", "2"):
        done = selfplay("game", "silence", "--config", "mine.yaml", "--num-states", "20", "--seed", seed)
        assert done.returncode == 0, done.stderr
    (stored,) = LinesFile.read(STORED).entries
    assert make_game(load_config("mine.yaml", {}).game).wordless == stored.lines
    assert list(stored.lines) == ["silence", "pass", "counter"]
    assert all(f"{name} {line}, " in done.stdout for name, line in stored.lines.items())
    assert make_game(load_config("tiny", {}).game).silence is not None, "the built-in ones are there too"


MINE = """from typing import Literal
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig

class MineConfig(MatchingConfig):
    name: Literal["mine"] = "mine"
    size: int = 2
    max_score: int = 8
    hard_factor: float = 0

class Mine(MatchingGame):
    name, settings = "mine", MineConfig
"""


def test_lines_of_an_own_game_are_those_of_its_code(here: Path) -> None:
    Path("mine.py").write_text(MINE)
    done = selfplay("game", "silence", "--game", "mine.py", "--num-states", "20")
    assert done.returncode == 0, done.stderr
    (stored,) = LinesFile.read(STORED).entries
    config = MatchingConfig().model_copy(update=stored.game)
    assert list(stored.code) == ["path"] and stored.code == hashes_of(config.code())
    Path("mine.py").write_text(MINE + "# other rules\n")
    assert stored.code != hashes_of(config.code())
    again = selfplay("game", "silence", "--game", "mine.py", "--num-states", "4")
    assert again.returncode == 0, "those of 20 states are of other code"
    assert [entry.code == hashes_of(config.code()) for entry in LinesFile.read(STORED).entries] == [False, True]


def test_lines_from_more_states_are_kept(here: Path) -> None:
    Path("mine.yaml").write_text("base: tiny_honest\ngame:\n  size: 2\n")
    few = ("game", "silence", "--config", "mine.yaml", "--num-states")
    assert selfplay(*few, "20").returncode == 0
    stored = STORED.read_text()
    done = selfplay(*few, "4")
    assert done.returncode == 2 and "lines of this configuration from 20 states" in done.stderr, done.stderr
    assert STORED.read_text() == stored
    assert selfplay(*few, "21").returncode == 0
    assert [line.states for entry in LinesFile.read(STORED).entries for line in entry.lines.values()] == [21] * 3


def test_a_line_of_fewer_states_does_not_replace_the_one_that_a_configuration_comes_with(here: Path) -> None:
    game = make_game(load_config("tiny_honest", {}).game)
    own = game.wordless
    entry = {"game": game.config.model_dump(mode="json"), "lines": {"silence": {"value": 0.5, "standard_error": 0.1}}}
    STORED.parent.mkdir()
    for states, expected in ((20, own["silence"].value), (10**9, 0.5)):
        entry["lines"]["silence"]["states"] = states
        STORED.write_text(json.dumps({"entries": [entry]}))
        found = make_game(load_config("tiny_honest", {}).game).silence
        assert found is not None and found.value == expected


def test_a_stored_line_of_unknown_keys_is_passed_over_and_one_that_is_damaged_is_refused(here: Path) -> None:
    STORED.parent.mkdir()
    line = {"value": 0.5, "standard_error": 0.1, "states": 2}
    entry = {"game": {"name": "matching", "colour": "red"}, "lines": {"silence": line}}
    STORED.write_text(json.dumps({"entries": [entry]}))
    assert make_game(MatchingConfig()).silence != Line(**line), "of another version, perhaps"
    STORED.write_text('{"entries": [{"game": {}}]}')
    with pytest.raises(UserError, match=r"data/silence\.json: field 'entries\.0\.lines': "):
        _ = make_game(MatchingConfig()).silence
    with pytest.raises(UserError, match=r"^game\.unfiltered_after: "):
        wordless_rewards([], MatchingConfig(unfiltered_after=10_001), np.random.default_rng(0), 1)


def test_the_talk_score_is_0_at_silence_and_1_at_the_optimum() -> None:
    assert [talk_score(reward, 0.8) for reward in (0.8, 0.9, 1.0)] == pytest.approx([0, 0.5, 1])
    assert talk_score(0.7, 0.8) == pytest.approx(-0.5)
    assert talk_score(1.0, 1.0) == talk_score(0.5, 1.0) == 0, "nothing is left to talk for"
