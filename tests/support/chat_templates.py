"""Real tokenizers and chat templates for tests, without a hub."""

from copy import copy
from functools import cache

from bench import qwen
from bench.chat_templates import OTHERS

QWEN3_TEMPLATE = """\
{%- set turns = namespace(last=0) %}
{%- for message in messages if message.role == 'user' %}{% set turns.last = messages.index(message) %}{% endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- if loop.index0 > turns.last %}
            {%- set content = '<think>\\n' + thought + '\\n</think>\\n\\n' + content %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
"""What Qwen3's does without tools: it drops earlier thoughts, and writes an empty one where it must not think."""
LLAMA3_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""
SMOLLM2_TEMPLATE = qwen.TEMPLATE.replace("Qwen, created by Alibaba Cloud", "SmolLM, trained by Hugging Face")
GEMMA3_TEMPLATE = """\
{{- bos_token }}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- for message in (messages[1:] if system else messages) %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {{- (system if loop.first else '') + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}
"""
MISTRAL_TEMPLATE = OTHERS["mistral_v3"]
"""Version 0.3's: the system message stands in the last user message."""
LLAMA2_TEMPLATE = OTHERS["llama2"]
ALPACA_TEMPLATE = """\
{%- for message in messages %}{{ '### ' + message.role + ':\\n' + message.content + '\\n\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}
"""
"""It ends a reply with a line break alone, an added token of Gemma's tokenizer."""
PHI3_TEMPLATE = """\
{%- for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
"""

QWEN_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|vision_start|>",
]  # fmt: skip
QWEN_PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
LLAMA3_SPECIAL = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|finetune_right_pad_id|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
]  # fmt: skip
SMOLLM2_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>",
    "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>",
    "<empty_output>",
]  # fmt: skip
GEMMA_SPECIAL = [
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<unused0>", "<unused9>", "<start_of_turn>", "<end_of_turn>",
    "[multimodal]",
]  # fmt: skip
GEMMA_PLAIN = ["\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<table>", "</table>", "<h1>"]
MISTRAL_SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[control_8]",
]  # fmt: skip
PHI3_SPECIAL = ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>"]
"""Added tokens of the published tokenizers, flagged special and not."""


def with_template(name: str, template: str):
    """The tokenizer of a family's shape with another chat template."""
    tokenizer = copy(shaped_tokenizer(name))
    tokenizer.chat_template = template
    return tokenizer


@cache
def shaped_tokenizer(name: str):
    """A tokenizer of a family's shape: its kind, its control tokens and template, with a vocabulary of characters."""
    match name:
        case "llama-3":
            return _dressed(_bytes(), LLAMA3_SPECIAL, [], LLAMA3_TEMPLATE, "<|begin_of_text|>", "<|eot_id|>")
        case "qwen2.5":
            return _dressed(_bytes(), QWEN_SPECIAL, QWEN_PLAIN, qwen.TEMPLATE, None, "<|im_end|>")
        case "qwen3":
            plain = [*QWEN_PLAIN, "<think>", "</think>", "<tool_response>", "</tool_response>"]
            return _dressed(_bytes(), QWEN_SPECIAL, plain, QWEN3_TEMPLATE, None, "<|im_end|>")
        case "qwen3-special":  # with the same ids
            plain = [*QWEN_PLAIN, "<think>", "</think>", "<tool_response>", "</tool_response>"]
            return _dressed(_bytes(), [*QWEN_SPECIAL, *plain], [], QWEN3_TEMPLATE, None, "<|im_end|>")
        case "smollm2":
            return _dressed(_bytes(), SMOLLM2_SPECIAL, [], SMOLLM2_TEMPLATE, "<|im_start|>", "<|im_end|>")
        case "gemma":
            return _dressed(_pieces(GEMMA_SPECIAL), GEMMA_SPECIAL, GEMMA_PLAIN, GEMMA3_TEMPLATE, "<bos>", "<eos>")
        case "mistral":
            return _dressed(_pieces(MISTRAL_SPECIAL), MISTRAL_SPECIAL, [], MISTRAL_TEMPLATE, "<s>", "</s>")
        case "phi":
            pieces = _pieces(["<s>", "</s>", *PHI3_SPECIAL])
            return _dressed(pieces, ["<s>", "</s>"], [], PHI3_TEMPLATE, "<s>", "<|endoftext|>", rstrip=PHI3_SPECIAL)
        case "normalising":
            # None of the families: it reads full-width and capital letters as others, and finds control tokens in
            # what it has read so, or where they stand alone.
            special = ["<unk>", "<ctl>", "<end>"]
            pieces = _pieces(special, unigram=True)
            return _dressed(pieces, special, ["[USR]"], NORMALISING_TEMPLATE, "<ctl>", "<end>", normalized=True)
    raise KeyError(name)


NORMALISING_TEMPLATE = """\
{%- for message in messages %}{{ '<ctl>[USR]' + message.role + ' ' + message.content + '<end>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<ctl>assistant ' }}{% endif %}
"""
SHAPES = ("llama-3", "qwen2.5", "qwen3", "smollm2", "gemma", "mistral", "phi", "normalising")


def _bytes():
    """GPT-2's kind: bytes under other names, no unknown character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(qwen.SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(control, *, unigram=False):
    """SentencePiece's kind: control tokens are pieces of the vocabulary too, and unknown characters become bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
    if unigram:
        tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, False))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    else:
        vocab = {piece: number for number, piece in enumerate(pieces)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _dressed(tokenizer, special, plain, template, bos, eos, *, rstrip=(), normalized=False):
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=normalized) for token in special])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False, rstrip=True) for token in rstrip])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    named = {"bos_token": bos} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, chat_template=template, **named)
