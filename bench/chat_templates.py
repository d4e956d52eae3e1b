"""Drives chat templates through `ChatTokenizer`, and writes the table of docs/chat-models.md.

python -m bench.chat_templates

The templates lie in the registry package trl, and a few short ones here. Each stands on the tiny model's tokenizer with
its own special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import Completion, FinishReason
from selfplay_pipeline.generate.control_tokens import CONTROL, THOUGHTS, Thought, open_thought
from selfplay_pipeline.generate.trajectory import THOUGHT_FIELDS, ChatTokenizer, TrajectoryBuilder
from selfplay_pipeline.warm_start.tiny_model import CHAT_TEMPLATE, build_tokenizer

PAGE = Path("docs/chat-models.md")
BEGIN, END = "<!-- the table of `python -m bench.chat_templates` -->\n", "<!-- end of the table -->\n"


class Family(NamedTuple):
    """Models whose chat templates are revisions of one.

    Attributes:
        name: What users call the models.
        templates: Names of the templates in the package trl, or in `OTHERS`.
        eos: End-of-text token.
        bos: Begin-of-text token.
        text: Control strings of the template that are no tokens of the models' vocabulary.
    """

    name: str
    templates: tuple[str, ...]
    eos: str
    bos: str = "<s>"
    text: frozenset[str] = frozenset()


def _with_training(*names: str) -> tuple[str, ...]:
    return tuple(name + suffix for name in names for suffix in ("", "_training"))


INST = frozenset({"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"})
GEMMA_4 = ("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", *_with_training("diffusion_gemma"))
LFM_2_5 = ("lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl")
QWEN_3_5 = _with_training("qwen3_5_think", "qwen3_5_nothink", "qwen3_6")
NEMOTRON = ("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning")
FAMILIES = (
    Family("Qwen2.5, Qwen2.5-VL", _with_training("qwen2_5", "qwen2_5_vl"), "<|im_end|>"),
    Family("Qwen3", _with_training("qwen3"), "<|im_end|>"),
    Family("Qwen3-Instruct-2507, Qwen3-VL", _with_training("qwen3_instruct_2507", "qwen3_vl"), "<|im_end|>"),
    Family("Qwen3.5, Qwen3.6", QWEN_3_5, "<|im_end|>"),
    Family("Qwen3.8", _with_training("qwen3_8"), "<|im_end|>"),
    Family("Gemma 1 and 2", _with_training("gemma"), "<eos>", "<bos>"),
    Family("Gemma 3", _with_training("gemma3"), "<eos>", "<bos>"),
    Family("Gemma 4, DiffusionGemma", GEMMA_4, "<eos>", "<bos>"),
    Family("gpt-oss", _with_training("gptoss"), "<|return|>"),
    Family("GLM-4.5, GLM-4.6", _with_training("glm4moe"), "<|endoftext|>"),
    Family(
        "DeepSeek-R1 and its distills", _with_training("deepseek_r1_distill", "deepseekv3"), "<｜end▁of▁sentence｜>"
    ),
    Family("Nemotron 3", _with_training(*NEMOTRON), "<|im_end|>"),
    Family("Llama 2", ("llama2",), "</s>", text=INST),
    Family("Llama 3", _with_training("llama3"), "<|end_of_text|>", "<|begin_of_text|>"),
    Family("Llama 3.1 to 3.3", ("llama3_1", "llama3_2"), "<|end_of_text|>", "<|begin_of_text|>"),
    Family("Mistral 7B v0.1 and v0.2", ("mistral_v1", "mistral_v2"), "</s>", text=INST),
    Family("Mistral 7B v0.3", ("mistral_v3",), "</s>"),
    Family("LFM2", (*_with_training("lfm2", "lfm2_v2"),), "<|im_end|>", "<|startoftext|>"),
    Family("LFM2.5", LFM_2_5, "<|im_end|>", "<|startoftext|>"),
    Family("Phi-3, Phi-3.5", _with_training("phi3", "phi3_5"), "<|endoftext|>"),
    Family("Phi-4", ("phi4",), "<|endoftext|>"),
    Family("Aya Expanse, Tiny Aya", _with_training("cohere", "cohere2"), "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    Family("Muse Glimmer", _with_training("muse_glimmer"), "<|eot|>", "<|begin_of_text|>"),
    Family("Idefics3, SmolVLM", _with_training("idefics3", "smolvlm"), "<|end_of_text|>"),
    Family("LLaVA-NeXT with Mistral", _with_training("llava_next"), "</s>", text=INST),
    Family("Zephyr", ("zephyr",), "</s>", text=frozenset({"<|system|>", "<|user|>", "<|assistant|>"})),
    Family("Vicuna", ("vicuna",), "</s>"),
    Family(
        "ChatML without its tokens",
        ("chatml_as_text",),
        "</s>",
        text=frozenset({"<|as_text_start|>", "<|as_text_end|>"}),
    ),
)
FAMILY_OF = {name: family for family in FAMILIES for name in family.templates}
"""Family of each template."""
OTHERS = {
    "llama2": """\
{%- set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' if messages[0].role == 'system' else '' %}
{%- for message in (messages[1:] if system else messages) %}
    {%- if message.role == 'user' %}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + message.content | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "mistral_v1": """\
{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- else %}
        {{- message.content + eos_token + ' ' }}
    {%- endif %}
{%- endfor %}
""",
    "mistral_v3": """\
{{- bos_token }}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- for message in (messages[1:] if system else messages) %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system if loop.last else '') + message.content + '[/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "phi4": """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}
""",
    "zephyr": """\
{%- for message in messages %}
    {{- '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
""",
    "vicuna": """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- 'ASSISTANT: ' + message.content + eos_token }}
    {%- else %}
        {{- ('USER: ' if message.role == 'user' else '') + message.content + ' ' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}
""",
    "chatml_as_text": CHAT_TEMPLATE.replace("<|im_", "<|as_text_"),  # the tiny tokenizer knows ChatML's own
}
"""Short templates that trl does not have.

Each renders what the template of its model renders: meta-llama/Llama-2-7b-chat-hf, mistralai/Mistral-7B-Instruct-v0.1
and v0.3, microsoft/phi-4, HuggingFaceH4/zephyr-7b-beta (all in `tokenizer_config.json` on the Hugging Face hub), and
`vicuna_v1.1` of FastChat's `conversation.py`.
"""
OTHERS["mistral_v2"] = OTHERS["mistral_v1"].replace(" + ' ' }}", " }}")


class Finding(NamedTuple):
    """What `ChatTokenizer` makes of a template.

    Attributes:
        end: Token that ends a turn; empty for a refused template.
        thought: Texts around a thought.
        plain: Whether the appended tokens are those of the whole conversation, or the reason for a refusal, without
            thinking.
        thinking: The same with thinking; empty for a template without thoughts.
        switch: Whether the template heeds `generate.thinking`.
        notes: Other facts.
    """

    end: str
    thought: str
    plain: str
    thinking: str
    switch: bool
    notes: str

    @property
    def setting(self) -> str:
        """Setting with which the models can be used."""
        if not self.end:
            return "cannot be used"
        if self.plain.startswith(REFUSED):
            return "`generate.thinking: true`"
        if self.switch:
            return "nothing; `generate.thinking: true` to let it think"
        return "nothing; there is no switch for thoughts" if self.thinking else "nothing"


REFUSED = "refused: "
EQUAL = "yes"
DROPPED = {
    False: "no: the template drops the empty thoughts of earlier turns",
    True: "no: the template drops earlier thoughts",
}
SPACES = "no: the template puts other white space around earlier replies"
MOVED = "no: the template moves the rules to the last message"


def template_named(name: str) -> str:
    """Returns a chat template of the package trl or of `OTHERS`."""
    return OTHERS.get(name) or files("trl").joinpath(f"chat_templates/{name}.jinja").read_text("utf-8")


def tokenizer_for(family: Family, template: str, words: Sequence[str] = ()) -> Any:
    """Returns the tiny model's tokenizer with the family's special tokens, a chat template and words of a game."""
    from tokenizers import AddedToken

    tokenizer = build_tokenizer(words)
    found = {match.group() for match in CONTROL.finditer(template)} - family.text - {family.eos, family.bos}
    tags = {token for token in found if re.fullmatch(r"</?[a-z_]+>", token) and "_of_" not in token}
    tokenizer.add_special_tokens({"eos_token": family.eos, "bos_token": family.bos})
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(found - tags)})
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in sorted(tags)])
    tokenizer.chat_template = template
    tokenizer.model_max_length = 2**20
    return tokenizer


def examine(family: Family, name: str) -> Finding:
    """Drives a template, and returns what was found.

    Raises:
        ValueError: A thought is part of what is said, or the tokens differ from the whole conversation's for no known
            reason.
    """
    template = template_named(name)
    plain, chat = _driven(family, name, template, thinking=False)
    shows_thoughts = any(thought.end in template for thought in THOUGHTS)
    thinking, thinker = _driven(family, name, template, thinking=True) if shows_thoughts else ("", None)
    taken = chat or thinker
    if taken is None:
        return Finding("", "", plain, "", False, "")
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": TABLE}]
    switch = chat is not None and thinker is not None and chat.render(messages) != thinker.render(messages)
    notes = [
        *["the rules stand in the first user message"] * taken.form.folded,
        *["content is a list of parts"] * taken.form.parts,
        *["the template writes the date"] * taken.is_dated,
    ]
    thought = " … ".join(map(_code, taken.thought)) if taken.thought else "none"
    return Finding(_code(_end(taken)), thought, plain, thinking, switch, "; ".join(notes))


def _driven(family: Family, name: str, template: str, *, thinking: bool) -> tuple[str, ChatTokenizer | None]:
    """Returns the comparison with the whole conversation, and the tokenizer; None if the template is refused."""
    try:
        chat = ChatTokenizer(tokenizer_for(family, template), thinking=thinking)
    except UserError as error:
        return REFUSED + str(error).removeprefix(": ").removeprefix("the chat template "), None
    begun = open_thought(chat.header)
    for thought in [begun] if begun else THOUGHTS:
        _check_unsaid(chat, name, thought, "" if begun else thought.begin)
    for spaces in SPACINGS:
        appended, whole = _conversation(chat, spaces, thinking=thinking)
        if appended == whole:
            return EQUAL if not spaces.lead else f"{EQUAL}, if a reply begins with {_code(spaces.lead)}", chat
    reasons = ((SPACES, _without_spaces), (MOVED, _without_rules), (DROPPED[thinking], _without_thoughts))
    for reason, alike in reasons:
        if alike(appended) == alike(whole):
            return reason, chat
    raise ValueError(f"{name}: {appended!r} is not the template's {whole!r}")


class Spacing(NamedTuple):
    """White space that a model writes before a reply, within a thought and after it."""

    lead: str = ""
    inner: str = ""
    after: str = ""


SPACINGS = (Spacing(), Spacing(lead=" "), Spacing(lead="\n"), Spacing(inner="\n", after="\n\n"))


def _check_unsaid(chat: ChatTokenizer, name: str, thought: Thought, begin: str) -> None:
    """Raises ValueError if others would read a thought, or not what is said after it.

    Args:
        chat: The tokenizer.
        name: The template's name.
        thought: The thought's marks.
        begin: What the model itself writes before its thought.
    """
    texts = {f"{begin}secret{thought.end}\n{ACTIONS[0]}": (ACTIONS[0], True), f"{begin}secret": ("", False)}
    for text, said in (texts | ({ACTIONS[0]: (ACTIONS[0], True)} if begin else {})).items():
        ids = [*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_of_turn]
        if (found := chat.said(chat.decode_reply(ids))) != said:
            raise ValueError(f"{name}: {text!r} says {found}")


ACTIONS = ("[message] one", "[message] two")
RULES, TABLE, HEARD = "rules", "table", "heard"


def _conversation(chat: ChatTokenizer, spaces: Spacing, *, thinking: bool) -> tuple[str, str]:
    """Returns two rounds as the appended stream and as the template renders them whole.

    Args:
        chat: The tokenizer.
        spaces: White space of the replies in the stream.
        thinking: Whether each reply has a thought.
    """
    stream = TrajectoryBuilder(chat, 0, RULES, [TABLE])
    messages: list[dict[str, str]] = [{"role": "system", "content": RULES}, {"role": "user", "content": TABLE}]
    for action in ACTIONS:
        stream.prompt()
        reply, fields = spaces.lead + action, {}
        if thinking and chat.thought:
            begin = "" if open_thought(chat.header) else spaces.lead + chat.thought.begin + spaces.inner
            reply = f"{begin}hm{spaces.inner}{chat.thought.end}{spaces.after}{action}"
            fields = dict.fromkeys(THOUGHT_FIELDS, "hm")
        ids = [*chat.tokenizer.encode(reply, add_special_tokens=False), chat.end_of_turn]
        stream.reply(Completion(ids, [0.0] * len(ids), FinishReason.STOP, prompt_tokens=0, cached_tokens=0))
        stream.observe(HEARD)
        messages += [{"role": "assistant", "content": action, **fields}, {"role": "user", "content": HEARD}]
    return chat.tokenizer.decode(stream.prompt()), chat.render(messages)


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _without_rules(text: str) -> str:
    return _without_spaces(text).replace(RULES, "")


def _without_thoughts(text: str) -> str:
    for begin, end in THOUGHTS:
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", "", text, flags=re.DOTALL)
    return _without_spaces(text)


def _end(chat: ChatTokenizer) -> str:
    return str(chat.tokenizer.convert_ids_to_tokens(chat.end_of_turn))


def _code(text: str) -> str:
    return f"`{text}`".replace("\n", "\\n")


@cache
def findings() -> dict[str, dict[Finding, list[str]]]:
    """Returns the findings of all templates, with the names of the templates, by family."""
    found: dict[str, dict[Finding, list[str]]] = {}
    for family in FAMILIES:
        for name in family.templates:
            found.setdefault(family.name, {}).setdefault(examine(family, name), []).append(name)
    return found


def rows() -> Iterator[Sequence[str]]:
    """Yields the rows of the table, the head first."""
    yield (
        "models",
        "templates",
        "set",
        "a turn ends with",
        "a thought",
        "same as the whole render",
        "with thinking",
        "notes",
    )
    for name, found in findings().items():
        for finding, templates in found.items():
            facts = finding.end, finding.thought, finding.plain, finding.thinking, finding.notes
            yield name, ", ".join(templates), finding.setting, *(fact.replace("|", "\\|") or "–" for fact in facts)


def table() -> str:
    """Returns the table of all templates as Markdown."""
    head, *body = ("| " + " | ".join(row) + " |\n" for row in rows())
    return head + "|---" * head.count(" | ") + "|---|\n" + "".join(body)


def page_with(page: str, table: str) -> str:
    """Returns the page with another table."""
    return re.sub(f"(?<={re.escape(BEGIN)}).*(?={re.escape(END)})", lambda _: table, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), table()), "utf-8")
