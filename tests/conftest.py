"""What holds for all tests: timings never decide one, and messages call the program as in an activated environment."""

import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
