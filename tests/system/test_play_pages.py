"""The pages of `selfplay play --web` in a real browser: whole episodes in each game, keyboard, phone, and axe."""

import re
import time
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from test_page import PATIENCE, WIDTHS, browser  # noqa: F401 - a fixture
from test_play import stored
from test_play_web import Served

from selfplay_pipeline.generate.records import PERSON
from selfplay_pipeline.people.web.server import POLICY

GAMES = {
    "matching": ("free.yaml", "sharing", (), "which scores do you see?"),
    "bargaining": ("tiny_bargaining", "sharing", (), "what do you want?"),
    "planning": ("game: {name: planning, places: 13}", "", ("sharing",), "what do you like?"),
    "mediation": ("game: {name: mediation, days: 1}", "", ("sharing", "sharing"), "when do you meet?"),
    "sums": ("examples/sums.yaml", "adding", (), "7"),
}
"""Configuration, partner, players of seats before the person's, and words; of two games the person is the agent."""
NARROW = 360
SHOWN = "shown: "
TELL = f"addEventListener('DOMContentLoaded', () => console.info('{SHOWN}' + document.body.innerText))"
"""Makes each page tell its text as soon as it is read to its end."""


class PersonInBrowser:
    """A scripted person; keeps all complaints and requests of the browser."""

    def __init__(self, browser: Browser, url: str, width: int, theme: str) -> None:  # noqa: F811
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.url, self.width = url, width
        self.complaints: list[str] = []
        self.shown: list[str] = []
        self.requests: list[str] = []
        self.page.add_init_script(TELL)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def _hear(self, message: ConsoleMessage) -> None:
        told = message.text.startswith(SHOWN)
        (self.shown if told else self.complaints).append(message.text)

    def button(self, name: str):
        return self.page.get_by_role("button", name=name, exact=True)

    def wait_until_shown(self, words: str) -> None:
        """Wait for words on a page that waits, about which Chromium answers nothing until it leaves it."""
        end = time.monotonic() + PATIENCE / 1000
        while not any(words in text for text in self.shown[-1:]):
            assert time.monotonic() < end, self.shown
            self.page.wait_for_timeout(50)

    def sending(self):
        """Wait at the end of the block until the next page has begun, so that the old one is not taken for it."""
        return self.page.expect_navigation(wait_until="commit")

    def check_page(self) -> None:
        """Nothing is wider than the window, and axe finds nothing serious."""
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width
        found = Axe().run(self.page).response
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in serious] == []

    def propose(self) -> None:
        """Select a different option of each part, with the keyboard."""
        form = self.page.locator("form").filter(has=self.button("propose"))
        parts = form.locator("input[type=radio]").evaluate_all("all => [...new Set(all.map(one => one.name))]")
        for number, part in enumerate(parts):
            options = form.locator(f"input[name={part}]")
            options.nth(number % options.count()).focus()
            self.page.keyboard.press("Space")
        self.button("propose").focus()
        self.page.keyboard.press("Enter")

    def play(self, words: str, *, check: bool = False) -> None:
        """Search once if possible, speak once, then propose, and accept whatever is proposed."""
        spoken = searched = False
        while True:
            heading = self.page.get_by_role("heading", level=1)
            expect(heading).to_have_text(re.compile("Your turn|You agreed|The end"))
            self.page.wait_for_load_state()
            if check:
                self.check_page()
            if heading.inner_text() != "Your turn":
                return
            with self.sending():
                if self.button("accept").count():
                    self.button("accept").click()
                elif self.button("search").count() and not searched:
                    searched = True
                    if (near := self.page.get_by_label("the nearest first to")).count():  # else there are few places
                        near.select_option(index=1)
                    self.button("search").click()
                elif self.button("propose").count() and (spoken or not self.button("Send message").count()):
                    self.propose()
                else:
                    spoken = True
                    if (rooms := self.page.get_by_role("radio", name="user 1", exact=True)).count():
                        rooms.check(force=True)
                    self.page.get_by_role("textbox", name="message").fill(words)
                    self.page.keyboard.press("Tab")
                    self.page.keyboard.press("Enter")


@pytest.fixture
def person_at(browser: Browser) -> Iterator:  # noqa: F811
    people: list[PersonInBrowser] = []

    def opener(url: str, width: int = WIDTHS["desktop"], theme: str = "light") -> PersonInBrowser:
        people.append(PersonInBrowser(browser, url, width, theme))
        return people[-1]

    yield opener
    for person in people:
        person.context.close()


@pytest.mark.parametrize("game", GAMES)
def test_a_person_plays_whole_episodes_of_each_game_at_a_desk_and_on_a_phone(tmp_path, person_at, game):
    config, partner, others, words = GAMES[game]
    if config.startswith("game:"):
        (tmp_path / "own.yaml").write_text(config)
        config = str(tmp_path / "own.yaml")
    with Served(tmp_path, config=config, partner=partner, others=others) as served:
        people = [person_at(served.url), person_at(served.url, NARROW, "dark")]
        for person in people:
            person.check_page()
            with person.sending():
                person.button("Begin").click()
            person.play(words, check=True)
            if not others:
                with person.sending():
                    person.button("Next episode").click()
                person.play(words)
            assert person.complaints == [] and all(url.startswith((served.url, "data:")) for url in person.requests)
    records = stored(served.output, served.config)
    players = [*others, PERSON] if others else [PERSON, partner]
    assert len(records) == (2 if others else 4) and all(record.players == players for record in records)
    assert all(record.outcome.status == "agreed" and record.outcome.num_illegal == 0 for record in records)
    own = players.index(PERSON)
    assert all(any(words in turn.text for turn in record.turns if turn.seat == own) for record in records)
    if game == "planning":
        assert all(record.turns[1].action == "search" and "distance_to" in record.turns[1].text for record in records)


def test_a_reload_goes_on_and_the_page_of_a_waiting_person_goes_on_by_itself(tmp_path, person_at):
    with Served(tmp_path, partner=PERSON) as served:
        one, other = person_at(served.url), person_at(served.url, NARROW)
        one.button("Begin").click()
        one.wait_until_shown("goes on by itself")
        other.button("Begin").click()
        expect(one.page).to_have_title(re.compile("Your turn"))
        one.page.get_by_label("message").fill("<b>hello</b>\nthere")
        one.page.reload()
        one.page.get_by_label("message").fill("<b>hello</b>\nthere")
        one.button("Send message").click()
        expect(other.page.locator("#new")).to_contain_text("<b>hello</b>\nthere")
        expect(other.page.locator("#new")).to_be_focused()
        other.page.goto(served.url)
        other.propose()
        expect(one.button("accept")).to_be_visible()
        with one.sending():
            one.button("reject").click()
        one.page.get_by_text("Leave this episode").click()
        one.button("Leave").click()
        expect(other.page.get_by_role("heading", level=1)).to_have_text("The end")
        assert one.complaints == other.complaints == []
    (record,) = stored(served.output, served.config)
    assert record.outcome.status == "abandoned" and [turn.action for turn in record.turns] == [
        "message", "propose", "reject",
    ]  # fmt: skip
    assert "script" not in POLICY


def test_an_illegal_proposal_comes_back_with_the_reason_and_what_was_selected(tmp_path, person_at):
    with Served(tmp_path) as served:
        person = person_at(served.url)
        person.button("Begin").click()
        for part in range(3):
            person.page.locator(f"input[name=part{part}]").first.check(force=True)
        person.button("propose").click()
        expect(person.page.get_by_role("alert")).to_contain_text("repeats")
        assert person.page.locator("input:checked").count() == 3
        person.check_page()
        person.propose()
        expect(person.page.locator(".own")).to_contain_text("[propose] Proposal")
