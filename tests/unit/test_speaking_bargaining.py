"""Players of bargaining that speak English: all that they say is read back without loss."""

import numpy as np
import pytest
from factories import play

from selfplay_pipeline.games.bargaining import speaking
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.bargaining.rules import BargainingConfig, shares
from selfplay_pipeline.games.bargaining.scripted import PlayerView, player_view
from selfplay_pipeline.games.bargaining.text import asked_items, parse_share, told_values
from selfplay_pipeline.games.base import HELD_OUT, state_rng
from selfplay_pipeline.games.questions import is_question
from selfplay_pipeline.games.tags import tagged

GAME = BargainingGame(BargainingConfig(reward="cooperative"))
STATES = [GAME.sample_state(state_rng(2, index, HELD_OUT)) for index in range(300)]
VIEWS: list[PlayerView] = [player_view(GAME.start(state), seat) for state in STATES for seat in (0, 1)]


def test_what_is_told_or_proposed_is_read_back_and_asks_for_nothing() -> None:
    rng = np.random.default_rng(0)
    for view in VIEWS:
        text = speaking.tell(view, rng)
        assert told_values(text) == dict(enumerate(view.values)), text
        assert not is_question(text) and not asked_items(text), text
        for share in shares(view.counts)[::5]:
            kind, body = tagged(text := speaking.propose(share, rng))
            assert kind == "propose" and parse_share(body, view.counts) == share, text


def test_each_phrase_is_what_it_is_meant_for() -> None:
    for text in speaking.ASKING:
        assert asked_items(f"[message] {text}") == {0, 1, 2} and not told_values(f"[message] {text}")
    for text in (*speaking.ACCEPTING, *speaking.REJECTING):
        assert tagged(text)[0] == ("accept" if text in speaking.ACCEPTING else "reject")


def rewards(name: str, game: BargainingGame = GAME) -> list[float]:
    rng = np.random.default_rng(0)
    sessions = [play(game, state, name, seed=rng).session for state in STATES]
    assert {session.status for session in sessions} == {"agreed"}
    return [session.outcome().rewards[0] for session in sessions]


@pytest.mark.long
def test_two_who_speak_and_listen_find_the_best_split_and_teachers_do_not() -> None:
    for protocol in ("free", "fixed"):
        game = BargainingGame(GAME.config.model_copy(update={"protocol": protocol}))
        assert rewards("speaking", game) == pytest.approx([1.0] * len(STATES))
    assert np.mean(rewards("speaking-teacher")) < 0.8
