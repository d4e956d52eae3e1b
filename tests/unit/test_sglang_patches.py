"""The replacements of SGLang's code: is it still the code that they were written for, and do they do what they say?

Raise SGLang by one version, run this file, and see what it names.
"""

import asyncio
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from library_code import check_code, check_records, ours

import selfplay_pipeline.train.cluster
from selfplay_pipeline.core.loopback import loopback_environment
from selfplay_pipeline.core.patches import PATCHES
from selfplay_pipeline.engines import sglang_patches
from selfplay_pipeline.engines.sglang_api import PROBE, request_of
from selfplay_pipeline.engines.sglang_patches import Direct, sample_by_inversion

assert selfplay_pipeline.train.cluster  # whose replacement of Ray's code is compared here too
FOUND = [patch for patch in PATCHES if patch.library.split("=")[0] not in ("verl", "TransferQueue")]


def test_each_replacement_has_its_reasons_and_was_written_for_the_installed_version():
    check_records(FOUND)


@pytest.mark.long
def test_the_replaced_code_is_what_it_was():
    users: dict[str, set[str]] = {}
    for patch in FOUND:
        for part in patch.code:
            users.setdefault(part, set()).add(ours(patch))
    check_code("sglang_code.txt", users)


# Stand-ins


def imported(site: Path, code: str) -> str:
    """What the code prints in a process like the server's, with `site` before everything that is installed."""
    for package in ("transformers", "sglang"):
        (site / f"{package}.py").write_text("AutoImageProcessor = 'their own'\n")
    env = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": f"{site}:{Path.cwd()}"}
    code = f"import selfplay_pipeline.engines.sglang_launch, transformers; {code}"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
@pytest.mark.parametrize("package", ["torchvision", "sgl_kernel"])
def test_a_package_that_cannot_be_imported_gets_a_stand_in_and_the_other_one_is_left_alone(tmp_path, package):
    (tmp_path / "torchvision.py").write_text("real = 'torchvision'\n")
    (tmp_path / "sgl_kernel.py").write_text("real = 'sgl_kernel'\n")
    (tmp_path / f"{package}.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    code = "import torchvision, sgl_kernel; print([isinstance(p.real, str) for p in (torchvision, sgl_kernel)]); "
    code += "print(transformers.AutoImageProcessor == 'their own')"
    left_alone = [package != name for name in ("torchvision", "sgl_kernel")]
    assert imported(tmp_path, code) == f"{left_alone}\n{left_alone[0]}\n"


# Attention


COMPARE = """
from types import SimpleNamespace as Made
from selfplay_pipeline.engines import sglang_launch, sglang_patches
import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.radix_attention import AttentionType
from test_sglang_attention import CASES, HEADS, SIZE, batch

runner = Made(device="cpu", dtype=torch.float32)
own = ATTENTION_BACKENDS["torch_native"](runner)
sglang_patches.replace_attention()
ours = ATTENTION_BACKENDS["torch_native"](runner)
assert type(ours) is not type(own)

def compute(backend, decode, made, lengths, new, attention_type=AttentionType.DECODER, dtype=torch.float32):
    query, keys, values, table, requests = made
    lengths, new = torch.tensor(lengths), torch.tensor(new)
    layer = Made(
        qk_head_dim=SIZE, v_head_dim=SIZE, tp_q_head_num=HEADS, tp_k_head_num=keys.shape[1], scaling=0.3, layer_id=0,
        is_cross_attention=False, attn_type=attention_type,
    )
    pool = Made(get_key_buffer=lambda layer: keys.to(dtype), get_value_buffer=lambda layer: values.to(dtype))
    forward = Made(
        forward_mode=Made(is_decode_or_idle=lambda: decode), seq_lens=lengths, extend_seq_lens=new,
        extend_prefix_lens=lengths - new, req_pool_indices=requests, out_cache_loc=None, token_to_kv_pool=pool,
        req_to_token_pool=Made(req_to_token=table),
    )
    backend.init_forward_metadata(forward)
    act = backend.forward_decode if decode else backend.forward_extend
    return act(query.flatten(1), None, None, layer, forward, save_kv_cache=False)

furthest = 0.0
for lengths, new in CASES.values():
    for key_heads in (HEADS, 2):
        made = batch(lengths, new, key_heads)
        for further in ({}, {"dtype": torch.bfloat16}, {"attention_type": AttentionType.ENCODER_ONLY}):
            for decode in {False, max(new) == 1}:
                found = [compute(backend, decode, made, lengths, new, **further) for backend in (own, ours)]
                furthest = max(furthest, float((found[0] - found[1]).abs().max()))
print(furthest)
"""


PORTS = """
import socket, types
from selfplay_pipeline.engines import sglang_launch, sglang_patches
sglang_patches.hold_ports()
from sglang.srt.managers.data_parallel_controller import bind_port
from sglang.srt.server_args import PortArgs
copies = types.SimpleNamespace(nccl_port=None, tokenizer_worker_num=1, enable_dp_attention=False)
for port in [PortArgs.init_new(copies).nccl_port for _ in range(2)]:  # as a copy of the model picks its port
    bind_port(port).close()
    try:
        socket.socket().bind(("127.0.0.1", port))
    except OSError:
        print("held")
"""


@cache
def printed() -> list[str]:
    """Returns the lines of both programs, which one process runs, since it is SGLang's import that takes long."""
    path = os.pathsep.join([".", "tests/unit"])
    env = os.environ | loopback_environment() | {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PORTS + COMPARE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_attention_gives_what_sglangs_own_gives():
    assert float(printed()[-1]) < 1e-5


@pytest.mark.long
def test_sglang_holds_the_ports_that_it_picks():
    assert printed().count("held") == 2


# The short way of an engine's requests


def ask(monkeypatch, body: bytes, path: str = "/generate", method: str = "POST"):
    """Status and body of the answer to a request that comes in two parts, and who gave it."""
    half = len(body) // 2
    parts = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ]
    sent, seen = [], []

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def directly(request, scope, receive, send):
        seen.append(("directly", request))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b'{"a": 1}'})

    async def sglang(scope, receive, send):
        whole, more = b"", True
        while more:
            message = await receive()
            whole, more = whole + message["body"], message["more_body"]
        seen.append(("sglang", whole, (await receive())["type"]))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"its own"})

    monkeypatch.setattr(sglang_patches, "_answer", directly)
    asyncio.run(Direct(sglang)({"type": "http", "path": path, "method": method}, receive, send))
    return sent[0]["status"], sent[1]["body"], seen


PROBES = request_of([1], PROBE)


def test_what_an_engine_asks_for_is_answered_directly(monkeypatch):
    answered = ask(monkeypatch, json.dumps(PROBES).encode())
    assert answered == (200, b'{"a": 1}', [("directly", PROBES)])


@pytest.mark.parametrize(
    ("body", "path", "method"),
    [
        (json.dumps(PROBES | {"stream": True}), "/generate", "POST"),
        (json.dumps({"input_ids": [1]}), "/generate", "POST"),
        ("[1, 2]", "/generate", "POST"),
        ("no JSON", "/generate", "POST"),
        (json.dumps(PROBES), "/flush_cache", "POST"),
        (json.dumps(PROBES), "/generate", "PUT"),
    ],
)
def test_all_else_is_sglangs(monkeypatch, body, path, method):
    answered = ask(monkeypatch, body.encode(), path, method)
    assert answered[:2] == (200, b"its own") and answered[2][0][:2] == ("sglang", body.encode())


# Sampling


def test_tokens_are_drawn_as_often_as_their_probabilities_say_and_never_without_one():
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 4.0, 0.0])
    drawn = sample_by_inversion(weights.expand(40_000, -1))
    counts = torch.bincount(drawn, minlength=len(weights))
    assert drawn.dtype == torch.int32
    assert drawn.shape == (40_000,)
    assert not counts[weights == 0].any()
    expected = 40_000 * weights / weights.sum()
    assert float((((counts - expected) ** 2)[weights > 0] / expected[weights > 0]).sum()) < 14  # p = 0.001


def test_rows_are_drawn_apart_and_small_probabilities_before_a_large_one_take_nothing_from_it():
    torch.manual_seed(0)
    assert sample_by_inversion(torch.eye(5)).tolist() == [0, 1, 2, 3, 4]
    flat = torch.full((20_000, 1_000), 1e-3)
    flat[:, 500:] = 1e-9
    flat[:, -1] = 0.5
    assert float((sample_by_inversion(flat) == 999).float().mean()) == pytest.approx(0.5, abs=0.02)
