"""Who holds a seat in an episode: separate histories, masks of one's own, whose turn it is, one id for all sides.

These are the seats that `generate`, verl's agent loop and slime's environment play with; no torch, no verl, no server.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from itertools import pairwise, product

import numpy as np
import pytest
from factories import BOARD, POLICY, byte_chat, make_episode

from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason
from selfplay_pipeline.games.base import Status, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.proposals import format_proposal
from selfplay_pipeline.games.matching.rules import MatchingConfig, best_matching
from selfplay_pipeline.games.matching.scripted import player_view
from selfplay_pipeline.generate.episode import Episode, Reply
from selfplay_pipeline.generate.outside_text import ChatPlayer, as_dicts
from selfplay_pipeline.generate.players import PolicyPlayer, Scripted
from selfplay_pipeline.generate.run import SeatedEpisode

SPOKEN = MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0, max_length=12, max_errors=3, prompts="default")
"""The small board in the wording for language models."""
STATE = MatchingGame(SPOKEN).sample_state(state_rng(0, 0))


def seated(*players, game=None, state=STATE) -> SeatedEpisode:
    """Players at the table; where none is named, words come from outside."""
    return SeatedEpisode(game or MatchingGame(SPOKEN), state, players or [ChatPlayer()] * 2, "g", (0, 0, 0))


def say(episode: Episode, text: str, *, cut: bool = False) -> None:
    """Words from outside, for the seat whose turn it is."""
    seat = episode.session.seats[0]
    episode.seats[seat].say(text)
    episode.take_turn(seat, Reply(text, cut, "length" if cut else "stop"))


def history(episode: Episode, seat: int) -> list[dict[str, str]]:
    return as_dicts(episode.seats[seat].context())


@pytest.mark.parametrize("seat", [0, 1])
def test_a_scripted_partner_speaks_until_it_is_the_others_turn(seat):
    players = [Scripted("sharing"), Scripted("sharing")]
    players[seat] = ChatPlayer()
    episode = seated(*players).episode
    asyncio.run(episode.run(until=seat))
    while episode.session.status is None:
        assert episode.session.seats == (seat,)
        say(episode, SCRIPTED["sharing"].act(player_view(episode.session, seat), np.random.default_rng(0)))
        asyncio.run(episode.run(until=seat))
    assert any("The other player said:" in message["content"] for message in history(episode, seat))
    rewards = episode.session.outcome().rewards
    assert rewards[0] == rewards[1] > 0.9


def test_words_are_the_speakers_as_assistant_and_the_partners_as_user():
    episode = seated().episode
    before = [history(episode, seat) for seat in (0, 1)]
    say(episode, "[message] Ava likes BLEU")
    after = [history(episode, seat) for seat in (0, 1)]
    openings = [MatchingGame(SPOKEN).start(STATE).opening(seat) for seat in (0, 1)]
    assert [context[1]["content"] for context in before] == [opening.observation for opening in openings]
    assert episode.session.seats == (1,) and episode.turns[-1].error is None
    assert after[0] == [*before[0], {"role": "assistant", "content": "[message] Ava likes BLEU"}]
    assert [message["role"] for message in after[1]] == ["system", "user"]
    assert after[1][1]["content"] == before[1][1]["content"] + "\nThe other player said: [message] Ava likes BLEU"


def test_an_illegal_turn_stays_with_its_speaker_and_is_told_to_it_alone():
    episode = seated().episode
    partner = history(episode, 1)
    say(episode, "[accept]")
    assert episode.session.seats == (0,) and history(episode, 1) == partner
    assert "no proposal" in episode.turns[-1].error and "no proposal" in history(episode, 0)[-1]["content"]


def test_the_optimum_scores_one_for_both_once_it_is_accepted_and_nothing_if_it_is_broken_off():
    episode = seated().episode
    say(episode, format_proposal(best_matching(STATE.table)[0], STATE.papers, STATE.reviewers))
    assert episode.session.status is None, "proposed is not agreed"
    say(episode, "[accept]")
    assert episode.session.status == "agreed" and episode.session.outcome().rewards == (1.0, 1.0)
    with pytest.raises(RuntimeError, match="has ended"):
        episode.take_turn(0, Reply("[accept]", False, "stop"))
    cut = seated().episode.session
    cut.abort(Status.TURN_LIMIT)
    assert set(cut.outcome().rewards) == {0.0}


def test_a_chat_model_may_speak_for_every_seat():
    histories = []

    async def model(messages):
        histories.append(messages)
        return "[message] hello"

    episode = seated(*[ChatPlayer("api", model)] * 2).episode
    asyncio.run(episode.run())
    assert len(histories) == SPOKEN.max_length
    assert all(len({m["role"] for m in pair}) == 2 for h in histories for pair in pairwise(h))
    assert history(episode, 0)[: len(histories[-2])] == histories[-2]


@pytest.mark.parametrize("number", range(20))
def test_histories_of_words_are_those_of_the_token_streams(number):
    """The same words give a chat model and a policy the same messages."""
    record = make_episode(number, seed=7)
    game = MatchingGame(BOARD)
    episode = seated(game=game, state=game.state_from_json(record.state)).episode
    for turn in record.turns:
        assert episode.session.seats == (turn.seat,)
        say(episode, turn.text, cut=turn.finish_reason == "length")
    for trajectory in record.trajectories:
        assert episode.session.outcome().rewards[trajectory.seat] == record.outcome.normalized_reward
        if trajectory.response_ids:
            assert history(episode, trajectory.seat) == [m.model_dump() for m in trajectory.messages]


TEXTS = ("[message] one", "[message] two", "[message] three", "[message] four")


class Saying:
    """An engine whose model says these texts, one a turn."""

    def __init__(self) -> None:
        self.texts, self.sampled = list(TEXTS), []

    async def generate(self, prompt, params, session):
        if not self.texts:
            raise EngineError("silent")
        ids = [*byte_chat().tokenizer.encode(self.texts.pop(0), add_special_tokens=False), byte_chat().end_of_turn]
        self.sampled.append((session, ids))
        return Completion(ids, [-0.5] * len(ids), FinishReason.STOP, len(prompt), 0)


def test_each_seat_of_a_policy_is_trained_on_its_own_tokens_under_one_id():
    engine = Saying()
    made = seated(*[PolicyPlayer(engine, byte_chat(), POLICY, 100_000)] * 2)
    asyncio.run(made.episode.run())
    record = made.record(POLICY)
    openings = [made.episode.session.opening(seat).observation for seat in (0, 1)]
    assert (record.episode_id, [side.seat for side in record.trajectories]) == ("g", [0, 1])
    for seat, side in enumerate(record.trajectories):
        own = [id_ for session, ids in engine.sampled if session == f"g-{seat}" for id_ in ids]
        assert [id_ for id_, mask in zip(side.response_ids, side.response_mask, strict=True) if mask] == own
        read = byte_chat().tokenizer.decode([*side.prompt_ids, *side.response_ids])
        assert openings[seat] in read and openings[1 - seat] not in read


@pytest.mark.parametrize("names", product(("policy", "other"), repeat=2))
def test_of_two_checkpoints_the_policys_seats_alone_are_trained_on(names):
    engine = Saying()
    kinds = {"policy": {}, "other": {"kind": "checkpoint", "name": "other", "trained": False}}
    made = seated(*(PolicyPlayer(engine, byte_chat(), POLICY, 100_000, **kinds[name]) for name in names))
    asyncio.run(made.episode.run())
    record = made.record(POLICY)
    assert ([seat.name for seat in record.seats], len(record.turns)) == (list(names), 4)
    assert [side.seat for side in record.trajectories] == [seat for seat in (0, 1) if names[seat] == "policy"]


class Noting(MatchingGame):
    """A game whose scripted player notes the first number that each of its turns draws."""

    def __init__(self, config):
        super().__init__(config)
        self.drawn, self.players = [], {"noting": self}

    def act(self, view, rng):
        self.drawn.append(rng.random())
        return "[message] hello"


def test_each_seat_of_each_episode_draws_random_numbers_of_its_own_and_the_same_ones_again():
    places = list(product((0, 1), (0, 1), (0, 1)))  # of a seed, a state and an episode

    def drawn(place):
        game = Noting(SPOKEN)
        made = SeatedEpisode(game, STATE, [Scripted("noting")] * 2, "g", place)
        made.episode.play_out()
        return tuple(game.drawn)

    found = {place: drawn(place) for place in places}
    numbers = [number for numbers in found.values() for number in numbers]
    assert len(numbers) == len(set(numbers)) == len(places) * SPOKEN.max_length
    assert found == {place: drawn(place) for place in reversed(places)}


@pytest.mark.long
def test_playing_and_writing_states_need_neither_torch_nor_verl():
    probe = "import sys, selfplay_pipeline.generate.run, selfplay_pipeline.train.online_states\n"
    probe += "print([name for name in ('torch', 'verl', 'ray', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
