"""`make chaos`: tries every fault, prints each outcome, and ends with a table."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, get_args

from chaos.faults import cases
from chaos.judging import Case, Outcome, Verdict
from chaos.outside import heed_signals

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Result(NamedTuple):
    """Result of one case."""

    case: Case
    verdict: Verdict
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested cases; returns 1 if any was not handled."""
    options = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    options.add_argument("--kind", action="append", default=[], help="only cases of this kind; may be repeated")
    options.add_argument("--case", action="append", default=[], help="only the case of this name; may be repeated")
    options.add_argument("--list", action="store_true", help="name the cases, and stop")
    options.add_argument("--seed", type=int, default=0, help="draws the moments")
    options.add_argument("--jobs", type=int, default=2, help="cases at a time")
    options.add_argument("--keep", action="store_true", help="keep the folders of cases that were not handled")
    asked = options.parse_args(arguments)
    chosen = [
        case
        for case in cases(asked.seed)
        if (not asked.kind or case.kind in asked.kind) and (not asked.case or case.name in asked.case)
    ]
    if asked.list:
        print("\n".join(f"{case.kind}: {case.name}" for case in chosen))
        return 0
    if not chosen:
        print("no such case; --list names them all", file=sys.stderr)
        return 2
    # Private, and with a short path, since some commands create sockets there.
    work = Path(tempfile.mkdtemp(prefix="chaos-"))
    results: list[Result] = []
    try:
        for result in run_all(chosen, work, asked.jobs, keep=asked.keep):
            results.append(result)
            said = f"{result.case.name} {result.seconds:.1f} s  {result.verdict.outcome}: {result.verdict.detail}"
            print(f"{len(results)}/{len(chosen)} {said}", flush=True)
    finally:
        if asked.keep:
            print(f"folders of what was not handled: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    print(table(results))
    return int(any(result.verdict.outcome != "handled" for result in results))


def run_all(chosen: Sequence[Case], work: Path, jobs: int, *, keep: bool) -> Iterator[Result]:
    """Run cases, `jobs` at a time, each in a folder of its own; yields each result as soon as it is known."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run_one, case, work / f"{number:04d}", keep=keep) for number, case in enumerate(chosen)]
        for future in as_completed(futures):
            yield future.result()


def run_one(case: Case, folder: Path, *, keep: bool) -> Result:
    """Run a case. An error of the harness itself is no verdict on the program, and is reported as such."""
    folder.mkdir()
    began = time.monotonic()
    try:
        verdict = case.run(folder)
    except Exception as error:
        verdict = Verdict("unexpected", f"the harness failed: {type(error).__name__}: {error}")
    if verdict.outcome == "handled" or not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(case, verdict, time.monotonic() - began)


def table(results: Sequence[Result]) -> str:
    """Returns the table of results: by kind, the numbers of tried and handled cases and of every other outcome."""
    counts = Counter((result.case.kind, result.verdict.outcome) for result in results)
    lines = [["kind", "tried", *OUTCOMES]]
    for kind in sorted({result.case.kind for result in results}):
        of_kind = [counts[kind, outcome] for outcome in OUTCOMES]
        lines.append([kind, str(sum(of_kind)), *map(str, of_kind)])
    lines.append(["all", *(str(sum(int(line[at]) for line in lines[1:])) for at in range(1, len(lines[0])))])
    width = max(len(line[0]) for line in lines)
    return "\n".join(line[0].ljust(width) + "".join(cell.rjust(11) for cell in line[1:]) for line in lines)


if __name__ == "__main__":
    heed_signals()
    sys.exit(main())
