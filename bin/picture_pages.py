"""Takes pictures of the pages on which people play, desktop and phone: `python bin/picture_pages.py OUT`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from selfplay_pipeline.core.loopback import hold_port, port_of

SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1100, "height": 700}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 360, "height": 720}, "color_scheme": "dark", "is_mobile": True, "has_touch": True},
}
PLAY = ("play", "--web", "--config", "default", "--player", "person", "--player", "sharing")
AGENTS = {
    "planning": ("sharing", "person"),
    "mediation": ("sharing", "sharing", "person"),
}
"""Players of two games in which the person is the agent, by game."""
STUDY = """\
states: {count: 6}
partners: [sharing, own-view]
episodes: 4
altered: 1
title: Planning together
"""
TALLEST = 1100
"""Height at which a picture is cut."""
COLORS = 32
"""Number of colours of a picture, so that it is small."""


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[str]:
    """Yields the address of a server that runs in the meantime."""
    folder.mkdir(exist_ok=True)
    with hold_port() as holder:
        port = port_of(holder)
    command = [sys.executable, "-m", "selfplay_pipeline", *arguments, "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--output", str(folder / "games.jsonl")], stderr=subprocess.PIPE, text=True, cwd=folder
    )
    assert server.stderr is not None
    try:
        next(line for line in server.stderr if line.startswith("play at "))
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def play_through(page: Page, url: str, shot: Any) -> None:
    """Play one episode and take a picture of each kind of page."""
    page.goto(url)
    shot("front")
    page.get_by_role("button", name="Begin").click()
    page.get_by_label("message").fill("Which scores above 80 do you see?")
    page.get_by_role("button", name="Send message").click()
    page.get_by_role("heading", name="Your turn").wait_for()
    for number in range(page.locator(".grid thead th").count()):
        page.locator(f"input[name=part{number}]").nth(number).check(force=True)
    page.evaluate("scrollTo(0, 0)")
    shot("turn")
    while page.get_by_role("heading", name="Your turn").count():
        if page.get_by_role("button", name="accept").count():
            page.get_by_role("button", name="accept").click()
        else:
            page.get_by_role("button", name="propose").click()
    shot("end")


def play_as_agent(page: Page, url: str) -> None:
    """Begin an episode as the agent, search if possible, ask a user, and select a proposal."""
    page.goto(url)
    page.get_by_role("button", name="Begin").click()
    search = page.get_by_role("button", name="search", exact=True)
    if search.count():
        page.get_by_label("category").select_option("museum")
        page.get_by_label("the nearest first to").select_option("The Mall")
        search.click()
    else:
        page.get_by_role("radio", name="user 1", exact=True).check(force=True)
        page.get_by_label("message", exact=True).fill("Which of your meetings matter most?")
        page.get_by_role("button", name="Send message").click()
    page.get_by_role("heading", name="Your turn").wait_for()
    form = page.locator("form").filter(has=page.get_by_role("button", name="propose"))
    parts = form.locator("input[type=radio]").evaluate_all("all => [...new Set(all.map(one => one.name))]")
    for number, part in enumerate(parts):
        form.locator(f"input[name={part}]").nth(number).check(force=True)
    page.evaluate("scrollTo(0, 0)")


def main(out: Path) -> None:
    """Take the pictures."""
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size, options in SIZES.items():
            with served(Path(folder), *PLAY) as url:
                page = browser.new_page(**options)
                page.on("console", lambda message: print(message.text))

                def shot(name: str, page: Page = page, size: str = size) -> None:
                    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                    whole = Image.open(BytesIO(page.screenshot(full_page=True)))
                    picture = whole.crop((0, 0, whole.width, min(whole.height, TALLEST)))
                    picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(
                        out / f"play-{name}-{size}.png", optimize=True
                    )

                play_through(page, url, shot)
            for game, players in AGENTS.items():
                (Path(folder) / "game.yaml").write_text(f"game: {{name: {game}}}\n")
                seats = [word for player in players for word in ("--player", player)]
                with served(Path(folder) / f"{game}-{size}", *PLAY[:2], "--config", "../game.yaml", *seats) as url:
                    play_as_agent(page, url)
                    shot(game)
            (Path(folder) / "study.yaml").write_text(STUDY)
            with served(Path(folder) / size, "play", "--web", "--config", "default", "--study", "../study.yaml") as url:
                page.goto(url)
                shot("consent")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
