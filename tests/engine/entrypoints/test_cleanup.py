"""Cleanup is awaited to its end, however often its task is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from engine.entrypoints.cleanup import run_to_completion
from tests.lived_time import turns


async def test_cleanup_finishes_although_its_task_is_cancelled_twice() -> None:
    steps: list[str] = []
    may_end = asyncio.Event()

    async def slow() -> None:
        await may_end.wait()
        steps.append("cleaned")

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await run_to_completion(slow())
            steps.append("after")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await turns()
    task.cancel()
    await turns()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["cleaned"]


async def test_a_failure_of_the_cleanup_is_raised_when_nobody_cancelled() -> None:
    async def failing() -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        await run_to_completion(failing())
