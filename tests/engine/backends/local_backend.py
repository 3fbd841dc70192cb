"""A local backend over the runner without a model, in the hands of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from engine.backend import EngineRequest
from engine.backends.local import LocalBackend
from engine.core.engine_core import EngineCore
from recipe.stream.inference import InferenceChunk
from tests.engine.fake_runner import FakeRunner, make_core, make_request
from tests.lived_time import until


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
