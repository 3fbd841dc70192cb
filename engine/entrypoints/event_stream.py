"""A response of server-sent events, written straight to the transport: the headers travel with the first frame.

aiohttp's own stream response builds its headers and frames anew through several layers for every write; a stream of
tokens is mostly such writes. Here a write is one chunk of HTTP and one call.
"""

from __future__ import annotations

import time
from email.utils import formatdate

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from engine.entrypoints.http_request import HttpRequest

_LAST_CHUNK = b"0\r\n\r\n"


class EventStream(web.StreamResponse):
    """Begins with the first `send`. Raises `ConnectionResetError` for a client that has gone."""

    def __init__(self, request: HttpRequest, request_id: str) -> None:
        super().__init__()
        self._request = request
        self._request_id = request_id
        self._is_chunked = request.version >= HttpVersion11
        self._keep_alive = self._is_chunked and request.keep_alive
        self._has_begun = False
        self._has_ended = False

    @property
    def prepared(self) -> bool:
        return self._has_begun

    @property
    def is_congested(self) -> bool:
        """Whether the client takes less than it is sent, so that `drain` would wait."""
        return self._request.protocol.writing_paused

    def send(self, frames: bytes) -> None:
        """Write frames; they are buffered if the client does not take them at once."""
        data = b"%x\r\n%b\r\n" % (len(frames), frames) if self._is_chunked and frames else frames
        self._write(data)

    async def drain(self) -> None:
        """Wait until the client has taken most of what it was sent."""
        await self._request.writer.drain()

    def cut(self) -> None:
        """Drop the connection with whatever is still buffered."""
        if (transport := self._request.transport) is not None:
            transport.abort()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        if not self._has_begun:
            self._write(b"")
        return self._request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._is_chunked:
            self._write(_LAST_CHUNK)

    def _write(self, data: bytes) -> None:
        transport = self._request.transport
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
            f"Date: {formatdate(time.time(), usegmt=True)}",
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
