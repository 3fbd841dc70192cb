"""Several generations of one prompt, run together and read as one stream of (choice, chunk).

Each choice has a backend stream of its own, read by a task of its own. Whatever ends the whole — the last choice, a
failure of one, a client that left — every task is stopped and every stream is closed to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from engine.backend import Backend, EngineError, EngineRequest
from engine.entrypoints.cleanup import run_to_completion
from recipe.stream.inference import InferenceChunk

MAX_CHOICES = 16
"""The largest `n`."""

_SEED_STRIDE = 0x9E3779B97F4A7C15
_SEED_MASK = (1 << 63) - 1


def choice_requests(request: EngineRequest, number: int) -> list[EngineRequest]:
    """`number` requests like `request`, each with an ID and a seed of its own; the first one is `request` itself."""
    return [request, *(_choice_request(request, index) for index in range(1, number))]


def _choice_request(request: EngineRequest, index: int) -> EngineRequest:
    seed = request.sampling_params.seed
    if seed is not None:
        seed = (seed + index * _SEED_STRIDE) & _SEED_MASK
    params = msgspec.structs.replace(request.sampling_params, seed=seed)
    return replace(request, request_id=f"{request.request_id}-{index}", sampling_params=params)


class Choices:
    """Reads the backend streams of several requests at once. Use it as an async context, and iterate over it."""

    def __init__(self, backend: Backend, requests: Sequence[EngineRequest]) -> None:
        self._backend = backend
        self._requests = requests
        self._arrived: asyncio.Queue[tuple[int, InferenceChunk | BaseException | None]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Choices:
        self._tasks = [asyncio.create_task(self._read(index)) for index in range(len(self._requests))]
        return self

    async def __aexit__(self, *error: Any) -> None:
        for index in range(len(self._tasks)):
            self.stop(index)
        await run_to_completion(self._ended())

    def stop(self, index: int) -> None:
        """End one choice, whose text is complete; the others go on. Idempotent."""
        self._tasks[index].cancel()

    async def __aiter__(self) -> AsyncGenerator[tuple[int, InferenceChunk], None]:
        """Chunks as they come, until every choice has ended; raises what one of them raised."""
        num_open = len(self._tasks)
        while num_open:
            index, arrived = await self._arrived.get()
            if arrived is None:
                num_open -= 1
            elif isinstance(arrived, InferenceChunk):
                yield index, arrived
            else:
                raise arrived

    async def _read(self, index: int) -> None:
        """Queue the chunks of one choice, then a failure if there was one, then None: whatever happens."""
        chunks = self._backend.infer(self._requests[index])
        try:
            async for chunk in chunks:
                self._arrived.put_nowait((index, chunk))
        except Exception as error:
            self._arrived.put_nowait((index, error))
        finally:
            try:
                await run_to_completion(chunks.aclose())
            finally:
                self._arrived.put_nowait((index, None))

    async def _ended(self) -> None:
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise EngineError(f"a choice could not be closed: {outcome}") from outcome
