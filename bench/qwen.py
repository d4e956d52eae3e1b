"""Builds a model with Qwen2.5-0.5B's configuration, Qwen's vocabulary and random weights, for machines without a hub.

python -m bench.qwen FOLDER

The vocabulary is that of the file `qwen.tiktoken` in the registry package dashscope.
"""

from __future__ import annotations

import base64
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import distribution
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command

TOKENS = 151_643
"""Size of the whole vocabulary; the control tokens have the ids after it, as in Qwen2.5."""
SIZES: dict[str, Any] = {
    "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": True, "vocab_size": 151_936,
}  # fmt: skip
"""Configuration of https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct (Apache-2.0). The last 293 tokens have no text."""
FEW = 30_000
"""Size of a smaller vocabulary, for a CPU."""
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = """\
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
"""Qwen2.5-Instruct's template without tools (tokenizer_config.json of the published model)."""


def main(
    folder: Annotated[Path, typer.Argument(help="Gets the model and its tokenizer.")],
    layers: Annotated[int, typer.Option(min=1, help="Of Qwen2.5-0.5B's 24.")] = 24,
    tokens: Annotated[int, typer.Option(min=256, max=TOKENS, help="The first so many of the vocabulary.")] = TOKENS,
    heads: Annotated[int, typer.Option(min=2, help="Of attention, of 64 numbers each; even.")] = 14,
) -> None:
    """Write the model."""
    build(folder, layers=layers, tokens=tokens, heads=heads)


def build(folder: Path, *, layers: int = 24, tokens: int = TOKENS, heads: int = 14, config: Path | None = None) -> None:
    """Write model and tokenizer.

    Args:
        folder: The folder to write.
        layers: Number of layers; Qwen2.5-0.5B has 24.
        tokens: Number of tokens of the vocabulary, the first ones.
        heads: Number of attention heads; a number other than 14 makes all layers narrower or wider.
        config: File with the configuration of another model of Qwen2's architecture, in place of these sizes.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = qwen_tokenizer(tokens)
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": SIZES["hidden_size"] * heads // SIZES["num_attention_heads"],
        "intermediate_size": SIZES["intermediate_size"] * heads // SIZES["num_attention_heads"],
        "vocab_size": tokens + SIZES["vocab_size"] - TOKENS,
    }
    settings = Qwen2Config(**SIZES | sizes) if config is None else Qwen2Config.from_json_file(config)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    settings.update({"initializer_range": 0.02, "eos_token_id": end, "bos_token_id": pad, "pad_token_id": pad})
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a CPU takes minutes for billions
        model = Qwen2ForCausalLM(settings)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_apart(folder: Path, **sizes: Any) -> None:
    """Write model and tokenizer as `build` does, in another process, which gives its GPU memory back when it ends."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(build, folder, **sizes).result()


@cache
def qwen_tokenizer(tokens: int = TOKENS) -> Any:
    """Returns a tokenizer with the first tokens of Qwen's vocabulary. Each token is made of earlier ones.

    Finding the merges of all 151,643 takes seconds.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    file = Path(str(distribution("dashscope").locate_file("dashscope/resources/qwen.tiktoken")))
    pairs = (line.split() for line in file.read_bytes().splitlines()[:tokens])
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    to_text = bytes_to_unicode()
    vocab = {"".join(to_text[b] for b in token): rank for token, rank in ranks.items()}
    merges = [
        tuple("".join(to_text[b] for b in part) for part in _last_merge(token, ranks, rank))
        for token, rank in ranks.items()
        if len(token) > 1
    ]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
    )


def _last_merge(token: bytes, ranks: dict[bytes, int], limit: int) -> list[bytes]:
    """Returns the two parts that byte-pair encoding joins last to make `token`, using merges below rank `limit`."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best = min(
            ((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1)), key=lambda found: found[0]
        )
        assert best[0] < limit, token
        parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
    return parts


if __name__ == "__main__":
    command.run(main)
