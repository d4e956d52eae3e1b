"""Takes pictures of a report, light, dark and on a phone: `python bin/picture_report.py REPORT OUT`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

SHOTS: dict[str, tuple[dict[str, Any], str]] = {
    "light": ({"viewport": {"width": 1400, "height": 1000}, "color_scheme": "light"}, "games"),
    "dark": ({"viewport": {"width": 1400, "height": 1000}, "color_scheme": "dark"}, ""),
    "phone": ({"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True}, "game"),
}


def main(report: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (options, section) in SHOTS.items():
            page = browser.new_page(**options)
            page.goto(report.resolve().as_uri())
            page.locator("#filters [name=iteration]").select_option(
                index=-1 + page.locator("[name=iteration] option").count()
            )
            page.locator("#filters [name=kind]").select_option("training episodes")
            page.locator("#list a").nth(5).click()
            page.locator("#episode summary").first.click()
            page.wait_for_timeout(300)
            page.evaluate(f"scrollTo(0, document.getElementById('{section}')?.offsetTop ?? 0)")
            page.screenshot(path=out / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
