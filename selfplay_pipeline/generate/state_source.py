"""Sampling of game states in a thread: a state of a large game may take seconds and must not block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable

from selfplay_pipeline.games.base import State


class StateSource:
    """Game states of a run by number; the last `keep` are cached, since the episodes of a group share their state."""

    def __init__(self, sample: Callable[[int], State], keep: int) -> None:
        self._sample = sample
        self._keep = keep
        self._known: OrderedDict[int, State] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def state(self, number: int) -> State:
        """Returns the state of a number without blocking the event loop."""
        async with self._one_at_a_time:
            if number not in self._known:
                self._known[number] = await _beside(lambda: self._sample(number))
            self._known.move_to_end(number)
            while len(self._known) > self._keep:
                self._known.popitem(last=False)
            return self._known[number]


async def _beside(work: Callable[[], State]) -> State:
    """Run `work` in a daemon thread; the program would wait for a thread of `asyncio.to_thread` at its exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[State] = loop.create_future()

    def tell(result: State | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif result is not None:
            done.set_result(result)

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(tell, result, failed)

    threading.Thread(target=run, daemon=True).start()
    return await done
