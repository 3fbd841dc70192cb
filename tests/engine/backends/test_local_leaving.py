"""Readers that leave the local backend early, in every way: what they had is freed within a step."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from random import Random

import pytest

from engine.backends.request_record import RequestRecord
from engine.core.engine_core import EngineCore
from recipe.stream.inference import InferenceChunk
from tests.engine.backends.local_backend import collect, endless, next_step, serving, stepping, tokens_of
from tests.engine.fake_runner import FakeRunner, expected_completion
from tests.lived_time import turns, until


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
