"""`bench.language`: the rows of its lesson, the loss, and the model that it writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from bench import language
from bench.language import ADAPTER, PARTS, Lesson, Schedule, loss_of, train, with_adapter, write_merged
from bench.planner import IGNORED
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError

MODEL = Path("data/tiny_honest_model")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with the rows of 40 states, in the dialect of the tiny model."""
    folder = tmp_path_factory.mktemp("lesson")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "CONFIG", "tiny_honest")
        language.write_rows(MODEL, folder, states=40, seed=1)
    return folder


def test_each_part_has_the_rows_of_its_share_of_the_states(work):
    parts = pq.read_table(work / "train.parquet")["part"].to_pylist()
    assert {part: parts.count(part) for part in parts} == {
        "muted, seat 1": 20,
        "own, seat 0": 3,
        "own, seat 1": 12,
        "random, seat 1": 8,
    }
    assert sum(part.share for part in PARTS.values()) == 1


def test_a_row_learns_the_seats_own_tokens_alone(work):
    rows, lesson = pq.read_table(work / "train.parquet").to_pylist(), Lesson.read(work / "train.parquet")
    for row, tokens, labels in zip(rows, lesson.tokens, lesson.labels, strict=True):
        whole = row["prompt_ids"] + row["response_ids"]
        own = [0] * len(row["prompt_ids"]) + row["response_mask"]
        assert tokens.tolist()[: len(whole)] == whole
        assert labels.tolist()[: len(whole)] == [
            token if learned else IGNORED for token, learned in zip(whole, own, strict=True)
        ]
        assert set(labels.tolist()[len(whole) :]) <= {IGNORED}


def test_held_out_rows_are_in_no_batch(work):
    lesson = Lesson.read(work / "train.parquet")
    lesson.labels[0] = 7
    assert lesson.held_out() == {"muted, seat 1": [0]}
    for _, labels in lesson.batches(rows=6, epochs=2, seed=1):
        assert not (labels == 7).all(1).any()


def test_the_loss_is_that_of_transformers(work):
    lesson = Lesson.read(work / "train.parquet")
    tokens, labels = lesson.of([0, 20, 23, 40])
    policy = with_adapter(MODEL, 2)
    expected = AutoModelForCausalLM.from_pretrained(MODEL).to(tokens.device)(input_ids=tokens, labels=labels).loss
    tolerance = 0.02 if tokens.is_cuda else 1e-5  # on a GPU the policy computes in bfloat16
    assert loss_of(policy, tokens, labels).item() == pytest.approx(expected.item(), abs=tolerance)


def test_rows_of_another_lesson_are_refused(work, monkeypatch):
    monkeypatch.setattr(language, "CONFIG", "tiny_honest")
    with pytest.raises(UserError, match="states = 40, now it is 60"):
        language.write_rows(MODEL, work, states=60, seed=1)


def test_a_step_of_more_rows_than_there_are_is_refused(work, tmp_path):
    with pytest.raises(UserError, match=r"--rows 43: the lesson has 42 rows to train on; give fewer, or more --states"):
        language.main(MODEL, tmp_path / "model", work, states=40, rows=43, seed=1)
    assert not (tmp_path / "model").exists()


def test_a_training_ends_with_its_schedule(work):
    done = train(with_adapter(MODEL, 2), Lesson.read(work / "train.parquet"), Schedule(6, 9, 1e-9, 1e-3), seed=1)
    assert done["steps"] == 1


@pytest.mark.long
def test_a_training_lowers_the_loss_and_its_adapter_gives_the_written_model(work, tmp_path):
    lesson = Lesson.read(work / "train.parquet")
    policy, everything = with_adapter(MODEL, 2), lesson.of([*range(1, 43)])
    before = loss_of(policy, *everything).item()
    done = train(policy, lesson, Schedule(rows=14, epochs=3, minutes=5, rate=3e-3), seed=1)
    assert done["steps"] == 9
    assert loss_of(policy, *everything).item() < before
    write_merged(policy, MODEL, tmp_path / "model", done)
    again = with_adapter(MODEL, tmp_path / "model" / "adapter")
    write_merged(again, MODEL, tmp_path / "again", {})
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("model", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(
        first["model.layers.0.mlp.up_proj.weight"],
        AutoModelForCausalLM.from_pretrained(MODEL).state_dict()["model.layers.0.mlp.up_proj.weight"].bfloat16(),
    )


def test_a_schedule_rises_and_falls_to_nothing():
    plan = Schedule(rows=1, epochs=1, minutes=1, rate=1.0)
    assert [round(plan.rate_at(done), 3) for done in (0, 0.025, 0.05, 0.5, 1)] == [0, 0.499, 0.994, 0.5, 0]


def test_the_configuration_is_of_the_board_that_the_adapter_plays():
    game = load_config(language.CONFIG, {"model": str(MODEL)}).game
    assert (game.size, game.protocol, game.prompts) == (2, "fixed", "bench/brief_prompts")
    assert (Path(ADAPTER) / "adapter_model.safetensors").exists()
