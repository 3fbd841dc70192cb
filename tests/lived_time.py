"""Time as an event loop lives it, so that no test fails because the machine was busy with something else.

A loop that waits for its next timer can tell when it was woken too late, and how long its callbacks ran: what goes
beyond that is the machine's doing, and does not count. So a timer of 0.4 s leaves the tasks of its loop the same share
of turns on a machine that stands still for a second in between. What happens outside the loop, in threads and
processes, knows nothing of this: there only limits help that are far away, or events.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

HANG_S = 30.0
"""How long something may take that takes no time: longer than any machine is busy, shorter than a test may run."""

TURN_S = 0.002
"""What the callbacks of a turn count at most, and what a turn that waits may be woken too late."""

_POLL_S = 0.002
_now = time.monotonic


class LivedTimeSelector(selectors.DefaultSelector):
    """Knows how much time was `lost` to the machine. While it `leaps`, a loop that would wait goes on at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_s = 0.0
        self.leaps = False
        self._returned_at = _now()

    def select(self, timeout: float | None = None) -> Any:
        called_at = _now()
        self._lose(called_at - self._returned_at)
        events = super().select(0 if self.leaps else timeout)
        self._returned_at = _now()
        if self.leaps and not events:
            self.lost_s -= timeout or 0.0
        elif timeout is not None:
            self._lose(self._returned_at - called_at - timeout)
        return events

    def _lose(self, seconds: float) -> None:
        self.lost_s += max(0.0, seconds - TURN_S)


class LivedTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers go by the time it has lived."""

    def __init__(self) -> None:
        self.selector = LivedTimeSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return _now() - self.selector.lost_s


def clock() -> SimpleNamespace:
    """What a module may be given in the place of `time`, to go by the running loop."""
    return SimpleNamespace(time=time.time, monotonic=asyncio.get_running_loop().time)


async def until(condition: Callable[[], Any], limit_s: float = HANG_S) -> float:
    """Wait until `condition` holds; how long that took, in seconds that the loop has lived."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not condition():
        if loop.time() - started > limit_s:
            raise AssertionError(f"did not come to be within {limit_s:g} s")
        await asyncio.sleep(_POLL_S)
    return loop.time() - started


async def turns(number: int = 100) -> None:
    """Give every other task of the loop so many turns."""
    for _ in range(number):
        await asyncio.sleep(0)


def wait_until(condition: Callable[[], Any], limit_s: float = HANG_S) -> None:
    """`until` without an event loop, for what happens in another thread or process."""
    deadline = _now() + limit_s
    while not condition():
        if _now() > deadline:
            raise AssertionError(f"did not come to be within {limit_s:g} s")
        time.sleep(_POLL_S)
