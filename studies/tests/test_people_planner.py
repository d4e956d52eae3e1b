"""`studies.people.warm_start`: rows are those of the game, and plans have the chances that they should have."""

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import untrained
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfplay_pipeline.generate.trajectory import ChatTokenizer, TrajectoryBuilder
from studies.people.rounded import Rounded, RoundedConfig
from studies.people.rows import Dialect, Episode, draw_state, soft_plan
from studies.people.warm_start import NAMES, Batch, Exam, grown, losses


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A model such as it begins with, though untrained."""
    return Path(untrained("tiny_honest", tmp_path_factory.mktemp("first")))


@pytest.fixture(scope="module")
def tokenizer(first):
    return AutoTokenizer.from_pretrained(first)


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
    game = Rounded(RoundedConfig(size=size, hard_factor=0, prompts="compact", protocol=protocol, mute=mute))
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


def test_a_model_that_gives_the_chances_has_no_loss_of_plans_and_one_of_another_plan_has(first, dialect):
    torch.manual_seed(0)
    model = grown(first)
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


def test_names_that_the_model_never_met_get_weights_about_those_of_the_names_that_it_met(first, tokenizer):
    torch.manual_seed(0)
    old, new = AutoModelForCausalLM.from_pretrained(first), grown(first)
    vocabulary = tokenizer.get_vocab()
    met = [vocabulary[name] for names in NAMES for name in names[:4]]
    unmet = [vocabulary[name] for names in NAMES for name in names[4:]]
    for name, weight in old.state_dict().items():
        changed = new.state_dict()[name] != weight
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert {*changed.any(1).nonzero().flatten().tolist()} == {*unmet}
            known, given = weight[met], new.state_dict()[name][unmet]
            assert given.mean() == pytest.approx(known.mean().item(), abs=0.02)
            assert given.std() == pytest.approx(known.std().item(), rel=0.3)
        else:
            assert not changed.any()


def test_an_exam_gives_reward_0_to_a_plan_that_names_one_reviewer_twice(first, dialect):
    exam = Exam.of(dialect, [draw_state(8, np.random.default_rng(0))])
    torch.manual_seed(0)
    model = grown(first)
    with torch.no_grad():
        model.lm_head.weight[:] = 0.0
    found = exam.take(model)
    assert found["reward"] == 0.0 < found["own_view"] <= 1.0
