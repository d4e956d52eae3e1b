"""Games for online training: what is written, and what cannot work. No torch, no verl, no server."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import BOARD, POLICY, ByteTokenizer, make_episode
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.base import MONITOR, state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.proposals import format_proposal
from selfplay_pipeline.games.matching.rules import MatchingConfig, best_matching
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.generate.episode import Episode, Reply
from selfplay_pipeline.generate.players import policy_player
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.metrics.figures import figures_of as figures_of_games
from selfplay_pipeline.metrics.figures import measure
from selfplay_pipeline.train.online import read_rows
from selfplay_pipeline.train.online_figures import figures_of, to_line
from selfplay_pipeline.train.online_states import SCHEMA, write_games

SPOKEN = MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0, max_length=12, max_errors=3, prompts="default")
"""The small board in the wording for language models."""


def state_of(number: int, seed: int = 0):
    return MatchingGame(SPOKEN).sample_state(state_rng(seed, number))


class TestGames:
    def test_one_row_a_state_with_all_that_verl_and_the_loop_need(self, tmp_path):
        games = {"num_train": 4, "num_test": 3, "seed": 5, "test_seed": 0}
        (train, test), again = (write_games(tmp_path / name, SPOKEN, **games) for name in "ab")
        assert [path.read_bytes() for path in again] == [train.read_bytes(), test.read_bytes()], "by the seed alone"
        rows = pq.read_table(train).to_pylist()
        assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
        assert len({row["state_id"] for row in [*rows, *pq.read_table(test).to_pylist()]}) == 7
        game = MatchingGame(SPOKEN)
        for number, row in enumerate(rows):
            state = game.state_from_json(json.loads(row["game_state"]))
            assert state.to_dict() == state_of(number, 5).to_dict(), "the states of `generate`"
            opening = game.start(state).opening(0)
            assert [message["content"] for message in row["prompt"]] == [opening.system, opening.observation]
            assert MatchingConfig.model_validate_json(row["extra_info"]["rules"]) == SPOKEN
            assert (row["agent_name"], row["seat"]) == ("selfplay", 0)

    def test_validation_plays_the_states_that_iterate_watches_and_none_of_evaluates(self, tmp_path):
        _, test = write_games(tmp_path, SPOKEN, num_train=1, num_test=5, seed=5, test_seed=0)
        rows = pq.read_table(test).to_pylist()
        found, game = [json.loads(row["game_state"]) for row in rows], MatchingGame(SPOKEN)
        assert found == [state.to_dict() for state in held_out_states(game, 5, 0, MONITOR).states]
        assert not any(state.to_dict() in found for state in held_out_states(game, 100, 0).states)
        assert {row["extra_info"]["split"] for row in rows} == {"monitor"}

    def test_one_row_a_player_shows_each_its_own_table(self, tmp_path):
        train, test = write_games(tmp_path, SPOKEN, num_train=2, num_test=3, seed=0, test_seed=0, per_seat=True)
        assert {row["extra_info"]["perspectives"] for row in pq.read_table(test).to_pylist()} == {"both"}
        assert pq.read_table(test).num_rows == 3
        rows = pq.read_table(train).to_pylist()
        assert [(row["extra_info"]["index"], row["seat"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        session = MatchingGame(SPOKEN).start(state_of(0))
        assert [row["prompt"][1]["content"] for row in rows[:2]] == [session.opening(p).observation for p in (0, 1)]
        assert rows[0]["game_state"] == rows[1]["game_state"]


COMPACT = BOARD.model_copy(update={"prompts": "compact"})
"""A board whose prompts fit into the tiny model's context."""


class TestRefusals:
    """What cannot work is said in one line before anything is written or played."""

    def train_online(self, folder, *options, **sections):
        config = {"game": COMPACT.model_dump(mode="json"), "generate": {"episodes_per_state": 5}} | sections
        (folder / "own.yaml").write_text(json.dumps(config))
        arguments = ["--config", str(folder / "own.yaml"), "--model", "data/tiny_model", "--set", "device=cpu"]
        done = CliRunner().invoke(app, ["train-online", *arguments, "--output", str(folder / "out"), *options])
        assert done.exit_code == 2, done.output
        assert not (folder / "out").exists()
        return done.stderr

    @pytest.mark.parametrize("per_seat", [None, False, True])
    def test_an_update_that_the_processes_cannot_share(self, per_seat, tmp_path):
        options = ()
        if per_seat is not None:
            write_games(tmp_path, COMPACT, num_train=9, num_test=2, seed=0, test_seed=0, per_seat=per_seat)
            options = ("--games", str(tmp_path))
        rows = 15 if per_seat else 30
        said = self.train_online(
            tmp_path,
            *options,
            train={"gpus_per_node": 4},
            online={"states_per_step": 3},
            evaluate={"monitor_states": 2},
        )
        assert f"train.nodes × train.gpus_per_node: 4 processes cannot share a step's {rows} rows" in said
        assert "make online.states_per_step a multiple of 4" in said

    @pytest.mark.parametrize("key", ["data.train_batch_size", "actor_rollout_ref.rollout.n", "trainer.save_freq"])
    def test_keys_of_verl_that_the_training_sets_itself(self, key, tmp_path):
        assert "the trainer sets this key itself" in self.train_online(tmp_path, train={"overrides": [f"{key}=4"]})

    def test_an_estimator_with_which_an_episode_would_count_more_than_once(self, tmp_path):
        said = self.train_online(tmp_path, train={"overrides": ["algorithm.adv_estimator=rloo"]})
        assert "only with grpo an episode counts once" in said

    @pytest.mark.parametrize("file", ["train", "test"])
    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("game_state", ["{", "{}", "[]", None]),
            ("seat", [7, None]),
            ("perspectives", ["none", "one"]),
            ("rules", ["{", None]),
            ("seed", [None]),
        ],
    )
    def test_a_row_that_cannot_be_played(self, file, field, values, tmp_path):
        path = write_games(tmp_path, COMPACT, num_train=9, num_test=2, seed=0, test_seed=0)[file == "test"]
        for value in values:
            rows = pq.read_table(path).to_pylist()
            (rows[1] if field in rows[1] else rows[1]["extra_info"])[field] = value
            spoilt = tmp_path / f"spoilt_{path.name}"
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), spoilt)
            with pytest.raises(UserError) as refused:
                read_rows(COMPACT, spoilt)
            assert str(refused.value).startswith(f"{spoilt}: row 1: field '{field}'")

    def test_games_whose_validation_would_use_states_of_evaluate(self, tmp_path):
        _, test = write_games(tmp_path, COMPACT, num_train=9, num_test=2, seed=0, test_seed=0)
        rows = pq.read_table(test).to_pylist()
        for row in rows:
            row["extra_info"]["split"] = "test"
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), test)
        said = self.train_online(tmp_path, "--games", str(tmp_path))
        assert "test.parquet: its states are not validation states" in said


@pytest.mark.long
def test_over_two_thousand_random_episodes_no_hidden_cell_reaches_a_player_but_through_the_partners_words():
    """A player's tokens are the same whatever stands in the cells that it does not see.

    The same words are played on a state and on one whose cells hidden from a player hold other scores; what the
    player is given to read must not differ by a token.
    """
    chat, game, rng = ChatTokenizer(ByteTokenizer()), MatchingGame(BOARD), np.random.default_rng(0)
    compared = 0
    states = [game.sample_state(state_rng(0, number)) for number in range(500)]
    for number in range(2_000):
        state, seat = states[number // 2 % len(states)], number % 2
        hidden = ~state.masks[seat]
        table = np.where(hidden, rng.integers(0, 10, state.table.shape), state.table)
        best = best_matching(table)[1]
        if best <= 0:
            continue
        data = state.to_dict() | {"table": table.tolist(), "best_assignment_reward": int(best)}
        other = game.state_from_json(data)
        compared += bool((table != state.table).any())
        words = [random_words(rng, state) for _ in range(int(rng.integers(1, 7)))]
        assert read_by(seat, chat, game, state, words) == read_by(seat, chat, game, other, words)
    assert compared > 1_800


def random_words(rng, state) -> str:
    proposal = format_proposal(tuple(enumerate(rng.permutation(3).tolist())), state.papers, state.reviewers)
    message = f"[message] {state.reviewers[0]} {int(rng.integers(10))}"
    return str(rng.choice([message, proposal, proposal, "[accept]", "[reject]", "no tag"]))


def read_by(seat, chat, game, state, words) -> list[int]:
    """The player's prompt after these words, in the seats that offline and online play sit in."""
    policy = policy_player(engine=None, chat=chat, policy=POLICY, context_length=1_000_000)
    episode = Episode(game, state, [policy, policy], "game", (0, 0, 0))
    for text in words:
        if episode.session.status is not None:
            break
        episode.take_turn(episode.session.seats[0], Reply(text, False, "stop"))
    return episode.seats[seat].stream.prompt()


def test_ratios_of_figures_are_put_together_and_verls_names_taken_off():
    data = {
        "val-core/dialop_matching_selfplay/reward/mean@1": 0.4, "val-aux/num_turns/min": 2, "selfplay/told": 1.0,
        "selfplay/per_told": 2.0, "actor/pg_loss": 0.25, "actor/nothing": float("nan"), "note": "text",
    }  # fmt: skip
    held_out = {"reward": 0.5, "told": 3.0, "per_told": 4.0, "reward_if_agreed": 0.0, "per_reward_if_agreed": 0.0}
    assert to_line(3, data, held_out) == {
        "step": 3, "held_out/reward": 0.5, "held_out/told": 0.75, "held_out/reward_if_agreed": None,
        "selfplay/told": 0.5, "actor/pg_loss": 0.25,
    }  # fmt: skip


def test_figures_of_an_episode_become_those_of_a_validation():
    game, record = MatchingGame(BOARD), make_episode(3)
    line = to_line(0, {}, figures_of(record, game))
    for name, (above, below) in measure(Measured(game, record, (0, 1))).items():
        expected = (above / below if below else None) if figures_of_games(game)[name].below else float(above)
        assert name == "reward" or line[f"held_out/{name}"] == pytest.approx(expected), name
