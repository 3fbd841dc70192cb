"""Worker processes: failures stay with the call that caused them, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.entrypoints.preparation import (
    PreparationError,
    PreparationPool,
    PreparationTimeoutError,
    WorkerDiedError,
)
from recipe.prepare import PreparationFault
from tests.lived_time import HANG_S, turns, until


def initialize(marker: str) -> None:
    os.environ["PREPARATION_MARKER"] = marker


def fail_to_initialize() -> None:
    raise RuntimeError("no tokenizer here")


def marker() -> str:
    return os.environ["PREPARATION_MARKER"]


def torch_is_loaded() -> bool:
    return "torch" in sys.modules


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def double(value: int) -> int:
    return value * 2


def fail(value: int) -> None:
    raise ValueError(f"cannot {value}")


class Blocked:
    """Two files: one says that `wait_for_file` runs, the other lets it end."""

    def __init__(self, folder: Path) -> None:
        self.has_begun, self.may_end = folder / "begun", folder / "end"


def wait_for_file(has_begun: Path, may_end: Path) -> None:
    has_begun.touch()
    while not may_end.exists():
        time.sleep(0.005)


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[PreparationPool]:
    pool = PreparationPool(1, initialize, ("marked",), timeout_s=60.0)
    await pool.ready()
    yield pool
    await pool.aclose()


async def test_workers_are_initialised_once_and_know_no_torch(pool: PreparationPool) -> None:
    assert await pool.run(marker) == "marked"
    assert await pool.run(torch_is_loaded) is False


async def test_calls_that_wait_together_come_back_to_their_own_callers(pool: PreparationPool) -> None:
    assert await asyncio.gather(*(pool.run(double, i) for i in range(100))) == [2 * i for i in range(100)]
    assert pool.depth == 0


async def test_a_failing_call_leaves_those_beside_it_alone(pool: PreparationPool) -> None:
    results = await asyncio.gather(pool.run(double, 1), pool.run(fail, 2), pool.run(double, 3), return_exceptions=True)
    assert results[0] == 2 and results[2] == 6
    assert isinstance(results[1], PreparationFault) and "cannot 2" in str(results[1])


async def test_a_dead_worker_fails_its_call_alone_and_is_replaced(pool: PreparationPool) -> None:
    before = pool.pids
    calls = [pool.run(double, 1), pool.run(double, 2), pool.run(die), pool.run(double, 4)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [results[0], results[1], results[3]] == [2, 4, 8]
    assert isinstance(results[2], WorkerDiedError)
    assert await pool.run(marker) == "marked"
    assert pool.pids != before


async def test_an_overdue_call_is_killed_and_not_waited_for(pool: PreparationPool) -> None:
    pool.timeout_s = 0.5
    with pytest.raises(PreparationTimeoutError, match=r"longer than 0\.5 s"):
        await asyncio.wait_for(pool.run(time.sleep, 600), HANG_S)
    pool.timeout_s = 60.0
    assert await pool.run(double, 4) == 8


async def test_a_caller_that_gave_up_costs_the_others_nothing(pool: PreparationPool, tmp_path: Path) -> None:
    before, blocked = pool.pids, Blocked(tmp_path)
    blocker = asyncio.ensure_future(pool.run(wait_for_file, blocked.has_begun, blocked.may_end))
    await until(blocked.has_begun.exists)
    gone = asyncio.ensure_future(pool.run(die))
    await turns()
    gone.cancel()
    blocked.may_end.touch()
    assert await pool.run(double, 5) == 10
    await blocker
    assert pool.pids == before


async def test_closing_fails_whoever_waits_and_leaves_no_process() -> None:
    pool = PreparationPool(1, initialize, ("x",))
    await pool.ready()
    pids = pool.pids
    waiting = asyncio.ensure_future(pool.run(time.sleep, 600))
    await turns()
    await pool.aclose()
    with pytest.raises(PreparationError, match="shutting down"):
        await waiting
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_worker_that_cannot_start_says_so() -> None:
    pool = PreparationPool(1, fail_to_initialize, ())
    with pytest.raises(WorkerDiedError, match="could not start"):
        await pool.ready()
    await pool.aclose()


async def test_a_process_that_dies_before_it_reads_anything_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/bin/false")
    pool = PreparationPool(1, initialize, ("x" * 1_000_000,))
    async with asyncio.timeout(2 * HANG_S):
        with pytest.raises(WorkerDiedError, match="could not start"):
            await pool.ready()
        await pool.aclose()


async def test_a_worker_that_has_failed_before_anyone_waits_for_it_is_not_forgotten() -> None:
    pool = PreparationPool(1, fail_to_initialize, ())
    try:
        await until(lambda: not pool._tasks, 2 * HANG_S)
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match="could not start"):
                await pool.ready()
    finally:
        await pool.aclose()


async def test_affinity_prefers_one_worker_without_starving_behind_it(tmp_path: Path) -> None:
    blocked = Blocked(tmp_path)
    pool = PreparationPool(2, initialize, ("x",))
    await pool.ready()
    try:
        homes = {await pool.run(os.getpid, affinity=7) for _ in range(6)}
        assert len(homes) == 1
        calls = (pool.run(wait_for_file, blocked.has_begun, blocked.may_end, affinity=7) for _ in range(5))
        busy = [asyncio.ensure_future(call) for call in calls]
        await until(blocked.has_begun.exists)
        assert await asyncio.wait_for(pool.run(double, 2, affinity=7), HANG_S) == 4
        blocked.may_end.touch()
        await asyncio.gather(*busy)
    finally:
        await pool.aclose()
