"""Where a generation's events go: a stream of SSE frames, or one whole response. Both take the same events."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

import msgspec
from aiohttp import web

from engine.entrypoints.errors import ApiError
from engine.entrypoints.event_stream import EventStream
from engine.entrypoints.http_request import HttpRequest
from engine.entrypoints.http_server import json_response
from engine.entrypoints.protocols import StreamSoFar, WireProtocol
from engine.entrypoints.telemetry import RequestTrace
from recipe.stream.inference import PromptUsage
from recipe.stream.sse import sse_frame


class Sink(Protocol):
    """Takes the events of one generation in order; `finish` gives what the HTTP handler returns."""

    @property
    def started(self) -> bool:
        """Whether bytes have gone to the client, so that an error can no longer be a status."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether the client takes less than it gets, so that `drain` would wait."""
        ...

    def push(self, events: list[Any], usage: PromptUsage | None) -> None:
        """Deliver events. `usage` counts with the first ones; a correction of it is in the last event."""
        ...

    async def drain(self) -> None:
        """Wait until the connection can take more."""
        ...

    def finish(self) -> web.StreamResponse: ...

    def fail(self, error: ApiError) -> web.StreamResponse:
        """End a response that has started with an error."""
        ...


class SseSink:
    """Streams: every push is one write of its frames. The response begins with the first event."""

    def __init__(self, request: HttpRequest, protocol: WireProtocol, trace: RequestTrace, so_far: StreamSoFar) -> None:
        self._protocol = protocol
        self._trace = trace
        self._so_far = so_far
        self._response = EventStream(request, trace.request_id)
        self._event_name = protocol.response.sse_event_name
        trace.lifeline.on_silence = self.keep_alive

    @property
    def started(self) -> bool:
        return self._response.prepared

    @property
    def is_congested(self) -> bool:
        return self._response.is_congested

    def push(self, events: list[Any], usage: PromptUsage | None) -> None:
        if not events:
            return
        so_far, name = self._so_far, self._event_name
        frames = b""
        for event in events:
            so_far.last = event.to_json()
            so_far.first = so_far.first or so_far.last
            frames += sse_frame(name(event), so_far.last)
        lifeline = self._trace.lifeline
        lifeline.sent_at = lifeline.since
        self._response.send(frames, lifeline.since)

    async def drain(self) -> None:
        await self._response.drain()

    def keep_alive(self) -> None:
        """Say something that no client takes for an event, so that nobody on the way gives the connection up."""
        if self.is_congested:
            return
        with suppress(ConnectionResetError):  # the client has gone, and its handler is being cancelled
            self._response.send(self._protocol.keep_alive_frame, self._trace.lifeline.sent_at)

    def finish(self) -> web.StreamResponse:
        timings = b": timings %b\n\n" % msgspec.json.encode(self._trace.timings()) if self._trace.shows_timings else b""
        self._response.end(timings + self._protocol.done_frame())
        return self._response

    def fail(self, error: ApiError) -> web.StreamResponse:
        if error.code == "slow_reader":
            self._response.cut()
            raise ConnectionResetError("the client reads too slowly")
        self._response.end(self._protocol.error_frame(error, self._so_far))
        return self._response


class WholeSink:
    """Folds the same events into one response object."""

    started = False
    is_congested = False

    def __init__(self, protocol: WireProtocol, trace: RequestTrace, identity: tuple[str, str, int]) -> None:
        self._trace = trace
        self._make = protocol.response
        self._identity = identity
        self._folded: Any = None

    def push(self, events: list[Any], usage: PromptUsage | None) -> None:
        if self._folded is None:
            usage = usage or PromptUsage()
            self._folded = self._make(*self._identity, usage.prompt_tokens, usage.prompt_cache_hit_tokens)
        for event in events:
            self._folded.accumulate(event)

    async def drain(self) -> None:
        return

    def finish(self) -> web.StreamResponse:
        headers = {"Server-Timing": self._trace.server_timing} if self._trace.shows_timings else {}
        return json_response(self._folded.to_json(), self._trace.request_id, headers=headers)

    def fail(self, error: ApiError) -> web.StreamResponse:
        raise error
