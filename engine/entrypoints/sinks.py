"""Where a generation's events go: a stream of SSE frames, or one whole response. Both take the same events."""

from __future__ import annotations

from typing import Any, Protocol

from aiohttp import web

from engine.entrypoints.http_server import json_response
from engine.entrypoints.protocols import WireProtocol
from recipe.stream.inference import PromptUsage

SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


class Sink(Protocol):
    """Takes the events of one generation in order; `response` is what the HTTP handler returns."""

    @property
    def started(self) -> bool:
        """Whether bytes have gone to the client, so that an error can no longer be a status."""
        ...

    async def push(self, events: list[Any], usage: PromptUsage | None) -> None:
        """Deliver events; returns when the connection can take more. `usage` comes with the ready chunk."""
        ...

    async def finish(self) -> web.StreamResponse: ...


class SseSink:
    """Streams: every push is one write of its frames. The response begins with the first event."""

    def __init__(self, request: web.BaseRequest, protocol: WireProtocol, request_id: str) -> None:
        self._request = request
        self._protocol = protocol
        headers = {**SSE_HEADERS, "x-request-id": request_id, "request-id": request_id}
        self._response = web.StreamResponse(headers=headers)

    @property
    def started(self) -> bool:
        return self._response.prepared

    async def push(self, events: list[Any], usage: PromptUsage | None) -> None:
        if not events:
            return
        await self.write(self._protocol.frames(events))

    async def write(self, frames: bytes) -> None:
        """Send raw frames, opening the response if nothing was sent yet."""
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._response.write(frames)

    async def finish(self) -> web.StreamResponse:
        done = self._protocol.done_frame()
        if done or not self._response.prepared:
            await self.write(done)
        await self._response.write_eof()
        return self._response

    async def abort(self, frame: bytes) -> web.StreamResponse:
        """End a stream that has begun with an error frame."""
        await self._response.write(frame)
        await self._response.write_eof()
        return self._response


class WholeSink:
    """Folds the same events into one response object."""

    def __init__(self, protocol: WireProtocol, response_id: str, model: str, created: int, request_id: str) -> None:
        self._protocol = protocol
        self._identity = (response_id, model, created)
        self._request_id = request_id
        self._folded = protocol.response(*self._identity, 0, 0)

    @property
    def started(self) -> bool:
        return False

    async def push(self, events: list[Any], usage: PromptUsage | None) -> None:
        if usage is not None:
            counts = (usage.prompt_tokens, usage.prompt_cache_hit_tokens)
            self._folded = self._protocol.response(*self._identity, *counts)
        for event in events:
            self._folded.accumulate(event)

    async def finish(self) -> web.StreamResponse:
        return json_response(self._folded.to_json(), self._request_id)
