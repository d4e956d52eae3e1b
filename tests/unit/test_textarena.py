"""TextArena's environments play as games: in six of them, and with a clear line where one cannot be played."""

import json
import random
import re

import numpy as np
import pytest
from command import selfplay
from quick import long_but

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.doctor.game_check import check_game
from selfplay_pipeline.games import registry, seeded
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.turn_session import Known
from selfplay_pipeline.generate.read_records import parse_episode

textarena = pytest.importorskip("textarena", reason="the extra textarena is not installed")
SEATS = {
    "TicTacToe-v0": 2,
    "KuhnPoker-v0": 2,
    "IteratedRockPaperScissors-v0": 2,
    "SimpleNegotiation-v0": 2,
    "ThreePlayerIPD-v0": 3,
    "Secretary-v0": 1,
}
"""Number of seats of each environment; the first three are zero-sum."""
ZERO_SUM = [*SEATS][:3]
MOVES = {
    "TicTacToe-v0": "[4]",
    "KuhnPoker-v0": "[check]",
    "IteratedRockPaperScissors-v0": "[rock]",
    "SimpleNegotiation-v0": "[Accept]",
    "ThreePlayerIPD-v0": "[1 defect]",
    "Secretary-v0": "[continue]",
}
"""A move of each environment."""


def game_of(env, **further):
    kind = registry.find("textarena")
    return kind(kind.settings(name="textarena", env=env, **further))


def drawn(game, number=0):
    return game.sample_state(np.random.default_rng(number))


def turn(game, session, rng):
    seat = session.seats[0]
    return session.step(seat, game.players["bracketed"].act(game.view(session, seat), rng))


def played(game, number):
    """Steps and outcome of an episode of the scripted player."""
    session, rng, steps = game.start(drawn(game, number)), np.random.default_rng(number), []
    while session.seats:
        steps.append(turn(game, session, rng))
    return steps, session.outcome()


def record(game, state, outcome, seats):
    policy = {"checkpoint": "", "iteration": 0, "engine": "none", "temperature": 1.0, "max_new_tokens": 1}
    line = {
        "episode_id": "one", "group_index": 0, "episode": 0, "seed": 0, "game": "textarena", "policy": policy,
        "players": ["bracketed"] * seats, "state": game.state_to_json(state), "turns": [], "trajectories": [],
    }  # fmt: skip
    return json.dumps(line | {"outcome": outcome}).encode()


@pytest.mark.parametrize("env", long_but({"KuhnPoker-v0", "TicTacToe-v0"}, SEATS))
def test_an_environment_passes_the_check_of_games(env):
    game = game_of(env)
    assert len(game.roles) == SEATS[env]
    findings = check_game(game, num_states=2)
    assert [finding for finding in findings if finding.passed is False] == []
    unchecked = [finding.check for finding in findings if finding.passed is None]
    assert unchecked == ["illegal turns change nothing", "nothing hidden is told"]


@pytest.mark.parametrize("env", SEATS)
def test_a_tiny_model_can_learn_an_environment_whose_moves_are_single_tokens_and_whose_episodes_it_can_hold(env):
    from selfplay_pipeline.warm_start.tiny_model import CONTEXT_LENGTH, build_tokenizer

    game = game_of(env)
    lesson, short = game.lessons["self-play"], game.lessons["short"]
    (whole,), (part,) = (taught.stages[0].plays for taught in (lesson, short))
    assert whole.players == part.players == ("bracketed",) * SEATS[env]
    assert short.words == lesson.words and part.episodes < whole.episodes
    tokenizer = build_tokenizer(lesson.words)
    assert len(tokenizer.encode(MOVES[env])) == 1
    for number in range(100, 104):
        session, rng = game.start(drawn(game, number)), np.random.default_rng(number)
        while session.seats:
            turn(game, session, rng)
        for seat in range(SEATS[env]):
            opening, view = session.opening(seat), game.view(session, seat)
            frame = 8 * (1 + len(view.read) + len(view.said))  # at most, of each message
            texts = "".join([opening.system, *view.read, *view.said])
            assert len(tokenizer.encode(texts)) + frame < CONTEXT_LENGTH


def test_the_scripted_player_repeats_a_move_unless_it_was_refused():
    play, rng = game_of("Secretary-v0").players["bracketed"].act, np.random.default_rng(0)
    asked, next_one = "[accept] or [continue]", "The current value is 0.5."
    again = [play(Known(0, (asked, next_one), ("[continue]",)), rng) for _ in range(64)]
    assert set(again) == {"[accept]", "[continue]"}
    refused = "Player 0 attempted an invalid move. Reason: [continue] or [accept]."
    assert {play(Known(0, (asked, refused), ("[continue]",)), rng) for _ in range(64)} == {"[accept]"}


def test_episodes_that_take_turns_in_one_process_do_not_disturb_each_other():
    game = game_of("KuhnPoker-v0")  # deals cards from Python's global generator in the midst of an episode
    alone = [played(game, number) for number in range(4)]
    random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    sessions = [game.start(drawn(game, number)) for number in range(4)]
    rngs, steps = [np.random.default_rng(number) for number in range(4)], [[] for _ in sessions]
    while any(session.seats for session in sessions):
        for session, rng, found in zip(sessions, rngs, steps, strict=True):
            if session.seats:
                found.append(turn(game, session, rng))
    assert [(one, session.outcome()) for one, session in zip(steps, sessions, strict=True)] == alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("env", ZERO_SUM)
def test_zero_sum_rewards_keep_their_order_and_add_up_to_one(env):
    outcomes = [played(game_of(env), number)[1] for number in range(6)]
    assert {outcome.status for outcome in outcomes} == {seeded.ENDED}
    for outcome in outcomes:
        assert sum(outcome.decision) == 0 and sum(outcome.rewards) == 1
        assert outcome.rewards == tuple((value + 1) / 2 for value in outcome.decision)
    assert len({outcome.rewards for outcome in outcomes}) > 1


def test_a_repeated_invalid_move_loses_and_the_first_one_is_answered():
    session = game_of("TicTacToe-v0").start(drawn(game_of("TicTacToe-v0")))
    first = session.step(0, "[99]")
    assert first.error_kind == seeded.REFUSED and "invalid move" in first.observations[0] and session.seats == (0,)
    assert first.observations[1] == ""
    second = session.step(0, "[99]")
    assert second.error_kind == seeded.REFUSED and session.status == seeded.ENDED
    assert session.outcome().decision == [-1.0, 1.0] and session.outcome().rewards == (0.0, 1.0)
    assert session.outcome().num_illegal == 2


def test_an_invalid_move_by_which_its_author_drops_out_is_illegal_and_the_others_play_on():
    game = game_of("LiarsDice-v0", players=3)
    session = game.start(drawn(game))
    session.step(0, "nothing")
    out = session.step(0, "nothing")
    assert out.error_kind == seeded.REFUSED and out.observations[0].endswith("the game goes on without it.")
    assert session.status is None and session.seats == (1,)
    assert "Player 0 was eliminated" in out.observations[1] and out.observations[2] == ""
    assert session.step(1, "[Bid: 1, 2]").error is None and session.seats == (2,)
    assert session.counts.illegal == 2


def test_a_legal_move_is_told_to_the_other_seat_alone_and_a_cut_turn_does_not_reach_the_game():
    session = game_of("TicTacToe-v0").start(drawn(game_of("TicTacToe-v0")))
    assert session.step(0, "[4]", cut=True).error_kind == "cut" and session.seats == (0,)
    step = session.step(0, "[4]")
    assert step.error is None and step.observations[0] == "" and "[4]" in step.observations[1]
    assert session.seats == (1,)


def test_an_episode_that_the_game_has_not_ended_reaches_the_turn_limit_and_gives_nothing():
    game = game_of("SimpleNegotiation-v0", max_length=2)
    _, outcome = played(game, 0)
    assert outcome.status == Status.TURN_LIMIT and outcome.rewards == (0.0, 0.0)


def test_a_text_at_which_an_environment_breaks_is_illegal_and_changes_nothing(monkeypatch):
    game = game_of("TicTacToe-v0")
    session, other = (game.start(drawn(game)) for _ in range(2))
    for one in (session, other):
        one.step(0, "[0]")
    take = type(session).take
    monkeypatch.setattr(type(session), "take", lambda self, text: 1 / 0 if text == "boom" else take(self, text))
    step = session.step(1, "boom")
    assert step.error == "The game cannot read this turn (division by zero)." and session.seats == (1,)
    assert session.step(1, "[4]") == other.step(1, "[4]")
    assert session.step(0, "[8]") == other.step(0, "[8]")


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        *((kind(1), 1.0) for kind in (int, float, np.float32, np.float64, np.int64)),
        *((kind(-3), 0.0) for kind in (np.float32, np.int64)),
        *((np.float32(0.5), 0.75), ("You lost.", 0.0), (None, 0.0)),
    ],
)
def test_a_number_of_any_type_is_a_reward_and_a_reason_in_its_place_is_a_loss(value, reward):
    session = game_of("TicTacToe-v0").start(drawn(game_of("TicTacToe-v0")))
    session._env.state.rewards = {0: value, 1: value}
    assert session.game.rewards(session.state, session.final()) == (reward, reward)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan"), -np.inf, [1.0], b"1", 10**400])
def test_a_reward_that_is_no_finite_number_is_refused_in_one_line(value):
    session = game_of("TicTacToe-v0").start(drawn(game_of("TicTacToe-v0")))
    session._env.state.rewards = {0: 1.0, 1: value}
    with pytest.raises(
        UserError, match=r"TicTacToe-v0 cannot be used: .*gives seat 1 the reward .* not a finite number"
    ):
        session.final()


def test_a_record_of_three_seats_is_read_and_forged_rewards_are_refused():
    game = game_of("ThreePlayerIPD-v0")
    _, outcome = played(game, 1)
    stored = {
        "status": "ended", "score": outcome.score, "best": 1.0, "normalized_reward": sum(outcome.rewards) / 3,
        "rewards": list(outcome.rewards), "proposal": outcome.decision, "num_turns": 9, "num_messages": 0,
        "num_proposals": 0, "num_illegal": 0,
    }  # fmt: skip
    state = drawn(game, 1)
    parse_episode(record(game, state, stored, 3))
    for change, says in (
        ({"proposal": outcome.decision[:2]}, "is not the list of the 3 seats' rewards in ThreePlayerIPD-v0"),
        ({"proposal": [2.0, 0.0, 0.0]}, "2.0 is not a reward from -1 to 1"),
        ({"proposal": [-value for value in outcome.decision], "rewards": [0.9, 0.1, 0.2]}, "outcome.score|rewards"),
    ):
        with pytest.raises(ValueError, match=says):
            parse_episode(record(game, state, stored | change, 3))
    with pytest.raises(ValueError, match="has 2 seats, but the game has 3"):
        parse_episode(record(game, state, stored, 2))


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("Wordle-v0", r"Wordle-v0 needs NLTK's word lists, and nothing is downloaded unasked; run `python -m nltk.dow"),
        ("GuessWho-v0", r"GuessWho-v0 cannot be used: ValueError: OpenRouter API key not found"),
        ("KuhnPokr-v0", r"TextArena has no 'KuhnPokr-v0'; try KuhnPoker-v0"),
        ("KuhnPoker-v0-raw", r"TextArena has no 'KuhnPoker-v0-raw'"),
    ],
)
def test_a_game_that_cannot_be_played_here_is_refused_in_one_line(env, says, monkeypatch):
    from nltk import data

    monkeypatch.setattr(data, "path", [])
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(UserError, match=rf"^game\.env: {says}") as refused:
        drawn(game_of(env))
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_an_environment_that_does_not_repeat_is_refused_in_one_line(monkeypatch):
    from textarena.envs.KuhnPoker.env import KuhnPokerEnv
    from textarena.envs.registration import ENV_REGISTRY, EnvSpec

    class Unrepeatable(KuhnPokerEnv):
        def reset(self, num_players, seed=None):
            super().reset(num_players=num_players, seed=random.SystemRandom().randrange(2**32))

    for name in ("Unrepeatable-v0", "Unrepeatable-v0-raw"):
        monkeypatch.setitem(ENV_REGISTRY, name, EnvSpec(name, Unrepeatable, None))
    failed = [finding for finding in check_game(game_of("Unrepeatable-v0", players=2), 20) if finding.passed is False]
    assert re.search("two sessions of one state have other openings|seat . has another opening", failed[0].said)
    assert "\n" not in failed[0].said


def test_the_option_game_names_the_environment_and_the_commands_play_three_seats(tmp_path):
    games = tmp_path / "games.jsonl"
    play = ["generate", "--game", "textarena:ThreePlayerIPD-v0", "--num-episodes", "4", "--episodes-per-state", "2"]
    done = selfplay(*play, "--player", "bracketed", "--output", str(games))
    assert done.returncode == 0, done.stderr
    shown = selfplay("show", str(games), "--game", "textarena")
    assert shown.returncode == 0 and "seat 2" in shown.stdout, shown.stderr
    assert selfplay("show", str(games)).returncode == 0, "it comes with the package"
    again = selfplay(*play[:2], "textarena:KuhnPoker-v0", *play[3:], "--player", "bracketed", "--output", str(games))
    assert again.returncode == 2 and "game.env = 'ThreePlayerIPD-v0', now it is 'KuhnPoker-v0'" in again.stderr
