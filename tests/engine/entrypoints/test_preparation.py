"""Worker processes: failures stay with the call that caused them, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.entrypoints.preparation import (
    PreparationError,
    PreparationPool,
    PreparationTimeoutError,
    WorkerDiedError,
)
from recipe.prepare import PreparationFault


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


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[PreparationPool]:
    pool = PreparationPool(1, initialize, ("marked",), timeout_s=2.0)
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
    started = time.monotonic()
    with pytest.raises(PreparationTimeoutError, match="longer than 2"):
        await pool.run(time.sleep, 60)
    assert time.monotonic() - started < 10
    assert await pool.run(double, 4) == 8


async def test_a_caller_that_gave_up_costs_the_others_nothing(pool: PreparationPool) -> None:
    blocker = asyncio.ensure_future(pool.run(time.sleep, 0.3))
    await asyncio.sleep(0.05)
    gone = asyncio.ensure_future(pool.run(die))
    await asyncio.sleep(0.05)
    gone.cancel()
    assert await pool.run(double, 5) == 10
    await blocker


async def test_closing_fails_whoever_waits_and_leaves_no_process() -> None:
    pool = PreparationPool(1, initialize, ("x",))
    await pool.ready()
    pids = pool.pids
    waiting = asyncio.ensure_future(pool.run(time.sleep, 60))
    await asyncio.sleep(0.05)
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
    async with asyncio.timeout(10):
        with pytest.raises(WorkerDiedError, match="could not start"):
            await pool.ready()
        await pool.aclose()


async def test_a_worker_that_has_failed_before_anyone_waits_for_it_is_not_forgotten() -> None:
    pool = PreparationPool(1, fail_to_initialize, ())
    try:
        async with asyncio.timeout(30):
            while pool._tasks:  # noqa: ASYNC110  # nothing tells from outside that it has failed
                await asyncio.sleep(0.01)
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match="could not start"):
                await pool.ready()
    finally:
        await pool.aclose()


async def test_affinity_prefers_one_worker_without_starving_behind_it() -> None:
    pool = PreparationPool(2, initialize, ("x",))
    await pool.ready()
    try:
        homes = {await pool.run(os.getpid, affinity=7) for _ in range(6)}
        assert len(homes) == 1
        busy = [asyncio.ensure_future(pool.run(time.sleep, 0.5, affinity=7)) for _ in range(6)]
        await asyncio.sleep(0.05)
        started = time.monotonic()
        assert await pool.run(double, 2, affinity=7) == 4
        assert time.monotonic() - started < 2.5
        await asyncio.gather(*busy)
    finally:
        await pool.aclose()
