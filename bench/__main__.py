"""Runs all benchmarks, or the named ones: rules serving convert iteration report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from bench import convert, iteration, report, rules, serving

BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "rules": rules.run,
    "serving": serving.run,
    "convert": convert.run,
    "iteration": iteration.run,
    "report": report.run,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"bench: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        print(json.dumps({"benchmark": name} | BENCHMARKS[name]()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
