"""`bench.people_planner`: rows are those of the game, and plans have the chances that they should have."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.people_planner import Batch, Exam, grown, losses
from bench.people_rows import Dialect, Episode, draw_state, soft_plan, tokenizer_with_numbers
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.generate.trajectory import ChatTokenizer, TrajectoryBuilder


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_with_numbers()


@pytest.fixture(scope="module")
def dialect(tokenizer):
    return Dialect.of(tokenizer)


def texts(row, tokenizer):
    """The texts of a seat's own turns."""
    turns, tokens = [], []
    for token, learned in zip(row.tokens, row.learned, strict=True):
        if learned and token != tokenizer.eos_token_id:
            tokens.append(token)
        elif learned:
            turns.append(tokenizer.decode(tokens))
            tokens = []
    return turns


@pytest.mark.parametrize("mute", [False, True])
@pytest.mark.parametrize(("size", "protocol"), [(3, "free"), (8, "free"), (8, "fixed")])
def test_rows_are_those_that_the_game_gives_for_the_same_turns(dialect, tokenizer, size, protocol, mute):
    game = MatchingGame(MatchingConfig(size=size, hard_factor=0, prompts="compact", protocol=protocol, mute=mute))
    chat, rejected = ChatTokenizer(tokenizer), 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        state = draw_state(size, rng)
        rows = Episode(dialect, state, rng, mute=mute, fixed=protocol == "fixed").play(0.02, talks=True)
        session = game.start(state)
        openings = [session.opening(seat) for seat in (0, 1)]
        streams = [
            TrajectoryBuilder(chat, seat, opening.system, [opening.observation])
            for seat, opening in enumerate(openings)
        ]
        said = [texts(row, tokenizer) for row in rows]
        while session.status is None:
            text = said[session.seat].pop(0)
            rejected += text == "[reject]"
            streams[session.seat].say(text, cut=False, learned=True)
            step = session.step(session.seat, text)
            assert step.error is None
            for stream, observation in zip(streams, step.observations, strict=True):
                stream.observe(observation)
        assert said == [[], []] and session.status == "agreed"
        for row, stream in zip(rows, streams, strict=True):
            whole = stream.finish()
            assert row.tokens == whole.prompt_ids + whole.response_ids
            assert row.learned == [False] * len(whole.prompt_ids) + [bool(one) for one in whole.response_mask]
    assert bool(rejected) == (protocol == "free")


def test_a_plan_is_drawn_by_the_best_that_each_choice_leaves():
    values, softness = np.random.default_rng(0).random((4, 4)), 0.2
    plan, chances = soft_plan(values, softness, np.random.default_rng(1))
    assert sorted(plan) == [0, 1, 2, 3]

    def best(beginning):
        return max(
            sum(values[one, paper] for paper, one in enumerate(order))
            for order in permutations(range(4))
            if order[: len(beginning)] == tuple(beginning)
        )

    for paper in range(4):
        odds = [0.0 if one in plan[:paper] else math.exp(best([*plan[:paper], one]) / softness) for one in range(4)]
        assert chances[paper] == pytest.approx(np.array(odds) / sum(odds))


def test_a_model_that_gives_the_chances_has_no_loss_of_plans_and_one_of_another_plan_has(dialect, tokenizer):
    torch.manual_seed(0)
    model = grown(shipped("data/tiny_planner4x4_model"), tokenizer)
    rng = np.random.default_rng(0)
    batch = Batch.of(
        [row for _ in range(4) for row in Episode(dialect, draw_state(8, rng), rng).play(0.02, talks=True)]
    )
    plan, rest = losses(model, batch)
    assert plan.item() > 0.1 and rest.item() > 0.1
    assert batch.chances.sum(1) == pytest.approx(1)
    assert not batch.plain[tuple(batch.soft.T)].any(), "a name is learned by its chances alone"
    named = batch.tokens[tuple(batch.soft.T)]
    assert (batch.names == named[:, None]).any(1).all()


def test_the_layers_are_those_of_the_other_model_and_numbers_have_weights_between_digits_and_a_code(tokenizer):
    torch.manual_seed(0)
    folder = shipped("data/tiny_planner4x4_model")
    old, new = AutoModelForCausalLM.from_pretrained(folder), grown(folder, tokenizer)
    for name, weight in old.state_dict().items():
        if ".layers." in name or name == "model.norm.weight":
            assert torch.equal(weight, new.state_dict()[name])
    known, vocabulary, codes = AutoTokenizer.from_pretrained(folder).get_vocab(), tokenizer.get_vocab(), []
    for part in ("get_input_embeddings", "get_output_embeddings"):
        digits, numbers = (getattr(model, part)().weight for model in (old, new))
        for digit, number in ((0, 0), (1, 110), (9, 990)):
            added = numbers[vocabulary[f" {number}"]] - digits[known[f" {digit}"]]
            assert added[64:].abs().max() < 1e-5, "half of the weights are those of the digit"
            codes.append(added[:64].sign())
    assert all(torch.equal(read, written) for read, written in zip(codes[:3], codes[3:], strict=True))
    assert not torch.equal(codes[0], codes[1])


def test_an_exam_gives_reward_0_to_a_plan_that_names_one_reviewer_twice(dialect, tokenizer):
    exam = Exam.of(dialect, [draw_state(8, np.random.default_rng(0))])
    torch.manual_seed(0)
    model = grown(shipped("data/tiny_planner4x4_model"), tokenizer)
    with torch.no_grad():
        model.lm_head.weight[:] = 0.0
    found = exam.take(model)
    assert found["reward"] == 0.0 < found["own_view"] <= 1.0
