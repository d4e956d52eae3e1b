"""Arguments and clock of chat templates: a run's own, the same on every day and in every process."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers.utils.chat_template_utils
from factories import BOARD, POLICY, TINY, make_episodes, write_episodes
from scripted_server import played
from slime_contract import arguments

from bench.chat_templates import FAMILY_OF, template_named, tokenizer_for
from selfplay_pipeline.config.identity import differences
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.imitation import Source
from selfplay_pipeline.convert.parquet_check import check_parquet
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.preflight import check_arguments, check_context, training_states
from selfplay_pipeline.generate.records import ChatMessage, EpisodeRecord, PolicyRecord
from selfplay_pipeline.generate.stage import make_job, policy_record
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.generate.template_arguments import arguments_of
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.slime.env import chat_of
from selfplay_pipeline.train import imitation
from selfplay_pipeline.warm_start.tiny_model import CHAT_TEMPLATE

MESSAGES = [ChatMessage(role="system", content="rules"), ChatMessage(role="user", content="table")]
MISTRAL_SMALL = """\
{%- set today = strftime_now('%Y-%m-%d') %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}{{ message.content + eos_token }}
    {%- else %}
        {%- set mark = 'SYSTEM_PROMPT' if message.role == 'system' else 'INST' %}
        {{- '[' + mark + ']' + message.content + '[/' + mark + ']' }}
    {%- endif %}
{%- endfor %}
"""
"""What the template of Mistral Small 3 renders: it reads the clock for a system text that it writes only without ours.
"""
DATED = "{{- '<|im_start|>system\\nToday: ' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}" + CHAT_TEMPLATE


def chat(name: str, template: str = "", **given: object) -> ChatTokenizer:
    return ChatTokenizer(tokenizer_for(FAMILY_OF[name], template or template_named(name)), **given)


def text(tokenizer: ChatTokenizer) -> str:
    return str(tokenizer.tokenizer.decode(tokenizer.rendered_prompt(MESSAGES)))


@pytest.fixture
def tomorrow(monkeypatch):
    """Moves the clock that transformers gives to chat templates, each time that it is called."""

    class Moved(datetime):
        days = 0

        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=cls.days)

    def move() -> None:
        Moved.days += 400

    monkeypatch.setattr(transformers.utils.chat_template_utils, "datetime", Moved)
    return move


def with_template(folder: Path, template: str) -> str:
    """A tokenizer folder with this chat template."""
    tokenizer = ChatTokenizer.load(TINY).tokenizer
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text((Path(TINY) / "config.json").read_text())
    return str(folder)


# The clock


@pytest.mark.parametrize(
    ("name", "template", "dated"),
    [
        ("llama3_2", "", True),
        ("llama3_1", "", False),
        ("mistral_v3", MISTRAL_SMALL, False),
        ("qwen2_5", DATED, True),
        ("qwen3", "", False),
    ],
)
def test_the_same_messages_have_the_same_tokens_on_another_day(tomorrow, name, template, dated):
    before = chat(name, template)
    first = before.rendered_prompt(MESSAGES)
    free = before.tokenizer.apply_chat_template([m.model_dump() for m in MESSAGES], tokenize=False)
    tomorrow()
    after = chat(name, template)
    assert before.rendered_prompt(MESSAGES) == first == after.rendered_prompt(MESSAGES)
    moved = after.tokenizer.apply_chat_template([m.model_dump() for m in MESSAGES], tokenize=False)
    assert (moved != free) is dated, "the clock of transformers moved"
    assert before.is_dated is dated
    assert (chat(name, template, date="2026-11-30").rendered_prompt(MESSAGES) != first) is dated


def test_the_date_is_the_given_one_and_by_default_that_of_llamas_without_a_clock():
    assert "Today Date: 26 Jul 2024\n" in text(chat("llama3_2"))
    assert "Today Date: 30 Nov 2026\n" in text(chat("llama3_2", date="2026-11-30"))
    assert "Today Date: 1 April\n" in text(chat("llama3_2", template_args={"date_string": "1 April"}))
    assert not chat("llama3_2", template_args={"date_string": "1 April"}).is_dated


def test_episodes_of_yesterday_and_tomorrow_have_the_same_prompts_and_pass_the_check(tomorrow, tmp_path):
    model = with_template(tmp_path / "model", DATED)
    policy = POLICY.model_copy(update={"checkpoint": model, "date": "2026-11-30"})

    def episodes() -> list[EpisodeRecord]:
        return [*make_episodes(2, 2, chat=ChatTokenizer.load(model, **policy.template), policy=policy)]

    one = episodes()
    tomorrow()
    two = episodes()
    assert [record.trajectories for record in one] == [record.trajectories for record in two]
    assert all(record.policy.date == "2026-11-30" for record in two)
    run_convert(write_episodes(tmp_path / "games.jsonl", one[:2] + two[2:]), tmp_path)
    tomorrow()
    check_parquet(tmp_path / "train.parquet", model)


@pytest.mark.parametrize("key", ["date", "template_args", "thinking"])
def test_rows_of_different_arguments_are_not_mixed(tmp_path, key):
    other = {"date": "2026-11-30", "template_args": {"a": 1}, "thinking": True}
    changed = POLICY.model_copy(update={key: other[key]})
    records = [*make_episodes(1, 2), *make_episodes(1, 2, policy=changed)]
    games = write_episodes(tmp_path / "games.jsonl", records)
    with pytest.raises(UserError, match=rf"games.jsonl:3: field 'policy.{key}': .* before; put the episodes of each"):
        run_convert(games, tmp_path)


def test_a_record_names_arguments_and_date_only_if_they_are_not_the_usual_ones():
    assert not {"date", "template_args"} & json.loads(POLICY.model_dump_json()).keys()
    other = POLICY.model_copy(update={"template_args": {"reasoning_effort": "low"}, "date": "2026-11-30"})
    read = PolicyRecord.model_validate_json(other.model_dump_json())
    assert read == other != POLICY
    assert len({read, other, POLICY}) == 2


# Arguments


def test_a_template_gets_the_arguments():
    efforts = [text(chat("qwen3_8", thinking=True, template_args={"reasoning_effort": e})) for e in ("low", "medium")]
    assert efforts[0] != efforts[1]
    assert text(chat("nemotron_3_super", thinking=True, template_args={"low_effort": True})) != text(
        chat("nemotron_3_super", thinking=True)
    )


def test_a_value_that_the_template_refuses_is_told_in_one_line():
    with pytest.raises(UserError, match=r"chat template cannot render a system and a user message: .*effort") as line:
        chat("qwen3_8", thinking=True, template_args={"reasoning_effort": "much"})
    assert "\n" not in str(line.value)


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("qwen3", {"enable_thinking"}),
        ("llama3_2", {"date_string", "custom_tools", "tools_in_user_message"}),
        ("gemma4_v5", {"enable_thinking", "preserve_thinking"}),
        ("lfm2_2_5", {"preserve_thinking"}),
        ("llama3", set()),
    ],
)
def test_the_arguments_that_a_template_reads(name, reads):
    assert chat(name).arguments == reads


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        ("{% set effort = effort or 'low' %}{{ effort }}", {"effort"}),
        ("{% if not effort %}{% set effort = 'low' %}{% endif %}{{ effort }}", {"effort"}),
        ("{% set text = '' %}{% set text = text + 'a' %}{% if text %}{% set text = 'b' %}{% endif %}{{ text }}", set()),
        (
            "{% if tools %}{% set mode = 't' %}{% endif %}{% if mode is not defined %}{% set mode = 'c' %}{% endif %}"
            "{{ mode }}",
            {"mode"},
        ),
        ("{% if tools %}{% set mode = 't' %}{% endif %}{{ mode | default('c') }}", {"mode"}),
        (
            "{% if tools %}{% set mode = 't' %}{% else %}{% set mode %}c{% endset %}{% endif %}"
            "{% if mode is defined %}{{ mode }}{% endif %}",
            set(),
        ),
        (
            "{% macro shown(text) %}{% if text is defined %}{{ text }}{% endif %}{% endmacro %}"
            "{% for one in messages %}{% set text = one.content %}{{ shown(text) }}{% endfor %}",
            set(),
        ),
    ],
    ids=["or", "if not", "its own", "set in one branch", "a default", "set in both branches", "of a macro"],
)
def test_an_argument_may_get_its_default_in_the_template(template, reads):
    assert arguments_of(SimpleNamespace(special_tokens_map={}), template) == reads


UNREAD = ["reasoning_efort", "content", "messages", "strftime_now", "add_generation_prompt", "tokenize", "tools"]


@pytest.mark.parametrize("name", UNREAD)
def test_an_argument_that_the_template_does_not_read_is_refused_in_one_line(name):
    policy = POLICY.model_copy(update={"template_args": {name: True}})
    taken = chat("lfm2_2_5", template_args=policy.template_args)
    says = rf"generate.template_args.{name}: the chat template of .* does not read it; leave it out; it reads preserve_"
    with pytest.raises(UserError, match=says) as line:
        check_arguments(policy, [taken, chat("llama3")])
    assert "\n" not in str(line.value)
    assert text(taken) == text(chat("lfm2_2_5")), "a partner's template gets only what it reads"
    with pytest.raises(UserError, match="it reads no arguments"):
        check_arguments(policy, [chat("qwen3")])


@pytest.mark.parametrize(("name", "of_its_own"), [("qwen3_6", "content"), ("nemotron_3_super", "system_message")])
def test_a_name_that_a_template_sets_before_it_asks_for_it_is_no_argument(name, of_its_own):
    """Also not if a macro asks for its own parameter."""
    assert of_its_own not in chat(name).arguments
    assert {"enable_thinking"} <= chat(name).arguments


def test_one_of_several_players_must_read_an_argument():
    policy = POLICY.model_copy(update={"template_args": {"preserve_thinking": True}})
    check_arguments(policy, [chat("llama3"), chat("lfm2_2_5")])
    check_arguments(POLICY, [chat("llama3")])


def test_nothing_is_played_or_imitated_with_an_argument_that_no_template_reads(tmp_path):
    config = load_config("tiny", {"generate.template_args": {"effort": 1}, "device": "cpu"})
    policy, game = policy_record(config, TINY, ""), make_game(config.game)
    chats = [check_context(game, config.engine, policy, TINY, training_states(game, 0))]
    with pytest.raises(UserError, match=r"generate.template_args.effort: .* of data/tiny_model does not read"):
        check_arguments(policy, chats)
    games = write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2))
    with pytest.raises(UserError, match=r"generate.template_args.effort: .* of data/tiny_model does not read"):
        imitation._rows_of(config, [Source(games)])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"template_args": {"enable_thinking": True}}, "enable_thinking: generate.thinking sets it; give that key"),
        ({"template_args": {"thinking": True}}, "thinking: generate.thinking sets it"),
        ({"template_args": {"a": [1]}}, r"a: expected a text, a number, true or false, found \[1\]"),
        ({"template_args": {"a": None}}, "a: expected a text, a number, true or false, found None"),
        ({"template_args": {"a": float("nan")}}, "a: expected a text, .* found nan"),
        ({"template_args": "low"}, "expected names and values in braces, found"),
        ({"date": "tomorrow"}, "expected a date such as 2024-07-26, found 'tomorrow'"),
    ],
)
def test_what_is_no_argument_or_date_is_refused(given, says):
    (key,) = given
    with pytest.raises(UserError, match=f"generate.{key}.*{says}"):
        load_config("tiny", {}, settings={f"generate.{key}": given[key]})


# The run's identity


def job_of(folder: Path, **given: object) -> EpisodeStore:
    config = load_config("tiny", {f"generate.{key}": value for key, value in given.items()})
    return make_job(config, folder / "games.jsonl", TINY, 0, 0).store


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"template_args": {"effort": "low"}}, "generate.template_args = {}, now it is {'effort': 'low'}"),
        ({"template_args": {"effort": True}}, "generate.template_args = {}, now it is {'effort': True}"),
        ({"date": "2026-11-30"}, "generate.date = '2024-07-26', now it is '2026-11-30'"),
    ],
)
def test_a_run_is_not_continued_with_other_arguments_or_another_date(tmp_path, given, says):
    usual = job_of(tmp_path)
    with usual.opened(lambda record: None):
        pass
    usual.check()
    with pytest.raises(UserError, match=re.escape(says)) as line:
        job_of(tmp_path, **given).check()
    assert "\n" not in str(line.value)
    again = job_of(tmp_path / "other", **given)
    (tmp_path / "other").mkdir()
    with again.opened(lambda record: None):
        pass
    again.check()
    with pytest.raises(UserError, match="was begun with generate"):
        job_of(tmp_path / "other").check()


def test_true_and_one_are_different_arguments():
    record = {"generate.template_args": {"effort": True}, "generate.top_p": 1}
    assert not differences(record, record | {"generate.top_p": 1.0})
    assert [*differences(record, record | {"generate.template_args": {"effort": 1}})] == ["generate.template_args"]


def test_slime_gives_the_template_its_own_arguments():
    args = arguments(apply_chat_template_kwargs={"enable_thinking": True, "effort": "low"})
    assert chat_of(args, thinking=True).template["template_args"] == {"effort": "low"}
    assert not chat_of(arguments(), thinking=True).template["template_args"]


def test_a_loop_keeps_its_arguments(tmp_path):
    def config(**given: object):
        return load_config("tiny", {f"generate.{key}": value for key, value in given.items()} | {"device": "cpu"})

    low = config(template_args={"effort": "low", "deep": True})
    RunDirectory(tmp_path).open(low)
    RunDirectory(tmp_path).check(low)
    with pytest.raises(UserError, match=re.escape("generate.template_args = {'effort': 'low', 'deep': True}, now it")):
        RunDirectory(tmp_path).check(config(template_args={"effort": "low"}))
    with pytest.raises(UserError, match=r"generate\.template_args = .*, now it is \{\}"):
        RunDirectory(tmp_path).check(config())


def test_the_policy_plays_with_its_arguments_and_the_record_has_them():
    low = chat("qwen3_8", thinking=True, template_args={"reasoning_effort": "low"})
    ids = [*low.tokenizer.encode("hm</think>[message] hi", add_special_tokens=False), low.end_of_turn]
    record = played(low, [ids], BOARD.model_copy(update={"max_length": 1}), 400)
    plain = chat("qwen3_8", thinking=True)
    (me,) = [side for side in record.trajectories if side.response_ids]
    messages = me.messages[: me.num_prompt_messages]
    assert me.prompt_ids == low.rendered_prompt(messages) != plain.rendered_prompt(messages)
