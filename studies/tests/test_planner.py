"""`studies.common.planner`: the rows that it draws, the values of its plans, and its exam."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from quick import long_but
from transformers import AutoModelForCausalLM

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.teacher import WORDS
from selfplay_pipeline.games.matching.wordless import Posterior, best_plans, values_of
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import parse_episode, read_lines
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.warm_start.tiny_model import build_tokenizer
from studies.code.run import told_in
from studies.common.planner import (
    IGNORED,
    PLANNER,
    Board,
    Exam,
    code_of,
    draw_states,
    lesson,
    main,
    model_at,
    tokens_of,
)

HONEST = shipped("data/tiny_honest_model")
BOARDS = ["tiny_honest", "studies/planner/4x4.yaml"]


@pytest.fixture(scope="module", params=long_but(BOARDS[:1], BOARDS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def chat():
    """All models of the command share this tokenizer, whatever the size of their board."""
    return ChatTokenizer(build_tokenizer(WORDS))


@pytest.fixture(scope="module")
def board(name, chat):
    torch.manual_seed(1)
    return Board.of(load_config(name, {}).game, chat.tokenizer, torch.device("cpu"))


@pytest.fixture(scope="module", params=(False, True), ids=("heard", "muted"))
def muted(request):
    return request.param


def one(value):
    return torch.tensor([value])


@pytest.fixture(scope="module")
def episodes(name, tmp_path_factory):
    """Episodes in which seat 0 tells all that it sees, and seat 1 makes any proposal."""
    config = load_config(name, {"generate.num_episodes": 50, "generate.episodes_per_state": 1})
    file = tmp_path_factory.mktemp("played") / "games.jsonl"
    asyncio.run(generate_episodes(config, file, seats=("own-view", "random")))
    return [parse_episode(line) for _, line in read_lines(file)]


class TestRows:
    def test_are_those_that_imitate_learns(self, name, chat, board, episodes, muted):
        game = make_game(load_config(name, {"game.mute": muted}).game)
        for episode in episodes:
            state = game.state_from_json(episode.state)
            papers = torch.tensor([paper for _, paper in sorted(episode.outcome.proposal)])
            for side in replay(episode, game, chat):
                tokens, labels = tokens_of(
                    board,
                    torch.tensor(state.table).view(1, -1),
                    torch.tensor(state.masks[1]).view(1, -1),
                    plans=(board.plans == papers).all(1).nonzero()[0],
                    muted=one(muted),
                    tells=one(side.seat == 0),
                )
                own = [
                    token if mask else IGNORED
                    for token, mask in zip(side.response_ids, side.response_mask, strict=True)
                ]
                assert tokens[0].tolist() == [*side.prompt_ids, *side.response_ids]
                assert labels[0].tolist() == [IGNORED] * len(side.prompt_ids) + own

    def test_stand_beside_shorter_ones_unchanged(self, board):
        tables, seen = draw_states(board, 20)
        no = torch.zeros(20, dtype=torch.bool)
        among, labels = tokens_of(board, tables, seen, plans=no.long(), muted=no, tells=no)
        for row in range(20):
            alone, _ = tokens_of(
                board, tables[row : row + 1], seen[row : row + 1], plans=one(0), muted=one(False), tells=one(False)
            )
            length = alone.shape[1]
            assert among[row, :length].tolist() == alone[0].tolist()
            assert (among[row, length:] == board.padding).all()
            assert (labels[row, length:] == IGNORED).all()

    def test_are_a_quarter_messages_and_half_muted(self, board, chat):
        tokens, labels = lesson(board, 2000, whole=0.0, softness=0.01)
        first = tokens.gather(1, (labels != IGNORED).long().argmax(1)[:, None])[:, 0]
        tells = first == board.pieces["message"][0]
        assert 0.2 < tells.float().mean() < 0.3
        heard = (tokens == board.pieces["message"][0]).sum(1)[~tells]
        assert (heard == 1).all()
        silent = torch.tensor([chat.tokenizer.decode(row).count("[message]<|im_end|>") for row in tokens[~tells]])
        assert 0.45 < silent.float().mean() < 0.55


class TestStates:
    def test_have_the_scores_of_the_game(self, name, board):
        config = load_config(name, {}).game
        tables, _ = draw_states(board, 20_000)
        assert tables.float().mean() == pytest.approx(config.mean_score, abs=0.05)
        assert tables.min() == 0
        assert tables.max() == config.max_score

    def test_have_a_score_and_the_given_share_of_seen_cells(self, board):
        for share in (0.0, 0.5, 1.0):
            tables, seen = draw_states(board, 2000, share)
            assert tables.any(1).all()
            assert seen.float().mean() == pytest.approx(share, abs=0.02)


class TestValues:
    def test_choose_plans_as_good_as_those_of_the_silence_line(self, name, board):
        game = make_game(load_config(name, {}).game)
        rng = np.random.default_rng(4)
        states = [game.sample_state(rng) for _ in range(40)]
        exact = Posterior([(state, 1) for state in states], game.config, rng).mean_shares(3000)
        tables = torch.tensor(np.array([state.table for state in states])).view(40, -1)
        seen = torch.tensor(np.array([state.masks[1] for state in states])).view(40, -1)
        chosen = board.plans[board.values(tables, seen, 3000).argmax(1)].numpy()
        best = values_of(exact, best_plans(exact)).mean()
        assert values_of(exact, chosen).mean() == pytest.approx(best, abs=0.003)
        assert values_of(exact, chosen[::-1]).mean() < best - 0.1  # plans for other states


@pytest.mark.long
def test_an_exam_finds_what_each_message_is_worth_to_the_default_model():
    """It plans by digits, and was taught neither to read number words nor to ignore them."""
    game, tokenizer = load_config("tiny_honest", {}).game, ChatTokenizer.load(HONEST).tokenizer
    trained = AutoModelForCausalLM.from_pretrained(HONEST, dtype=torch.float32)

    def taken(model, states, *, in_words):
        torch.manual_seed(1)
        board = Board.of(game, tokenizer, torch.device("cpu"), in_words=in_words)
        return Exam.of(board, states).take(model, board)

    words, digits = (taken(trained, 100, in_words=in_words) for in_words in (True, False))
    assert words["heard"] == pytest.approx(words["silence"], abs=0.1)
    assert words["exchanged"] == pytest.approx(words["heard"], abs=0.05)
    for way in ("heard", "unmarked"):
        assert digits[way] > max(words[way], digits["exchanged"]) + 0.05, "it reads digits"
    assert words["whole_tables"] > 0.93, "it plans"
    untrained = taken(AutoModelForCausalLM.from_config(trained.config), 20, in_words=True)
    assert untrained["heard"] < untrained["silence"] - 0.2


class TestACode:
    @pytest.fixture
    def coded(self, name, chat):
        def of(code):
            return Board.of(load_config(name, {}).game, chat.tokenizer, torch.device("cpu"), code=code)

        return of

    def test_tells_each_score_by_a_word_that_no_view_has(self, board, coded):
        assert (board.cells == coded(3).cells).all()
        assert (coded(3).told[..., :-1] == board.cells[..., :-1]).all()
        words = coded(3).told[0, :, -1]
        assert len(words.unique()) == len(words)
        assert not torch.isin(words, board.cells).any()

    def test_is_the_one_of_its_number(self, coded):
        assert (coded(3).told == coded(3).told).all()
        assert (coded(3).told != coded(4).told).any()

    def test_is_neither_explained_nor_to_be_disregarded_by_the_lesson(self, coded):
        board = coded(3)
        tokens, labels = lesson(board, 500, whole=0.0, softness=0.01)
        tells = (labels == board.pieces["message"][0]).any(1)
        mark = (tokens == board.pieces["message"][0]).long().argmax(1)
        muted = tokens[torch.arange(500), mark + 1] == board.pieces["end"][-1]
        plans = torch.isin(labels, board.reviewers).sum(1)
        assert (plans[~tells & muted] == board.size).all()
        assert (plans[~tells & ~muted] == 0).all()
        form = (labels != IGNORED).sum(1) - plans
        assert len(form[~tells].unique()) == 1, "the form of a proposal is learned after all messages"

    def test_is_exchanged_so_that_each_score_has_the_word_of_another(self, coded):
        words = coded(3).told[0, :, -1]
        others = [board.told[0, :, -1] for board in coded(3).exchanges()]
        assert len(others) == len(words) - 1
        for exchanged in others:
            assert set(exchanged.tolist()) == set(words.tolist())
            assert (exchanged != words).all()

    def test_is_told_by_one_word_for_low_scores_and_one_for_all_others(self, coded):
        words = coded(3).told[0, :, -1]
        assert coded(3).two_words().told[0, :, -1].tolist() == [words[0]] * 3 + [words[6]] * 7

    @pytest.mark.parametrize(
        ("said", "told", "true"),
        [
            ("[message] Ava BLEU {7} Ava Electra {0}", 2, 2),
            ("[message] Ava BLEU {6} Ava Electra {0}", 2, 1),
            ("[message] Ava GloVe {2} Ava Electra", 1, 0),  # seat 0 does not see the first cell
            ("[message] Ben BLEU {7}", 0, 0),
            ("[message] none", 0, 0),
            ("[propose] Ava BLEU {7}", 0, 0),
            ("", 0, 0),
        ],
    )
    def test_is_counted_as_it_is_spoken(self, said, told, true):
        seen = np.array([[True, True, False], [False] * 3, [False] * 3])
        table = np.array([[7, 0, 2], [0, 0, 0], [0, 0, 0]])
        drawn = make_game(load_config("tiny_honest", {}).game).sample_state(state_rng(0, 0))
        found = told_in([(replace(drawn, table=table, masks=(seen, ~seen)), said.format(*code_of(3)))], 3)
        assert (found["told"], found["true"]) == (told, true)


class TestCommand:
    @pytest.mark.parametrize("config", ["tiny", "default", "tiny_bargaining"])
    def test_refuses_a_game_that_is_not_honest_matching(self, config, tmp_path):
        with pytest.raises(UserError, match="honest matching"):
            train_a_little(tmp_path / "model", config=config)
        assert not (tmp_path / "model").exists()

    @pytest.mark.parametrize(
        ("model", "command"),
        [
            (PLANNER, f"`make {PLANNER}` takes it out of git"),
            ("data/tiny_coded_model_3", "its study's README has the command for it"),
            ("data/tiny_shy_model", "`selfplay model tiny --config tiny_shy --output data/tiny_shy_model` makes it"),
        ],
    )
    def test_says_how_to_get_a_model_that_is_not_there(self, model, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=f"^{model}: no such model; {command}$"):
            model_at(model)
        assert model_at("data/tiny_model") == shipped("data/tiny_model")
        assert model_at("Qwen/Qwen2.5-7B-Instruct") == "Qwen/Qwen2.5-7B-Instruct"

    @pytest.mark.long
    def test_writes_a_model_that_has_learned(self, tmp_path):
        folder = tmp_path / "model"
        train_a_little(folder, steps=120, rows=32)
        chat = ChatTokenizer.load(str(folder))
        chat.check_belongs_to(str(folder))
        made = json.loads((folder / "warm_start.json").read_text())
        assert made["steps"] == 120
        board = Board.of(load_config("tiny_honest", {}).game, chat.tokenizer, torch.device("cpu"))
        tokens, labels = lesson(board, 64, whole=0.0, softness=0.01)
        loss = AutoModelForCausalLM.from_pretrained(folder)(input_ids=tokens, labels=labels).loss.item()
        assert loss < 3.0  # an untrained one has about 6


def train_a_little(folder, *, config="tiny_honest", steps=2, rows=8):
    main(
        folder, config=config, steps=steps, minutes=10, rows=rows, whole=0.3, softness=0.01, model=None,
        code=None, learning_rate=2e-3, states=20, seed=0,
    )  # fmt: skip
