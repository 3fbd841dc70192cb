"""A response of server-sent events, written straight to the transport: the headers travel with the first frame.

Frames are written at once, with one exception: a stream that wrote within the last millisecond keeps what comes until
that millisecond is over, and writes it in one go. So a fast stream costs a thousand system calls a second, however
many tokens it has, and a slow one is never held up.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from engine.entrypoints.http_request import HttpRequest
from engine.entrypoints.json_response import http_date

WRITE_INTERVAL_S = 0.001
_LAST_CHUNK = b"0\r\n\r\n"


class EventStream(web.StreamResponse):
    """Begins with the first `send`. Raises `ConnectionResetError` for a client that has gone."""

    def __init__(self, request: HttpRequest, request_id: str) -> None:
        super().__init__()
        self._request = request
        self._request_id = request_id
        self._protocol = request.protocol
        self._is_chunked = request.version >= HttpVersion11
        self._keep_alive = self._is_chunked and request.keep_alive
        self._has_begun = False
        self._has_ended = False
        self._held: list[bytes] = []
        self._flush_due: asyncio.TimerHandle | None = None
        self._written_at = 0.0

    @property
    def prepared(self) -> bool:
        return self._has_begun

    @property
    def is_congested(self) -> bool:
        """Whether the client takes less than it is sent, so that `drain` would wait."""
        return self._protocol.writing_paused

    def send(self, frames: bytes, now: float) -> None:
        """Write frames, at once or a moment later; `now` is in monotonic seconds."""
        if self._flush_due is not None:
            self._held.append(frames)
        elif now - self._written_at < WRITE_INTERVAL_S:
            self._held.append(frames)
            self._flush_due = asyncio.get_running_loop().call_later(WRITE_INTERVAL_S, self._flush)
        else:
            self._written_at = now
            self._write(self._chunk(frames))

    def end(self, frames: bytes) -> None:
        """Write the last frames, and what was held before them."""
        self._stop_flushing()
        self._held.append(frames)
        self._has_ended = True
        self._write(self._take_held() + (_LAST_CHUNK if self._is_chunked else b""))

    async def drain(self) -> None:
        """Wait until the client has taken most of what it was sent."""
        await self._request.writer.drain()

    def cut(self) -> None:
        """Drop the connection with whatever is still buffered."""
        self._stop_flushing()
        if (transport := self._protocol.transport) is not None:
            transport.abort()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return self._request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        if not self._has_ended:
            self.end(data)

    def _flush(self) -> None:
        self._flush_due = None
        self._written_at = time.monotonic()
        if (transport := self._protocol.transport) is not None and not transport.is_closing():
            self._write(self._take_held())  # else the handler is being cancelled

    def _stop_flushing(self) -> None:
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None

    def _take_held(self) -> bytes:
        frames = b"".join(self._held)
        self._held.clear()
        return self._chunk(frames)

    def _chunk(self, frames: bytes) -> bytes:
        """The frames as one chunk of HTTP/1.1."""
        return b"%x\r\n%b\r\n" % (len(frames), frames) if self._is_chunked and frames else frames

    def _write(self, data: bytes) -> None:
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if not self._has_begun:
            self._has_begun = True
            data = self._head() + data
        transport.write(data)

    def _head(self) -> bytes:
        lines = [
            "HTTP/1.1 200 OK" if self._is_chunked else "HTTP/1.0 200 OK",
            "Content-Type: text/event-stream; charset=utf-8",
            f"Date: {http_date(int(time.time()))}",
            "X-Accel-Buffering: no",
            f"x-request-id: {self._request_id}",
            f"request-id: {self._request_id}",
            *(f"{name}: {value}" for name, value in self._request.extra_headers),
        ]
        if self._is_chunked:
            lines.append("Transfer-Encoding: chunked")
        if not self._keep_alive:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
