"""The local backend over the runner without a model: real threads, real event loop, steps of a millisecond."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backend import (
    ConstraintRefusedError,
    DeadlineExceededError,
    EngineDeadError,
    EngineError,
    EngineRequest,
    RequestRefusedError,
)
from engine.backends.local import LocalBackend
from engine.backends.output_stream import OutputStream
from engine.backends.request_record import RequestRecord
from engine.core.engine_core import EngineCore
from engine.core.sequence import Sequence
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceChunk, InferenceFinishReason
from tests.engine.fake_runner import EOS, FakeRunner, expected_completion, make_core, make_request
from tests.lived_time import HANG_S, turns, until


@asynccontextmanager
async def serving(runner: FakeRunner | None = None, **options: Any) -> AsyncIterator[LocalBackend]:
    """A started backend, which must be at rest and whole when the test leaves it."""
    settings = options.pop("settings", {})
    made = runner or FakeRunner()
    backend = LocalBackend.start(lambda: make_core(made, **settings), **options)
    await backend.started()
    tasks_before = asyncio.all_tasks()
    try:
        yield backend
        if backend.health().ok:
            await backend.call(assert_at_rest)
        assert not backend._open and not backend._replies and not backend._streams
        assert asyncio.all_tasks() == tasks_before
    finally:
        await backend.aclose()


def assert_at_rest(core: EngineCore) -> None:
    core.check_integrity()
    assert not core.has_work
    assert core.blocks.num_free == core.blocks.num_blocks


async def collect(backend: LocalBackend, request: EngineRequest) -> list[InferenceChunk]:
    return [chunk async for chunk in backend.infer(request)]


def tokens_of(chunks: list[InferenceChunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.token_ids or []]


def endless(name: str, num_prompt_tokens: int = 3, **settings: Any) -> EngineRequest:
    return make_request(name, [1] * num_prompt_tokens, **({"max_tokens": 100, "ignore_eos": True} | settings))


def stepping(**settings: Any) -> tuple[FakeRunner, threading.Semaphore]:
    """A runner whose steps end one by one, as the test gives permits."""
    runner = FakeRunner(**settings)
    runner.permits = threading.Semaphore(0)
    return runner, runner.permits


async def next_step(runner: FakeRunner) -> None:
    """Let the step under way end, and wait until the next one is."""
    number = len(runner.batches)
    assert runner.permits is not None
    runner.permits.release()
    await until(lambda: len(runner.batches) > number)


async def test_a_stream_is_ready_then_tokens_then_finish() -> None:
    async with serving(system_fingerprint="fp") as backend:
        request = make_request("a", [*range(10)], ignore_eos=True, max_tokens=5, logprobs=2)
        chunks = await collect(backend, request)
        assert chunks[0].kind == "ready" and chunks[0].system_fingerprint == "fp"
        assert {chunk.kind for chunk in chunks[1:-1]} == {"tokens"}
        assert chunks[-1].finish_reason is InferenceFinishReason.Length
        assert tokens_of(chunks) == expected_completion([*range(10)], request.sampling_params)
        assert all(len(chunk.logprobs or []) == len(chunk.token_ids or []) for chunk in chunks[1:-1])


async def test_ready_tells_the_prompt_tokens_and_the_cache_hits() -> None:
    async with serving() as backend:
        for expected_hits in (0, 8):
            usage = (await collect(backend, endless("a", 10, max_tokens=1)))[0].prompt_usage
            assert usage is not None
            assert (usage.prompt_tokens, usage.prompt_cache_hit_tokens) == (10, expected_hits)
        await backend.reset_prefix_cache()
        usage = (await collect(backend, endless("a", 10, max_tokens=1)))[0].prompt_usage
        assert usage is not None and usage.prompt_cache_hit_tokens == 0


async def test_the_stop_token_is_counted_and_never_among_the_ids() -> None:
    async with serving() as backend:
        ended = False
        for first in range(64):
            request = make_request("a", [first], max_tokens=30)
            chunks = await collect(backend, request)
            expected = expected_completion([first], request.sampling_params)
            assert tokens_of(chunks) == expected and EOS not in expected
            if chunks[-1].finish_reason is InferenceFinishReason.Stop:
                ended = True
                assert chunks[-1].token_count == 1 and "text" not in {chunk.kind for chunk in chunks}
        assert ended


async def test_a_whole_response_tells_of_its_first_token_and_posts_the_rest_at_the_finish() -> None:
    async with serving(FakeRunner(step_s=0.002)) as backend:
        request = endless("a", 60, stream=False, max_tokens=40, logprobs=1)
        chunks = await collect(backend, request)
        assert [chunk.kind for chunk in chunks] == ["ready", "tokens", "tokens", "finish"]
        assert tokens_of(chunks) == expected_completion([1] * 60, request.sampling_params)
        assert [len(chunk.logprobs or []) for chunk in chunks[1:3]] == [1, 39]


async def test_many_concurrent_requests_each_get_their_own_tokens() -> None:
    async with serving(FakeRunner(num_blocks=40)) as backend:
        random = Random(1)
        requests = [
            make_request(f"r{i}", random.choices(range(3), k=random.randrange(1, 60)), seed=i % 4, stream=i % 3 > 0)
            for i in range(120)
        ]
        results = await asyncio.gather(*(collect(backend, request) for request in requests))
        for request, chunks in zip(requests, results, strict=True):
            expected = expected_completion(list(request.prompt_token_ids), request.sampling_params)
            assert tokens_of(chunks) == expected
        assert backend.stats().completion_tokens >= sum(len(tokens_of(chunks)) for chunks in results)


async def test_a_slow_reader_gets_everything_in_fewer_chunks_and_holds_up_nobody() -> None:
    runner, permits = stepping()
    permits.release()
    async with serving(runner) as backend:
        slow = backend.infer(endless("slow", max_tokens=60))
        await anext(slow)
        quick = []
        asyncio.get_running_loop().call_soon(permits.release, 3)  # when it has been submitted
        async for chunk in backend.infer(endless("quick", max_tokens=60)):
            quick.append(chunk)
            permits.release()
        rest = [chunk async for chunk in slow]
        assert len(tokens_of(rest)) == len(tokens_of(quick)) == 60
        assert len(rest) < 30 < len(quick)


async def test_an_idle_engine_sleeps() -> None:
    async with serving() as backend:
        await collect(backend, endless("a", max_tokens=1))
        steps, started_cpu = backend.stats().steps, time.process_time()
        await asyncio.sleep(0.2)
        assert backend.stats().steps == steps
        assert time.process_time() - started_cpu < 0.1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
async def test_closing_early_frees_the_sequence_within_a_step(state: str, stream: bool) -> None:
    runner, permits = stepping(num_blocks=400, max_model_len=1500)
    async with serving(runner, settings={"max_num_seqs": 1 if state == "queued" else 8}) as backend:
        blocker = asyncio.create_task(collect(backend, endless("blocker", max_tokens=1400)))
        await until(lambda: backend.stats().running == 1)
        request = endless("a", 1000 if state == "prefill" else 3, stream=stream, max_tokens=400)
        reader = asyncio.create_task(collect(backend, request))
        await turns()
        for _ in range(5):
            await next_step(runner)
        stats = backend.stats()
        assert (stats.running, stats.waiting) == ((1, 1) if state == "queued" else (2, 0))
        number = len(runner.batches)
        reader.cancel()
        await turns()
        permits.release()
        with pytest.raises(asyncio.CancelledError):
            await reader
        stats = backend.stats()
        assert (stats.running, stats.waiting) == (1, 0)
        await next_step(runner)
        assert {name for batch in runner.batches[number:] for name, *_ in batch} == {"blocker"}
        blocker.cancel()
        await turns()
        permits.release()
        await asyncio.gather(blocker, return_exceptions=True)


async def test_a_second_cancellation_does_not_cut_the_cleanup_short() -> None:
    async with serving(FakeRunner(step_s=0.05)) as backend:
        reader = asyncio.create_task(collect(backend, endless("a")))
        await until(lambda: backend.stats().running == 1)
        for _ in range(5):
            reader.cancel()
            await asyncio.sleep(0.002)
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert backend.stats().running == 0


async def test_a_generator_closed_before_it_started_submits_nothing() -> None:
    async with serving() as backend:
        stream = backend.infer(endless("a"))
        await stream.aclose()
        assert backend.stats() == await backend.call(EngineCore.stats)
        assert backend.stats().steps == 0


async def test_a_forgotten_generator_is_cleaned_up_by_the_collector() -> None:
    async with serving() as backend:
        stream: AsyncGenerator[InferenceChunk, None] | None = backend.infer(endless("a", max_tokens=100))
        assert stream is not None
        await anext(stream)
        stream = None
        gc.collect()
        await until(lambda: backend.stats().running == 0 and not backend._open)
        await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_storm_of_disconnects_leaves_nothing_behind() -> None:
    random = Random(2)
    records: list[RequestRecord] = []
    runner = FakeRunner(num_blocks=60, step_s=0.0002)
    async with serving(runner, observer=records.append, settings={"max_num_seqs": 6}) as backend:

        async def visit(index: int) -> None:
            """A third stay to the end, a third leave at once, a third whenever it may be."""
            await asyncio.sleep(random.random() * 0.3)
            request = endless(
                f"r{index}", random.randrange(1, 60), max_tokens=random.randrange(1, 60), stream=index % 2 > 0
            )
            reader = asyncio.create_task(collect(backend, request))
            if index % 3 == 0:
                await reader
            await asyncio.sleep(index % 3 and (index % 3 - 1) * random.random() ** 3 * 0.3)
            for _ in range(random.randrange(1, 4)):
                reader.cancel()
                await asyncio.sleep(random.choice([0, 0, 0.001]))
            await asyncio.gather(reader, return_exceptions=True)

        await asyncio.gather(*(visit(index) for index in range(400)))
        outcomes = [record.outcome for record in records]
        assert set(outcomes) == {"cancelled", "length"}
        assert min(outcomes.count("cancelled"), outcomes.count("length")) > 20, "some left, and some stayed"
        survivor = endless("survivor", 20, max_tokens=30)
        assert tokens_of(await collect(backend, survivor)) == expected_completion([1] * 20, survivor.sampling_params)


async def test_a_refused_request_says_why_and_disturbs_nobody() -> None:
    async with serving() as backend:
        neighbour = asyncio.create_task(collect(backend, endless("neighbour")))
        with pytest.raises(RequestRefusedError, match="Given: 500"):
            await collect(backend, endless("a", 500))
        assert len(tokens_of(await neighbour)) == 100


async def test_a_passed_deadline_raises_before_anything_was_sent() -> None:
    async with serving() as backend:
        received = []
        with pytest.raises(DeadlineExceededError):
            async for chunk in backend.infer(endless("a", deadline=time.monotonic() - 1)):
                received.append(chunk)  # noqa: PERF401 - what came before the error
        assert received == []


async def test_a_deadline_in_mid_stream_ends_it_with_an_error_after_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("engine.core.engine_core.time", SimpleNamespace(monotonic=lambda: now))
    runner, permits = stepping()
    permits.release(3)
    async with serving(runner) as backend:
        received = []
        with pytest.raises(DeadlineExceededError):
            async for chunk in backend.infer(endless("a", deadline=2000.0)):
                received.append(chunk)
                now += 1000.0 * (len(tokens_of(received)) > 5)
                permits.release()
        assert received[0].kind == "ready" and 5 < len(tokens_of(received)) < 100


async def test_a_failing_request_ends_alone() -> None:
    runner = FakeRunner()
    runner.empty_rows_of = {"bad"}
    async with serving(runner) as backend:
        good = asyncio.create_task(collect(backend, endless("good")))
        with pytest.raises(EngineError):
            await collect(backend, endless("bad"))
        assert len(tokens_of(await good)) == 100
        assert backend.health().ok


async def test_what_breaks_while_a_request_is_added_is_an_engine_error_of_that_request() -> None:
    async with serving() as backend:
        broken = endless("a")
        broken.sampling_params = None  # type: ignore[assignment]
        with pytest.raises(EngineError, match="AttributeError"):
            await collect(backend, broken)
        assert backend.health().ok


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


async def test_the_observer_learns_times_and_counts_of_every_request() -> None:
    records: list[RequestRecord] = []
    async with serving(FakeRunner(step_s=0.001), observer=records.append, settings={"max_num_seqs": 1}) as backend:
        await asyncio.gather(*(collect(backend, endless(name, 9, max_tokens=20)) for name in "ab"))
        with pytest.raises(RequestRefusedError):
            await collect(backend, endless("refused", 1000))
    first, second, refused = records
    assert (first.outcome, first.prompt_tokens, first.completion_tokens) == ("length", 9, 20)
    assert first.scheduled_at is not None and second.scheduled_at is not None and second.queue_s is not None
    assert second.scheduled_at > first.scheduled_at + 0.015
    assert second.first_token_s is not None and second.first_token_s >= second.queue_s
    assert second.cached_prompt_tokens == 8
    assert (refused.outcome, refused.queue_s, refused.completion_tokens) == ("RequestRefusedError", None, 0)


async def test_an_observer_that_fails_does_not_fail_the_request() -> None:
    def observe(record: RequestRecord) -> None:
        raise ValueError("the observer is broken")

    async with serving(observer=observe) as backend:
        assert len(tokens_of(await collect(backend, endless("a")))) == 100


async def test_a_call_returns_or_raises_what_its_function_does() -> None:
    async with serving() as backend:
        assert await backend.call(lambda core: core.max_model_len) == 128
        assert await backend.call(lambda core: threading.current_thread().name) == "engine"
        with pytest.raises(ZeroDivisionError):
            await backend.call(lambda core: 1 // 0)
        assert backend.health().ok


async def test_without_a_compiler_constraints_are_refused() -> None:
    async with serving() as backend:
        with pytest.raises(ConstraintRefusedError):
            await backend.compile(OutputConstraint("json", "{}"))


async def test_nothing_grows_over_thousands_of_requests() -> None:
    async with serving() as backend:
        for _ in range(20):
            await asyncio.gather(*(collect(backend, endless(f"r{i}", 2 + i % 9, max_tokens=2)) for i in range(100)))
        gc.collect()
        alive = [type(thing).__name__ for thing in gc.get_objects() if type(thing) in (OutputStream, Sequence)]
        assert len(alive) < 10, "at most what the engine thread's last step still holds"
        assert await backend.call(lambda core: len(core.blocks._published)) <= backend.stats().kv_blocks_total
