"""The report of a real run, in a real browser: what it shows, how it is moved through, and that nothing gets out."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.report.reading import read_episode, read_state
from selfplay_pipeline.report.run import scan_all, write_page
from selfplay_pipeline.report.sources import discover

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = (
    '[message] <img src=x onerror="window.hacked=1"></script><script>window.hacked=2</script> {{7*7}} '
    "<a href='http://example.com'>x</a> " + "A" * 3_000
)
HOSTILE_ID = "hostile-<b>id</b>" + "B" * 3_000
MORE = 250
"""Games that the list does not show at first."""
WIDTHS = {"desktop": 1400, "phone": 390}
PATIENCE = 120_000.0
"""Milliseconds that a page may take, or what is expected of it; Playwright gives up after 5,000 to 30,000."""
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def games(run, tmp_path_factory) -> Path:
    """The run, with one more episode of a state, in which a player tries to break the page."""
    copy = tmp_path_factory.mktemp("reported") / "run"
    shutil.copytree(run.path, copy, ignore=shutil.ignore_patterns("trainer_state"))
    path = copy / "iter_2" / "selfplay_games.jsonl"
    episode = json.loads(path.read_text().splitlines()[0])
    hostile = {"episode_id": HOSTILE_ID, "episode": 99, "players": ["policy", "<script>window.hacked=3</script>"]}
    hostile["trajectories"] = episode["trajectories"][:1]
    said = [episode["turns"][0] | {"text": HOSTILE}, *episode["turns"][1:]]
    further = [episode | {"episode_id": f"more-{n}", "group_index": 10_000 + n} for n in range(MORE)]
    with path.open("a") as file:
        for line in (episode | hostile | {"turns": said}, *further):
            file.write(json.dumps(line) + "\n")
        file.write('{"torn": ')
    return copy


@pytest.fixture(scope="module")
def report(games) -> Path:
    source = discover(games)
    write_page(source, scan_all(source), games / "report.html", max_megabytes=14)
    return games / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium here; bin/install_browser.sh installs it")
        pytest.skip("no Chromium here; bin/install_browser.sh installs it")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=flags, timeout=PATIENCE)
        yield browser
        browser.close()


@dataclass
class Open:
    """An open page, and all that it complained about or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return self.page.locator("#episode h3").inner_text()

    @property
    def count(self) -> str:
        return self.page.locator("#count").inner_text()

    def show(self, number: int, episode_id: str) -> None:
        self.page.evaluate(f"location.hash = '#episode-{number}'")
        expect(self.page.locator("#episode h3")).to_have_text(episode_id)

    def filter(self, **values: str) -> None:
        for name, value in values.items():
            control = self.page.locator(f"#filters [name={name}]")
            if control.evaluate("control => control.tagName") == "SELECT":
                control.select_option(label=value)
            else:
                control.fill(value)


@pytest.fixture
def open_page(request) -> Iterator:
    # First: Playwright's event loop, once there, runs in this thread, and the run of the loop needs one of its own.
    usual = None if {"bargains", "plain"} & {*request.fixturenames} else request.getfixturevalue("report")
    browser = request.getfixturevalue("browser")
    contexts = []

    def opener(width: int = WIDTHS["desktop"], theme: str = "light", path: Path | None = None) -> Open:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        opened = Open(context.new_page())
        opened.page.on("console", lambda message: opened.complaints.append(message.text))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto((path or usual).as_uri())
        return opened

    yield opener
    for context in contexts:
        context.close()


@pytest.fixture
def opened(open_page) -> Open:
    return open_page()


def episodes_of(games: Path):
    """All episodes in the page's order."""
    return [
        record
        for file in discover(games).files
        for record in sorted(_whole(file.path), key=lambda record: (record.group_index, record.episode))
    ]


def _whole(path: Path):
    text = path.read_text()
    whole = path.with_suffix(".whole")
    whole.write_text(text[: text.rindex("\n") + 1])
    return list(read_episodes(whole))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_there_in_both_themes(open_page, theme):
    page = open_page(theme=theme).page
    pictures = page.locator("figure img")
    keys = [figure.get_attribute("id") for figure in page.locator("figure").all()]
    played = "reward agreed optimal illegal messages questions words_per_message entropy flat_groups"
    lost = "histogram where_reward_is_lost_sampled where_reward_is_lost_greedy"
    trained = "loss gradient step_entropy kl log_prob_gap seconds tokens"
    assert sorted(keys) == sorted(f"chart-{key}" for key in f"{played} {lost} {trained}".split())
    for picture in pictures.all():
        expect(picture).to_have_js_property("complete", True)
        assert picture.evaluate("image => image.naturalWidth") > 100
        assert len(picture.get_attribute("alt")) > 20
    shown = page.locator("#chart-reward img").evaluate("image => image.currentSrc")
    light = page.locator("#chart-reward img").get_attribute("src")
    assert (shown == light) == (theme == "light")
    caption = page.locator("#chart-reward figcaption").inner_text()
    assert all(line in caption for line in ("random", "own view", "silence", "optimum"))
    assert "human pairs" not in caption, "they played 8×8 boards"


@pytest.mark.parametrize("width", [1300, 1000])
def test_the_table_of_iterations_is_whole_in_windows_of_common_widths(open_page, width):
    table = open_page(width).page.locator("#iterations .scroll")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth")


def test_the_page_asks_for_nothing_and_complains_of_nothing(opened, report):
    for key in "jjnbwmik":
        opened.page.keyboard.press(key)
    opened.page.locator("#episode details").first.locator("summary").click()
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [report.as_uri()]


def test_filters_find_what_they_say(opened, games):
    episodes = episodes_of(games)
    assert opened.count == f"{len(episodes)} of {len(episodes)} episodes"
    expected = {
        ("status", "agreed"): [episode for episode in episodes if episode.outcome.status == "agreed"],
        ("low", "0.9"): [episode for episode in episodes if episode.outcome.normalized_reward >= 0.8995],
        ("high", "0.5"): [episode for episode in episodes if episode.outcome.normalized_reward <= 0.5005],
        ("text", "ACCEPT daniel"): [
            episode for episode in episodes if all(word in _words(episode) for word in ("accept", "daniel"))
        ],
    }
    for (name, value), found in expected.items():
        opened.filter(**{name: value})
        expect(opened.page.locator("#count")).to_have_text(f"{len(found)} of {len(episodes)} episodes")
        opened.page.get_by_role("button", name="Clear").click()
        expect(opened.page.locator("#count")).to_have_text(f"{len(episodes)} of {len(episodes)} episodes")
    opened.filter(iteration="1", kind="training episodes")
    expect(opened.page.locator("#count")).to_have_text(f"24 of {len(episodes)} episodes")
    opened.page.get_by_label("with illegal actions").check()
    illegal = [episode for episode in _whole(games / "iter_1" / "selfplay_games.jsonl") if episode.outcome.num_illegal]
    expect(opened.page.locator("#count")).to_have_text(f"{len(illegal)} of {len(episodes)} episodes")


def _words(episode) -> str:
    return "\n".join(
        [episode.episode_id, episode.outcome.status, *episode.players, *(turn.text for turn in episode.turns)]
    ).lower()


def test_games_open_by_click_and_the_way_back_works(opened, games):
    episodes = episodes_of(games)
    assert opened.title == episodes[0].episode_id
    opened.page.locator("#list a").nth(3).click()
    expect(opened.page.locator("#episode h3")).to_have_text(episodes[3].episode_id)
    assert opened.page.url.endswith("#episode-3")
    opened.page.locator("#list a").nth(5).click()
    opened.page.go_back()
    expect(opened.page.locator("#episode h3")).to_have_text(episodes[3].episode_id)


def test_games_open_by_keyboard_within_the_filter(opened, games):
    training = [episode for episode in episodes_of(games) if episode.policy.iteration == 1]
    rewards = sorted(episode.outcome.normalized_reward for episode in training)
    opened.filter(iteration="1", kind="training episodes")
    opened.page.locator("#episodes-title").click()
    for keys, expected in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        opened.page.keyboard.press(keys)
        expect(opened.page.locator("#episode h3")).to_have_text(training[expected].episode_id)
    for key, reward in (("b", rewards[-1]), ("w", rewards[0]), ("m", rewards[len(rewards) // 2])):
        opened.page.keyboard.press(key)
        expect(opened.page.locator("#episode .chips").first).to_contain_text(f"reward {reward:.3f}")
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("jjj")
    expect(opened.page.locator("#filters [name=text]")).to_have_value("jjj")
    expect(opened.page.locator("#count")).to_contain_text("0 of ")


def test_every_control_is_reached_with_tab_and_a_game_opens_with_enter(opened, games):
    opened.page.locator("#filters [name=status]").focus()
    names = []
    for _ in range(11):
        names.append(opened.page.evaluate("document.activeElement.name || document.activeElement.textContent"))
        opened.page.keyboard.press("Tab")
    controls = ["status", "iteration", "kind", "low", "high", "illegal", "text", "order", "Clear", "Skip the list"]
    assert names[:10] == controls
    assert episodes_of(games)[0].episode_id in names[10]
    opened.page.locator("#list a").first.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        opened.page.keyboard.press(key)
    expect(opened.page.locator("#episode h3")).to_have_text(episodes_of(games)[2].episode_id)


def test_keys_can_be_switched_off(opened):
    first = opened.title
    opened.page.locator("#shortcuts").uncheck()
    opened.page.locator("#episodes-title").click()
    opened.page.keyboard.press("j")
    assert opened.title == first


def test_the_list_follows_to_games_that_it_did_not_show_at_first(opened, games):
    episodes = episodes_of(games)
    number = next(n for n, episode in enumerate(episodes) if episode.episode_id == f"more-{MORE - 1}")
    assert opened.page.locator("#list a").count() == 200 <= number
    opened.show(number, episodes[number].episode_id)
    expect(opened.page.locator("#list a[aria-current=true]")).to_contain_text(f"more-{MORE - 1}")
    expect(opened.page.locator("#list a[aria-current=true]")).to_be_in_viewport()


def test_a_game_shows_what_its_record_holds(opened, games):
    episodes = episodes_of(games)
    number = next(n for n, episode in enumerate(episodes) if episode.outcome.proposal and episode.policy.iteration == 2)
    record = episodes[number]
    state, episode = read_state(record), read_episode(record)
    opened.show(number, record.episode_id)
    turns = opened.page.locator(".dialogue li")
    assert [turn.locator(".text").text_content() for turn in turns.all()] == [turn.text for turn in record.turns]
    first, second, together, gained, lost = opened.page.locator(".drawn table").all()
    for table, seat in ((first, 0), (second, 1)):
        seen = [
            [cell.inner_text().split()[0] for cell in row.locator("td:not(.hidden)").all()]
            for row in table.locator("tbody tr").all()
        ]
        view = state.drawing.views[seat]
        hidden = {tuple(place) for place in view.cells_that_are["hidden"]}
        assert seen == [
            [text for column, text in enumerate(cells) if (row, column) not in hidden]
            for row, cells in enumerate(view.cells)
        ]
    for table in (first, second, together):
        assert table.locator("td.first-mark").count() == table.locator("td.second-mark").count() == len(view.columns)
    differences = [cell.inner_text() for cell in gained.locator("tbody tr td:last-child").all()]
    assert differences == [row[-1] for row in episode.drawing.results[0].cells]
    assert differences[-1].replace("=", "0") == f"{record.outcome.score - record.outcome.best:+.0f}".replace("+0", "0")
    share = float(lost.locator("tbody tr td:last-child").last.inner_text())
    assert share == pytest.approx(1 - record.outcome.normalized_reward, abs=1e-3)
    worth = opened.page.locator(".dialogue .faint").all_inner_texts()
    assert len(worth) == sum(turn.action in ("message", "propose") for turn in record.turns)


def test_all_plays_of_a_state_can_be_compared(opened, games):
    episodes = episodes_of(games)
    number = next(n for n, episode in enumerate(episodes) if episode.policy.iteration == 1)
    opened.show(number, episodes[number].episode_id)
    mates = [
        episode
        for episode in episodes
        if episode.policy.iteration == 1 and episode.group_index == episodes[number].group_index
    ]
    table = opened.page.get_by_role("region", name="Episodes of this state")
    assert [row.locator("td").first.inner_text() for row in table.locator("tbody tr").all()] == [
        f"{episode.outcome.normalized_reward:.3f}" for episode in mates
    ]
    table.get_by_role("link", name="episode 2").click()
    expect(opened.page.locator("#episode h3")).to_have_text(mates[2].episode_id)
    opened.page.keyboard.press("n")
    expect(opened.page.locator("#episode h3")).to_have_text(mates[3].episode_id)


def test_trained_tokens_are_highlighted_and_tell_their_log_probs(opened, games):
    episodes = episodes_of(games)
    number = next(n for n, episode in enumerate(episodes) if episode.policy.iteration == 1)
    opened.show(number, episodes[number].episode_id)
    for details, trajectory in zip(
        opened.page.locator("#episode details").all(), episodes[number].trajectories, strict=True
    ):
        details.locator("summary").click()
        own = details.locator(".own")
        stored = [p for p, mine in zip(trajectory.response_logprobs, trajectory.response_mask, strict=True) if mine]
        expect(own).to_have_count(len(stored))
        shown = [float(span.get_attribute("data-log-prob")) for span in own.all()]
        assert shown == pytest.approx(stored, abs=1e-4)
        own.last.hover()
        expect(details.get_by_role("status")).to_contain_text(f"log-prob {shown[-1]:g}")
        details.locator(".tokens").focus()
        opened.page.keyboard.press("ArrowLeft")
        expect(details.get_by_role("status")).to_contain_text(f"log-prob {shown[-2]:g}")
        assert f"{len(shown)} of them trained on" in details.locator("summary").inner_text()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_hostile_message_is_shown_as_text_and_breaks_nothing(open_page, width):
    opened = open_page(width)
    opened.filter(text="window.hacked")
    expect(opened.page.locator("#list a")).to_have_count(1)
    opened.page.locator("#list a").click()
    expect(opened.page.locator("#episode h3")).to_have_text(HOSTILE_ID)
    assert opened.page.locator(".dialogue .text").first.text_content() == HOSTILE
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.locator("#episode img, #episode script, #episode b").count() == 0
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []


@pytest.mark.parametrize(("width", "theme"), [(WIDTHS["desktop"], "light"), (WIDTHS["phone"], "dark")])
def test_axe_finds_nothing_serious(open_page, width, theme):
    opened = open_page(width, theme)
    opened.page.locator("figure details").first.locator("summary").click()
    for details in opened.page.locator("#episode details").all():
        details.locator("summary").click()
        expect(details.locator(".tokens")).to_be_visible()
    found = Axe().run(opened.page).response
    assert len(found["passes"]) > 20
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in serious] == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def bargains(tmp_path_factory) -> Path:
    """Games of scripted players whose seats have rewards of their own, and where no table hides anything."""
    folder = tmp_path_factory.mktemp("bargains")
    (folder / "own.yaml").write_text("base: tiny_bargaining\ngame: {name: bargaining, reward: selfish}")
    options = ["--config", folder / "own.yaml", "--num-episodes", 16, "--episodes-per-state", 4]
    seats = ["--player", "random", "--player", "sharing", "--output", folder / "games.jsonl"]
    # A process of its own, since Playwright's event loop runs in this one.
    subprocess.run([sys.executable, "-m", "selfplay_pipeline", "generate", *map(str, options + seats)], check=True)
    source = discover(folder / "games.jsonl")
    write_page(source, scan_all(source), folder / "report.html", max_megabytes=14)
    return folder / "games.jsonl"


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_page_of_another_game_shows_its_tables_figures_and_dialogue(open_page, bargains, width):
    opened = open_page(width, path=bargains.with_name("report.html"))
    records = episodes_of(bargains)
    number = next(n for n, episode in enumerate(records) if episode.outcome.rewards and len(episode.turns) > 2)
    record, episode = records[number], read_episode(records[number])
    opened.show(number, record.episode_id)
    said = opened.page.locator(".dialogue .text").all()
    assert [text.text_content() for text in said] == [turn.text for turn in record.turns]
    tables = [*read_state(record).drawing.views, *read_state(record).drawing.whole, *episode.drawing.results]
    shown = opened.page.locator(".drawn table").all()
    assert len(shown) == len(tables) == 4
    for table, drawn in zip(shown, tables, strict=True):
        rows = [[cell.inner_text() for cell in row.locator("td").all()] for row in table.locator("tbody tr").all()]
        assert rows == drawn.cells
    chips = opened.page.locator("#episode .chips").first
    for seat, reward in enumerate(record.outcome.rewards):
        expect(chips).to_contain_text(f"seat {seat}: reward {reward:.3f}")
    figures = opened.page.locator("#figures tbody th").all_inner_texts()
    assert {"agreement rate", "own value", "sum of both values", "proposals an episode"} <= set(figures)
    caption = opened.page.locator("#chart-reward figcaption").inner_text()
    assert all(line in caption for line in ("random", "silence", "optimum"))
    assert "hidden" not in opened.page.locator("#episode").inner_text()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """The page of a user's own game, which draws no tables."""
    folder = tmp_path_factory.mktemp("plain")
    game, games, page = folder / "my_game.py", folder / "games.jsonl", folder / "report.html"
    for command in (
        ("game", "new", "my_game", "--output", folder),
        ("generate", "--game", game, "--player", "adding", "--num-episodes", 4, "--output", games),
        ("report", games, "--game", game, "--output", page),
    ):
        subprocess.run([sys.executable, "-m", "selfplay_pipeline", *map(str, command)], check=True)
    return page


def test_a_page_of_a_game_without_tables_shows_its_dialogue(open_page, plain):
    opened = open_page(path=plain)
    # Read as JSON, since the game is not known in this process.
    records = [json.loads(line) for line in plain.with_name("games.jsonl").read_text().splitlines()]
    second = sorted(records, key=lambda record: record["episode"])[1]
    opened.show(1, second["episode_id"])
    said = opened.page.locator(".dialogue .text").all()
    assert [text.text_content() for text in said] == [turn["text"] for turn in second["turns"]] != []
    assert opened.complaints == []
