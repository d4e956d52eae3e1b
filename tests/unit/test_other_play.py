"""Other-play: each seat has its own names; a code of names no longer works, all else stays as it is."""

import asyncio
import json
from itertools import pairwise

import numpy as np
import pytest
from command import selfplay
from hypothesis import given
from hypothesis import strategies as st
from test_partner_shares import content, loop_in, mixture, play
from test_private_code import Permuted

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.proposals import parse_action
from selfplay_pipeline.games.matching.renaming import inverse, renamed, retold
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode_wrappers import names_of, said
from selfplay_pipeline.generate.read_records import parse_episode, read_episodes
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.iterate.preflight import check_run

CONFIG = load_config("tiny_honest", {"generate.num_episodes": 60, "generate.episodes_per_state": 2})
GAME = make_game(CONFIG.game)
STATE = GAME.sample_state(state_rng(0, 0))


def played(folder, name: str, *, other_play: bool) -> list:
    asyncio.run(generate_episodes(CONFIG, folder / "games.jsonl", seats=(name, name), other_play=other_play))
    return [*read_episodes(folder / "games.jsonl")]


def rewards(records) -> list[float]:
    return [one.outcome.normalized_reward for one in records]


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_renamed_state_is_the_same_problem_with_other_names():
    names = {"reviewers": [1, 2, 0], "papers": [2, 1, 0]}
    other = renamed(STATE, names)
    for row in range(3):
        for column in range(3):
            place = names["reviewers"][row], names["papers"][column]
            assert other.table[place] == STATE.table[row, column]
            assert [mask[place] for mask in other.masks] == [mask[row, column] for mask in STATE.masks]
    assert (other.papers, other.reviewers, other.best) == (STATE.papers, STATE.reviewers, STATE.best)
    back = renamed(other, inverse(names, 3))
    assert json.dumps(back.to_dict()) == json.dumps(STATE.to_dict())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[message] Ava BLEU 5, daniel GloVe 3", "[message] Daniel GloVe 5, sofia Electra 3"),
        ("[message] Ava Li: Electra; Li, Ava and A. Li", "[message] Daniel Nguyen: BLEU; Nguyen, Daniel and D. Nguyen"),
        (f"[message] {PAPERS[0]} for Patel", f"[message] {PAPERS[2]} for Li"),
        ("[message] Available bleus, 7", "[message] Available bleus, 7"),
        (
            "[propose] Proposal: BLEU: Ava\nElectra: Daniel\nGloVe: Sofia",
            "[propose] Proposal: GloVe: Daniel\nBLEU: Sofia\nElectra: Ava",
        ),
        ("[accept]", "[accept]"),
    ],
)
def test_a_turn_is_retold_in_other_names_and_back(text, told):
    names = {"reviewers": [1, 2, 0], "papers": [2, 0, 1]}
    assert (STATE.papers, STATE.reviewers) == (PAPERS[:3], REVIEWERS[:3])
    assert retold(STATE, names, text) == told
    assert retold(STATE, names, told, back=True) == text


@given(
    st.permutations(range(3)),
    st.permutations(range(3)),
    st.permutations(range(3)),
    st.sampled_from([str, str.lower, str.upper]),
)
def test_a_proposal_keeps_its_meaning_whatever_its_spelling(rows, columns, matching, case):
    names = {"reviewers": list(rows), "papers": list(columns)}
    for spell in (lambda name: name, lambda name: name.split()[0], lambda name: name.split()[-1]):
        lines = [f"{PAPERS[paper].split(':')[0]}: {spell(REVIEWERS[matching[paper]])}" for paper in range(3)]
        text = "[propose] Proposal: " + case("\n".join(lines))
        found = parse_action(retold(STATE, names, text), STATE.papers, STATE.reviewers).proposal
        assert found == tuple(sorted((rows[matching[paper]], columns[paper]) for paper in range(3)))


@pytest.mark.parametrize(
    "names", [{}, {"reviewers": [0, 1, 2]}, {"reviewers": [0, 1, 1], "papers": [0, 1, 2]},
              {"reviewers": [0, 1], "papers": [0, 1, 2]}],
)  # fmt: skip
def test_what_is_no_renaming_is_refused(names):
    with pytest.raises(ValueError, match="does not give each of 3"):
        renamed(STATE, names)


# --- played ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_code_of_names_gains_nothing_and_plain_talk_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(SCRIPTED, "permuted", Permuted())
    code, plain = (
        [rewards(played(tmp_path / f"{name}-{on}", name, other_play=on)) for on in (False, True)]
        for name in ("permuted", "sharing")
    )
    assert plain[0] == plain[1] == code[0], "told cells are understood under any names; so is a code, by its own kind"
    assert np.mean(code[1]) < np.mean(plain[1]) - 0.05


def test_all_episodes_of_a_state_have_the_same_names_and_seats_have_others(tmp_path):
    with_names, without = (played(tmp_path / str(on), "sharing", other_play=on) for on in (True, False))
    assert all(names_of(one) is None for one in without)
    assert [one.state for one in with_names] == [one.state for one in without]
    for one, other in pairwise(with_names):
        assert (names_of(one) == names_of(other)) == (one.group_index == other.group_index)
    assert sum(names_of(one)[0] != names_of(one)[1] for one in with_names) > 50  # of 60, 58 are expected
    arguments = [json.loads((tmp_path / str(on) / "games.args.json").read_text()) for on in (True, False)]
    assert arguments[0] == arguments[1] | {"other_play": True}
    with pytest.raises(UserError, match="other_play = True, now it is not given"):
        played(tmp_path / "True", "sharing", other_play=False)


def test_records_have_the_names_of_the_state_and_the_seats_their_own(tmp_path):
    """The cells that a seat tells are, in the record, those that it sees in the state."""
    for one in played(tmp_path, "sharing", other_play=True):
        state = GAME.state_from_json(one.state)
        for turn in one.turns:
            own = said(turn)
            assert retold(state, names_of(one)[turn.seat], turn.text) == own
            if turn.action == "message":
                view = state.view(turn.seat)
                words = turn.text.split()[1:]
                for name, title, score in zip(words[::3], words[1::3], words[2::3], strict=True):
                    row = [reviewer.split()[0] for reviewer in state.reviewers].index(name)
                    column = [paper.split(":")[0] for paper in state.papers].index(title)
                    assert view[row][column] == int(score)


def test_a_policys_tokens_are_those_of_a_replay_in_its_names(tmp_path):
    loop = loop_in(tmp_path / "run", mixture([], **{"iterate.other_play": True, "train.loggers": []}))
    play(loop, 1)
    game, chat = make_game(loop.config.game), ChatTokenizer.load(loop.config.model)
    records = [*read_episodes(loop.run.games(1))]
    assert any(said(turn) != turn.text for one in records for turn in one.turns)
    compared = renamed_prompts = 0
    for one in records:
        again = {trajectory.seat: trajectory for trajectory in replay(one, game, chat)}
        for trajectory in one.trajectories:
            assert trajectory.prompt_ids == again[trajectory.seat].prompt_ids
            replayed = again[trajectory.seat].response_ids  # ends with the last legal turn
            assert trajectory.response_ids[: len(replayed)] == replayed
            compared += len(replayed)
        seen = replay(one.model_copy(update={"extra": {}}), game, chat)
        renamed_prompts += any(again[plain.seat].prompt_ids != plain.prompt_ids for plain in seen)
    assert renamed_prompts > 10, "of 20"
    assert compared > 100


def test_off_it_changes_no_byte(tmp_path):
    found = []
    for name, changes in (("none", {}), ("off", {"iterate.other_play": False})):
        loop = loop_in(tmp_path / name, mixture([], **{"train.loggers": []}, **changes))
        play(loop, 1)
        found.append(content(tmp_path / name / "iter_1"))
    assert found[0] == found[1] and b'"extra"' not in found[0]["selfplay_games.jsonl"]


# --- refused --------------------------------------------------------------------------------------------------------


def test_a_game_without_names_to_exchange_refuses_it(tmp_path):
    assert GAME.has("renamed")
    with pytest.raises(UserError, match=r"iterate\.other_play: the game bargaining has no names to exchange; leave it"):
        check_run(load_config("tiny_bargaining", {"iterate.other_play": True, "model": "data/tiny_model"}))
    command = "iterate --config tiny --set iterate.other_play=true --dry-run --output"
    done = selfplay(*command.split(), str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("names", [[], [{"reviewers": [0, 1, 2], "papers": [0, 1, 1]}] * 2])
def test_a_record_with_wrong_names_is_refused(names, tmp_path):
    (first, *_) = played(tmp_path, "sharing", other_play=True)
    line = json.dumps(first.model_dump(mode="json", by_alias=True) | {"extra": {"names": names}}).encode()
    with pytest.raises(ValueError, match=r"field 'extra.names"):
        parse_episode(line)
