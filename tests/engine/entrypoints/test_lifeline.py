"""What ends a request from outside: limits of phases, of the request, the end of the server; and what does not."""

from __future__ import annotations

import asyncio

import pytest

from engine.entrypoints import lifeline as lifeline_module
from engine.entrypoints.errors import ApiError
from engine.entrypoints.lifeline import TICK_S, Clock, Lifeline, Phase, TimeLimits
from tests.lived_time import clock as loop_clock


@pytest.fixture(autouse=True)
async def time_of_the_loop(leaping_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline_module, "time", loop_clock())


def clock(phases: dict[Phase, float] | None = None, **limits: float) -> Clock:
    return Clock(TimeLimits(phases or {}, **limits))


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.GENERATE])
async def test_a_phase_over_its_limit_ends_with_the_error_of_that_phase(phase: Phase) -> None:
    limited = clock({phase: 0.05})
    with pytest.raises(ApiError, match=r"0\.05 s") as ended, Lifeline(limited) as lifeline:
        lifeline.enter(phase)
        await asyncio.sleep(5)
    assert ended.value.status in (408, 499, 503, 504) and ended.value.code
    assert not limited.open


async def test_progress_within_a_phase_starts_its_limit_anew() -> None:
    with Lifeline(clock({Phase.DECODE: 0.15})) as lifeline:
        for _ in range(6):
            lifeline.enter(Phase.DECODE)
            await asyncio.sleep(0.05)
    assert lifeline.seconds[Phase.DECODE] > 0.25


async def test_a_whole_request_has_a_limit_whatever_its_phases_do() -> None:
    with pytest.raises(ApiError) as ended, Lifeline(clock(request_s=0.1)) as lifeline:
        for _ in range(100):
            lifeline.enter(Phase.DECODE)
            await asyncio.sleep(0.02)
    assert ended.value.code == "request_timeout"


async def test_a_client_that_left_in_the_same_moment_stays_a_cancellation() -> None:
    async def work() -> None:
        with Lifeline(clock({Phase.BODY: 0.01})) as lifeline:
            try:
                await asyncio.sleep(5)
            finally:
                assert lifeline.verdict is not None
                task.cancel()
                await asyncio.sleep(0)

    task = asyncio.ensure_future(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_limit_waits_for_cleanup_that_holds_cancellations_back() -> None:
    steps = []
    with pytest.raises(ApiError), Lifeline(clock({Phase.BODY: 0.01})):
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(3 * TICK_S)
            steps.append("cleaned")
    assert steps == ["cleaned"]


async def test_silence_is_broken_as_often_as_asked_and_only_then() -> None:
    said = []
    with Lifeline(clock(keep_alive_s=0.1)) as lifeline:
        lifeline.on_silence = lambda: said.append(1)
        for _ in range(4):
            lifeline.enter(Phase.DECODE)
            lifeline.sent_at = lifeline.since
            await asyncio.sleep(0.05)
        assert not said
        await asyncio.sleep(0.35)
    assert 2 <= len(said) <= 3


async def test_the_end_of_the_server_ends_what_is_open_with_its_own_words() -> None:
    limits = clock()

    async def work() -> None:
        with Lifeline(limits):
            await asyncio.sleep(5)

    tasks = [asyncio.ensure_future(work()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not await limits.wait_empty(0.01)
    limits.end_all(ApiError(503, "bye"))
    assert await limits.wait_empty(1)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["bye"] * 3


async def test_an_idle_clock_does_not_tick() -> None:
    limits = clock()
    with Lifeline(limits):
        await asyncio.sleep(TICK_S * 1.5)
    await asyncio.sleep(TICK_S * 2)
    assert limits._tick is None
