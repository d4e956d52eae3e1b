"""Fails if git tracks a lock file, a link to nothing, a large file that `LARGE` lacks, or two tests of one name.

Pytest cannot import two test files of one name in one run.
"""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

MOST_BYTES = 1_000_000
LARGE = {
    "selfplay_pipeline/games/*/data/tiny_*model/model.safetensors": "the tiny models, which tests and newcomers play",
}
"""Patterns of files that may be larger, with a description."""


def main() -> int:
    """Print each bad file and its fault; returns the exit code."""
    tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    found = 0
    tests: dict[str, str] = {}
    for name in filter(None, tracked.split("\0")):
        file, what = Path(name), ""
        size = file.lstat().st_size if file.is_symlink() or file.exists() else 0
        if file.suffix == ".lock" or file.name == ".lock":
            what = "is a lock file"
        elif file.is_symlink() and not file.exists():
            what = f"is a link to {file.readlink()}, which does not exist"
        elif size > MOST_BYTES and not any(fnmatch(name, pattern) for pattern in LARGE):
            what = (
                f"has {size:,} bytes, more than {MOST_BYTES:,}; store a command that makes it, or list it in {__file__}"
            )
        if what:
            print(f"{name}: {what}; `git rm --cached` removes it from git")
            found = 1
        if name.startswith(("tests/", "studies/tests/")) and file.name.startswith("test_"):
            other = tests.setdefault(file.name, name)
            if other != name:
                print(f"{name}: {other} has the same name; pytest cannot import both in one run, so rename one")
                found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
