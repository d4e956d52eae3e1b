"""Runs the command `selfplay` as `python -m selfplay_pipeline.cli`."""

from __future__ import annotations

from selfplay_pipeline.cli import main

if __name__ == "__main__":
    main()
