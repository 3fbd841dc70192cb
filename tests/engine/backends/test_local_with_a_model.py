"""The local backend over the embedded model: what the runner without a model cannot show."""

from __future__ import annotations

import asyncio
from random import Random

from engine.backend import EngineRequest
from engine.backends.local import LocalBackend
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sampling_params import SamplingParams
from engine.runner.load import load_runner
from engine.runner.weights.model_files import open_model


def make_core() -> EngineCore:
    """Few blocks, so that requests queue for them; one thread, so that a busy machine matters less."""
    files = open_model(None)
    config = EngineConfig(
        max_model_len=256,
        max_num_seqs=24,
        max_num_batched_tokens=256,
        max_prefill_chunk_tokens=128,
        kv_cache_mib=24,
        num_threads=1,
    )
    return EngineCore(load_runner(files, config), config, files.eos_token_ids)


def assert_at_rest(core: EngineCore) -> None:
    core.check_integrity()
    assert not core.has_work
    assert core.blocks.num_free == core.blocks.num_blocks


async def read(backend: LocalBackend, request: EngineRequest) -> list[int]:
    return [token_id async for chunk in backend.infer(request) for token_id in chunk.token_ids or []]


async def test_two_hundred_requests_cut_at_random_leave_blocks_sequences_and_tasks_as_before() -> None:
    random = Random(3)
    backend = LocalBackend.start(make_core)
    core = await backend.started()
    tasks_before = asyncio.all_tasks()
    seats = asyncio.Semaphore(30)
    outcomes: list[str] = []

    async def visit(index: int) -> None:
        prompt = random.choices(range(1000, 1003), k=random.randrange(1, 60))
        params = SamplingParams(max_tokens=random.randrange(1, 7), temperature=1.0, seed=index)
        async with seats:
            reader = asyncio.create_task(
                read(backend, EngineRequest(f"r{index}", prompt, params, stream=index % 3 > 0))
            )
            cut_at = core.stats().steps + int(random.random() ** 2 * 14)  # in steps: the same on a slow machine
            while not reader.done() and core.stats().steps < cut_at:  # noqa: ASYNC110 - of a thread
                await asyncio.sleep(0.001)
            outcomes.append("cut" if reader.cancel() else "done")
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    try:
        reference = EngineRequest("reference", [*range(2000, 2040)], SamplingParams(max_tokens=8, temperature=0.0))
        before = await read(backend, reference)
        await asyncio.gather(*(visit(index) for index in range(200)))
        assert min(outcomes.count("cut"), outcomes.count("done")) > 20
        assert asyncio.all_tasks() == tasks_before
        await backend.call(assert_at_rest)
        await backend.reset_prefix_cache()
        assert await read(backend, reference) == before
        await backend.call(assert_at_rest)
    finally:
        await backend.aclose()
