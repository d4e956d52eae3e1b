"""Kills, stops and signals for commands that need no server, and faults of their streams."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import termios
import threading
import time
from collections.abc import Callable
from functools import partial
from signal import SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, Signals
from typing import Any

from chaos.cases import Case
from chaos.outside import Ended, Running
from chaos.scenes import CONVERT, SCRIPTED, SERVED, Scene, dice, disturbed

KILLED = {-SIGKILL}


def asked_to_stop(number: Signals) -> set[int]:
    """Returns the valid exit codes of a command that a signal asked to stop: as after Ctrl-C, or a shell's."""
    return {130, 128 + number}


def cases(seed: int) -> list[Case]:
    return [*_kills(seed), *_signals(seed), *_stops(), *_streams(), *_converts(seed)]


def _kills(seed: int) -> list[Case]:
    def at(share: float, scene: Scene) -> Ended:
        running = scene.started(share)
        running.send(SIGKILL)
        return running.ended()

    def early(seconds: float, scene: Scene) -> Ended:
        running = scene.start()
        time.sleep(seconds)
        running.send(SIGKILL)
        return running.ended()

    def often(scene: Scene) -> Ended:
        for share in (0.2, 0.5):
            at(share, scene)
        return at(0.9, scene)

    def writing(command_name: str, scene: Scene) -> Ended:
        """Kill the command at a random moment, three times, each time within the remaining work."""
        moments, ended = dice(seed, command_name), None
        for _ in range(3):
            running = scene.start()
            running.when(scene.grown(moments.random()))
            running.send(SIGKILL)
            ended = running.ended()
        assert ended is not None
        return ended

    faults: dict[str, Callable[[Scene], Ended]] = {
        "kill-while-starting": partial(early, 0.5),
        "kill-at-first-game": partial(at, 0.0),
        "kill-halfway": partial(at, 0.5),
        "kill-near-the-end": partial(at, 0.95),
        "kill-three-times": often,
    }
    random_kills = [
        disturbed("kills", name, SCRIPTED, partial(writing, name), {0, *KILLED}, silent=True)
        for name in ("kill-at-random-1", "kill-at-random-2", "kill-at-random-3")
    ]
    served = disturbed("kills", "kill-while-a-policy-plays", SERVED, partial(at, 0.5), KILLED)
    return [
        *(disturbed("kills", name, SCRIPTED, cause, KILLED) for name, cause in faults.items()),
        *random_kills,
        served,
    ]


def _signals(seed: int) -> list[Case]:
    def once(number: Signals, scene: Scene) -> Ended:
        running = scene.started(0.4)
        running.send(number)
        return running.ended(30)

    def twice(number: Signals, scene: Scene) -> Ended:
        running = scene.started(0.4)
        running.send(number)
        time.sleep(0.05)
        running.send(number)
        return running.ended(30)

    def to_all(scene: Scene) -> Ended:
        running = scene.started(0.4)
        running.send(SIGINT, group=True)
        return running.ended(30)

    def early(seconds: float, scene: Scene) -> Ended:
        running = scene.start()
        time.sleep(seconds)
        running.send(SIGINT)
        return running.ended(30)

    def at_random(name: str, scene: Scene) -> Ended:
        """Send a random signal at a random moment, three times."""
        moments, ended = dice(seed, name), None
        for _ in range(3):
            running = scene.start()
            running.when(scene.grown(moments.random() * 0.9))
            running.send(moments.choice([SIGINT, SIGTERM, SIGHUP, SIGKILL]))
            ended = running.ended(30)
        assert ended is not None
        return ended

    def in_background(scene: Scene) -> Ended:
        """Ignore SIGINT, as in a background job of a shell, then send it."""
        running = scene.started(0.4, before=lambda: signal.signal(SIGINT, signal.SIG_IGN))
        running.send(SIGINT)
        return running.ended(30)

    def nohup(scene: Scene) -> Ended:
        running = scene.started(0.4, before=lambda: signal.signal(SIGHUP, signal.SIG_IGN))
        running.send(SIGHUP)
        return running.ended()

    found = []
    for number in (SIGINT, SIGTERM, SIGHUP):
        name = number.name.lower()
        found.append(disturbed("signals", f"{name}-once", SCRIPTED, partial(once, number), asked_to_stop(number)))
        # The second signal may come before Python's handlers are restored, and is then not caught.
        codes = asked_to_stop(number) | {-number}
        found.append(disturbed("signals", f"{name}-twice", SCRIPTED, partial(twice, number), codes))
        codes = asked_to_stop(number)
        found.append(disturbed("signals", f"{name}-while-a-policy-plays", SERVED, partial(once, number), codes))
    found.append(
        disturbed("signals", "sigint-while-starting", SCRIPTED, partial(early, 1.0), {130, -SIGINT}, silent=True)
    )
    found.append(disturbed("signals", "sigint-to-the-group", SCRIPTED, to_all, {130}))
    found.append(disturbed("signals", "sigint-in-the-background", SCRIPTED, in_background, {130}))
    found.append(disturbed("signals", "sighup-under-nohup", SCRIPTED, nohup, {0}))
    found.append(disturbed("signals", "sigquit", SCRIPTED, partial(once, SIGQUIT), {-SIGQUIT, 131, 130}, silent=True))
    # A signal before the program has begun ends the interpreter.
    stops = {0, 130, *KILLED, *asked_to_stop(SIGTERM), *asked_to_stop(SIGHUP), -SIGINT, -SIGTERM, -SIGHUP}
    for count in range(1, 5):
        name = f"random-signals-{count}"
        found.append(disturbed("signals", name, SCRIPTED, partial(at_random, name), stops, silent=True))
    return found


def _stops() -> list[Case]:
    def and_on(scene: Scene) -> Ended:
        running = scene.started(0.4)
        running.send(SIGSTOP)
        time.sleep(2)
        running.send(SIGCONT)
        return running.ended()

    def and_killed(scene: Scene) -> Ended:
        running = scene.started(0.4)
        running.send(SIGSTOP)
        time.sleep(1)
        running.send(SIGKILL)
        return running.ended()

    def and_asked(scene: Scene) -> Ended:
        running = scene.started(0.4)
        for number in (SIGSTOP, SIGTERM, SIGCONT):
            running.send(number)
        return running.ended(30)

    return [
        disturbed("stops", "stopped-and-continued", SCRIPTED, and_on, {0}),
        disturbed("stops", "stopped-and-continued-while-a-policy-plays", SERVED, and_on, {0}),
        disturbed("stops", "stopped-and-killed", SCRIPTED, and_killed, KILLED),
        disturbed("stops", "stopped-asked-to-end-continued", SCRIPTED, and_asked, asked_to_stop(SIGTERM)),
    ]


def _streams() -> list[Case]:
    def without(descriptors: tuple[int, ...], scene: Scene) -> Ended:
        def close() -> None:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

        return scene.run(before=close)

    def full(stream: str, scene: Scene) -> Ended:
        with open("/dev/full", "wb") as device:  # noqa: PTH123
            return scene.run(**{stream: device})

    def reader_gone(stream: str, scene: Scene) -> Ended:
        reading, writing = os.pipe()
        running = scene.start(**{stream: writing})
        os.close(writing)
        running.when(scene.grown(0.3))
        os.close(reading)
        return running.ended(60)

    def few_handles(count: int, scene: Scene) -> Ended:
        limits = (count, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return scene.run(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))

    streams: dict[str, Callable[[Scene], Ended]] = {
        "stdin-closed": partial(without, (0,)),
        "stdout-closed": partial(without, (1,)),
        "stderr-closed": partial(without, (2,)),
        "all-streams-closed": partial(without, (0, 1, 2)),
        "stdout-full": partial(full, "stdout"),
        "stderr-full": partial(full, "stderr"),
        "stdout-reader-gone": partial(reader_gone, "stdout"),
        "stderr-reader-gone": partial(reader_gone, "stderr"),
    }
    # Both continuing and stopping without an output stream are fine; losing an episode is not.
    any_end = {0, 1, 2, 120, -signal.SIGPIPE, 141}
    found = [disturbed("streams", name, SCRIPTED, cause, any_end, silent=True) for name, cause in streams.items()]
    for name, action in _TYPED.items():
        found.append(disturbed("terminal", name, SCRIPTED, partial(_on_a_terminal, action), action[1], silent=True))
    for count in (8, 24):
        found.append(disturbed("few handles", f"{count}-handles", SCRIPTED, partial(few_handles, count), {0, 1, 2}))
    found.append(disturbed("few handles", "24-handles-and-a-server", SERVED, partial(few_handles, 24), {0, 1, 2}))
    return found


def _hang_up(master: int, running: Running) -> None:
    os.close(master)


def _type(*keys: bytes) -> Callable[[int, Running], None]:
    def action(master: int, running: Running) -> None:
        for key in keys:
            os.write(master, key)
            time.sleep(0.2)

    return action


def _suspend(master: int, running: Running) -> None:
    os.write(master, b"\x1a")
    time.sleep(1)
    running.send(SIGCONT)


_TYPED: dict[str, tuple[Callable[[int, Running], None], set[int]]] = {
    "terminal-gone": (_hang_up, {1, *asked_to_stop(SIGHUP)}),
    "ctrl-c-typed": (_type(b"\x03"), {130}),
    "ctrl-c-typed-twice": (_type(b"\x03", b"\x03"), {130, -SIGINT}),
    "ctrl-z-typed-and-continued": (_suspend, {0}),
}


def _on_a_terminal(action: tuple[Callable[[int, Running], None], set[int]], scene: Scene) -> Ended:
    master, slave = os.openpty()
    gone = threading.Event()

    def drain() -> None:
        with contextlib.suppress(OSError):
            while not gone.is_set() and os.read(master, 4096):
                pass

    def control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    how: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave, "before": control}
    running = scene.start(**how)
    os.close(slave)
    threading.Thread(target=drain, daemon=True).start()
    running.when(scene.grown(0.4))
    action[0](master, running)
    ended = running.ended(60)
    gone.set()
    with contextlib.suppress(OSError):
        os.close(master)
    return ended


def _converts(seed: int) -> list[Case]:
    def at(number: Signals, name: str, scene: Scene) -> Ended:
        running = scene.start()
        begun = running.when(lambda: any(scene.written.glob(".*")) and any(_sizes(scene)))
        time.sleep(dice(seed, name).random() * 0.3)
        scene.expect(begun, f"it ended before anything was written: {running.said[-200:]}")
        running.send(number)
        return running.ended(30)

    def stopped(scene: Scene) -> Ended:
        running = scene.start()
        running.when(lambda: any(_sizes(scene)))
        running.send(SIGSTOP)
        time.sleep(1)
        running.send(SIGCONT)
        return running.ended()

    found = [
        disturbed("kills", name, CONVERT, partial(at, SIGKILL, name), {0, *KILLED}, silent=True)
        for name in ("convert-killed-1", "convert-killed-2")
    ]
    for number in (SIGINT, SIGTERM):
        name = f"convert-{number.name.lower()}"
        found.append(disturbed("signals", name, CONVERT, partial(at, number, name), {0, *asked_to_stop(number)}))
    found.append(disturbed("stops", "convert-stopped-and-continued", CONVERT, stopped, {0}))
    return found


def _sizes(scene: Scene) -> list[int]:
    return [path.stat().st_size for path in scene.written.glob("*") if path.is_file()]
