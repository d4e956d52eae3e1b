"""The fixed protocol: a given number of messages in turn, then one proposal, which is the outcome."""

from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from factories import drawn, play

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Game, state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, best_matching
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.tagged_session import TaggedSession

CONFIGS = ("tiny_honest", "tiny_bargaining")
PLAN = "[propose] Proposal: BLEU: Ava\nElectra: Daniel\nGloVe: Sofia"


def fixed(name: str, messages: int = 1, **changes: Any) -> Game:
    return make_game(load_config(name, {"game.protocol": "fixed", "game.messages": messages, **changes}).game)


def played(game: Game, player: str, seed: int = 0) -> tuple[list[tuple[int, str]], Any]:
    """Returns the seat and action of each turn of an episode of a scripted player with itself, and the outcome."""
    episode = play(game, drawn(game, seed), player, seed=seed)
    return [(turn.seat, turn.action) for turn in episode.turns], episode.session.outcome()


@pytest.mark.parametrize("messages", [1, 2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_scripted_player_says_the_messages_in_turn_and_proposes_once(name: str, messages: int) -> None:
    game = fixed(name, messages)
    expected = [(number % 2, "message") for number in range(messages)] + [(messages % 2, "propose")]
    for player, seed in product(game.players, range(3)):
        turns, outcome = played(game, player, seed)
        assert turns == expected, player
        assert outcome.status == "agreed" and outcome.num_proposals == 1 and outcome.num_illegal == 0


@pytest.mark.parametrize(
    ("said", "text", "due"),
    [
        *((0, text, "a [message] (messages left before the proposal: 1)") for text in (PLAN, "[accept]", "[reject]")),
        *(
            (1, text, "a [propose] (all messages are said)")
            for text in ("[message] Ava BLEU 3", "[accept]", "[reject]")
        ),
    ],
)
def test_only_a_message_is_legal_before_all_are_said_and_only_a_proposal_after_them(
    said: int, text: str, due: str
) -> None:
    game = fixed("tiny_honest", **{"game.max_errors": 2})
    session = game.start(game.sample_state(state_rng(0, 0)))
    for seat in range(said):
        session.step(seat, "[message] hello")
    step = session.step(said, text)
    assert step.error_kind == "not_now" and f"must be {due}" in str(step.error)
    assert session.seats == (said,) and step.observations[1 - said] == "", "the partner learns nothing of it"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_prompts_tell_both_seats_the_protocol(name: str) -> None:
    game = fixed(name, 2, **{"game.prompts": "default", "game.max_errors": 3})
    session = game.start(game.sample_state(state_rng(0, 0)))
    systems = [session.opening(seat).system for seat in (0, 1)]
    assert "exactly 2 messages, in turn. Then you propose" in systems[0]
    assert "exactly 2 messages, in turn. Then your partner proposes" in systems[1]
    assert not any("[accept]" in system for system in systems)
    heard = [session.step(seat, "[message] hi").observations[1 - seat] for seat in (0, 1)]
    assert "propose now" not in heard[0] and "propose now" in heard[1]
    for _ in range(2):
        error = session.step(0, "[accept]").observations[0]
    assert "[propose]" in error and "[message]" not in error.partition("Write one")[2]


@pytest.mark.parametrize(("turns", "suffice"), [(4, False), (5, True)])
def test_the_turns_must_suffice_for_the_protocol(turns: int, suffice: bool) -> None:
    with (
        nullcontext() if suffice else pytest.raises(UserError, match="leaves no turn for the proposal after 4 messages")
    ):
        load_config("tiny_honest", {"game.protocol": "fixed", "game.messages": 4, "game.max_length": turns})


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("field", "change"), [("num_messages", 1), ("num_proposals", 1), ("num_messages", -1)])
def test_a_record_with_other_turns_is_refused(name: str, field: str, change: int) -> None:
    game = fixed(name, 2)
    state = game.sample_state(state_rng(0, 0))
    _turns, outcome = played(game, "sharing")
    record = {
        "status": outcome.status, "score": outcome.score, "rewards": None, "proposal": outcome.decision,
        "normalized_reward": outcome.rewards[0], "num_messages": outcome.num_messages,
        "num_proposals": outcome.num_proposals,
    }  # fmt: skip
    game.check_outcome(state, SimpleNamespace(**record))
    record[field] += change
    with pytest.raises(ValueError, match=f"field 'outcome.{field}': {record[field]}, but the fixed protocol has"):
        game.check_outcome(state, SimpleNamespace(**record))


def one_sided(messages: int = 1, **changes: Any) -> Game:
    sizes = {"game.visibility": "one_sided", "game.size": 3}
    return fixed("tiny_honest", messages, **{**sizes, **changes})


@pytest.mark.parametrize("messages", [1, 2, 3])
def test_of_a_one_sided_state_the_seat_that_sees_nothing_proposes(messages: int) -> None:
    game = one_sided(messages)
    expected = [((number + messages + 1) % 2, "message") for number in range(messages)] + [(1, "propose")]
    for player, seed in product(game.players, range(3)):
        turns, outcome = played(game, player, seed)
        assert turns == expected, player
        assert outcome.status == "agreed" and outcome.num_illegal == 0


def test_the_prompts_of_a_one_sided_state_say_who_sees_what_and_who_begins() -> None:
    for messages, first in ((1, 0), (2, 1)):
        game = one_sided(messages, **{"game.prompts": "default"})
        session = game.start(game.sample_state(state_rng(0, 0)))
        openings = [session.opening(seat) for seat in (0, 1)]
        assert "You see all scores, your partner sees none." in openings[0].system
        assert "Your partner sees all scores, you see none." in openings[1].system
        assert "Then you propose" in openings[1].system and "Then your partner proposes" in openings[0].system
        assert ["You speak first." in opening.observation for opening in openings] == [first == 0, first == 1]
        assert [opening.observation.count("??") for opening in openings] == [1, 10]  # one in the heading


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"game.protocol": "free"}, "one_sided needs protocol: fixed"), ({"game.hard_factor": 1}, "needs hard_factor: 0")],
)
def test_a_one_sided_game_in_which_words_decide_nothing_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_config("tiny_honest", {"game.visibility": "one_sided", **changes})


def test_a_message_of_too_many_words_is_illegal_and_the_prompt_says_the_limit() -> None:
    game = one_sided(**{"game.max_words": 5, "game.max_errors": 2, "game.prompts": "default"})
    session = game.start(game.sample_state(state_rng(0, 0)))
    assert "in at most 5 words." in session.opening(0).system
    step = session.step(0, "[message] Ava on BLEU is 9, really")
    assert (step.error_kind, session.seats) == ("too_many_words", (0,))
    assert "has 6 words; write at most 5" in step.observations[0] and step.observations[1] == ""
    assert session.step(0, "[message] Ava on BLEU is 9").action == "message"


# The theorem of `tagged_session.py`, by enumeration of all joint policies on 2×2 boards with scores 0 and 1.
MASKS = [np.array(mask).reshape(2, 2) for mask in ([True, False, False, True], [True, True, True, False])]
PLANS = ("[propose] BLEU: Ava\nElectra: Daniel", "[propose] BLEU: Daniel\nElectra: Ava")
SAID = ("[message] one", "[message] two")
History = tuple[str, ...]


def boards(mask: Any) -> list[MatchingState]:
    """Returns the equally likely states in which player 0 sees the cells of a mask, and player 1 all others."""
    tables = [np.array(cells).reshape(2, 2) for cells in product((0, 1), repeat=4)]
    return [
        MatchingState(table, (mask, ~mask), (1.0, 1.0), int(best), PAPERS[:2], REVIEWERS[:2])
        for table in tables
        if (best := best_matching(table)[1])
    ]


def best_joint_policy(protocol: str, mask: Any, *, mute: bool) -> float:
    """Returns the highest expected reward of all pairs of deterministic policies.

    Seat 0 chooses one of `SAID`, in free play also a proposal, by its view; seat 1 answers a message by its view and
    the observed message with a plan, and accepts a proposal. No randomised policy does better, because the expected
    reward is linear in the chances of the choices.
    """
    game = MatchingGame(
        MatchingConfig(
            size=2, max_score=1, scale_max=1, hard_factor=0, visibility="complementary",
            protocol=protocol, mute=mute, prompts="compact",
        )
    )  # fmt: skip
    first = (*SAID, *PLANS) if protocol == "free" else SAID
    states = boards(mask)
    rewards: dict[tuple[int, str], tuple[History, list[float]]] = {}
    for number, state in enumerate(states):
        for said in first:
            session = game.start(state)
            heard = session.step(0, said).observations[1]
            history = (session.opening(1).observation, heard)
            if said in PLANS:
                session.step(1, "[accept]")
                reached = [session.outcome().rewards[0]] * 2
            else:
                reached = [answer(game, state, said, plan) for plan in PLANS]
            rewards[number, said] = (history, reached)
    views = [game.start(state).opening(0).observation for state in states]
    kinds = sorted(set(views))
    best = 0.0
    for choices in product(first, repeat=len(kinds)):
        policy = dict(zip(kinds, choices, strict=True))
        sums: dict[History, np.ndarray] = {}
        for number, view in enumerate(views):
            history, reached = rewards[number, policy[view]]
            sums[history] = sums.get(history, np.zeros(2)) + reached
        best = max(best, sum(float(plans.max()) for plans in sums.values()) / len(states))
    return best


def answer(game: Game, state: MatchingState, said: str, plan: str) -> float:
    session = game.start(state)
    session.step(0, said)
    session.step(1, plan)
    if isinstance(session, TaggedSession) and session.config.protocol == "free":
        session.step(0, "[accept]")
    return session.outcome().rewards[0]


def silence(mask: Any) -> float:
    """Returns the expected reward of seat 1's best proposal by its own view, from the definition."""
    sums: dict[bytes, np.ndarray] = {}
    states = boards(mask)
    for state in states:
        view = np.where(state.masks[1], state.table, -1).tobytes()
        plans = np.array([np.trace(state.table), np.trace(state.table[::-1])]) / state.best
        sums[view] = sums.get(view, np.zeros(2)) + plans
    return sum(float(plans.max()) for plans in sums.values()) / len(states)


@pytest.mark.parametrize("mask", [MASKS[0], pytest.param(MASKS[1], marks=pytest.mark.long)])
def test_without_content_the_best_joint_policy_meets_the_silence_line_exactly(mask: Any) -> None:
    assert best_joint_policy("fixed", mask, mute=True) == pytest.approx(silence(mask), abs=1e-12)
    assert best_joint_policy("fixed", mask, mute=False) > silence(mask) + 0.03
    assert best_joint_policy("free", mask, mute=True) > silence(mask) + 0.03, "whether to propose tells something"
