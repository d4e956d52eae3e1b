"""`make chaos`: tries every bad input and every fault, prints each outcome, and ends with a table."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from chaos.cases import Case, Outcome, Verdict
from chaos.command import begin, stop
from chaos.judge import one_line

PARTS = {"inputs": "chaos.inputs", "faults": "chaos.faults"}
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Result:
    """Result of one case; a line of the file of results."""

    kind: str
    name: str
    outcome: Outcome
    detail: str
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested cases; returns 1 if any was not handled."""
    options = parser().parse_args(arguments)
    cases = chosen(options)
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases:
        print("no such case; --list names them all", file=sys.stderr)
        return 2
    earlier = read_results(options.results)
    done = [earlier[case.name] for case in cases if case.name in earlier]
    left = [case for case in cases if case.name not in earlier]
    begin()
    # Private, and with a short path, since some commands create sockets there.
    work = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        for number, result in enumerate(run_all(left, work, options.jobs, keep=options.keep), start=1):
            done.append(result)
            said = "" if result.outcome == "handled" else f"  {result.outcome}: {result.detail}"
            print(
                f"{number + len(cases) - len(left)}/{len(cases)} {result.name} {result.seconds:.1f} s{said}", flush=True
            )
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps(vars(result)) + "\n")
    except KeyboardInterrupt:
        print("stopped; with --results the same command continues", file=sys.stderr)
        return 130
    finally:
        if options.keep:
            print(f"folders of what was not handled: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    print(table(done))
    again = [result for result in done if result.outcome != "handled"]
    for result in again:
        print(f"\n{result.outcome}: {result.detail}\n  {command_again(result.name, options.seed)}")
    return 1 if again else 0


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    options = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    options.add_argument("--only", choices=sorted(PARTS), help="bad inputs, or faults")
    options.add_argument("--kind", action="append", default=[], help="only cases of this kind; may be repeated")
    options.add_argument("--case", action="append", default=[], help="only the case of this name; may be repeated")
    options.add_argument("--list", action="store_true", help="name the cases, and stop")
    options.add_argument("--seed", type=int, default=0, help="draws the values that are not fixed")
    options.add_argument("--jobs", type=int, default=2, help="cases at a time")
    options.add_argument("--keep", action="store_true", help="keep the folders of cases that were not handled")
    options.add_argument(
        "--results", type=Path, help="file that gets a line a case; cases that it has already are not run again"
    )
    return options


def chosen(options: argparse.Namespace) -> list[Case]:
    """Returns the requested cases, in their order."""
    parts = [options.only] if options.only else list(PARTS)
    found: list[Case] = []
    for part in parts:
        if find_spec(PARTS[part]) is not None:
            found += import_module(PARTS[part]).cases(options.seed)
    return [
        case
        for case in found
        if (not options.kind or case.kind in options.kind) and (not options.case or case.name in options.case)
    ]


def run_all(cases: Sequence[Case], work: Path, jobs: int, *, keep: bool) -> Iterator[Result]:
    """Run cases, `jobs` at a time, each in a folder of its own; yields each result as soon as it is known."""
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = [pool.submit(run_one, case, work / f"{number:04d}", keep=keep) for number, case in enumerate(cases)]
        for future in as_completed(futures):
            yield future.result()
    finally:  # also after a signal
        pool.shutdown(wait=False, cancel_futures=True)
        stop()
        pool.shutdown()


def run_one(case: Case, folder: Path, *, keep: bool) -> Result:
    """Run a case. An error of the harness itself is no verdict on the program, and is reported as such."""
    folder.mkdir()
    started = time.monotonic()
    try:
        verdict = case.run(folder)
    except Exception as error:
        verdict = Verdict("lost", f"the harness failed: {type(error).__name__}: {one_line(str(error))}")
    seconds = time.monotonic() - started
    if verdict.outcome == "handled" or not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(case.kind, case.name, verdict.outcome, verdict.detail, round(seconds, 2))


def read_results(path: Path | None) -> dict[str, Result]:
    """Returns the results of an earlier call of the same command, by name; an incomplete last line is left out."""
    found = {}
    for line in path.read_text().splitlines(keepends=True) if path and path.exists() else []:
        if line.endswith("\n"):
            result = Result(**json.loads(line))
            found[result.name] = result
    return found


def table(results: Sequence[Result]) -> str:
    """Returns the table of results: by kind, the numbers of tried and handled cases and of every other outcome."""
    counts = Counter((result.kind, result.outcome) for result in results)
    kinds = list(dict.fromkeys(result.kind for result in results))
    lines = [["kind", "tried", *OUTCOMES]]
    for kind in [*kinds, "all"]:
        of_kind = [
            sum(n for (k, o), n in counts.items() if o == outcome and kind in (k, "all")) for outcome in OUTCOMES
        ]
        lines.append([kind, str(sum(of_kind)), *map(str, of_kind)])
    width = max(len(line[0]) for line in lines)
    return "\n".join(line[0].ljust(width) + "".join(cell.rjust(10) for cell in line[1:]) for line in lines)


def command_again(name: str, seed: int) -> str:
    """Returns the shell command that runs one case again."""
    options = f"--case {name} --keep" + (f" --seed {seed}" if seed else "")
    return f'make chaos ARGS="{options}"'


def heed_signals() -> None:
    """Restore signals that a shell's background jobs and `nohup` ignore; the tested commands inherit the handlers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    heed_signals()
    sys.exit(main())
