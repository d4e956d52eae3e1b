"""The partner behind an OpenAI-compatible endpoint, with the real `openai` package and a real, unreliable server."""

import asyncio
import gzip
import json
import logging
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from unittest.mock import patch

import pytest
from aiohttp import web
from chat_endpoint import ChatEndpoint, body, echoes_its_key, fails, page, says

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.core.addresses import is_this_machine
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate import chat_model
from selfplay_pipeline.generate.chat_cache import AnswerCache
from selfplay_pipeline.generate.chat_model import ChatClient, PartnerError, RequestCapError, retry_after
from selfplay_pipeline.generate.chat_player import chat_player
from selfplay_pipeline.generate.episode import LONGEST_TURN, Episode, Reply
from selfplay_pipeline.generate.players import script_player
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import CHAT, POLICY, PartnerUsage
from selfplay_pipeline.generate.seats import check_players
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.generate.text_player import text_player
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.preflight import plan_generate

KEY = "sk-test-0123456789abcdef"
HELLO = [{"role": "system", "content": "rules"}, {"role": "user", "content": "hello"}]
FINE, REPLY = says("[message] fine"), Reply("[message] fine", False, "stop")
PRICE = 0.00028
"""US dollars that an answer of the endpoint costs."""


@pytest.fixture(autouse=True)
def _a_key(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))  # each client would read all authorities, for plain HTTP


@pytest.fixture
def endpoint():
    with ChatEndpoint() as server:
        yield server


def ask(endpoint, count=1, *, first_pause=0.001, messages=HELLO, retries=chat_model.MAX_RETRIES, **options):
    """Ask one client `count` times at once; returns the answers or errors, and what was used."""

    async def script():
        client = ChatClient(PartnerConfig(base_url=endpoint.url, **options), first_pause=first_pause)
        asked = [client.reply(messages, (number,)) for number in range(count)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await client.close()
        return answers, client.total

    with patch.object(chat_model, "MAX_RETRIES", retries):
        return asyncio.run(script())


def error_of(endpoint, kind=PartnerError, **options):
    """The error of one request, and the number of requests that were sent for it."""
    (error,), total = ask(endpoint, **options)
    assert type(error) is kind
    return str(error), total.requests


# --- retries and limits -------------------------------------------------------------------------------------


async def endless(request):
    """Send four times as much as is read."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for _ in range(64):
        await response.write(b" " * (1 << 20))
    return response


async def trickle(request):
    """Send every byte in time, and never the whole."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


def hang_up(request):
    request.transport.abort()
    return web.Response()


MAY_PASS = {
    **{str(status): (fails(status), f"answered {status}") for status in (408, 409, 429, 500, 503)},
    "connection breaks": (hang_up, "no connection"),
    "trickles": pytest.param(trickle, "no answer within", marks=pytest.mark.long),
    "page": (page("<html>502 Bad Gateway</html>"), "not a chat completion"),
    "half": (page('{"choices": [', content_type="application/json"), "not a chat completion"),
    "null": (body(None), "not a chat completion"),
    "no choices": (body({}), "not a chat completion"),
    "empty choices": (body({"choices": []}), "is empty"),
    "no message": (body({"choices": [{"message": None, "finish_reason": "stop"}]}), "not a chat completion"),
    "number": (body({"choices": [{"message": {"content": 7}, "finish_reason": "stop"}]}), "not a chat completion"),
    "no text": (says(None), "is empty"),
    "blank": (says(" \n"), "finish reason stop"),
    "filtered": (says("[message] I", reason="content_filter"), "was broken off"),
    "aborted": (says("[message] I", reason="abort"), "was broken off"),
    "no text, no reason": (says("", reason=None), "is empty"),
}


@pytest.mark.parametrize(("answer", "words"), MAY_PASS.values(), ids=MAY_PASS)
def test_what_may_pass_is_tried_again_as_often_as_allowed(endpoint, answer, words):
    endpoint.script = [answer, FINE, answer, answer, FINE]
    limit = 2 if answer is trickle else 60
    (reply,), total = ask(endpoint, retries=1, timeout=limit)
    assert (reply, total.requests, total.retries) == (REPLY, 2, 1)
    said, sent = error_of(endpoint, retries=1, timeout=limit)
    assert words in said and sent == 2 and len(endpoint.requests) == 4


WILL_NOT_PASS = {
    "400": (fails(400, "context too long"), PartnerError, "answered 400: context too long"),
    "401": (fails(401), UserError, "refuses the key in OPENAI_API_KEY"),
    "403": (fails(403), UserError, "fix partner.model"),
    "404": (fails(404, "no such model"), UserError, "fix partner.model"),
    "404 of another server": (
        lambda request: web.json_response({"detail": "Not Found"}, status=404),
        UserError,
        "(404: Error code: 404 - {'detail': 'Not Found'}); fix partner.model or partner.base_url",
    ),
    "quota": (fails(429, "no money left", "insufficient_quota"), UserError, "no money left"),
    "asks for an hour": (fails(503, Retry_After="3600"), PartnerError, "asks to wait 3600 s"),
    "a setting": (
        body({"error": {"message": "only 1", "param": "temperature", "code": "unsupported_value"}}, 400),
        UserError,
        "refuses partner.temperature (400: only 1); set it",
    ),
    "redirect": (
        body(None, 307, Location="http://localhost:1/v1/chat/completions"),
        UserError,
        "redirects to 'http://localhost:1/v1/chat/completions'; give that address as partner.base_url",
    ),
    "without end": (endless, PartnerError, "answered with more than 16 MiB"),
    "compressed": (
        lambda request: web.Response(body=gzip.compress(b" " * (64 << 20)), headers={"Content-Encoding": "gzip"}),
        PartnerError,
        "answered compressed (gzip)",
    ),
}


@pytest.mark.parametrize(("refusal", "kind", "words"), WILL_NOT_PASS.values(), ids=WILL_NOT_PASS)
def test_what_will_not_pass_is_not_tried_again(endpoint, refusal, kind, words):
    endpoint.script = [refusal]
    said, sent = error_of(endpoint, kind)
    assert words in said and sent == 1


def test_nobody_there_is_a_failure_after_all_retries():
    with ChatEndpoint() as gone:
        pass
    said, sent = error_of(gone, retries=2)
    assert "no connection" in said and sent == 3


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), ("0.5", 0.5), ("-3", 0), ("soon", 0), ("", 0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0)],
)
def test_a_server_may_say_how_long_to_wait_as_a_number_or_a_date(value, seconds):
    assert retry_after({"retry-after": value}) == seconds
    assert retry_after({"retry-after": formatdate(time.time() + 3600, usegmt=True)}) == pytest.approx(3600, abs=60)


@pytest.mark.long
def test_pauses_grow_and_are_as_long_as_the_server_asks(endpoint):
    endpoint.script = [*[fails(500)] * 3, fails(429, Retry_After="1")]
    ask(endpoint, first_pause=0.1)
    pauses = [later - earlier for earlier, later in zip(endpoint.times, endpoint.times[1:], strict=False)]
    assert all(pause >= least - 0.02 for pause, least in zip(pauses, (0.1, 0.2, 0.4, 1), strict=True))


@pytest.mark.long
def test_no_more_requests_are_under_way_than_allowed(endpoint):
    together = asyncio.Barrier(3)

    async def once_there_are_three(request):
        await together.wait()
        return FINE(request)

    endpoint.delay, endpoint.script = 0.1, [once_there_are_three] * 12
    answers, _ = ask(endpoint, 12, max_concurrency=3)
    assert endpoint.most == 3
    assert len(answers) == len(endpoint.requests) == 12


def test_a_budget_ends_the_requests_and_counts_those_with_an_answer(endpoint):
    endpoint.script = [fails(500), fails(429)]
    answers, total = ask(endpoint, 10, max_concurrency=1, max_dollars=4.5 * PRICE)
    assert len(endpoint.requests) == total.requests == 7
    assert [sum(isinstance(one, kind) for one in answers) for kind in (Reply, RequestCapError)] == [5, 5]


def test_a_copy_of_the_caps_error_from_another_process_says_the_same():
    error = pickle.loads(pickle.dumps(RequestCapError("$1 is spent", "raise the budget")))
    assert (str(error), error.limit) == ("$1 is spent; raise the budget", "$1 is spent")


def test_a_budget_cannot_be_kept_if_the_server_reports_no_tokens(endpoint):
    answer = {"choices": [{"message": {"content": "[message] a"}, "finish_reason": "stop"}]}
    half = [{}, {"total_tokens": 5}, {"prompt_tokens": 5}, {"completion_tokens": 5}]
    for billed in ({}, {"usage": None}, *({"usage": usage} for usage in half)):
        endpoint.script = [body(answer | billed)] * 2
        assert isinstance(ask(endpoint, 1)[0][0], Reply)
        said, sent = error_of(endpoint, RequestCapError, max_dollars=1.0)
        assert "reports no tokens" in said and sent == 1


NO_CHOICES = body({"choices": "none", "usage": {"prompt_tokens": 500, "completion_tokens": 40}})


async def test_tokens_and_dollars_are_added_up_also_of_answers_that_were_no_use(endpoint):
    endpoint.script = [says(None, tokens=(500, 60)), NO_CHOICES, says("[message] a", tokens=(3000, 50))]
    used, client = [], ChatClient(PartnerConfig(base_url=endpoint.url, prices=[2, 8]), first_pause=0)
    await client.reply(HELLO, (0,), used.append)
    await client.close()
    assert client.total == sum(used, PartnerUsage())
    assert (client.total.prompt_tokens, client.total.completion_tokens) == (4000, 150)
    assert client.total.dollars == pytest.approx((4000 * 2 + 150 * 8) / 1e6)


def test_a_budget_is_kept_also_if_the_answers_have_another_form(endpoint):
    endpoint.script = [NO_CHOICES] * 3
    said, sent = error_of(endpoint, RequestCapError, max_dollars=0.0015)
    assert "of partner.max_dollars" in said and sent == 2


def test_an_answer_in_parts_is_the_text_of_its_parts_without_the_thoughts(endpoint):
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thought, {"type": "text", "text": "[message] "}, {"type": "text", "text": "fine"}]
    endpoint.script = [body({"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]})]
    assert ask(endpoint)[0] == [REPLY]


def test_a_reply_cut_by_its_limit_says_so_and_no_answer_is_asked_for_compressed(endpoint):
    encodings = []

    def cut(request):
        encodings.append(request.headers["Accept-Encoding"])
        return says("[message] I was", reason="length")(request)

    endpoint.script = [cut]
    assert ask(endpoint, max_tokens=5)[0] == [Reply("[message] I was", True, "length")]
    assert endpoint.requests[0]["max_tokens"] == 5 and encodings == ["identity"]


def test_a_reply_whose_limit_was_spent_on_thoughts_is_a_cut_one_and_not_asked_for_again(endpoint):
    endpoint.script = [says(None, reason="length"), says("", reason="length")]
    answers, total = ask(endpoint, 2)
    assert answers == [Reply("", True, "length")] * 2 and total.requests == 2


@pytest.mark.parametrize("reason", [None, "", "eos", "eos_token", "end_turn", "STOP", "stop_sequence", "tool_calls"])
def test_a_whole_answer_is_taken_whatever_the_server_calls_its_end(endpoint, reason):
    endpoint.script = [says("[message] fine", reason=reason)]
    assert ask(endpoint, retries=0)[0] == [REPLY]


@pytest.mark.parametrize("reason", ["max_tokens", "MAX_TOKENS", "model_length"])
def test_a_cut_answer_is_one_whatever_the_server_calls_it(endpoint, reason):
    endpoint.script = [says("[message] I was", reason=reason)]
    assert ask(endpoint, retries=0)[0] == [Reply("[message] I was", True, "length")]


WANTS_OTHER = fails(
    400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)


@pytest.mark.parametrize(
    "refusal",
    [
        WANTS_OTHER,
        fails(400, "use max_completion_tokens"),
        fails(422, "max_tokens is deprecated, please use the parameter max_completion_tokens"),
        fails(400, "'max_completion_tokens' must be given instead of 'max_tokens'."),
    ],
)
def test_an_endpoint_that_asks_for_max_completion_tokens_gets_it_from_then_on(endpoint, refusal):
    async def script():
        client = ChatClient(PartnerConfig(base_url=endpoint.url, max_tokens=7), first_pause=0.001)
        answers = [await client.reply(HELLO, (number,)) for number in range(2)]
        await client.close()
        return answers, client.total.requests

    endpoint.script = [refusal, FINE, FINE]
    assert asyncio.run(script()) == ([REPLY, REPLY], 3)
    limits = [{key: value for key, value in sent.items() if key.startswith("max")} for sent in endpoint.requests]
    assert limits == [{"max_tokens": 7}, *[{"max_completion_tokens": 7}] * 2]


def test_an_endpoint_that_asks_for_it_again_and_again_loses_one_episode(endpoint):
    endpoint.script = [WANTS_OTHER] * 2
    assert error_of(endpoint)[1] == 2


def test_a_limit_that_is_too_high_for_one_conversation_keeps_its_name(endpoint):
    endpoint.script = [fails(400, "'max_tokens' or 'max_completion_tokens' is too large: 256."), FINE]
    error_of(endpoint)
    assert len(endpoint.requests) == 1


# --- cache --------------------------------------------------------------------------------------------------


HIT = PartnerUsage(cache_hits=1, counted_hits=1, cached_completion_tokens=10, cached_dollars=PRICE)
"""Usage of an answer from the cache."""


def test_all_that_decides_an_answer_decides_its_entry_also_after_a_restart(endpoint, tmp_path):
    cache = tmp_path / "answers.db"
    first, _ = ask(endpoint, 3, cache=cache)
    assert ask(endpoint, 3, cache=cache) == (first, HIT + HIT + HIT) and len(endpoint.requests) == 3
    for options in ({"model": "other"}, {"temperature": 0.0}, {"max_tokens": 9}, {"messages": [*HELLO, *HELLO]}):
        assert ask(endpoint, cache=cache, **options)[1].requests == 1
    with ChatEndpoint() as elsewhere:
        assert ask(elsewhere, cache=cache)[1].requests == 1
    sent = PartnerUsage(requests=1, prompt_tokens=100, completion_tokens=10, dollars=0.00028)
    assert ask(endpoint, 4, cache=cache)[1] == HIT + HIT + HIT + sent


def test_an_answer_whose_tokens_the_cache_does_not_know_is_used_and_makes_the_sum_unknown(endpoint, tmp_path):
    first, used = ask(endpoint, 2, cache=tmp_path / "answers.db")
    assert used.with_cached() == (20, 2 * 0.00028)
    with sqlite3.connect(tmp_path / "answers.db") as database:
        database.execute("DROP TABLE tokens")  # as in a file of an earlier version
    again, used = ask(endpoint, 3, cache=tmp_path / "answers.db")
    assert again[:2] == first and (used.cache_hits, used.counted_hits, used.completion_tokens) == (2, 0, 10)
    assert used.with_cached() is None


def test_what_two_episodes_ask_at_the_same_time_is_sent_once(endpoint, tmp_path):
    async def script():
        client = ChatClient(PartnerConfig(base_url=endpoint.url, cache=tmp_path / "answers.db"), first_pause=0.001)
        answers = await asyncio.gather(*(client.reply(HELLO, (seed,)) for seed in (0, 0, 1, 0)))
        await client.close()
        return answers, client.total

    endpoint.script = [fails(503), says("[message] one"), says("[message] two")]
    answers, total = asyncio.run(script())
    assert answers[0] == answers[1] == answers[3] != answers[2]
    assert (total.requests, total.cache_hits, total.retries) == (3, 2, 1) and len(endpoint.requests) == 3


def test_the_first_answer_of_a_key_stays_whoever_asks_later(tmp_path):
    one, other = AnswerCache(tmp_path), AnswerCache(tmp_path)
    first, second = Reply("first", False, "stop"), Reply("second", True, "length")
    assert one.get("key") is None
    one.put("key", first)
    for cache in (one, other, AnswerCache(tmp_path)):
        assert cache.put("key", second) == first, "what the second asker uses"
        cache.put("of its own", second)
        assert cache.get("key") == first
    assert one.get("of its own") == second


def test_failures_are_not_kept(endpoint, tmp_path):
    endpoint.script = [says(None)]
    error_of(endpoint, cache=tmp_path, retries=0)
    assert isinstance(ask(endpoint, cache=tmp_path)[0][0], Reply)


@pytest.mark.parametrize("table", ["answers (colour text)", "colours (name text)"])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_something_else_is_left_as_it_is(tmp_path, table, mode):
    path = tmp_path / "mine.sqlite3"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA journal_mode = {mode}")
    database.execute(f"CREATE TABLE {table}")
    database.close()
    content = path.read_bytes()
    with pytest.raises(UserError, match=r"partner\.cache: .*mine\.sqlite3: a database of something else"):
        AnswerCache(path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


# --- key and address ----------------------------------------------------------------------------------------


def test_openai_needs_a_key_and_a_server_of_ones_own_may_do_without(endpoint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="set the environment variable OPENAI_API_KEY"):
        ChatClient(PartnerConfig())
    assert isinstance(ask(endpoint)[0][0], Reply)
    assert endpoint.keys == ["none"]


def test_the_address_may_come_from_the_environment_as_for_the_openai_package(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url + "/")
    assert PartnerConfig().endpoint == endpoint.url
    assert PartnerConfig(base_url="https://elsewhere/v1").endpoint == "https://elsewhere/v1"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *((url, "leave user, password and query out") for url in ("https://me:secret@host/v1", "https://h?key=secret")),
        *((url, "not an address") for url in ("localhost:30000", "ftp://host/v1", "http://host:port/v1", "http://[::1")),
    ],
)  # fmt: skip
def test_what_is_no_address_or_holds_a_secret_is_refused_from_file_and_environment(url, words, monkeypatch):
    with pytest.raises(UserError, match=f"option for partner.base_url: .*{words}") as one:
        load_config("tiny", {"partner.base_url": url})
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(UserError, match=f"OPENAI_BASE_URL: {words}") as other:
        ChatClient(PartnerConfig())
    assert "secret" not in f"{one.value} {other.value}"


@pytest.mark.parametrize("key", ["two words", "sk-test-№", "sk-\x01test"])
def test_what_cannot_be_a_key_is_refused_without_showing_it(key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError, match="not a key") as caught:
        ChatClient(PartnerConfig())
    assert key not in str(caught.value)


def test_a_line_break_after_the_key_is_no_part_of_it(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")
    ask(endpoint)
    assert endpoint.keys == [KEY]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_a_server_that_sends_the_key_back_does_not_make_it_known(endpoint, status, caplog):
    caplog.set_level(logging.DEBUG)
    endpoint.script = [echoes_its_key(status)] * 2
    (error,), _ = ask(endpoint, retries=1)
    assert isinstance(error, PartnerError | UserError)
    assert KEY not in f"{error} {error!r} {caplog.text}"


# --- proxies and certificates -------------------------------------------------------------------------------

PROXIES = [name for small in ("http_proxy", "https_proxy", "all_proxy") for name in (small, small.upper())]


@pytest.mark.parametrize("proxy", ["http", "socks5"])
@pytest.mark.parametrize("name", PROXIES)
def test_a_partner_on_this_machine_is_never_asked_through_a_proxy(endpoint, monkeypatch, name, proxy):
    with ChatEndpoint() as other:
        monkeypatch.setenv(name, other.url.replace("http", proxy).removesuffix("/v1"))
        monkeypatch.setenv("NO_PROXY", "[::1],::1/128")
        for host in ("127.0.0.1", "localhost", "127.1"):
            endpoint.url = re.sub("//.*:", f"//{host}:", endpoint.url)
            assert isinstance(ask(endpoint, retries=0)[0][0], Reply)
    assert not other.requests and len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("url", "here"),
    [
        *((url, True) for url in ("http://[::1]:1/v1", "http://[::ffff:127.0.0.1]/v1", "https://0.0.0.0", "http://a.localhost")),
        *((url, False) for url in ("http://127.0.0.1.example.org", "http://[fe80::1%25lo]", "http://10.0.0.1", "http://1.1")),
    ],
)  # fmt: skip
def test_an_address_leads_to_this_machine_or_not(url, here):
    assert is_this_machine(url) == here


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ALL_PROXY": "socks5://127.0.0.1:1"}, r"\(ALL_PROXY\) cannot be used: .*socksio.*; fix or unset them"),
        ({"https_proxy": "socks4://127.0.0.1:1"}, r"\(https_proxy\) cannot be used: .*scheme"),
        ({"https_proxy": "http://127.0.0.1:port"}, r"\(https_proxy\) cannot be used: .*port"),
        *(({"NO_PROXY": one}, r"\(NO_PROXY\) cannot be used: ") for one in ("::1/128", "[::1]")),
        ({"SSL_CERT_FILE": "missing.pem"}, r"^SSL_CERT_FILE: missing\.pem: No such file"),
        ({"SSL_CERT_DIR": "missing"}, r"^SSL_CERT_DIR: missing: No such file"),
        ({"SSL_CERT_FILE": __file__}, r"^SSL_CERT_FILE: .*test_chat_partner\.py: .*certificate"),
    ],
)  # fmt: skip
def test_an_environment_that_spoils_all_connections_is_one_line_before_any_request(monkeypatch, variables, words):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=words):
        ChatClient(PartnerConfig(base_url="https://partner.invalid/v1"))


def test_certificates_that_no_variable_names_and_are_missing_are_one_line(monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("certifi.where", lambda: "missing.pem")
    with pytest.raises(UserError, match=r"^the certificates of the package certifi: No such file or directory$"):
        ChatClient(PartnerConfig(base_url="https://partner.invalid/v1"))


# --- the seat -----------------------------------------------------------------------------------------------

SHORT = MatchingConfig(size=3, max_score=9, hard_factor=0, max_length=8)


def play_one(endpoint, **options):
    """One game of a scripted player with the chat partner."""

    async def script():
        client = ChatClient(PartnerConfig(base_url=endpoint.url, **options), first_pause=0.001)
        game = MatchingGame(SHORT)
        state = game.sample_state(state_rng(0, 0))
        seated = Episode(game, state, [script_player("sharing"), chat_player(client, game)], "game", (0, 0, 0))
        await seated.run()
        await client.close()
        return seated

    return asyncio.run(script())


def test_it_reads_what_any_player_reads_under_the_shy_rules_and_its_tokens_are_apart(endpoint):
    seated = play_one(endpoint)
    opening, seat = seated.session.opening(1), seated.seats[1]
    system, first = endpoint.requests[0]["messages"]
    assert system["role"] == "system" and first["role"] == "user"
    assert system["content"].startswith(opening.system)
    for rule in ("Never volunteer", "only when your partner asks about exactly that pair", "vaguely", "honestly"):
        assert rule in system["content"].removeprefix(opening.system)
    assert first["content"].startswith(opening.observation)
    assert seated.session.opening(0).observation not in json.dumps(endpoint.requests)
    assert (seat.prompt_tokens, seat.cached_tokens) == (0, 0), "those of the policy's engine"
    assert (seat.usage.requests, seat.usage.prompt_tokens) == (len(endpoint.requests), 100 * len(endpoint.requests))


def test_its_turns_are_recorded_with_their_finish_reason_and_a_cut_one_is_an_error(endpoint):
    endpoint.script = [says("[message] I was about to", reason="length"), says(None, reason="length")]
    seated = play_one(endpoint)
    turns = [turn for turn in seated.turns if turn.seat == 1]
    assert [(turn.finish_reason, turn.error_kind) for turn in turns[:2]] == [("length", "cut")] * 2
    assert {turn.finish_reason for turn in turns[2:]} == {"stop"}
    assert "too long" in endpoint.requests[1]["messages"][-1]["content"]


def test_a_prompt_of_ones_own_is_used_and_a_broken_one_is_named(endpoint, tmp_path):
    path = tmp_path / "own.j2"
    path.write_text("{{ rules }}\nTell everything.")
    play_one(endpoint, prompt=str(path))
    assert endpoint.requests[0]["messages"][0]["content"].endswith("Tell everything.")
    for text in ("{{ rulez }}", "{% if %}"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"partner\.prompt: .*own\.j2"):
            play_one(endpoint, prompt=str(path))
    with pytest.raises(UserError, match=r"partner\.prompt: 'proud'.*built-in prompt \(plain, shy\)"):
        play_one(endpoint, prompt="proud")


# --- runs ---------------------------------------------------------------------------------------------------


def settings(endpoint, trained_with=POLICY, **partner):
    """A run without a policy, so that nothing but the partner needs a server."""
    options = {"base_url": endpoint.url, **partner}
    played = {"generate.num_episodes": 6, "generate.episodes_per_state": 3, "game.prompts": "default"}
    keys = {f"partner.{key}": value for key, value in options.items()}
    return load_config("tiny", played | {"iterate.partner": trained_with} | keys)


def generate(config, output):
    with patch.object(chat_model, "MAX_RETRIES", 0):
        return asyncio.run(generate_episodes(config, output, seats=("sharing", "chat")))


def test_episodes_of_one_state_do_not_share_answers_but_a_repeated_run_does(endpoint, tmp_path):
    cache = {"cache": tmp_path / "cache"}
    generate(settings(endpoint, **cache), tmp_path / "first.jsonl")
    sent = len(endpoint.requests)
    again = generate(settings(endpoint, **cache), tmp_path / "again.jsonl")
    assert len({json.dumps(request) for request in endpoint.requests}) < sent == len(endpoint.requests)
    hits = {"cache_hits": sent, "counted_hits": sent, "cached_completion_tokens": 10 * sent}
    hits |= {"cached_dollars": sent * HIT.cached_dollars}
    assert again.partner.model_dump() == pytest.approx(PartnerUsage(**hits).model_dump())
    turns = [{one.episode_id: one.turns for one in read_episodes(path)} for path in tmp_path.glob("*.jsonl")]
    assert turns[0] == turns[1]


def test_an_episode_that_a_partner_failed_is_played_again_and_the_cost_of_all_is_added_up(endpoint, tmp_path):
    endpoint.script = [fails(500)]
    summary = generate(settings(endpoint), tmp_path / "games.jsonl")
    records = list(read_episodes(tmp_path / "games.jsonl"))
    assert [record.outcome.status for record in records] == ["agreed"] * 6
    assert all(record.trajectories == [] and record.prompt_tokens == 0 for record in records)
    written = json.loads((tmp_path / "games.summary.json").read_text())["partner"]
    kept = sum((r.partner for r in records), PartnerUsage())
    assert written == summary.partner.model_dump() == (kept + PartnerUsage(requests=1)).model_dump()
    assert written["requests"] == len(endpoint.requests)
    assert written["prompt_tokens"] == 100 * (len(endpoint.requests) - 1)


def test_the_budget_stops_the_run_and_a_higher_one_continues_it(endpoint, tmp_path):
    config, path = settings(endpoint, max_dollars=3.5 * PRICE), tmp_path / "games.jsonl"
    config.generate.max_concurrency = 1
    with pytest.raises(BaseExceptionGroup) as caught:
        generate(config, path)
    assert isinstance(caught.value.exceptions[0], RequestCapError) and len(endpoint.requests) == 4
    kept = path.read_text()
    assert 0 < kept.count("\n") < 6
    generate(settings(endpoint, max_dollars=100, max_concurrency=2, timeout=9, cache=tmp_path), path)
    assert path.read_text().startswith(kept) and len(list(read_episodes(path))) == 6


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"temperature": 0.1}, {"max_tokens": 9}, {"base_url": "http://elsewhere/v1"}, {}]
)
def test_another_partner_or_prompt_into_the_same_file_is_refused(endpoint, tmp_path, change):
    prompt = tmp_path / "mine.j2"
    prompt.write_text("{{ rules }} one")
    generate(settings(endpoint, prompt=str(prompt)), tmp_path / "games.jsonl")
    prompt.write_text("{{ rules }} one" if change else "{{ rules }} two")
    with pytest.raises(UserError, match=r"begun with partner\." if change else r"partner\.prompt"):
        generate(settings(endpoint, prompt=str(prompt), **change), tmp_path / "games.jsonl")


def test_a_run_of_the_loop_may_ask_in_another_way_but_not_someone_else_who_plays(endpoint, tmp_path):
    run, apart = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "apart")
    run.open(settings(endpoint, CHAT, max_dollars=5))
    may = {"max_dollars": 9, "max_concurrency": 2, "timeout": 9, "cache": "cache", "prices": [2.0, 1.0]}
    run.open(settings(endpoint, CHAT, **may))
    with pytest.raises(UserError, match=r"partner\.model"):
        run.open(settings(endpoint, CHAT, model="other"))
    apart.open(settings(endpoint))
    apart.open(settings(endpoint, model="other"))


@pytest.mark.long
def test_the_key_is_nowhere(endpoint, tmp_path):
    """The whole command with all logs on and a server that sends the key back in every way that it can."""
    endpoint.script = [
        echoes_its_key(500), says(f"[message] my key is {KEY}"), echoes_its_key(429), FINE,
        says("[message] I", reason=KEY), FINE, body({"choices": KEY}), FINE, page(KEY),
    ]  # fmt: skip
    config = tmp_path / "run.yaml"
    config.write_text(
        "game: {size: 3, prompts: default}\ngenerate: {num_episodes: 6, max_concurrency: 1}\n"
        f"partner: {{base_url: '{endpoint.url}', cache: {tmp_path / 'cache'}}}\n"
    )
    command = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG); sys.argv[0] = 'selfplay'; "
        "from selfplay_pipeline.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, "generate", "--player", "sharing", "--player", "chat", "--config",
         str(config), "--output", str(tmp_path / "games.jsonl")],
        capture_output=True, text=True, env={**os.environ, "OPENAI_LOG": "debug", "SELFPLAY_DEBUG": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(endpoint.keys) == {KEY}
    assert "my key is [key]" in (tmp_path / "games.jsonl").read_text()
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"games.jsonl", "games.summary.json", "games.args.json", "chat_answers.sqlite3"} <= files.keys()
    assert not any(KEY.encode() in data for data in [*files.values(), done.stdout.encode(), done.stderr.encode()])


def test_chat_is_a_player_and_no_checkpoint(endpoint):
    check_players(make_game(settings(endpoint).game), ["chat"])
    with pytest.raises(UserError, match="'chat' is the chat model of the section `partner`"):
        check_players(make_game(settings(endpoint).game), ["chatty"])
    assert "6 rows at most" in plan_generate(settings(endpoint, "chat"), Path("games.jsonl"))


@pytest.mark.long
def test_a_missing_key_is_noticed_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        asyncio.run(generate_episodes(load_config("tiny", {}), tmp_path / "games.jsonl", seats=("policy", "chat")))
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_openai_package_is_imported_only_when_asked():
    probe = "import sys, selfplay_pipeline.iterate.loop; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe]).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "[message] " + "a" * 5_000_000,
        "[propose] Proposal:\n" + "Paper: Reviewer\n" * 300_000,
        "[message] " + "<|a|>" * 900_000,
    ],
    ids=["message", "proposal", "control"],
)  # fmt: skip
def test_a_long_answer_is_one_cut_turn_and_ends_nothing_else(endpoint, tmp_path, text):
    endpoint.script = [says(text)] * 2
    output = tmp_path / "games.jsonl"
    generate(settings(endpoint), output)
    records = [*read_episodes(output)]
    long_ones = [turn for record in records for turn in record.turns if turn.error_kind == "cut"]
    assert len(records) == 6 and len(long_ones) == 2 and {len(turn.text) for turn in long_ones} == {LONGEST_TURN}
    assert {turn.finish_reason for turn in long_ones} == {"length"}
    assert max(len(json.dumps(sent)) for sent in endpoint.requests) < 4 * LONGEST_TURN


@pytest.mark.parametrize(
    "text", ["\x00\x1b[2J\u2028", "\ud800", "\udfff\ud800", "<|im_end|>" * 3000, "{{ 1 }}{% raw %}"]
)
def test_no_text_of_a_player_raises(tmp_path, text):
    """Also a function of a user's own, whose text no JSON has passed."""

    async def ask(messages):
        return "[message] a" + text * 3

    game = MatchingGame(SHORT)
    state = game.sample_state(state_rng(0, 0))
    seated = Episode(game, state, [text_player(ask=ask), script_player("sharing")], "game", (0, 0, 0))
    asyncio.run(seated.run())
    for turn in seated.turns:
        assert turn.model_validate_json(turn.model_dump_json()) == turn
    assert [message.model_dump_json() for message in seated.seats[0].context()]


def test_a_turn_that_a_caller_supplies_is_bounded_too():
    """The environments for OpenEnv and slime take the other seat's turns so."""
    game = MatchingGame(SHORT)
    state = game.sample_state(state_rng(0, 0))
    seated = Episode(game, state, [text_player(), script_player("sharing")], "game", (0, 0, 0))
    text = "[message] \ud800" + "a" * 5_000_000
    seated.seats[0].say(text)
    seated.take_turn(0, Reply(text, False, "stop"))
    (turn,) = seated.turns
    assert (len(turn.text), turn.error_kind, turn.finish_reason) == (LONGEST_TURN, "cut", "length")
    assert len(seated.seats[0].context()[-2].content) == LONGEST_TURN and turn.model_dump_json()
