"""Tests the real commands with faults that only a process can show. `make chaos` runs them."""

import sys
from pathlib import Path

# The modules that the tests share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
