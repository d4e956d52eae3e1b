"""slime's own code around our hooks: its rollout loop, its training data, its logs, and its generic environment loop.

Runs wherever slime can be imported; its router is the CPU server, its Megatron part is not reached.
"""

from __future__ import annotations

import ast
import asyncio
import copy
import itertools
import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from chat_endpoint import ChatEndpoint, says
from recording_proxy import RecordingProxy
from slime_contract import RealSample, arguments
from test_slime_rollout import BOARD, check

from selfplay_pipeline.slime.data import DataJob, write_data
from selfplay_pipeline.slime.hooks import post_process_rewards
from selfplay_pipeline.slime.questions.records import read_records
from selfplay_pipeline.slime.rollout import generate

pytestmark = [pytest.mark.slime, pytest.mark.skipif(RealSample is None, reason="slime is not installed")]
HOOKS = "selfplay_pipeline.slime"
GREEDY = {"temperature": 0.0, "max_new_tokens": 700}


class Router(RecordingProxy):
    """slime's router, as far as slime asks it for more than the server has."""

    async def _forward(self, request: web.Request) -> web.Response:
        if request.path == "/workers":
            return web.json_response({"workers": [{"url": self.target}]})
        return await super()._forward(request)


@pytest.fixture
def router(sglang_server):
    with Router(sglang_server.url) as proxy:
        yield proxy


@pytest.fixture
def args(router, tmp_path) -> SimpleNamespace:
    """What slime's parser would give for a small run."""
    address, port = router.url.removeprefix("http://").split(":")
    off = """ci_test group_rm mask_offpolicy_in_partial_rollout use_distributed_post use_rollout_routing_replay
        use_critic use_wandb use_tensorboard log_passrate wandb_always_use_train_step load_debug_rollout_data"""
    none = """dynamic_sampling_filter_path rollout_sample_filter_path rollout_all_samples_process_path rollout_stop
        rollout_stop_token_ids rollout_max_context_len eval_max_context_len reward_key eval_reward_key multimodal_keys
        log_reward_category rollout_num_gpus custom_rm_path rm_type sglang_dp_size apply_chat_template_kwargs
        eval_max_prompt_len custom_convert_samples_to_train_data_path sglang_speculative_algorithm"""
    return arguments(
        **dict.fromkeys(off.split(), False),
        **dict.fromkeys(none.split()),
        sglang_router_ip=address,
        sglang_router_port=int(port),
        selfplay={"partner": "shy", "max_new_tokens": 64, "log_dir": str(tmp_path / "logs")},
        custom_generate_function_path=f"{HOOKS}.rollout.generate",
        custom_rollout_log_function_path=f"{HOOKS}.hooks.log_rollout",
        custom_eval_rollout_log_function_path=f"{HOOKS}.hooks.log_eval_rollout",
        rollout_interaction_env_path=f"{HOOKS}.env",
        rollout_num_engines=1,
        sglang_server_concurrency=64,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=700,
        rollout_skip_special_tokens=False,
        rollout_global_dataset=True,
        rollout_batch_size=4,
        over_sampling_batch_size=8,
        n_samples_per_prompt=4,
        partial_rollout=True,
        apply_chat_template=True,
        global_batch_size=16,
        router_policy="consistent_hashing",
    )


@pytest.fixture
def source(args, tmp_path) -> Iterator[Source]:
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.data import Dataset
    from slime.utils.http_utils import init_http_client
    from transformers import AutoTokenizer

    path = tmp_path / "games.jsonl"
    write_data(path, DataJob(BOARD, num_states=12, seed=0))
    tokenizer = AutoTokenizer.from_pretrained(args.hf_checkpoint)
    dataset = Dataset(str(path), tokenizer, None, None, prompt_key="prompt", apply_chat_template=True)
    init_http_client(args)
    GenerateState.clear_instances()
    yield Source(dataset.samples, args.n_samples_per_prompt)
    GenerateState.clear_instances()


class Source:
    """Groups of samples as slime's data source makes them; aborted groups come first."""

    def __init__(self, prompts: list[Any], size: int) -> None:
        self.prompts, self.size = prompts, size
        self.groups, self.samples = itertools.count(), itertools.count()
        self.waiting: list[list[Any]] = []
        self.aborted: list[int] = []
        self.taken_up: list[int] = []

    def get_samples(self, count: int) -> list[list[Any]]:
        again, self.waiting = self.waiting[:count], self.waiting[count:]
        self.taken_up += [sample.index for group in again for sample in group]
        return [*again, *(self._group() for _ in range(count - len(again)))]

    def add_samples(self, groups: list[list[Any]]) -> None:
        self.waiting += groups
        self.aborted += [s.index for group in groups for s in group if s.status is RealSample.Status.ABORTED]

    def _group(self) -> list[Any]:
        number = next(self.groups)
        group = [copy.deepcopy(self.prompts[number % len(self.prompts)]) for _ in range(self.size)]
        for sample in group:
            sample.group_index, sample.index = number, next(self.samples)
        return group


def method_of_slime(name: str) -> Any:
    """A method of slime's `RolloutManager`, whose module cannot be imported without a GPU's packages."""
    import torch
    from slime.utils.data import get_source

    text = Path(find_spec("slime").submodule_search_locations[0], "ray", "rollout.py").read_text()
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name)
    names: dict[str, Any] = {"torch": torch, "Sample": RealSample, "get_source": get_source}
    exec(compile(ast.Module([next(nodes)], []), "rollout.py", "exec"), names)
    return names[name]


def train_data(args: Any, samples: list[Any]) -> dict[str, Any]:
    """What slime would train on."""
    manager = SimpleNamespace(
        args=args,
        custom_convert_samples_to_train_data_func=None,
        _post_process_rewards=lambda samples: post_process_rewards(args, samples),
    )
    return method_of_slime("_convert_samples_to_train_data")(manager, samples)


def test_slimes_own_loop_plays_aborts_and_takes_up_again(args, source, router):
    from slime.rollout.sglang_rollout import generate_rollout

    for step in range(3):
        output = generate_rollout(args, step, source)
        samples = [sample for group in output.samples for sample in group]
        assert len(samples) == args.rollout_batch_size * args.n_samples_per_prompt
        for sample in samples:
            check(sample, router, sample.tokens[: -sample.response_length])
            assert sample.status in (RealSample.Status.COMPLETED, RealSample.Status.TRUNCATED)
            assert sample.reward == (sample.metadata["episode"]["status"] == "agreed" and sample.reward)
        data = train_data(args, samples)
        assert [len(row) for row in data["loss_masks"]] == data["response_lengths"]
        assert [len(row) for row in data["rollout_log_probs"]] == data["response_lengths"]
        assert data["raw_reward"] == [sample.reward for sample in samples]
    assert set(source.aborted) & set(source.taken_up)


def test_a_dialogue_ends_as_soon_as_slime_has_what_it_wants(args, source, router):
    """While the partner thinks the engine has no request of the sample's that slime could abort."""
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.async_utils import run

    state = GenerateState(args)

    def answers_too_late(request: web.Request) -> web.Response:
        state.aborted = True
        return says("[message] hello")(request)

    sample = source.get_samples(1)[0][0]
    with ChatEndpoint([answers_too_late]) as endpoint:
        args.selfplay |= {"partner": "chat", "chat": {"base_url": endpoint.url}}
        run(generate(args, sample, GREEDY))
    assert (sample.status, sample.remove_sample) == (RealSample.Status.ABORTED, True)
    assert len(router.exchanges) == 1


def test_slime_does_not_wait_for_a_partner_that_hangs(args, source):
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.async_utils import run

    state, (sample, *_) = GenerateState(args), source.get_samples(1)[0]
    with ChatEndpoint(delay=300) as endpoint:
        args.selfplay |= {"partner": "chat", "chat": {"base_url": endpoint.url, "timeout": 300}}

        async def play_and_stop() -> None:
            playing = asyncio.create_task(generate(args, sample, GREEDY))
            while not endpoint.requests:
                await asyncio.sleep(0.02)
            state.aborted = True
            await asyncio.wait_for(playing, 250)
            while endpoint.under_way:  # the request was cancelled, too
                await asyncio.sleep(0.02)

        run(play_and_stop())
    assert (sample.status, sample.remove_sample) == (RealSample.Status.ABORTED, True)


def test_a_lost_sample_is_left_out_of_slimes_loss(args, source, monkeypatch):
    from slime.utils.async_utils import run

    samples = [run(generate(args, sample, GREEDY)) for sample in source.get_samples(1)[0]]
    monkeypatch.setattr("selfplay_pipeline.generate.chat_model.MAX_RETRIES", 0)
    args.selfplay |= {"partner": "chat", "chat": {"base_url": "http://127.0.0.1:9/v1"}}
    run(generate(args, samples[1], GREEDY))
    data = train_data(args, samples)
    assert samples[1].status is RealSample.Status.FAILED
    assert (sum(data["loss_masks"][1]), data["rewards"][1]) == (0, 0.0)
    assert len({data["raw_reward"][number] for number in (0, 2, 3)}) == 1
    assert data["rewards"] == pytest.approx([0.0] * 4, abs=1e-6)


def loggers_of_slime() -> tuple[Any, Any]:
    """slime's logging of rollouts and of evaluations.

    In 0.3.1 they lie in a module that cannot be imported without a GPU's packages, so its functions are taken out of
    the source, with what they import but for SGLang.
    """
    try:
        from slime.observability.rollout_metrics import log_eval_rollout_data, log_rollout_data
    except ImportError:
        text = Path(find_spec("slime").submodule_search_locations[0], "ray", "rollout.py").read_text()
        names: dict[str, Any] = {"__name__": "slime.ray.rollout", "logger": logging.getLogger("slime.ray.rollout")}
        for node in ast.parse(text).body:
            imported = isinstance(node, ast.Import | ast.ImportFrom) and "sglang" not in ast.unparse(node)
            if imported or isinstance(node, ast.FunctionDef):
                exec(compile(ast.Module([node], []), "rollout.py", "exec", annotations.compiler_flag), names)
        log_rollout_data, log_eval_rollout_data = names["_log_rollout_data"], names["_log_eval_rollout_data"]
    return log_rollout_data, log_eval_rollout_data


def test_slimes_logs_hold_the_dialogues_figures(args, source, caplog, tmp_path):
    from slime.utils.async_utils import run

    log_rollout_data, log_eval_rollout_data = loggers_of_slime()
    samples = [run(generate(args, s, GREEDY)) for s in source.get_samples(1)[0]]
    with caplog.at_level(logging.INFO):
        log_rollout_data(3, args, samples, {}, 1.0)
        log_eval_rollout_data(3, args, {"held_out": {"rewards": [0.0] * 4, "samples": samples}}, None)
    assert "'rollout/episode/questions'" in caplog.text
    assert "'rollout/response_len/mean'" in caplog.text
    assert "'eval/held_out/episode/questions'" in caplog.text
    records = list(read_records(tmp_path / "logs" / "questions.jsonl"))
    assert [(record.step, record.reward) for record in records] == [(3, sample.reward) for sample in samples]
    dumped = RealSample.from_dict(samples[0].to_dict())
    assert dumped.metadata["episode"]["turns"] == samples[0].metadata["episode"]["turns"]


def test_slimes_generic_loop_plays_our_environment(args, source):
    pytest.importorskip("examples.geo3k_vlm_multi_turn.rollout", reason="slime's examples are not installed")
    from examples.geo3k_vlm_multi_turn.rollout import generate as generic_loop
    from slime.utils.async_utils import run

    class Sample(RealSample):
        """slime 0.3.1's example gives log-probs to tokens that were heard, which slime 0.3.1's `Sample` refuses."""

        def append_response_tokens(
            self, *args: Any, trainable: bool = True, log_probs: Any = None, **given: Any
        ) -> None:
            super().append_response_tokens(
                *args, trainable=trainable, log_probs=log_probs if trainable else None, **given
            )

    args.partial_rollout = False
    sampling = {"temperature": 0.0, "max_new_tokens": 700, "stop_token_ids": [2], "no_stop_trim": True}
    sampling |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    (group,) = source.get_samples(1)
    for sample in (Sample(**vars(given)) for given in group):
        run(generic_loop(args, sample, sampling))
        assert sample.status is RealSample.Status.COMPLETED
        assert len(sample.loss_mask) == sample.response_length
        assert sample.metadata["episode"]["status"]
        assert sample.reward is not None
