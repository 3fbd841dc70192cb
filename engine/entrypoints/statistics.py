"""One line of statistics now and then: what the engine did over the last seconds, and what it holds at this moment.

    30 s: read 1,024.0 tok/s (38% cached), wrote 412.5 tok/s, running 8, waiting 0, KV 12.1%, preempted 0

The rates are differences between snapshots of the counters, over a window that slides: it is longer than the time
between two lines, so that a burst does not hide the one before. An engine that has been idle says nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from engine.backend import EngineStats

INTERVAL_S = 10.0
"""Seconds between two lines."""

WINDOW_S = 30.0
"""Seconds that a line looks back."""


class Statistics:
    """Turns snapshots of an engine's counters into lines. `stats` gives the present one."""

    def __init__(self, stats: Callable[[], EngineStats], *, interval_s: float = INTERVAL_S) -> None:
        self._stats = stats
        self._interval_s = interval_s
        self._snapshots: deque[tuple[float, EngineStats]] = deque([(time.monotonic(), stats())])

    def due(self, now: float) -> str | None:
        """The line, when one is due at `now` (monotonic seconds) and there is something to say."""
        if now - self._snapshots[-1][0] < self._interval_s:
            return None
        return self.line(now)

    def line(self, now: float) -> str | None:
        """Take a snapshot and say what happened in the window that ends with it; None for nothing at all."""
        last = self._stats()
        self._snapshots.append((now, last))
        while len(self._snapshots) > 2 and self._snapshots[1][0] <= now - WINDOW_S:
            self._snapshots.popleft()
        began, first = self._snapshots[0]
        if last.steps == first.steps and not (last.running or last.waiting):
            return None
        return _describe(first, last, max(now - began, 1e-9))


async def log_statistics(
    stats: Callable[[], EngineStats], write: Callable[[str], None], *, interval_s: float = INTERVAL_S
) -> None:
    """Call `write` with a line every `interval_s` seconds, until cancelled."""
    statistics = Statistics(stats, interval_s=interval_s)
    while True:
        await asyncio.sleep(interval_s)
        if (line := statistics.line(time.monotonic())) is not None:
            write(line)


def _describe(first: EngineStats, last: EngineStats, seconds: float) -> str:
    prompt_tokens = last.prompt_tokens - first.prompt_tokens
    cached = last.cached_prompt_tokens - first.cached_prompt_tokens
    generated = last.completion_tokens - first.completion_tokens
    return (
        f"{seconds:.0f} s: read {prompt_tokens / seconds:,.1f} tok/s ({_percent(cached, prompt_tokens):.0f}% cached), "
        f"wrote {generated / seconds:,.1f} tok/s, running {last.running}, waiting {last.waiting}, "
        f"KV {_percent(last.kv_blocks_used, last.kv_blocks_total):.1f}%, "
        f"preempted {last.preemptions - first.preemptions}"
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
