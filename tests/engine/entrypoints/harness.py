"""The HTTP door in this process: real sockets, routes and accounts over a backend that does what a test says.

Preparation runs in this process too, so a server is up in milliseconds; worker processes have tests of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from aiohttp import web

from engine.backend import ConstraintHandle, EngineRequest, EngineStats, Health
from engine.entrypoints import event_stream, lifeline
from engine.entrypoints.options import ServerOptions
from engine.entrypoints.routes import Desk, Served, make_http_server
from engine.entrypoints.served_model import prepare_config
from engine.entrypoints.tls import server_context
from engine.runner.weights.model_files import open_model
from recipe import prepare as preparation_worker
from recipe.encoding.tokenizer import Tokenizer
from recipe.prepare import Preparer
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage
from tests.lived_time import clock

MODEL = "m"


class InlinePool:
    """A preparation pool without processes. `gate` holds calls up while it is cleared."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def run(self, function: Callable[..., Any], *args: Any, affinity: int | None = None) -> Any:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return function(*args)


@dataclass
class ScriptedBackend:
    """Yields `tokens` words; waits before the ready chunk, the first token, and between tokens. Raises `error` after.

    `gate` holds up everything of a request while it is cleared. `open` holds the requests and compilations under way,
    `requests` all requests that came.
    """

    tokens: int = 3
    word: str = "word "
    ready_s: float = 0.0
    first_s: float = 0.0
    gap_s: float = 0.0
    error: Exception | None = None
    requests: list[EngineRequest] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    is_ok: bool = True
    compile_s: float = 0.0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def infer(self, request: EngineRequest) -> AsyncGenerator[InferenceChunk, None]:
        self.requests.append(request)
        self.open.append(request.request_id)
        try:
            await self.gate.wait()
            await asyncio.sleep(self.ready_s)
            usage = PromptUsage(prompt_tokens=len(request.prompt_token_ids))
            yield InferenceChunk.ready(prompt_usage=usage, system_fingerprint="fp_test")
            for index in range(self.tokens):
                await asyncio.sleep(self.gap_s if index else self.first_s)
                yield InferenceChunk.text(self.word, 1)
            if self.error is not None:
                raise self.error
            yield InferenceChunk.finish(InferenceFinishReason.Stop)
        finally:
            self.open.remove(request.request_id)

    async def compile(self, constraint: Any) -> ConstraintHandle:
        self.open.append("compile")
        try:
            await asyncio.sleep(self.compile_s)
        finally:
            self.open.remove("compile")
        return ConstraintHandle(constraint)

    def health(self) -> Health:
        return Health(ok=self.is_ok, reason="" if self.is_ok else "the engine died")

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.open))

    async def aclose(self) -> None:
        return


@dataclass
class Door:
    """A server that is up, and everything behind it."""

    address: tuple[str, int]
    backend: ScriptedBackend
    pool: InlinePool
    desk: Desk

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def is_idle(self) -> bool:
        """Whether nothing is left of any request."""
        return not (self.backend.open or self.desk.admission.num_open or self.desk.clock.open or self.pool.waiting)


@cache
def _served() -> tuple[Any, Tokenizer]:
    files = open_model(None)
    return files, Tokenizer.from_str(files.tokenizer_json)


@asynccontextmanager
async def open_door(backend: ScriptedBackend | None = None, **settings: Any) -> AsyncIterator[Door]:
    """Serve `backend` with the embedded model's vocabulary; `settings` are fields of `ServerOptions`."""
    options = ServerOptions(backend="mock", served_model_name=[MODEL], port=0, **settings)
    files, tokenizer = _served()
    backend, pool = backend or ScriptedBackend(), InlinePool()
    with pytest.MonkeyPatch.context() as patch:
        preparer = Preparer(prepare_config(options, files, 8192))
        patch.setattr(preparation_worker, "_preparer", preparer)
        for module in (lifeline, event_stream):  # their limits count what the loop has lived
            patch.setattr(module, "time", clock())
        desk = Desk(options, backend)
        served = Served([MODEL], 8192, backend, pool, tokenizer)  # type: ignore[arg-type]
        served.preparer = preparer if "inline_preparation_bytes" in settings else None
        server = make_http_server(options, served, desk)
        runner = web.ServerRunner(server.server(), shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(options))
        await site.start()
        try:
            yield Door(runner.addresses[0][:2], backend, pool, desk)
        finally:
            await runner.cleanup()


def chat(**settings: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **settings}


def json_chat(**settings: Any) -> dict[str, Any]:
    """A request with a constraint to compile."""
    return chat(
        messages=[{"role": "user", "content": "json, please"}], response_format={"type": "json_object"}, **settings
    )


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat(),
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": chat(max_tokens=50),
}
"""A body for each protocol's route."""


def raw_request(path: str, body: dict[str, Any], *headers: str) -> bytes:
    """A POST as bytes."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(data)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data
