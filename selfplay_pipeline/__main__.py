"""The program `selfplay`. The command line is imported late, so that signals are handled during the import."""

from __future__ import annotations

import os
import sys
import warnings

from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.garbage import collect_seldom


def main() -> None:
    """Run the command line."""
    stopping.quit_at_once()
    collect_seldom()
    _keep_warnings_harmless()
    from selfplay_pipeline.cli import main

    main()


def _keep_warnings_harmless() -> None:
    """Drop the filters of PYTHONWARNINGS=error, here and in child processes: the libraries warn of harmless things."""
    warnings.filters = [found for found in warnings.filters if found[0] != "error"]
    sys.warnoptions[:] = [option for option in sys.warnoptions if not option.startswith("error")]
    os.environ.pop("PYTHONWARNINGS", None)


if __name__ == "__main__":
    main()
