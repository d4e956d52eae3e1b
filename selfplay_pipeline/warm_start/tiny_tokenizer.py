"""The tiny model's tokenizer: one token for each word of the game, bytes for all other text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        model_max_length=1024,
    )
    # The space before a word belongs to its token, so that joined tokens give the original text.
    spellings = dict.fromkeys(spelling for word in words for spelling in (word, f" {word}"))
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in spellings if text not in vocab])
    return tokenizer
