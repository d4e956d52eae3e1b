"""Who holds a seat in an episode: separate histories, masks of one's own, whose turn it is, one id for all sides.

These are the seats that `generate`, verl's agent loop and slime's environment play with; no torch, no verl, no server.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise, product

import numpy as np
import pytest
from factories import BOARD, POLICY, byte_chat, make_episode

from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason
from selfplay_pipeline.games.base import Status, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.matching.scripted import player_view
from selfplay_pipeline.generate.episode import Episode, Reply
from selfplay_pipeline.generate.players import policy_player, script_player
from selfplay_pipeline.generate.text_player import as_dicts, text_player

SPOKEN = MatchingConfig(size=3, max_score=9, scale_max=1, hard_factor=0, max_length=12, max_errors=3, prompts="default")
"""The small board in the wording for language models."""
STATE = MatchingGame(SPOKEN).sample_state(state_rng(0, 0))


def seated(*players, game=None, state=STATE) -> Episode:
    """Players at the table; where none is named, words come from outside."""
    return Episode(game or MatchingGame(SPOKEN), state, players or [text_player()] * 2, "g", (0, 0, 0))


def say(episode: Episode, text: str, *, cut: bool = False) -> None:
    """Words from outside, for the seat whose turn it is."""
    seat = episode.session.seats[0]
    episode.seats[seat].say(text)
    episode.take_turn(seat, Reply(text, cut, "length" if cut else "stop"))


def history(episode: Episode, seat: int) -> list[dict[str, str]]:
    return as_dicts(episode.seats[seat].context())


@pytest.mark.parametrize("seat", [0, 1])
def test_a_scripted_partner_speaks_until_it_is_the_others_turn(seat):
    players = [script_player("sharing"), script_player("sharing")]
    players[seat] = text_player()
    episode = seated(*players)
    asyncio.run(episode.run(until=seat))
    while episode.session.status is None:
        assert episode.session.seats == (seat,)
        say(episode, SCRIPTED["sharing"].act(player_view(episode.session, seat), np.random.default_rng(0)))
        asyncio.run(episode.run(until=seat))
    assert any("The other player said:" in message["content"] for message in history(episode, seat))
    rewards = episode.session.outcome().rewards
    assert rewards[0] == rewards[1] > 0.9


def test_words_are_the_speakers_as_assistant_and_the_partners_as_user():
    episode = seated()
    before = [history(episode, seat) for seat in (0, 1)]
    openings = [MatchingGame(SPOKEN).start(STATE).opening(seat) for seat in (0, 1)]
    assert [context[1]["content"] for context in before] == [opening.observation for opening in openings]
    say(episode, "[message] Ava likes BLEU")
    after = [history(episode, seat) for seat in (0, 1)]
    assert after[0] == [*before[0], {"role": "assistant", "content": "[message] Ava likes BLEU"}]
    heard = before[1][1]["content"] + "\nThe other player said: [message] Ava likes BLEU"
    assert after[1] == [before[1][0], {"role": "user", "content": heard}]


@pytest.mark.parametrize("number", range(10))
def test_histories_of_words_are_those_of_the_token_streams(number):
    """The same words give a chat model and a policy the same messages, of alternating roles."""
    record = make_episode(number, seed=7)
    game = MatchingGame(BOARD)
    episode = seated(game=game, state=game.state_from_json(record.state))
    for turn in record.turns:
        assert episode.session.seats == (turn.seat,)
        say(episode, turn.text, cut=turn.finish_reason == "length")
    for trajectory in record.trajectories:
        assert episode.session.outcome().rewards[trajectory.seat] == record.outcome.normalized_reward
        if trajectory.response_ids:
            messages = history(episode, trajectory.seat)
            assert messages == [m.model_dump() for m in trajectory.messages]
            assert all(one["role"] != other["role"] for one, other in pairwise(messages))


TEXTS = ("[message] one", "[message] two", "[message] three", "[message] four")


class Saying:
    """An engine whose model says these texts, one a turn; it reports one cached token a request."""

    finish = FinishReason.STOP

    def __init__(self) -> None:
        self.texts, self.sampled, self.read = list(TEXTS), [], 0

    async def generate(self, prompt, params, session):
        if not self.texts:
            raise EngineError("silent")
        ids = [*byte_chat().tokenizer.encode(self.texts.pop(0), add_special_tokens=False), byte_chat().end_of_turn]
        self.sampled.append((session, ids))
        self.read += len(prompt)
        return Completion(ids, [-0.5] * len(ids), self.finish, len(prompt), 1)


def test_each_seat_of_a_policy_is_trained_on_its_own_tokens_under_one_id():
    engine = Saying()
    made = seated(*[policy_player(engine, byte_chat(), POLICY, 100_000)] * 2)
    asyncio.run(made.run())
    record = made.record(POLICY)
    openings = [made.session.opening(seat).observation for seat in (0, 1)]
    assert (record.episode_id, [side.seat for side in record.trajectories]) == ("g", [0, 1])
    assert (record.prompt_tokens, record.cached_tokens) == (engine.read, len(TEXTS))
    for seat, side in enumerate(record.trajectories):
        own = [id_ for session, ids in engine.sampled if session == f"g-{seat}" for id_ in ids]
        assert [id_ for id_, mask in zip(side.response_ids, side.response_mask, strict=True) if mask] == own
        read = byte_chat().tokenizer.decode([*side.prompt_ids, *side.response_ids])
        assert openings[seat] in read and openings[1 - seat] not in read


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_turn_is_taken_where_the_context_has_room_for_its_longest_reply(lacks):
    prompt = seated(policy_player(Saying(), byte_chat(), POLICY, 100_000), text_player()).seats[0].stream.prompt()
    room = len(prompt) + POLICY.max_new_tokens - lacks
    made = seated(*[policy_player(Saying(), byte_chat(), POLICY, room)] * 2)
    asyncio.run(made.run())
    assert (len(made.turns), made.session.status) == (1 - lacks, Status.CONTEXT_LENGTH)


def test_an_aborted_request_loses_the_episode_and_a_seat_that_waits_cannot_be_played_out():
    class Aborting(Saying):
        finish = FinishReason.ABORT

    made = seated(*[policy_player(Aborting(), byte_chat(), POLICY, 100_000)] * 2)
    asyncio.run(made.run())
    assert (made.turns, made.session.status) == ([], Status.ENGINE_FAILURE)

    async def model(messages):
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="await `run` instead"):
        seated(*[text_player("api", model)] * 2).play_out()


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
        made = Episode(game, STATE, [script_player("noting")] * 2, "g", place)
        made.play_out()
        return tuple(game.drawn)

    found = {place: drawn(place) for place in places}
    numbers = [number for numbers in found.values() for number in numbers]
    assert len(numbers) == len(set(numbers)) == len(places) * SPOKEN.max_length
    assert found == {place: drawn(place) for place in reversed(places)}
