"""POST /inference/v1/generate, and our own server as the engine of another one's front."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from engine.backend import (
    ConstraintHandle,
    ConstraintRefusedError,
    EngineError,
    EngineRequest,
    EngineStats,
    Health,
    RequestRefusedError,
)
from engine.backends.remote import RemoteBackend
from engine.backends.remote_endpoint import RemoteLimits
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage
from tests.engine.entrypoints.harness import MODEL, Door, chat, open_door
from tests.engine.fake_runner import make_request
from tests.lived_time import until

PATH = "/inference/v1/generate"


@dataclass
class TokenBackend:
    """Yields the tokens it is told to, with log probabilities if asked, then hides a stop token."""

    tokens: list[int] = field(default_factory=lambda: [11, 12, 13])
    gap_s: float = 0.0
    system_fingerprint: str | None = None
    error: Exception | None = None
    requests: list[EngineRequest] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    async def infer(self, request: EngineRequest) -> AsyncGenerator[InferenceChunk, None]:
        self.requests.append(request)
        self.open.append(request.request_id)
        usage = PromptUsage(prompt_tokens=len(request.prompt_token_ids), prompt_cache_hit_tokens=2)
        try:
            yield InferenceChunk.ready(prompt_usage=usage, system_fingerprint=self.system_fingerprint)
            for token_id in self.tokens:
                tops = [(-0.25, [(token_id, -0.25), (7, -2.0)][: request.sampling_params.logprobs])]
                yield InferenceChunk.tokens([token_id], None if request.sampling_params.logprobs is None else tops)
                await asyncio.sleep(self.gap_s)
            if self.error is not None:
                raise self.error
            yield InferenceChunk.finish(InferenceFinishReason.Stop, token_count=1)
        finally:
            self.open.remove(request.request_id)

    async def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        if constraint.schema == "no":
            raise ConstraintRefusedError("keyword 'no' cannot be enforced")
        return ConstraintHandle(constraint)

    def health(self) -> Health:
        return Health(ok=True)

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.open))

    async def aclose(self) -> None:
        return


def body(**settings: Any) -> dict[str, Any]:
    return {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 9, "temperature": 0}, **settings}


@asynccontextmanager
async def engine_and_front(engine: TokenBackend) -> AsyncIterator[tuple[Door, RemoteBackend]]:
    async with open_door(engine) as door:  # type: ignore[arg-type]
        front = RemoteBackend(door.url, "self", {2}, limits=RemoteLimits())
        try:
            yield door, front
        finally:
            await front.aclose()


async def post(door: Door, asked: Any, path: str = PATH) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.post(door.url + path, json=asked) as response:
        text = await response.text()
        return response.status, text if asked.get("stream") and response.status == 200 else json.loads(text)


async def test_a_whole_response_has_tokens_and_usage() -> None:
    async with open_door(TokenBackend()) as door:  # type: ignore[arg-type]
        status, answer = await post(door, body(request_id="mine", model=MODEL))
    assert status == 200
    assert answer == {
        "request_id": "mine",
        "choices": [{"index": 0, "token_ids": [11, 12, 13], "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }  # fmt: skip


async def test_a_stream_has_an_event_a_token_and_usage_first_and_last() -> None:
    async with open_door(TokenBackend()) as door:  # type: ignore[arg-type]
        _, text = await post(door, body(stream=True, stream_options={"include_usage": True}))
        _, bare = await post(door, body(stream=True))
    events = [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame]
    assert events.pop() == "[DONE]"
    documents = [json.loads(event) for event in events]
    assert [document["choices"][0]["token_ids"] if document["choices"] else "usage" for document in documents] == [
        "usage", [11], [12], [13], [], "usage",
    ]  # fmt: skip
    assert documents[0]["usage"]["completion_tokens"] == 0 and documents[-1]["usage"]["completion_tokens"] == 4
    assert '"usage":' not in bare


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"token_ids": []}, 400, "token_ids"),
        ({"token_ids": [-1]}, 400, "token_ids"),
        ({"token_ids": "text"}, 400, "token_ids"),
        ({"features": "image"}, 400, "features"),
        ({"model": "other"}, 404, "other"),
        ({"sampling_params": {"temperature": -1}}, 400, "temperature"),
        ({"sampling_params": {"n": 2}}, 400, "n"),
        ({"sampling_params": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, 400, "regex, choice"),
        ({"sampling_params": {"structured_outputs": {"regex": "no"}}}, 400, "keyword 'no'"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(change: dict[str, Any], status: int, named: str) -> None:
    async with open_door(TokenBackend()) as door:  # type: ignore[arg-type]
        told, answer = await post(door, body(**change))
        assert door.is_idle()
    assert told == status and named in answer["error"]["message"]


async def test_a_front_gets_the_same_chunks_as_from_the_engine_itself() -> None:
    engine = TokenBackend()
    request = make_request("a", [5, 6, 7], logprobs=2, seed=3)
    async with engine_and_front(engine) as (_, front):
        chunks = [chunk async for chunk in front.infer(request)]
        directly = [chunk async for chunk in engine.infer(request)]
    assert [(c.kind, c.token_ids, c.logprobs, c.finish_reason, c.token_count) for c in chunks] == [
        (c.kind, c.token_ids, c.logprobs, c.finish_reason, c.token_count) for c in directly
    ]
    for chunk in (chunks[0], chunks[-1]):
        usage = chunk.prompt_usage
        assert usage is not None and (usage.prompt_tokens, usage.prompt_cache_hit_tokens) == (3, 2)


async def test_a_front_passes_on_the_fingerprint_of_its_engine() -> None:
    async with engine_and_front(TokenBackend(system_fingerprint="fp_weights")) as (door, front):
        await front.started()
        chunks = [chunk async for chunk in front.infer(make_request("a", [5, 6, 7]))]
        _, whole = await post(door, body())
    assert chunks[0].system_fingerprint == whole["system_fingerprint"] == "fp_weights"


async def test_everything_the_seam_can_ask_arrives_at_the_engine_behind_the_front() -> None:
    engine = TokenBackend()
    constraint = OutputConstraint("tool_call", "[]", tool_markup="mistral", begins_after="</think>", single_call=True)
    async with engine_and_front(engine) as (_, front):
        request = make_request(
            "a", [5, 6, 7], max_tokens=9, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, min_tokens=2,
            repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3, stop_token_ids=[99],
            logit_bias={3: -1.0}, bad_words_token_ids=[[4, 5]], priority=4, cache_salt=b"mine",
        )  # fmt: skip
        request.constraint = await front.compile(constraint)
        async for _ in front.infer(request):
            pass
    got = engine.requests[0]
    assert list(got.prompt_token_ids) == [5, 6, 7] and (got.priority, got.cache_salt) == (4, b"mine")
    assert got.constraint is not None and got.constraint.payload == constraint
    for name in (
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "logit_bias", "bad_words_token_ids", "logprobs", "ignore_eos",
    ):  # fmt: skip
        assert getattr(got.sampling_params, name) == getattr(request.sampling_params, name), name
    assert got.sampling_params.stop_token_ids == [2, 99]


async def test_a_front_tells_what_the_engine_refuses_and_how_it_fails() -> None:
    engine = TokenBackend(error=EngineError("the batch failed"))
    async with engine_and_front(engine) as (_, front):
        request = make_request("a", [5, 6, 7])
        request.constraint = await front.compile(OutputConstraint("regex", "no"))
        with pytest.raises(RequestRefusedError, match="keyword 'no'"):
            await anext(front.infer(request))
        with pytest.raises(EngineError, match="in the middle"):
            async for _ in front.infer(make_request("b", [5])):
                pass


async def test_leaving_the_front_frees_the_engine_within_100_ms() -> None:
    engine = TokenBackend(tokens=[11] * 1000, gap_s=0.01)
    async with engine_and_front(engine) as (door, front):
        chunks = front.infer(make_request("a", [5]))
        await anext(chunks)
        await anext(chunks)
        assert engine.open
        left_at = asyncio.get_running_loop().time()
        await chunks.aclose()
        await until(lambda: not engine.open)
        assert asyncio.get_running_loop().time() - left_at < 0.1
        await until(door.is_idle)


async def test_a_front_reaches_its_engine_over_a_unix_socket(tmp_path: Path) -> None:
    async def generate(request: web.Request) -> web.Response:
        finish = {"choices": [{"token_ids": [5], "finish_reason": "stop"}]}
        return web.Response(text=f"data: {json.dumps(finish)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_post(PATH, generate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
    front = RemoteBackend(f"unix:{tmp_path}/engine.sock", "self", limits=RemoteLimits())
    try:
        chunks = [chunk async for chunk in front.infer(make_request("a", [5]))]
        assert [chunk.token_ids for chunk in chunks if chunk.token_ids] == [[5]]
    finally:
        await front.aclose()
        await runner.cleanup()


async def test_a_chat_goes_through_front_and_engine() -> None:
    engine = TokenBackend(tokens=[504, 314])
    async with engine_and_front(engine) as (_, front), open_door(front) as door:  # type: ignore[arg-type]
        status, answer = await post(door, chat(), "/v1/chat/completions")
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 3 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
