"""Runs both benchmarks of single parts, or the named ones: serving iteration."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from bench import iteration, serving

BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "serving": serving.run,
    "iteration": iteration.run,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"bench: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        print(json.dumps({"benchmark": name} | BENCHMARKS[name]()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
