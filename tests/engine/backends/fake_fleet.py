"""A backend over fake engines, in the hands of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.backends.remote import RemoteBackend
from engine.backends.remote_endpoint import RemoteLimits
from recipe.stream.inference import InferenceChunk
from tests.engine.backends.fake_engine import EOS, FakeCompletions, FakeEngine, FakeSglang, serving
from tests.engine.fake_runner import make_request

QUICK = RemoteLimits(connect_s=0.5, first_token_s=0.4, token_gap_s=0.4, probe_s=0.5, health_interval_s=0.05)
PROMPT = [5, 6, 7, 8]


@asynccontextmanager
async def fleet(*engines: FakeEngine, kind: str = "vllm", **options: Any) -> AsyncIterator[RemoteBackend]:
    async with serving(*engines) as urls:
        backend = RemoteBackend(urls, kind, {EOS}, **({"limits": QUICK} | options))
        try:
            yield backend
        finally:
            await backend.aclose()


async def play(backend: RemoteBackend, **settings: Any) -> list[InferenceChunk]:
    prompt = settings.pop("prompt", PROMPT)
    return [chunk async for chunk in backend.infer(make_request("a", prompt, **({"max_tokens": 100} | settings)))]


def tokens_of(chunks: list[InferenceChunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.token_ids or ()]


KINDS = pytest.mark.parametrize(
    ("kind", "make"), [("vllm", FakeEngine), ("vllm-completions", FakeCompletions), ("sglang", FakeSglang)]
)
