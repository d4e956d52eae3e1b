"""Real tokenizers and chat templates for tests, without a hub."""

import base64
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

QWEN25_TEMPLATE = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""What Qwen2.5-Instruct's template does when no tools are given (tokenizer_config.json of the published model)."""

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def qwen_tokenizer():
    """Qwen's vocabulary, from the `qwen.tiktoken` file in the registry package dashscope, as a fast tokenizer."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    lines = (
        Path(str(distribution("dashscope").locate_file("dashscope/resources/qwen.tiktoken"))).read_bytes().splitlines()
    )
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    to_text = _byte_alphabet()
    vocab = {"".join(to_text[b] for b in token): rank for token, rank in ranks.items()}
    merges = [
        tuple("".join(to_text[b] for b in part) for part in _last_merge(token, ranks, rank))
        for token, rank in ranks.items()
        if len(token) > 1
    ]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=QWEN25_TEMPLATE,
    )


def _byte_alphabet():
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()


def _last_merge(token, ranks, limit):
    """The two parts that byte-pair encoding joins last to make `token`, using merges below rank `limit`."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best = min(
            ((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1)), key=lambda found: found[0]
        )
        assert best[0] < limit, token
        parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
    return parts
