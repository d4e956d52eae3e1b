"""The tiny model: a tokenizer with one token for each word of the game, bytes for all other text; initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CONTEXT_LENGTH = 1024
STRENGTH = 6.0
"""Size of the constant queries and keys of heads that look back: the `a` of `look_back`."""
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML in Qwen2.5's form, without its default system prompt."""


def build_tokenizer(words: Sequence[str]) -> Any:
    """Returns a `Qwen2Tokenizer` over bytes without merges, in which each of a game's words is an added token.

    Transformers loads the tokenizer of any Qwen2 checkpoint as this class, so it would lose a custom pre-tokenisation,
    but it keeps added tokens.
    """
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import Qwen2Tokenizer

    specials = [END_OF_TEXT, TURN_START, TURN_END]
    vocab = {token: index for index, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        unk_token=None,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )
    # The space before a word belongs to its token, so that joined tokens give the original text.
    spellings = dict.fromkeys(spelling for word in words for spelling in (word, f" {word}"))
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in spellings if text not in vocab])
    return tokenizer


def new_model(tokenizer: Any) -> Any:
    """Returns an untrained `Qwen2ForCausalLM` in float32.

    The head is not tied to the embedding, since tied heads complicate exports.
    """
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    model = Qwen2ForCausalLM(config)
    look_back(model, offsets=(1, 2))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def look_back(model: Any, offsets: Sequence[int]) -> None:
    """Initialise one head of the first layer per offset so that it attends to the token `offset` positions earlier.

    The model can then relate a number to its words from the start; learning this would take most of the training.
    With rotary embeddings (Su et al., arXiv 2104.09864) the constant query a·(cos oθ, −sin oθ) and key a·(1, 0) give
    the attention logit a² Σ cos((distance − o) θ).
    """
    import torch

    attention, width = model.model.layers[0].self_attn, model.model.layers[0].self_attn.head_dim
    frequencies = model.model.rotary_emb.inv_freq[:6]
    rest = torch.zeros(width // 2 - len(frequencies))
    with torch.no_grad():
        for head, offset in enumerate(offsets):
            rows = slice(head * width, (head + 1) * width)
            turned = STRENGTH * torch.cos(offset * frequencies), -STRENGTH * torch.sin(offset * frequencies)
            attention.q_proj.weight[rows] = 0
            attention.k_proj.weight[rows] = 0
            attention.q_proj.bias[rows] = torch.cat([turned[0], rest, turned[1], rest])
            attention.k_proj.bias[rows] = torch.cat([torch.full((6,), STRENGTH), torch.zeros(width - 6)])
