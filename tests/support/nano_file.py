"""The file examples/nano.py as a module, also with a planted mistake."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NANO = Path(__file__).parents[2] / "examples" / "nano.py"


def load_nano(right: str = "", wrong: str = "") -> Any:
    """Returns the module, in whose source the text `right`, which is there once, is replaced by `wrong`."""
    source = NANO.read_text()
    if right:
        assert source.count(right) == 1
        source = source.replace(right, wrong)
    module = ModuleType("nano")
    sys.modules["nano"] = module  # dataclasses look it up
    exec(compile(source, str(NANO), "exec"), module.__dict__)
    return module
