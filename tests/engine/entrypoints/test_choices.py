"""Several choices of one request, against a real local engine with a runner that computes nothing."""

from __future__ import annotations

import asyncio

import pytest

from engine.backend import EngineError, EngineRequest
from engine.backends.local import LocalBackend
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sampling_params import SamplingParams
from engine.entrypoints.choices import Choices, choice_requests
from tests.engine.fake_runner import FakeRunner


async def started(step_s: float = 0.0) -> LocalBackend:
    backend = LocalBackend.start(lambda: EngineCore(FakeRunner(step_s=step_s), EngineConfig()))
    await backend.started()
    return backend


def request(max_tokens: int = 8, **fields: int) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=7, **fields)
    return EngineRequest("r", [1, 2, 3], params)


async def idle(backend: LocalBackend) -> bool:
    stats = backend.stats()
    return stats.running == stats.waiting == 0


def test_each_choice_has_an_id_and_a_seed_of_its_own() -> None:
    requests = choice_requests(request(), 4)
    assert len({one.request_id for one in requests}) == len({one.sampling_params.seed for one in requests}) == 4
    assert requests[0].sampling_params.seed == 7


async def test_every_choice_runs_to_its_finish() -> None:
    backend = await started()
    tokens = dict.fromkeys(range(3), 0)
    finished: set[int] = set()
    async with Choices(backend, choice_requests(request(), 3)) as choices:
        async for index, chunk in choices:
            tokens[index] += len(chunk.token_ids or ())
            if chunk.finish_reason is not None:
                finished.add(index)
    assert finished == {0, 1, 2} and set(tokens.values()) == {8}
    await backend.aclose()


async def test_stopping_one_choice_leaves_the_others_running() -> None:
    backend = await started(step_s=0.02)
    ends: set[int] = set()
    async with Choices(backend, choice_requests(request(40), 2)) as choices:
        async for index, chunk in choices:
            if index == 0 and chunk.token_ids:
                choices.stop(0)
            if chunk.finish_reason is not None:
                ends.add(index)
    assert ends == {1}
    assert await idle(backend)
    await backend.aclose()


async def test_a_reader_that_leaves_frees_every_choice_also_when_cancelled_twice() -> None:
    backend = await started(step_s=0.02)
    first_token = asyncio.Event()

    async def read() -> None:
        async with Choices(backend, choice_requests(request(100_000), 3)) as choices:
            async for _, chunk in choices:
                if chunk.token_ids:
                    first_token.set()

    task = asyncio.create_task(read())
    await first_token.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await idle(backend)
    await backend.aclose()


async def test_a_failure_of_one_choice_is_raised_and_ends_the_others() -> None:
    backend = await started()
    requests = choice_requests(request(100_000), 2)
    requests[1].deadline = 0.0
    with pytest.raises(EngineError):
        async with Choices(backend, requests) as choices:
            async for _ in choices:
                pass
    assert await idle(backend)
    await backend.aclose()
