"""The listening test: scripted listeners follow what they hear, deaf ones never, and nothing but scores is altered."""

import asyncio
import json
from itertools import permutations

import numpy as np
import pytest
from command import selfplay
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.engines.transformers_engine import TransformersEngine
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.evaluate.listen import Listening, Replay, heard, run_listen
from selfplay_pipeline.evaluate.run import EvaluationJob
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.altered import CHANGED, SWAPPED
from selfplay_pipeline.games.base import Said
from selfplay_pipeline.games.matching.altered import EXCHANGED, MARGIN
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.mentions import retold, told_cells
from selfplay_pipeline.games.matching.scripted import own_cells, player_view, tell
from selfplay_pipeline.games.matching.speaking import TOLD
from selfplay_pipeline.generate.seats import Servers

CONFIG = load_config("tiny_honest", {"game.protocol": "free"})
GAME = MatchingGame(CONFIG.game)
STATES = held_out_states(GAME, 40)


def listen(player, folder, config=CONFIG, states=STATES) -> Listening:
    return asyncio.run(run_listen(config, EvaluationJob(player, states, folder)))


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["free", "fixed"])
@pytest.mark.parametrize(
    ("player", "share"), [("sharing", 1.0), ("own-view", 0.0), ("speaking", 1.0), ("speaking-teacher", 0.0)]
)
def test_a_scripted_listener_always_follows_and_a_deaf_one_never(tmp_path, player, share, protocol):
    found = listen(player, tmp_path, load_config("tiny_honest", {"game.protocol": protocol}))
    assert found.kinds.keys() == {CHANGED, SWAPPED}
    for kind in found.kinds.values():
        assert kind.tested > 25
        assert (kind.follows.value, kind.follows.low, kind.follows.high) == (share, share, share)
        assert kind.moves.value == share
    assert Listening.model_validate_json((tmp_path / "listening.json").read_text()) == found


@pytest.mark.parametrize(("player", "share"), [("speaking-1", 1.0), ("speaking-teacher", 0.0)])
def test_who_sees_nothing_is_told_the_same_numbers_of_other_reviewers_too(tmp_path, player, share):
    """A listener who reads names alone follows no other number, and would seem deaf."""
    config = load_config("smollm2", {})
    states = held_out_states(MatchingGame(config.game), 40)
    found = listen(player, tmp_path, config, states)
    assert [*found.kinds] == [CHANGED, SWAPPED, EXCHANGED]
    assert found.kinds[EXCHANGED].tested > 25 and found.kinds[EXCHANGED].follows.value == share


def test_an_exchanged_message_tells_the_same_numbers_of_other_cells_of_the_same_papers():
    game = MatchingGame(load_config("smollm2", {"game.size": 3}).game)
    state = held_out_states(game, 1).states[0]
    view = player_view(game.start(state), 0)
    message = Said(0, tell(view, {(0, 0): 7, (1, 1): 4}))
    found = game.alter(state, [message], EXCHANGED, np.random.default_rng(0))
    before, after = (told_cells(text, state.papers, state.reviewers) for text in (message.text, found.text))
    assert [*after.values()] == [*before.values()] and after.keys() != before.keys()
    assert [paper for _, paper in after] == [paper for _, paper in before]
    assert GAME.alter(STATES.states[0], [Said(0, "[message] none")], EXCHANGED, np.random.default_rng(0)) is None


@pytest.mark.long
def test_who_hears_nothing_follows_nothing_and_who_says_nothing_cannot_be_tested(tmp_path):
    muted = listen(
        "sharing", tmp_path / "deaf", load_config("tiny_honest", {"game.protocol": "free", "game.mute": True})
    )
    assert all(kind.tested > 10 and kind.follows.value == 0 for kind in muted.kinds.values())
    quiet = listen("quiet", tmp_path / "quiet")
    assert [(kind.tested, str(kind.follows)) for kind in quiet.kinds.values()] == [(0, "–")] * 2
    for text in ("[message] none", "[message] hello", f"[message] {STATES.states[0].reviewers[0]} is good"):
        assert GAME.alter(STATES.states[0], [Said(0, text)], CHANGED, np.random.default_rng(0)) is None


@pytest.mark.long
def test_a_stopped_test_goes_on_to_the_same_result(tmp_path):
    whole = listen("sharing", tmp_path)
    episodes = tmp_path / "heard.jsonl"
    lines = episodes.read_text().splitlines(keepends=True)
    episodes.write_text("".join(lines[:20]))
    (tmp_path / "heard.summary.json").unlink()
    assert listen("sharing", tmp_path) == whole
    assert sorted(episodes.read_text().splitlines(keepends=True)) == sorted(lines)


SCALED = MatchingGame(CONFIG.game.model_copy(update={"scale_max": 3.0}))
"""A board on which what is told is on the teller's scale."""
GAMES = {GAME: STATES, SCALED: held_out_states(SCALED, 40)}


@given(
    st.sampled_from([*GAMES]), st.integers(0, 39), st.sampled_from([0, 1]), st.sampled_from([CHANGED, SWAPPED]),
    st.integers(0, 9),
)  # fmt: skip
def test_an_altered_message_has_other_scores_and_makes_one_other_plan_the_best(game, number, teller, kind, seed):
    state, hearer = GAMES[game].states[number], 1 - teller
    view = player_view(game.start(state), teller)
    message = Said(teller, tell(view, own_cells(view)))
    found = game.alter(state, [message], kind, np.random.default_rng(seed))
    if found is None:
        return
    before, after = (told_cells(text, state.papers, state.reviewers) for text in (message.text, found.text))
    assert before.keys() == after.keys()
    different = {cell for cell in before if before[cell] != after[cell]}
    assert len(different) == 1 or kind == SWAPPED
    assert not any(state.masks[hearer][cell] for cell in different), "what the hearer sees is told as it was"
    assert found.text.translate(DIGITS) == message.text.translate(DIGITS), "all but scores is as it was"

    def worth(plan, told) -> float:
        scale = state.scales[teller]
        return sum(state.table[cell] if state.masks[hearer][cell] else told[cell] / scale for cell in plan)

    plans = [tuple(enumerate(papers)) for papers in permutations(range(state.size))]
    best, margin = tuple(map(tuple, found.decision)), MARGIN * 9 - 1e-9
    assert all(worth(best, after) >= worth(plan, after) + margin for plan in plans if plan != best)
    assert max(worth(plan, before) for plan in plans) >= worth(best, before) + margin


DIGITS = dict.fromkeys(map(ord, "0123456789"))


@given(st.text(), st.sampled_from(("{reviewer}, {paper}: {score}", *TOLD)), st.text())
def test_a_text_keeps_all_but_the_scores_that_are_told_anew(before, told, behind):
    old, new = (f"{before}\n{told.format(reviewer='Ava Li', paper='BLEU', score=score)}\n{behind}" for score in (7, 3))
    assert retold(old, ["BLEU"], ["Ava Li"], {(0, 0): 3}).casefold() == new.casefold()


def replay(said, expected, decided) -> Replay:
    return Replay(state=0, seat=0, kind=CHANGED, message="", said=said, expected=expected, decided=decided)


def test_a_decision_follows_if_it_moves_to_the_expected_one():
    replays = [replay(1, 2, 2), replay(1, 2, 3), replay(1, 2, 1), replay(2, 2, 2), replay(1, 2, None)]
    assert [(one.moved, one.followed) for one in replays] == [
        (True, True), (True, False), (False, False), (False, False), (False, False),
    ]  # fmt: skip
    shares = heard(replays)
    assert (shares.tested, shares.follows.value, shares.moves.value) == (5, pytest.approx(0.2), pytest.approx(0.4))


def test_the_command_prints_the_shares_and_says_where_they_are(tmp_path):
    options = ("--config", "tiny_honest", "--num-states", "8", "--output", str(tmp_path / "out"))
    done = selfplay("listen", "sharing", *options)
    assert done.returncode == 0 and "follows what it hears" in done.stdout and "1.000" in done.stdout
    assert json.loads((tmp_path / "out" / "listening.json").read_text())["num_states"] == 8
    other = selfplay("evaluate", "sharing", *options)
    assert other.returncode == 2 and "holds what `selfplay listen` wrote" in other.stderr


class Unlucky(TransformersEngine):
    """A real engine that fails one episode."""

    async def generate(self, prompt_ids, params, *, session=""):
        if session.startswith("s0-g000001-"):
            raise EngineError("on purpose")
        return await super().generate(prompt_ids, params, session=session)


@pytest.mark.long
def test_where_episodes_are_lost_the_command_fails_and_the_same_one_plays_them(tmp_path, monkeypatch):
    def listening(engine):
        async def serving(servers, checkpoint, *, keep=()):
            return engine("data/tiny_honest_model")

        monkeypatch.setattr(Servers, "serving", serving)
        options = ["--config", "tiny_honest", "--num-states", "3", "--output", str(tmp_path / "out")]
        done = CliRunner().invoke(app, ["listen", "data/tiny_honest_model", *options])
        return done, json.loads((tmp_path / "out" / "listening.json").read_text())["lost"]

    failed, lost = listening(Unlucky)
    assert (failed.exit_code, lost) == (1, 1) and "1 episodes are missing" in failed.stderr
    done, lost = listening(TransformersEngine)
    assert (done.exit_code, lost) == (0, 0)
