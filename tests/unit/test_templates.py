"""Prompt templates of somebody else: they make text of bounded length, and reach neither the program nor files."""

import re
from pathlib import Path

import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.templates import LONGEST_FILE, PromptTemplate
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.chat_player import partner_arguments

VALUES = {"text": "ab" * 500, "words": ["a", "b"], "n": 3}


def render(folder: Path, source: str) -> str:
    (folder / "t.j2").write_text(source)
    return PromptTemplate(folder / "t.j2", "game.prompts").render(**VALUES)


HOSTILE = {
    "attribute": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
    "format": "{{ '{0.__class__}'.format(text) }}",
    "filter": "{{ text | attr('__class__') }}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "replaced": "{{ text | replace('', text) | replace('', text) }}",
    "of many numbers": "{{ range(20000000)|sum }}",
    "centred": "{{ text.center(1000000000) }}",
    "macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "include": "{% include 't.j2' %}",
    "long text": "{% for i in range(90000) %}" + "x" * 100 + "{% endfor %}",
    "undefined": "{{ nobody }}",
    "syntax": "{% for %}",
    "division": "{{ 1 // 0 }}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.long
def test_it_is_refused_in_one_line_that_names_file_and_line(tmp_path, source):
    with pytest.raises(UserError) as refused:
        print(render(tmp_path, "first line\n" + source)[:100])
    message = str(refused.value)
    assert message.startswith(f"game.prompts: {tmp_path / 't.j2'}:") and not {"\n", "None"} & {
        *message,
        *message.split(":"),
    }
    assert "t.j2:2: " in message or source == HOSTILE["deep"] or message.endswith(": more than 1048576 characters")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for w in words %}{{ loop.index }}{{ w }}{{ ',' if not loop.last }}{% endfor %}", "1a,2b"),
        ("{% set first = text.split('b')[0] %}{{ words | join(' | ') }} {{ first + 'x' }}", "a | b ax"),
        ("{{ ', '.join(words) }} {{ words|tojson }} {{ 7 % 4 ~ '!' }} {{ n * 2 - 1 }}", 'a, b ["a", "b"] 3! 5'),
        ("{{ 'xy'.replace('x', 'z') }}", "zy"),
    ],
)
def test_what_prompts_need_works(tmp_path, source, text):
    assert render(tmp_path, source) == text


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (LONGEST_FILE + 1)], ids=["not text", "too long"])
def test_a_file_that_is_no_template_is_refused(tmp_path, content):
    (tmp_path / "t.j2").write_bytes(content)
    with pytest.raises(UserError, match=r"game\.prompts: \S+t\.j2(:1: not UTF-8 text|: larger than 65,536 bytes)$"):
        PromptTemplate(tmp_path / "t.j2", "game.prompts")


@pytest.mark.parametrize("what", ["players", "partner"])
def test_both_places_that_take_templates_refuse_them(tmp_path, what):
    for name in ("system", "opening", "partner", "error", "rejected"):
        (tmp_path / f"{name}.j2").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    if what == "players":
        game = MatchingGame(MatchingConfig(size=3, prompts=str(tmp_path)))
        with pytest.raises(UserError, match=r"game\.prompts: \S+system\.j2:1: "):
            game.start(game.sample_state(state_rng(0, 0))).opening(0)
    else:  # before anything is written
        config = load_config("tiny", {"partner.prompt": str(tmp_path / "system.j2")})
        with pytest.raises(UserError, match=re.escape("partner.prompt: ") + r"\S+system\.j2:1: access to attribute"):
            partner_arguments(config.partner, make_game(config.game), ["chat"])
