"""A study in a real browser: consent, a list of games that goes on after a kill, and the end."""

import re
import signal
from pathlib import Path

from playwright.sync_api import expect
from test_page import browser  # noqa: F401 - a fixture
from test_play import stored
from test_play_pages import NARROW, person_at  # noqa: F401 - a fixture
from test_play_web import Served

from selfplay_pipeline.generate.episode_wrappers import swap_of
from selfplay_pipeline.generate.records import PERSON

TEXTS = "title: Plan together\ninstructions: Play <b>well</b>.\nthanks: The code is 4711.\n"
STUDY = f"states: {{count: 3}}\npartners: [sharing, own-view]\nepisodes: 2\naltered: 1\n{TEXTS}"


class ServedStudy(Served):
    """The command with a study, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "study.yaml").write_text(STUDY)
        at = self.command.index("--player")
        self.command[at : at + 4] = ["--study", str(folder / "study.yaml")]


def test_people_consent_play_their_lists_and_are_thanked(tmp_path, person_at):  # noqa: F811
    with ServedStudy(tmp_path) as served:
        people = [person_at(served.url), person_at(served.url, NARROW, "dark")]
        for person in people:
            expect(person.page.get_by_role("heading", level=1)).to_have_text("Plan together")
            expect(person.page.get_by_text("Play <b>well</b>.")).to_be_visible()
            expect(person.page.get_by_text("does not receive what you write")).to_be_visible()
            person.check_page()
            person.button("Begin").click()
            expect(person.page.get_by_role("heading", level=1)).to_have_text("Plan together")
            assert person.context.cookies() == [], "the browser does not send the form without consent"
            person.page.get_by_label("I have read this, and I agree.").focus()
            person.page.keyboard.press("Space")
            person.button("Begin").click()
            expect(person.page.locator("header")).to_contain_text("game 1 of 2")
            person.play("which scores do you see?", check=True)
            person.button("Next episode").click()
            expect(person.page.locator("header")).to_contain_text("game 2 of 2")
            person.page.get_by_label("message").fill("half a game")
            person.button("Send message").click()
            expect(person.page.locator(".own").first).to_contain_text("half a game")
            served.stop(signal.SIGKILL)
            served.start()
            person.page.reload()
            expect(person.page.locator(".own").first).to_contain_text("half a game")
            person.play("go on", check=True)
            expect(person.page.get_by_text("The code is 4711.")).to_be_visible()
            assert person.button("Next episode").count() == 0
            assert not re.search("sharing|own-view", person.page.content())
            assert person.complaints == [] and all(url.startswith((served.url, "data:")) for url in person.requests)
    records = stored(served.output, served.config)
    assert sorted(record.players for record in records) == [
        [PERSON, name] for name in ("own-view", "sharing") for _ in "12"
    ]
    assert [swap_of(record) for record in records] == [None, "swapped"] * 2
