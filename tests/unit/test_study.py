"""A study: the balanced order, its file, consent, hidden partners, altered messages, and figures of its people."""

import asyncio
import json
import random
import re
import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chat_endpoint import ChatEndpoint
from command import selfplay
from factories import BOARD, make_episode
from person_over_web import PersonOverWeb
from test_play import stored
from test_play_web import FREE, serving

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import recorded_episodes
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.base import Game, Status, state_rng
from selfplay_pipeline.games.matching.game import SCRIPTED, MatchingGame
from selfplay_pipeline.games.matching.scripted import Sharing
from selfplay_pipeline.games.measured import heard_of
from selfplay_pipeline.games.mediation.game import MediationGame
from selfplay_pipeline.games.mediation.rules import AGENT
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode_wrappers import swap_of
from selfplay_pipeline.generate.human_episodes import NOBODY
from selfplay_pipeline.generate.players import script_player
from selfplay_pipeline.generate.read_records import parse_episode
from selfplay_pipeline.generate.records import CHAT, PERSON, POLICY, EpisodeRecord
from selfplay_pipeline.people.altered_messages import Altered, AlteredSession
from selfplay_pipeline.people.log import BegunLine, PersonLine, TurnLine, log_path, read_log
from selfplay_pipeline.people.logged_episode import SOMEBODY, LoggedEpisode
from selfplay_pipeline.people.people_figures import Held, PeopleReport, run_people, with_partner
from selfplay_pipeline.people.web.lobby import hash_of
from selfplay_pipeline.people.web.pages import of_end
from selfplay_pipeline.people.web.start_server import Place, check_study_pages, serve_study
from selfplay_pipeline.people.web.study import CONSENT, NOTICE, read_study
from selfplay_pipeline.people.web.trial_order import Order

MODEL, KEY = "data/tiny_honest_model", "sk-secret-of-the-study"
NAMES = ("zebra-one", "zebra-two")
"""Partners whose names occur nowhere else."""
TEXTS = "instructions: 'Read <b>this</b> & play.'\nthanks: your code is 4711\n"
STUDY = (
    f"states: {{count: 5}}\npartners: [{', '.join(NAMES)}]\nseats: [0, 1]\nepisodes: 4\nseed: 3\naltered: 2\n{TEXTS}"
)


class Parrot(Sharing):
    """Repeats what it heard, and proposes like `sharing`."""

    def act(self, view, rng):
        heard = [text for seat, text in view.history if seat != view.seat and text.startswith("[message]")]
        if heard and view.pending is None and not view.said(view.seat):
            return f"[message] did you say: {heard[-1].removeprefix('[message] ')}"
        return super().act(view, rng)


@pytest.fixture(scope="module", autouse=True)
def zebras():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MatchingGame, "players", {**SCRIPTED, NAMES[0]: Sharing(), NAMES[1]: Parrot()})
        yield


# --- the order


@pytest.mark.parametrize(
    ("states", "partners", "seats", "episodes", "altered"),
    [(12, 3, (0, 1), 6, 2), (5, 2, (0, 1), 5, 2), (7, 4, (0,), 6, 3), (4, 1, (0, 1, 2), 4, 1), (9, 5, (0, 1), 3, 0)],
)
def test_the_order_is_balanced_within_a_person_and_over_people(states, partners, seats, episodes, altered):
    order = Order(11, states, partners, seats, episodes, altered)
    people = [order.trials(person) for person in range(partners * states * 2)]
    assert people == [replace(order).trials(person) for person in range(len(people))], "the same each time"
    for trials in people:
        assert len({trial.state for trial in trials}) == len(trials) == episodes, "no state is repeated"
        changed = [trial.partner for trial in trials if trial.altered]
        assert len(changed) == altered and not trials[0].altered
        assert spread(Counter(trial.partner for trial in trials), range(partners)) <= 1
        assert spread(Counter(changed), range(partners)) <= 1
        for partner in range(partners):
            assert spread(Counter(trial.seat for trial in trials if trial.partner == partner), seats) <= 1
    for square in range(0, len(people), partners):
        together = [*enumerate(zip(*people[square : square + partners], strict=True))]
        for _, trials in together:  # everybody's episode at one place of the list
            assert len({trial.state for trial in trials}) == 1 and len({trial.altered for trial in trials}) == 1
            assert sorted(trial.partner for trial in trials) == [*range(partners)]
    everything = [trial for trials in people for trial in trials]
    assert (
        spread(Counter((trial.state, trial.partner) for trial in everything), product(range(states), range(partners)))
        == 0
    )
    assert Order(12, states, partners, seats, episodes, altered).trials(0) != people[0]


def spread(counts: Counter, every) -> int:
    values = [counts[one] for one in every]
    return max(values) - min(values)


# --- the file


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"partner": "[sharing]"},
            r"study.yaml:\d: key 'partner': there is no such key; the keys are states, partners",
        ),
        ({"states": "{count: 5, number: 3}"}, r"study.yaml:1: key 'states.number': there is no such key"),
        ({"states": "{count: 0}"}, r"study.yaml:1: key 'states.count': expected at least 1, found 0"),
        ({"states": "{file: states.jsonl, seed: 1}"}, r"study.yaml:1: key 'states': has a `file` and a `seed`"),
        ({"states": "{seed: 1}"}, r"study.yaml:1: key 'states': give `count`"),
        ({"states": "{file: none.jsonl}"}, r"study.yaml:1: key 'states.file': none.jsonl: No such file"),
        ({"states": None}, r"study.yaml:1: key 'states': is missing"),
        ({"partners": "[]"}, r"key 'partners': .*at least 1 item"),
        ({"partners": "[sharing, sharing]"}, r"study.yaml:2: key 'partners': names one of them twice"),
        ({"partners": "[sharing, nobody]"}, r"study.yaml:2: key 'partners': no scripted player or checkpoint 'nobody'"),
        ({"partners": "[person]"}, r"study.yaml:2: key 'partners': 'person' is no partner"),
        ({"episodes": "6"}, r"study.yaml:4: key 'episodes': 6, but there are 5 states"),
        ({"episodes": "'4'"}, r"study.yaml:4: key 'episodes': expected a whole number, found the text '4'"),
        ({"seats": "[2]"}, r"study.yaml:3: key 'seats': 2, but the game matching has 2 seats"),
        ({"altered": "4"}, r"study.yaml:6: key 'altered': 4 of 4 episodes; the first one is never altered"),
        ({"consent": "''"}, r"key 'consent': .*at least 1 character"),
        ({"consent": "[a"}, r"study.yaml:\d+: not YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_file_line_and_key(tmp_path, monkeypatch, changes, words):
    monkeypatch.chdir(tmp_path)
    lines = dict(line.split(": ", 1) for line in STUDY.splitlines()) | changes
    Path("study.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None))
    with pytest.raises(UserError, match=words) as refused:
        read_study(Path("study.yaml"), load_config("tiny_honest", {}))
    assert "\n" not in str(refused.value)


def test_the_command_takes_no_option_that_the_file_decides(tmp_path):
    (tmp_path / "study.yaml").write_text("states: {count: 3}\npartners: [sharing]\nepisodes: 2\naltered: 1\n")
    study = ("play", "--config", "tiny_honest", "--study", str(tmp_path / "study.yaml"))
    for more in (), ("--web", "--player", "sharing"), ("--web", "--set", "seed=1"), ("--web", "--num-episodes", "1"):
        done = selfplay(*study, *more)
        assert done.returncode == 2 and "--study: needs --web, and takes players" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


# --- the pages


@asynccontextmanager
async def served(folder: Path, text: str = STUDY, **changes: Any) -> AsyncIterator[str]:
    """Serve a study in this process; yields the address."""
    (folder / "free.yaml").write_text(FREE)
    (folder / "study.yaml").write_text(text)
    config = load_config(str(folder / "free.yaml"), changes)
    study = read_study(folder / "study.yaml", config)
    async with serving(partial(serve_study, config, folder / "games.jsonl", study)) as url:
        yield url


async def play_all(folder: Path, people: int, text: str = STUDY, **changes: Any) -> list[PersonOverWeb]:
    """Let people play their lists one after the other; the server is started anew after each person."""
    everyone = []
    for number in range(people):
        async with (
            served(folder, text, **changes) as url,
            PersonOverWeb(url, f"person {number}", random.Random(number)) as person,
        ):
            everyone.append(person)
            while "your code is 4711" not in person.page:
                await person.begin()
                await person.play_on()
    return everyone


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> tuple[Path, list[PersonOverWeb], list[EpisodeRecord]]:
    """Four people who played their whole lists."""
    folder = tmp_path_factory.mktemp("study")
    people = asyncio.run(play_all(folder, 4))
    return folder / "games.jsonl", people, stored(folder / "games.jsonl", str(folder / "free.yaml"))


def test_each_person_plays_the_list_and_nothing_names_a_partner(played):
    output, people, records = played
    order = Order(3, 5, 2, (0, 1), 4, 2)
    begun = [line for line in read_log(log_path(output)) if isinstance(line, BegunLine)]
    of_id = {record.episode_id: record for record in records}
    for number, person in enumerate(people):
        own = [line for line in begun if [*line.people.values()] == [f"p{number + 1}"]]
        assert [line.episode_id for line in own] == person.ended and [line.place for line in own] == [0, 1, 2, 3]
        for trial, line in zip(order.trials(number), own, strict=True):
            record = of_id[line.episode_id]
            players = [PERSON if seat == trial.seat else NAMES[trial.partner] for seat in (0, 1)]
            assert (record.group_index, record.players) == (trial.state, players)
            assert (swap_of(record) is not None) == trial.altered
        traffic = "".join([*person.received, *person.ends])
        assert "did you say" in traffic and "zebra" not in traffic
        assert not any(path in traffic for path in ("scripted", "checkpoint"))
    assert len(records) == 16 == len({record.episode_id for record in records})


@pytest.mark.long
def test_models_are_partners_and_as_hidden_as_scripts(tmp_path, monkeypatch):
    """The policy, another checkpoint and a chat model, with altered messages and a new server after each person."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(secrets, "token_urlsafe", secrets.token_hex)  # a hexadecimal key cannot hold a player's name
    checkpoint, names = tmp_path / "zebra-three", (POLICY, "zebra-three", CHAT, KEY, "sharing")
    shutil.copytree(MODEL, checkpoint)
    partners = [POLICY, str(checkpoint), CHAT, "sharing"]
    text = f"states: {{count: 5}}\npartners: {json.dumps(partners)}\nepisodes: 4\naltered: 2\n{TEXTS}"
    with ChatEndpoint() as endpoint:
        changes = {"model": MODEL, "engine.kind": "transformers", "partner.base_url": endpoint.url}
        people = asyncio.run(play_all(tmp_path, 2, text, **changes))
        asked = len(endpoint.requests)
    records = stored(tmp_path / "games.jsonl", str(tmp_path / "free.yaml"))
    assert sorted(record.players for record in records) == sorted([PERSON, name] for name in partners * 2)
    assert sum(swap_of(record) == "swapped" for record in records) == 4
    by_name = {name: [record for record in records if record.players[1] == name] for name in partners}
    assert all(stream.seat == 1 for record in by_name[POLICY] for stream in record.trajectories)
    assert all(sum(stream.response_mask) > 0 for record in by_name[POLICY] for stream in record.trajectories)
    assert asked == sum(turn.seat == 1 for record in by_name[CHAT] for turn in record.turns) > 0
    traffic = "".join(text for person in people for text in (*person.received, *person.ends))
    assert "The other player failed" not in traffic
    assert [name for name in names if name in traffic] == []
    monkeypatch.chdir(tmp_path)
    report = run_people(load_config(None, {}), tmp_path / "games.jsonl")
    assert {*report.partners} == {*partners}
    assert {one.episodes: not one.figures for one in report.partners.values()} == {0: True, 1: False, 2: False}


def test_nothing_is_played_or_stored_before_consent_and_texts_are_shown_as_text(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as url, PersonOverWeb(url, "person", random.Random(0)) as person:
            reader = await person.get("/")
            assert "Read &lt;b&gt;this&lt;/b&gt; &amp; play." in person.page and NOTICE in person.page
            for data in ({}, {"consent": "no"}, {"consent": ""}):
                await person.post("/begin", {**reader.forms[0].hidden, **data})
                assert person.status == 422 and "Nothing is played without your consent" in person.page
                assert not person.cookies and not log_path(tmp_path / "games.jsonl").read_text()
            await person.begin()
            assert "Your turn" in person.page and "game 1 of 4" in person.page
            (line,) = (one for one in read_log(log_path(tmp_path / "games.jsonl")) if isinstance(one, PersonLine))
            assert line.consent == hash_of(f"{CONSENT}\n\n{NOTICE}")

    asyncio.run(play())


def test_no_more_people_come_than_the_file_can_have(tmp_path, monkeypatch):
    monkeypatch.setattr("selfplay_pipeline.people.web.study_lobby.MOST_PEOPLE", 1)

    async def come() -> None:
        async with (
            served(tmp_path) as url,
            PersonOverWeb(url, "1", random.Random(0)) as one,
            PersonOverWeb(url, "2", random.Random(0)) as other,
        ):
            form = next(form for form in (await other.get("/")).forms if form.action == "/begin")
            assert (await one.begin()).heading in ("Your turn", "Waiting for the other player")
            await other.post("/begin", {**form.hidden, "consent": "yes"})
            assert other.status == 403 and "No further episodes" in other.page
            assert (await other.get("/")).forms == [] and "No further episodes" in other.page

    asyncio.run(come())
    people = [line for line in read_log(log_path(tmp_path / "games.jsonl")) if isinstance(line, PersonLine)]
    assert len(people) == 1


def test_a_form_that_is_sent_twice_makes_one_person_and_thanks_come_after_the_last_episode(tmp_path):
    async def play() -> None:
        log = log_path(tmp_path / "games.jsonl")
        async with served(tmp_path) as url, PersonOverWeb(url, "person", random.Random(0)) as person:
            form = {**(await person.get("/")).forms[0].hidden, "consent": "yes"}
            async with (
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as forgetful,
                forgetful.post(f"{url}begin", data=form) as page,
            ):
                assert "did not keep the cookie" in await page.text()
            for _ in range(2):
                await person.post("/begin", form)
            assert [line.kind for line in read_log(log) if line.kind != "turn"] == ["person", "begun"]
            for _ in range(3):
                await person.play_on()
                await person.begin()
            first = f"/episode/{person.ended[0]}"
            await person.get(first)
            assert "your code is 4711" not in person.page, "the last episode is running"
            await person.play_on()
            await person.get(first)
            assert "your code is 4711" in person.page

    asyncio.run(play())


@pytest.mark.parametrize(
    ("people", "words"),
    [({"0": "p1", "1": "p2"}, "seats [0, 1], but people hold seats ["), ({"1": "p2"}, "seats [1], but people hold")],
)
def test_an_edited_log_of_a_study_is_one_line(played, tmp_path, people, words):
    """Two people in one episode, and a person in the seat or on the state of another list."""
    lines = log_path(played[0]).read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"begun"' in line and '"p2"' in line)
    lines[at] = json.dumps(json.loads(lines[at]) | {"people": people}) + "\n"
    for name in ("study.yaml", "free.yaml", "games.jsonl", "games.args.json"):
        shutil.copy(played[0].parent / name, tmp_path / name)
    log_path(tmp_path / "games.jsonl").write_text("".join(lines))
    config = load_config(str(tmp_path / "free.yaml"), {})
    study = read_study(tmp_path / "study.yaml", config)
    with pytest.raises(UserError) as caught:
        check_study_pages(config, tmp_path / "games.jsonl", study, Place())
    assert f"games.people.jsonl:{at + 1}: field 'people': {words}" in str(caught.value)


def test_altered_messages_are_those_of_people_on_other_states_and_are_marked(played):
    output, _, records = played
    written = {
        turn.text: record
        for record in records
        for turn in record.turns
        if turn.action == "message" and turn.finish_reason == PERSON
    }
    altered = [record for record in records if swap_of(record) == "swapped"]
    assert len(altered) == 8
    for record in altered:
        own = record.players.index(PERSON)
        for turn in record.turns:
            assert (bool(heard_of(turn))) == (turn.seat == own and turn.action == "message")
            if bool(heard_of(turn)):
                (heard,) = heard_of(turn).values()
                assert [*heard_of(turn)] == [1 - own] and heard != turn.text
                source = written[heard]
                assert swap_of(source) is None and source.group_index != record.group_index
    echoes = [
        (turn.text.partition(": ")[2], [one for one in record.turns[:at] if one.action == "message"][-1])
        for record in records
        for at, turn in enumerate(record.turns)
        if "did you say" in turn.text
    ]
    for echo, said in echoes:
        assert echo == heard_of(said).get(1 - said.seat, said.text).removeprefix("[message] ")
    assert {(not heard_of(said)) for _, said in echoes} == {True, False}
    turns = [line for line in read_log(log_path(output)) if isinstance(line, TurnLine) and line.heard]
    assert len(turns) == sum(bool(heard_of(turn)) for record in altered for turn in record.turns)


async def altered(game: Game, partner: str, seat: int, said: list[str], others: list[str]) -> EpisodeRecord:
    """Play an episode in which the person says some turns and leaves, given messages of other episodes."""
    players = [SOMEBODY if number == seat else script_player(partner) for number, _ in enumerate(game.roles)]
    episode = LoggedEpisode(
        game, game.sample_state(state_rng(0, 0)), players, "e", (0, 0, 0), for_people=game, people={seat: "p1"},
        log=lambda line: None, patience=600, wrapper=Altered(lambda seat, number: iter(others)),
    )  # fmt: skip
    playing = asyncio.create_task(episode.play())
    for text in said:
        while not episode.desks[seat].waits:
            await asyncio.sleep(0)
        episode.desks[seat].give(text)
    while not playing.done() and len([turn for turn in episode.episode.turns if turn.seat == seat]) < len(said):
        await asyncio.sleep(0)
    episode.left.set()
    await playing
    return episode.episode.record(NOBODY)


def test_a_replacement_goes_to_the_same_hearer_and_is_a_message():
    game = MediationGame()
    others = ["[accept]", "[message] user 0: which flights?", "[message] user 1: and yours?"]
    record = asyncio.run(altered(game, "sharing", AGENT, ["[message] user 1: your meetings?"], others))
    (said,) = (turn for turn in record.turns if turn.seat == AGENT)
    assert heard_of(said) == {1: others[2]}, "only the user in this room heard it"
    record = asyncio.run(altered(game, "sharing", AGENT, ["[message] user 1: your meetings?"], others[:2]))
    (said,) = (turn for turn in record.turns if turn.seat == AGENT)
    assert heard_of(said) == {1: ""} and swap_of(record) == "swapped", "user 1 heard a message without content"


def test_an_episode_with_a_message_that_nothing_may_replace_does_not_count_as_altered(monkeypatch):
    def is_altered() -> bool:
        record = asyncio.run(altered(MediationGame(), "sharing", AGENT, ["[message] user 1: your meetings?"], []))
        return Held(record, AGENT, "p1", "sharing", 1, []).is_altered

    assert is_altered()
    monkeypatch.setattr(AlteredSession, "_fits", lambda self, turn, text: False)
    assert not is_altered()


def test_a_message_that_decides_how_the_episode_goes_on_loses_this_episode_alone(monkeypatch):
    monkeypatch.setattr(AlteredSession, "_fits", lambda self, turn, text: True)
    record = asyncio.run(altered(MediationGame(), "sharing", AGENT, ["[message] user 1: your meetings?"], ["[accept]"]))
    assert record.outcome.status == Status.ENGINE_FAILURE


def test_without_messages_of_others_the_partner_hears_nothing():
    game = make_game(load_config("tiny_honest", {"game.protocol": "free"}).game)
    record = asyncio.run(altered(game, "sharing", 0, ["[message] hello"], ["[reject]"]))
    assert heard_of(record.turns[0]) == {1: ""} and parse_episode(record.model_dump_json().encode()) == record


def test_a_reload_and_a_new_server_go_on_in_an_altered_episode(tmp_path):
    async def play() -> None:
        person = PersonOverWeb("", "person", random.Random(0))
        number = next(at for at, trial in enumerate(Order(3, 5, 2, (0, 1), 4, 2).trials(0)) if trial.altered)
        async with person:
            async with served(tmp_path) as url:
                person.url = url.rstrip("/")
                for _ in range(number):
                    await person.begin()
                    await person.play_on()
                reader = await person.begin()
                await person.send(reader, "message", text="hello")
                place, page = person.at, person.page
            async with served(tmp_path) as url:
                person.url = url.rstrip("/")
                await person.get("/")
                assert person.at == place and said_in(person.page) == said_in(page)
                assert await person.play_on() == place.rpartition("/")[2]

    asyncio.run(play())
    record = stored(tmp_path / "games.jsonl", str(tmp_path / "free.yaml"))[-1]
    heard = [heard_of(turn) for turn in record.turns if heard_of(turn)]
    assert swap_of(record) == "swapped" and heard and record.turns[-1].action == "accept"


def said_in(page: str) -> list[str]:
    return re.findall(r'<div class="text">([^<]*)</div>', page)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed: 3", "seed: 4", "study.seed = 3, now it is 4"),
        ("count: 5", "count: 6", "generate.num_episodes = 500000, now it is 600000; num_states = 5, now it is 6"),
    ],
)
def test_a_file_is_not_continued_with_another_study(tmp_path, old, new, said):
    async def play() -> None:
        async with served(tmp_path):
            pass
        async with served(tmp_path, STUDY.replace(old, new)):
            pass

    with pytest.raises(UserError, match=f"games.jsonl was begun with {said}"):
        asyncio.run(play())


def test_a_file_is_not_continued_with_other_states_of_the_same_file(tmp_path):
    (tmp_path / "free.yaml").write_text(FREE)
    game = make_game(load_config(str(tmp_path / "free.yaml"), {}).game)
    states = [json.dumps(game.state_to_json(state)) for state in held_out_states(game, 7).states]
    (tmp_path / "states.jsonl").write_text("\n".join(states) + "\n")
    some = STUDY.replace("{count: 5}", f"{{file: {tmp_path / 'states.jsonl'}, count: 6}}")

    async def play() -> None:
        for text in (some, some, some.replace("count: 6", "count: 7")):
            async with served(tmp_path, text):
                pass
            more = game.state_to_json(held_out_states(game, 8).states[-1])
            (tmp_path / "states.jsonl").write_text("\n".join([*states, json.dumps(more)]) + "\n")  # after those played

    with pytest.raises(
        UserError, match=r"games\.jsonl was begun with generate.num_episodes = 600000, now it is 700000"
    ):
        asyncio.run(play())


# --- what becomes of the episodes


def test_altered_episodes_are_left_out_of_training(played, tmp_path, caplog):
    output, _, records = played
    game = make_game(load_config(str(output.with_name("free.yaml")), {}).game)
    plain = [one.record for one in recorded_episodes([output], game, lambda *shown: None)]
    assert plain == [record for record in records if swap_of(record) is None]
    assert "8 episodes are left out: others heard altered messages of a person in them" in caplog.text
    caplog.clear()
    with pytest.raises(UserError, match="the policy took no turn in any of the 8 episodes"):
        run_convert(output, tmp_path / "rows")
    assert "8 episodes are left out" in caplog.text


def test_figures_that_a_game_does_not_read_are_left_out():
    reading = MatchingGame(BOARD)
    record = make_episode(0, 0)
    assert "questions" in Held(record, 0, "a", PERSON, 1, []).measures(reading)

    class Unread(MatchingGame):
        asking = Game.asking

    found = Held(record, 0, "a", PERSON, 1, []).measures(Unread(BOARD))
    assert "questions" not in found and {"reward", "partner_words", "seconds"} <= found.keys()


def test_people_who_played_together_are_one_observation():
    game, states = MatchingGame(BOARD), [0, 1, 2]
    pairs = [("a", "b", 0), ("c", "d", 1), ("a", "b", 2), ("d", "e", 0)]
    records = [make_episode(state, number) for number, (*_, state) in enumerate(pairs)]
    parts = [
        Held(record, seat, person, PERSON, 1, [])
        for record, (one, other, _) in zip(records, pairs, strict=True)
        for seat, person in enumerate((one, other))
    ]
    found = with_partner(game, parts, states)
    assert (found.people, found.episodes, sum(found.statuses.values())) == (5, 4, 4)
    alone = [replace(part, person="abcde"[part.person in "cde"]) for part in parts if part.seat == 0]
    assert found.figures["reward"] == with_partner(game, alone, states).figures["reward"]


def test_figures_of_people_are_those_of_a_computation_by_hand(played, tmp_path, monkeypatch):
    output, _, _ = played
    monkeypatch.chdir(tmp_path)
    report = run_people(load_config(None, {}), output)
    assert PeopleReport.model_validate_json(output.with_name("games.evaluation.json").read_text()) == report
    assert (report.people, report.states, report.game) == (4, 5, "matching")
    places = {line.episode_id: line.place for line in read_log(log_path(output)) if isinstance(line, BegunLine)}
    rewards: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in output.read_text().splitlines():
        record = json.loads(line)
        (partner,) = {*record["players"]} - {PERSON}
        reward = record["outcome"]["normalized_reward"]
        rewards[partner, "altered" if "extra" in record else "plain"].append(reward)
        if "extra" not in record and places[record["episode_id"]]:
            rewards[partner, "later"].append(reward)
    for name, one in report.partners.items():
        mean = {kind: sum(values) / len(values) for (partner, kind), values in rewards.items() if partner == name}
        assert one.figures["reward"].value == pytest.approx(mean["plain"])
        assert one.altered.reward.value == pytest.approx(mean["altered"])
        assert one.altered.worth.value == pytest.approx(mean["later"] - mean["altered"])
        assert one.figures["reward"].low < one.figures["reward"].value < one.figures["reward"].high
        assert (one.episodes, one.altered.episodes, one.people) == (4, 4, 4)
        assert one.figures["agreed"].value == 1 and one.figures["words"].value > 0
        assert one.altered.empty == 0 and one.self_play_on == "the same states"
    assert report.references["best"].value == 1 if "best" in report.references else True
    done = selfplay("evaluate", "--people", str(output))
    assert done.returncode == 0, done.stderr
    assert "worth of words" in done.stdout and "zebra-one with itself: on the same states" in done.stdout


def test_who_took_no_turn_is_left_out_and_counted(tmp_path, monkeypatch):
    async def play() -> None:
        async with served(tmp_path) as url:
            async with PersonOverWeb(url, "gone", random.Random(0)) as gone:
                form = next(form for form in (await gone.begin()).forms if form.action.endswith("/leave"))
                await gone.post(form.action, form.hidden)
            async with PersonOverWeb(url, "person", random.Random(1)) as person:
                await person.begin()
                await person.play_on()

    asyncio.run(play())
    monkeypatch.chdir(tmp_path)
    report = run_people(load_config(None, {}), tmp_path / "games.jsonl")
    assert (report.people, report.absent) == (1, 1)
    assert sum(one.episodes for one in report.partners.values()) == 1


def test_evaluate_says_what_is_missing(tmp_path):
    async def nobody() -> None:
        async with served(tmp_path):
            pass

    asyncio.run(nobody())
    games = tmp_path / "games.jsonl"
    for arguments, words in (
        (["--people", str(tmp_path)], "selfplay_games.jsonl: there is no such file"),
        (["--people", str(tmp_path / "no.jsonl")], "no.jsonl: there is no such file"),
        (["--people", str(games)], "has no episode with a turn of a person"),
        (["--people", str(games), "sharing"], "leave out the player"),
        (
            [
                "--people",
                str(games),
                "--num-states",
                "9",
                "--set",
                "game.mute=true",
                "--episodes",
                "2",
                "--game",
                "matching",
            ],
            "leave out --num-states, --episodes, --set\n",
        ),
        ([], "name the evaluated player"),
    ):
        done = selfplay("evaluate", *arguments)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    log_path(games).unlink()
    done = selfplay("evaluate", "--people", str(games))
    assert done.returncode == 2 and "has no games.people.jsonl beside it" in done.stderr


def test_the_end_of_an_episode_does_not_say_that_only_models_reach_it():
    episode, endings = make_episode(), set[str]()
    for status in (Status.TURN_LIMIT, Status.ERROR_LIMIT, Status.CONTEXT_LENGTH):
        record = episode.model_copy(update={"outcome": episode.outcome.model_copy(update={"status": status})})
        endings.add(of_end(MatchingGame(BOARD), record, 0, blind=True)["ending"])
        assert of_end(MatchingGame(BOARD), record, 0)["ending"] not in endings
    assert len(endings) == 1
