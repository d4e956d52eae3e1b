"""Fails when git tracks a lock file, or a file over 1 MB that is not expected to be so large."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

MOST_BYTES = 1_000_000
LARGE = {
    "selfplay_pipeline/games/*/data/tiny_*model/model.safetensors": "the tiny models, which tests and newcomers play",
    "bench/smollm2_adapter/adapter_model.safetensors": "an adapter that took hours of training",
}
"""Files that may be larger, and what they are."""


def main() -> int:
    """Print each file and what is wrong with it."""
    tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    found = 0
    for name in filter(None, tracked.split("\0")):
        file, what = Path(name), ""
        size = file.lstat().st_size if file.is_symlink() or file.exists() else 0
        if file.suffix == ".lock" or file.name == ".lock":
            what = "is a lock file"
        elif size > MOST_BYTES and not any(fnmatch(name, pattern) for pattern in LARGE):
            what = (
                f"has {size:,} bytes, more than {MOST_BYTES:,}; store a command that makes it, or list it in {__file__}"
            )
        if what:
            print(f"{name}: {what}; `git rm --cached` removes it from git")
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
