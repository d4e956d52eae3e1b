"""`selfplay benchmark`: published states, lines that repeat to the byte, and a chat model that is billed as counted."""

import json
import sqlite3
from pathlib import Path

import pytest
from chat_endpoint import ChatEndpoint, fails, says
from command import selfplay
from factories import make_episodes, write_episodes

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.benchmark import _cost, read_lines_of, spent, table_of
from selfplay_pipeline.evaluate.suite import Task, all_tasks, suite
from selfplay_pipeline.generate.records import PartnerUsage

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FEW = ("--states-per-task", "3")
PRICE = (100 * 2.0 + 10 * 8.0) / 1e6
"""Price of one request to the endpoint of the tests, whose answers have 100 and 10 tokens."""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_the_drawn_states_are_the_published_ones(monkeypatch):
    for task in all_tasks():
        if task.of != "matching-8x8":  # drawing these takes seconds; each full run of the command checks them
            found = task.states()
            assert (found.fingerprint, len(found)) == (task.given.sha256, task.given.states)
    monkeypatch.setitem(suite().sets, "bargaining", suite().sets["bargaining"].model_copy(update={"sha256": "0" * 64}))
    with pytest.raises(UserError, match=r"the states of bargaining are not those of version 1 .*install"):
        Task("bargaining", "free").states()


@pytest.mark.long
def test_a_scripted_player_gets_the_same_line_twice_and_the_table_orders_the_lines(tmp_path):
    for player, output in (("sharing", "one"), ("sharing", "two"), ("random", "three")):
        done = selfplay("benchmark", player, *FEW, "--output", output, "--games", "planning", "--games", "bargaining")
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "one" / "benchmark.json").read_text()
    assert text == (tmp_path / "two" / "benchmark.json").read_text() and text.count("\n") == 1
    before = (tmp_path / "one" / "bargaining-fixed" / "scripted.jsonl").read_bytes()
    again = selfplay("benchmark", "sharing", *FEW, "--output", "one", "--games", "planning", "--games", "bargaining")
    assert again.returncode == 0 and (tmp_path / "one" / "benchmark.json").read_text() == text
    assert (tmp_path / "one" / "bargaining-fixed" / "scripted.jsonl").read_bytes() == before
    line = json.loads(text)
    assert line["partial"] and {*line["tasks"]} == {
        task.name for task in all_tasks() if task.game in ("planning", "bargaining")
    }
    fixed, free = (line["tasks"][f"planning-{name}"] for name in ("small-fixed", "dialop-free"))
    assert fixed["reward"]["value"] > fixed["silence"]["value"] and fixed["worth_of_words"]["value"] > 0
    assert free["people"]["value"] == pytest.approx(0.886, abs=5e-4) and fixed["people"] is None
    (tmp_path / "all.jsonl").write_text(text + "\n" + (tmp_path / "three" / "benchmark.json").read_text())
    table = selfplay("benchmark", "--table", "all.jsonl", "two").stdout.splitlines()
    found = [row.split(" | ")[1] for row in table if row.startswith("| planning-dialop-free")]
    few = "(3 of 100 states)"
    assert found == [f"sharing {few}", f"sharing {few}", f"random {few}", "*silence*", "*people*"]


def test_another_number_of_states_in_the_same_folder_is_refused_by_the_options_name():
    same = ("benchmark", "random", "--games", "bargaining-free", "--output", "one", "--states-per-task")
    assert selfplay(*same, "2").returncode == 0
    done = selfplay(*same, "3")
    assert done.returncode == 2 and " = 2, now it is 3 (option --states-per-task); give the earlier" in done.stderr


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (0, "expected one line of `selfplay benchmark`, found 0; move the file away, or give another --output"),
        (2, "expected one line of `selfplay benchmark`, found 2"),
        (None, "benchmark.json:1: not a line of `selfplay benchmark`"),
    ],
)
def test_a_folder_whose_line_cannot_be_read_is_refused_before_anything_is_played(tmp_path, lines, says):
    line = {"suite": "selfplay-benchmark", "version": 1, "player": "p", "mode": "greedy", "partial": False}
    text = json.dumps(line | {"settings": {}, "tasks": {}}) + "\n"
    (tmp_path / "benchmark.json").write_text("garbage\n" if lines is None else text * lines)
    done = selfplay("benchmark", "random", *FEW, "--output", ".", "--games", "bargaining-free")
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "benchmark.json"]


def test_the_price_of_stored_episodes_is_counted_without_touching_a_line_that_is_being_written(tmp_path):
    (tmp_path / "task").mkdir()
    games = tmp_path / "task" / "scripted.jsonl"
    usage = PartnerUsage(requests=1, prompt_tokens=100, completion_tokens=10, dollars=0.25)
    records = [record.model_copy(update={"partner": usage}) for record in make_episodes(1, 2)]
    write_episodes(games, records)
    games.write_text(text := games.read_text() + '{"schema_version":2,"epi')
    assert spent(tmp_path) == 0.5
    assert games.read_text() == text


def test_the_tokens_of_a_line_are_those_of_the_stored_episodes(tmp_path):
    played = [*make_episodes(2, 2)]
    tokens, usage = _cost(write_episodes(tmp_path / "games.jsonl", played))
    assert tokens == sum(sum(seat.response_mask) for record in played for seat in record.trajectories) > 0
    assert usage is None


def test_the_table_tells_of_lost_episodes():
    line = read_lines_of([RESULTS / "leaderboard.jsonl"])[0]
    name, result = next(iter(line.tasks.items()))
    lost = line.model_copy(update={"tasks": {name: result.model_copy(update={"lost": 7})}})
    assert f"| {line.player} (7 episodes lost) |" in table_of([lost])


@pytest.mark.long
def test_tasks_that_are_played_later_join_the_line_of_the_same_player(tmp_path):
    for task in ("planning", "bargaining-fixed"):
        assert selfplay("benchmark", "sharing", *FEW, "--output", "one", "--games", task).returncode == 0
        line = json.loads((tmp_path / "one" / "benchmark.json").read_text())
        known = [name for name in (task.name for task in all_tasks()) if name in line["tasks"]]
        assert known == [*line["tasks"]], "in the order of the suite"
        if task == "bargaining-fixed":
            assert known[0] == "bargaining-fixed" and len(known) == 4 and line["partial"]
    done = selfplay("benchmark", "random", *FEW, "--output", "one", "--games", "bargaining-free")
    assert done.returncode == 2 and "the line of sharing" in done.stderr and "--output" in done.stderr, done.stderr
    assert json.loads((tmp_path / "one" / "benchmark.json").read_text()) == line


@pytest.mark.long
def test_a_chat_model_is_billed_as_counted_and_within_the_budget(tmp_path):
    with ChatEndpoint() as endpoint:
        partner = {"base_url": endpoint.url, "model": "m", "max_concurrency": 1}
        (tmp_path / "my.yaml").write_text(json.dumps({"partner": partner, "generate": {"max_concurrency": 1}}))

        def play(*options):
            before = len(endpoint.requests)
            done = selfplay("benchmark", "chat", "--config", "my.yaml", "--games", "bargaining-fixed", *FEW, *options)
            return done, len(endpoint.requests) - before

        done, sent = play("--output", "out")
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / "out" / "benchmark.json").read_text())
        played = result["tasks"]["bargaining-fixed"]
        assert (result["player"], played["episodes"], played["usage"]["requests"]) == ("m", 3, sent)
        assert (played["usage"]["prompt_tokens"], played["usage"]["completion_tokens"]) == (100 * sent, 10 * sent)
        assert played["usage"]["dollars"] == pytest.approx(PRICE * sent)
        assert "shy" not in endpoint.requests[0]["messages"][0]["content"]
        assert (
            play("--output", "out")[1] == 0 and json.loads((tmp_path / "out" / "benchmark.json").read_text()) == result
        )

        each = sent // 3
        budget = ("--output", "bounded", "--budget", str(PRICE * (each + 1.5)))
        done, first = play(*budget)
        assert done.returncode == 2 and "of partner.max_dollars" in done.stderr and first == each + 2
        games = tmp_path / "bounded" / "bargaining-fixed" / "scripted.jsonl"
        games.write_text(games.read_text() + '{"schema_version":2,"epi')  # as a killed process leaves it
        done, second = play(*budget)  # the stored episode is paid for already
        assert done.returncode == 2 and second == 2 < each
        assert play(*budget[:2], "--budget", "1")[0].returncode == 0


def test_what_a_lost_attempt_cost_is_no_part_of_the_line(tmp_path):
    with ChatEndpoint() as endpoint:
        partner = {"base_url": endpoint.url, "cache": str(tmp_path / "cache"), "prices": [2000, 8000]}
        generate = {"max_concurrency": 1}
        (tmp_path / "my.yaml").write_text(json.dumps({"partner": partner, "generate": generate}))
        endpoint.script = [*[says("[message] fine")] * 2, fails(400)]
        command = ("benchmark", "chat", "--config", "my.yaml", "--games", "bargaining-fixed", *FEW, "--output", "one")
        done = selfplay(*command)
        assert done.returncode == 0, done.stderr
        billed = len(endpoint.requests) - 1
        played = read_lines_of([tmp_path / "one"])[0].tasks["bargaining-fixed"]
        assert played.usage.with_cached()[1] == pytest.approx(1000 * PRICE * billed)
        assert played.tokens == 10 * billed / 3


def test_the_options_of_play_are_refused_beside_a_table():
    done = selfplay("benchmark", "--table", str(RESULTS / "leaderboard.jsonl"), "--output", "x", "--budget", "1")
    assert done.returncode == 2 and "leave out --output, --budget" in done.stderr, done.stderr


def test_answers_from_the_cache_have_the_tokens_and_the_price_that_they_had(tmp_path):
    def play(output):
        done = selfplay(
            "benchmark", "chat", "--config", "my.yaml", "--games", "bargaining-fixed", *FEW, "--output", output
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[2], read_lines_of([tmp_path / output])[0].tasks["bargaining-fixed"]

    with ChatEndpoint() as endpoint:
        partner = {"base_url": endpoint.url, "cache": str(tmp_path / "cache"), "prices": [2000, 8000]}
        (tmp_path / "my.yaml").write_text(json.dumps({"partner": partner}))
        (row, first), sent = play("one"), len(endpoint.requests)
        assert first.tokens == 10 * sent / 3 and f"| {1000 * PRICE * sent:.2f} |" in row
        again, second = play("two")
        assert again == row and second.tokens == first.tokens and len(endpoint.requests) == sent
        assert (second.usage.cache_hits, second.usage.dollars) == (sent, 0)
        with sqlite3.connect(tmp_path / "cache" / "chat_answers.sqlite3") as database:
            database.execute("DROP TABLE tokens")  # as in a file of an earlier version
        unknown, third = play("three")
        assert third.tokens is None and unknown.endswith("|  |  |")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("random", "--games", "chess"), "--games: no game or task 'chess'; choose among matching, "),
        (("random", "--game", "bargaining"), "no such option: --game; did you mean --games "),
        (("random", "--num-states", "2"), "no such option: --num-states; did you mean --states-per-task? "),
        (("nobody",), "no scripted player or checkpoint 'nobody'"),
        (("own-view", "--games", "bargaining"), "the scripted player own-view plays only "),
        (("random", "sharing"), "plays one player, but 2 are given; --table"),
        (("--table", "nothing.json"), "nothing.json: No such file"),
        (("--table", "old.json"), "old.json:1: a line of selfplay-benchmark 0; this is selfplay-benchmark 1"),
        (("--table", "other.json"), "other.json:1: not a line of `selfplay benchmark`"),
    ],
)
def test_what_cannot_be_played_or_read_is_one_line(arguments, says, tmp_path):
    line = {"suite": "selfplay-benchmark", "version": 0, "player": "p", "mode": "greedy", "partial": False}
    (tmp_path / "old.json").write_text(json.dumps(line | {"settings": {}, "tasks": {}}))
    (tmp_path / "other.json").write_text("{}")
    done = selfplay("benchmark", *arguments)
    assert done.returncode == 2 and says in done.stderr and done.stdout == "", done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"other-fixed": {}},
        {"matching-3x3-fixed": {"sha256": "0"}},
        {"matching-3x3-fixed": {"agreement": {"value": None, "low": None, "high": None}}},
    ],
)
def test_a_line_whose_task_is_none_of_the_suite_or_of_other_states_is_refused(change, tmp_path):
    (name, changed), text = *change.items(), (RESULTS / "leaderboard.jsonl").read_text().splitlines()[0]
    line = json.loads(text)
    line["tasks"][name] = next(iter(line["tasks"].values())) | line["tasks"].get(name, {}) | changed
    (tmp_path / "lines.jsonl").write_text(f"{text}\n{json.dumps(line)}\n")
    with pytest.raises(UserError, match=rf"lines.jsonl:2: task '{name}': not figures of a task of the suite; play it"):
        read_lines_of([tmp_path / "lines.jsonl"])


def test_the_page_of_results_has_the_table_of_the_stored_lines():
    lines = read_lines_of([RESULTS / "leaderboard.jsonl"])
    assert table_of(lines) in (RESULTS / "leaderboard.md").read_text()
    for line in lines:
        assert not line.partial and line.lost == 0
        for name, result in line.tasks.items():
            assert result.sha256 == suite().sets[name.rpartition("-")[0]].sha256
