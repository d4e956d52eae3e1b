"""Activity of a process and its descendants."""

from __future__ import annotations

import time

import psutil

IDLE_SHARE = 0.03
"""Share of one core below which a server counts as idle. An idle SGLang server takes about 0.013."""
WORKING = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Activity:
    """Activity of a process and its descendants between one check and the next."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._used, self._at = _look(pid)[1], time.monotonic()

    def working(self) -> bool:
        """Whether a process is running now or has used the processor since the last check.

        False if a process is stopped (SIGSTOP).
        """
        states, used = _look(self.pid)
        now = time.monotonic()
        before, since = self._used, now - self._at
        self._used, self._at = used, now
        if any(state in STOPPED for state in states):
            return False
        spent = sum(seconds - before.get(pid, 0.0) for pid, seconds in used.items())
        return any(state in WORKING for state in states) or spent > IDLE_SHARE * since


def _look(pid: int) -> tuple[list[str], dict[int, float]]:
    """Returns the state of each process, and its CPU seconds including those of its ended children."""
    states, used = [], {}
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                states.append(process.status())
                used[process.pid] = sum(process.cpu_times()[:4])
            except psutil.Error:
                continue
    except psutil.Error:
        pass
    return states, used
