"""The engine behind the local backend starts, dies or is closed: whoever waits hears of it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.backend import EngineDeadError
from engine.backends.local import LocalBackend
from engine.core.engine_core import EngineCore
from tests.engine.backends.local_backend import collect, endless, serving, stepping, tokens_of
from tests.engine.fake_runner import FakeRunner, make_core
from tests.lived_time import HANG_S, turns, until


async def test_the_death_of_the_engine_reaches_every_waiter_and_the_later_ones() -> None:
    runner = FakeRunner(step_s=0.001)
    runner.fail_at = 10
    deaths: list[str] = []
    async with serving(runner, settings={"max_num_seqs": 2}, on_death=deaths.append) as backend:
        requests = [endless(f"r{i}", stream=i % 2 > 0) for i in range(6)]
        results = await asyncio.gather(*(collect(backend, r) for r in requests), return_exceptions=True)
        assert [type(result) for result in results] == [EngineDeadError] * 6
        with pytest.raises(EngineDeadError, match="the device fell over"):
            await collect(backend, endless("late"))
        with pytest.raises(EngineDeadError):
            await backend.reset_prefix_cache()
        assert not backend.health().ok and "the device fell over" in backend.health().reason
        assert runner.is_closed
        assert deaths == [backend.health().reason]


async def test_a_stream_closed_in_the_step_in_which_the_engine_dies_is_cleaned_up_quietly() -> None:
    runner, permits = stepping()
    runner.fail_at = 1
    permits.release()
    async with serving(runner) as backend:
        stream = backend.infer(endless("a"))
        await anext(stream)
        await until(lambda: len(runner.batches) == 2)
        closing = asyncio.ensure_future(stream.aclose())
        await turns()
        permits.release()
        await asyncio.wait_for(closing, HANG_S)
        assert not backend.health().ok


async def test_a_core_that_cannot_be_made_is_told_to_who_waits_for_the_start() -> None:
    def make() -> EngineCore:
        raise OSError("no such weights")

    backend = LocalBackend.start(make)
    early = asyncio.create_task(collect(backend, endless("early")))
    with pytest.raises(OSError, match="no such weights"):
        await backend.started()
    with pytest.raises(EngineDeadError):
        await early
    with pytest.raises(EngineDeadError, match="no such weights"):
        await collect(backend, endless("late"))
    assert not backend.health().ok
    assert backend.stats().steps == 0
    await backend.aclose()


async def test_requests_may_come_before_the_engine_is_ready() -> None:
    gate = threading.Event()

    def make() -> EngineCore:
        gate.wait(HANG_S)
        return make_core(FakeRunner())

    backend = LocalBackend.start(make)
    assert backend.health().reason == "the engine is starting"
    early = asyncio.create_task(collect(backend, endless("early", max_tokens=3)))
    await asyncio.sleep(0.01)
    gate.set()
    assert len(tokens_of(await early)) == 3
    assert backend.health().ok
    await backend.aclose()


async def test_closing_ends_open_requests_and_the_thread_and_can_be_repeated() -> None:
    runner = FakeRunner(step_s=0.1)
    deaths: list[str] = []
    backend = LocalBackend.start(lambda: make_core(runner), on_death=deaths.append)
    reader = asyncio.create_task(collect(backend, endless("a")))
    await until(lambda: backend.stats().running == 1)
    await asyncio.gather(backend.aclose(), backend.aclose())
    with pytest.raises(EngineDeadError, match="stopped"):
        await reader
    assert runner.is_closed
    assert not backend.health().ok
    assert not any(thread.name == "engine" for thread in threading.enumerate())
    await backend.aclose()
    assert deaths == []
