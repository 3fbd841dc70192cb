from __future__ import annotations

import asyncio

from engine.backend import EngineStats
from engine.entrypoints.statistics import WINDOW_S, Statistics, log_statistics
from tests.lived_time import until


class Counters:
    """An engine's counters, set by hand."""

    def __init__(self) -> None:
        self.now = EngineStats(kv_blocks_total=200)

    def __call__(self) -> EngineStats:
        return self.now


def began(statistics: Statistics) -> float:
    """When it took its first snapshot."""
    return statistics._snapshots[0][0]


BUSY = EngineStats(
    running=3, waiting=2, kv_blocks_used=50, kv_blocks_total=200,
    prompt_tokens=1000, cached_prompt_tokens=250, completion_tokens=400, preemptions=1, steps=40,
)  # fmt: skip


def test_a_line_says_what_happened_in_the_window_and_what_is_there_now() -> None:
    counters = Counters()
    statistics = Statistics(counters)
    counters.now = BUSY
    assert statistics.line(began(statistics) + 10) == (
        "10 s: read 100.0 tok/s (25% cached), wrote 40.0 tok/s, running 3, waiting 2, KV 25.0%, preempted 1"
    )


def test_an_idle_engine_says_nothing_and_a_stuck_one_does() -> None:
    counters = Counters()
    statistics = Statistics(counters)
    started = began(statistics)
    assert statistics.line(started + 10) is None
    counters.now = EngineStats(waiting=1, kv_blocks_total=200)
    assert "waiting 1" in (statistics.line(started + 20) or "")


def test_the_window_slides_and_forgets_what_is_older() -> None:
    counters = Counters()
    statistics = Statistics(counters)
    started = began(statistics)
    counters.now = BUSY
    lines = [statistics.line(started + at) for at in range(10, 100, 10)]
    assert "wrote 40.0" in (lines[0] or "") and "wrote 13.3" in (lines[2] or "")
    assert all("wrote 0.0" in (line or "") for line in lines[4:])
    assert len(statistics._snapshots) <= WINDOW_S // 10 + 2


def test_a_line_is_due_once_an_interval() -> None:
    counters = Counters()
    statistics = Statistics(counters)
    started = began(statistics)
    counters.now = BUSY
    due = [at for at in range(41) if statistics.due(started + at) is not None]
    assert 3 <= len(due) <= 4 and min(due) >= 10


async def test_lines_are_written_until_the_task_is_cancelled() -> None:
    counters = Counters()
    lines: list[str] = []
    task = asyncio.create_task(log_statistics(counters, lines.append, interval_s=0.01))
    await asyncio.sleep(0.03)
    assert lines == []
    counters.now = BUSY
    await until(lambda: len(lines) >= 2)
    task.cancel()
    assert "running 3" in lines[0]
