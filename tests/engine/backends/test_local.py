"""The local backend over the runner without a model: real threads, real event loop, steps of a millisecond."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from random import Random
from types import SimpleNamespace

import pytest

from engine.backend import ConstraintRefusedError, DeadlineExceededError, EngineError, RequestRefusedError
from engine.backends.output_stream import OutputStream
from engine.backends.request_record import RequestRecord
from engine.core.sequence import Sequence
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceFinishReason
from tests.engine.backends.local_backend import collect, endless, serving, stepping, tokens_of
from tests.engine.fake_runner import EOS, FakeRunner, expected_completion, make_request


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
