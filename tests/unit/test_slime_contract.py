"""What ours relies on is in slime itself, wherever it can be imported: its `Sample`, calls, options, evaluations.

`selfplay slime check` sends the user of another version here.
"""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime_contract import NewSample, OldSample, RealSample, arguments
from test_slime_check import SCRIPT, evaluation_sets, options_of

from selfplay_pipeline.slime.hooks import log_eval_rollout, log_rollout, post_process_rewards
from selfplay_pipeline.slime.rollout import _stopping, generate

pytestmark = pytest.mark.skipif(RealSample is None, reason="slime is not installed")
SLIME = Path(find_spec("slime").origin).parent if RealSample else Path()

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


@cache
def calls_of(name: str) -> list[ast.Call]:
    """All calls of a function or method in slime's source, some of which needs a GPU's packages to be imported."""
    trees = (ast.parse(path.read_text()) for path in SLIME.rglob("*.py"))
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if ast.unparse(call.func).removeprefix("self.") == name]


@pytest.mark.parametrize(
    ("hook", "name", "given"),
    [
        (generate, "custom_generate_func", "args sample sampling_params evaluation"),
        (post_process_rewards, "custom_reward_post_process_func", "self.args samples"),
        (log_rollout, "custom_log_func", "rollout_id args samples rollout_extra_metrics rollout_time"),
        (log_eval_rollout, "custom_log_func", "rollout_id args data extra_metrics"),
    ],
)
def test_slime_calls_our_hooks_with_what_they_take(hook, name, given):
    found = [[*map(ast.unparse, call.args), *(keyword.arg for keyword in call.keywords)] for call in calls_of(name)]
    assert given.split() in found
    assert len(inspect.signature(hook).parameters) == len(given.split())


def test_slime_knows_its_own_options_of_the_launch_script():
    own = {
        name for name in options_of(SCRIPT.read_text()) if re.match(r"--(custom|rollout|eval|n-samples|save)-", name)
    }
    known = set(re.findall(r'"(--[a-z0-9-]+)"', (SLIME / "utils" / "arguments.py").read_text()))
    assert own - {"--save-interval"} <= known  # that one is Megatron's


def test_the_end_of_a_step_is_seen_where_slime_tells_it(monkeypatch):
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.misc import SingletonMeta

    state = object.__new__(GenerateState)
    state.reset()
    monkeypatch.setattr(SingletonMeta, "_instances", {GenerateState: state})
    assert not _stopping()
    state.aborted = True
    assert _stopping()


def test_slime_evaluates_both_and_takes_the_rest_from_its_arguments(monkeypatch):
    from slime.utils.eval_config import build_eval_dataset_configs, ensure_dataset_list

    monkeypatch.setenv("GAMES_EVAL", "/run/games_eval.jsonl")
    args = arguments(
        n_samples_per_eval_prompt=3, eval_max_response_len=8192, eval_temperature=None, rollout_temperature=1.0,
        input_key="prompt", metadata_key="metadata", apply_chat_template=True,
    )  # fmt: skip
    sampled, greedy = build_eval_dataset_configs(args, ensure_dataset_list(evaluation_sets()), {})
    assert (sampled.temperature, sampled.n_samples_per_eval_prompt) == (1.0, 3)
    assert (greedy.temperature, greedy.n_samples_per_eval_prompt) == (0.0, 1)
    for data in (sampled, greedy):
        assert (data.max_response_len, data.input_key, data.metadata_key) == (8192, "prompt", "metadata")


@pytest.mark.parametrize(("per_token", "equal"), [(True, True), (False, False)])
def test_slimes_flag_decides_whether_tokens_of_long_dialogues_weigh_less(per_token, equal):
    """`slime.backends.megatron_utils` needs Megatron to be imported, so the reducer is taken out of its source."""
    import torch

    source = SLIME / "backends" / "megatron_utils" / "cp_utils.py"
    reducer = next(
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "get_sum_of_sample_mean"
    )
    alone = SimpleNamespace(get_context_parallel_world_size=lambda: 1)
    names = {"torch": torch, "Callable": Callable, "mpu": alone}
    exec(compile(ast.Module([reducer], []), str(source), "exec"), names)
    losses = torch.ones(2 + 6, requires_grad=True)
    masks = [torch.ones(2), torch.ones(6)]
    reduce = names["get_sum_of_sample_mean"]([3, 9], [2, 6], masks, calculate_per_token_loss=per_token)
    reduce(losses).backward()
    short, long = losses.grad[0], losses.grad[-1]
    assert (short == long) == equal
    assert equal or short == 3 * long
