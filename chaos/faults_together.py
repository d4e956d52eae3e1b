"""Several commands at the same time in one folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from signal import SIGCONT, SIGKILL, SIGSTOP

from chaos.cases import Case
from chaos.outside import Ended
from chaos.scenes import CONVERT, EVALUATE, LONG, PATIENCE, REPORT, SCRIPTED, SERVED, Scene, disturbed
from chaos.traces import differences, fingerprint

KIND = "concurrent"


def cases(seed: int) -> list[Case]:
    del seed  # nothing here is random
    alone = partial(_games_alone, ("games.jsonl",))
    both = partial(_games_alone, ("games.jsonl", "other.jsonl"))
    at_once = {
        "generates": (SCRIPTED, 2),
        "many-generates": (SCRIPTED, 4),
        "converts": (CONVERT, 2),
        "many-converts": (CONVERT, 4),
        "reports": (REPORT, 2),
        "evaluations": (EVALUATE, 2),
    }
    return [
        disturbed(KIND, "generate-beside-generate", SCRIPTED, _refused_beside, {0}),
        disturbed(KIND, "generate-just-after-a-kill", SCRIPTED, _after_a_kill, {-SIGKILL}),
        disturbed(KIND, "generate-beside-generate-of-another-file", SCRIPTED, _another_file, {0}, check=both),
        disturbed(KIND, "two-policies-on-one-server", SERVED, _another_file, {0}, check=both),
        disturbed(KIND, "convert-while-generate-writes", LONG, _convert_meanwhile, {0}, check=alone),
        disturbed(KIND, "report-while-generate-writes", SCRIPTED, _look_meanwhile, {0}, check=alone),
        disturbed(KIND, "converts-with-other-splits", CONVERT, _other_splits, {0}),
        *(
            disturbed(KIND, f"{name}-at-the-same-moment", command, partial(_at_once, count), {0})
            for name, (command, count) in at_once.items()
        ),
    ]


def _at_once(count: int, scene: Scene) -> Ended:
    """Start several commands at once; all but one may be refused, and the others must leave an undisturbed result."""
    running = [scene.start() for _ in range(count)]
    ended = [one.ended(scene.command.patience) for one in running]
    for one in ended:
        refused = one.code == 2 and len(one.message.splitlines()) == 1
        scene.expect(
            one.code == 0 or refused, f"one of them ended with {one.code}: {one.message[:200] or one.err[-200:]}"
        )
    _expect_whole(scene)
    return min(ended, key=lambda one: one.code != 0)


def _expect_whole(scene: Scene) -> None:
    """Check the output before the command is given again, which might repair it."""
    for problem in differences(scene.command.undisturbed.print, fingerprint(scene.written)):
        scene.expect(False, f"before the command was given again: {problem}")


def _refused_beside(scene: Scene) -> Ended:
    running = scene.started(0.2)
    scene.refused(*scene.line)
    scene.refused(*scene.line, "--seed", "1")
    return running.ended(PATIENCE)


def _after_a_kill(scene: Scene) -> Ended:
    """Start the next command just before the previous one is killed."""
    running = scene.started(0.3)
    following = scene.start()
    time.sleep(0.5)
    running.send(SIGKILL)
    after = following.ended(PATIENCE)
    scene.expect(after.code in (0, 2), f"the one that followed ended with {after.code}: {after.message}")
    return running.ended()


def _another_file(scene: Scene) -> Ended:
    running = scene.start()
    other = scene.room.run(*scene.line[:-1], str(scene.output.with_name("other.jsonl")), limit=PATIENCE)
    scene.expect(other.code == 0, f"the other one ended with {other.code}: {other.message}")
    return running.ended(PATIENCE)


def _convert_meanwhile(scene: Scene) -> Ended:
    """Convert the existing episodes repeatedly while more are played."""
    running = scene.started(0.2)
    while running.alive:
        ended = scene.room.run("convert", str(scene.output), "--config", "tiny", limit=PATIENCE)
        scene.expect(
            ended.code in (0, 2) and not ended.traceback(), f"convert ended with {ended.code}: {ended.message}"
        )
    return running.ended(PATIENCE)


def _look_meanwhile(scene: Scene) -> Ended:
    running = scene.started(0.1)
    report = str(scene.output.with_name("report.html"))
    for looking in (("report", str(scene.output), "--output", report), ("show", str(scene.output))):
        ended = scene.room.run(*looking, limit=PATIENCE)
        scene.expect(ended.code == 0, f"{looking[0]} ended with {ended.code}: {ended.message}")
    return running.ended(PATIENCE)


def _other_splits(scene: Scene) -> Ended:
    """Run a second command with another split while the first is stopped in the middle of writing."""
    running = scene.start()
    running.when(lambda: any(path.suffix == ".tmp" for path in scene.written.glob(".*")))
    running.send(SIGSTOP)
    other = scene.run("--val-fraction", "0.5")
    running.send(SIGCONT)
    ended = running.ended(PATIENCE)
    for one in (ended, other):
        scene.expect(one.code in (0, 2) and not one.traceback(), f"one of them ended with {one.code}: {one.message}")
    for name, things in fingerprint(scene.written).items():
        unreadable = [thing for thing in things if thing.startswith("unreadable")]
        scene.expect(not unreadable, f"{name}: {unreadable}")
    return min(ended, other, key=lambda one: one.code != 0)


def _games_alone(names: Sequence[str], scene: Scene) -> list[str]:
    """Returns the faults of the games, ignoring other files except unreadable parquet."""
    found = fingerprint(scene.written)
    expected = scene.command.undisturbed.print["games.jsonl"]
    problems = differences(dict.fromkeys(names, expected), {name: found[name] for name in names if name in found})
    for name, things in found.items():
        with contextlib.suppress(StopIteration):
            problems.append(f"{name}: {next(thing for thing in things if thing.startswith('unreadable'))}")
    return problems
