"""The program `selfplay`. The command line is imported late, so that signals are handled during the import."""

from __future__ import annotations

from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.garbage import collect_seldom


def main() -> None:
    """Run the command line."""
    stopping.quit_at_once()
    collect_seldom()
    from selfplay_pipeline.cli import main

    main()


if __name__ == "__main__":
    main()
