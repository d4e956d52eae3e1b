"""`python -m selfplay_pipeline.cli` is the command `selfplay`."""

from __future__ import annotations

from selfplay_pipeline.cli import main

if __name__ == "__main__":
    main()
