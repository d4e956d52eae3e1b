"""Attention of many sequences at a time beside SGLang's own, in a process that is prepared like a server's."""

import os
import subprocess
import sys

COMPARE = """
from types import SimpleNamespace as Made
from selfplay_pipeline.engines import sglang_launch, sglang_attention
import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.radix_attention import AttentionType
from test_sglang_attention import CASES, HEADS, SIZE, batch

runner = Made(device="cpu", dtype=torch.float32)
own = ATTENTION_BACKENDS["torch_native"](runner)
sglang_attention.register()
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


def test_it_gives_what_sglangs_own_gives():
    path = os.pathsep.join([".", "tests/fast"])
    env = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", COMPARE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 1e-5
