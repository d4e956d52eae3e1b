"""The stand-in for slime's `Sample` is like the real one, wherever slime can be imported."""

import inspect
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime_contract import NewSample, OldSample, RealSample

pytestmark = pytest.mark.skipif(RealSample is None, reason="slime is not installed")

tokens = st.lists(st.integers(0, 390), min_size=1, max_size=5)
spans = st.lists(st.tuples(tokens, st.booleans(), st.sampled_from(["stop", "length", "abort"])), max_size=6)


def default(field):
    return field.default_factory() if callable(field.default_factory) else field.default


def test_fields_have_the_same_defaults():
    real = {field.name: default(field) for field in fields(RealSample)}
    for field in fields(OldSample):
        assert field.name in real
        if field.name != "status":
            assert real[field.name] == default(field)
    assert real["status"].name == default(next(f for f in fields(OldSample) if f.name == "status")).name


def test_statuses_are_the_same():
    assert [status.name for status in RealSample.Status] == [status.name for status in OldSample.Status]


def test_tokens_are_appended_with_the_same_arguments():
    real, ours = (
        list(inspect.signature(kind.append_response_tokens).parameters.values()) for kind in (RealSample, NewSample)
    )
    assert [(p.name, p.kind, p.default) for p in real] == [(p.name, p.kind, p.default) for p in ours]


@given(spans)
def test_appended_tokens_give_the_same_sample(spans):
    samples = [kind(tokens=[1, 2]) for kind in (RealSample, NewSample)]
    for tokens, own, reason in spans:
        meta = {"finish_reason": {"type": reason}, "weight_version": "7", "prompt_tokens": 3, "cached_tokens": 1}
        for sample in samples:
            sample.append_response_tokens(
                None,
                tokens=tokens,
                log_probs=[-0.5] * len(tokens) if own else None,
                trainable=own,
                meta_info=meta if own else None,
                text="x",
                update_terminal_info=own,
            )
    real, ours = samples
    for field in fields(NewSample):
        mine, theirs = getattr(ours, field.name), getattr(real, field.name)
        if field.name == "status":
            mine, theirs = mine.name, theirs.name
        elif field.name == "prefix_cache_info":
            mine, theirs = vars(mine), vars(theirs)
        assert mine == theirs, field.name
