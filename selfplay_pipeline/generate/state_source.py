"""Sampling of game states in a thread: a state of a large game may take seconds and must not block the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from selfplay_pipeline.games.base import State


class StateSource:
    """Game states of a run by number; caches the last `keep`, since the episodes of a group share a state."""

    def __init__(self, sample: Callable[[int], State], keep: int) -> None:
        self._sample = sample
        self._keep = keep
        self._known: OrderedDict[int, State] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def state(self, number: int) -> State:
        """Returns the state with this number without blocking the event loop."""
        async with self._one_at_a_time:
            if number not in self._known:
                self._known[number] = await _in_thread(lambda: self._sample(number))
            self._known.move_to_end(number)
            while len(self._known) > self._keep:
                self._known.popitem(last=False)
            return self._known[number]


async def _in_thread(work: Callable[[], State]) -> State:
    """Run `work` in a daemon thread and return its result; at its exit, the program would wait for any other thread."""
    done: Future[State] = Future()
    done.set_running_or_notify_cancel()  # so that a cancelled caller does not cancel it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)
