"""One client connection: limits on the size of headers and on the time they take, on top of aiohttp's protocol.

aiohttp has no limit on how long headers may trickle in. The clock runs from the opening of a connection, and from the
first bytes of a later request, until that request's headers are complete; nothing of it is on the path of a request
whose headers come in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from engine.entrypoints.errors import ApiError
from engine.entrypoints.json_response import JSON_TYPE, JsonResponse

_FOREVER_S = 1e8
ErrorResponder = Callable[[int, BaseException | None], JsonResponse]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bytes of a header line, headers, seconds for all of them, seconds without a request; 0 s is no limit."""

    max_header_bytes: int = 16 << 10
    max_headers: int = 100
    headers_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0

    def aiohttp_options(self) -> dict[str, Any]:
        return {
            "max_line_size": self.max_header_bytes,
            "max_field_size": self.max_header_bytes,
            "max_headers": self.max_headers,
            "keepalive_timeout": self.idle_timeout_s or _FOREVER_S,
        }


class Connection(web.RequestHandler):
    """aiohttp's connection, with our limits and our way to say that something was no HTTP request."""

    __slots__ = ("_headers_due", "_limits", "_respond")

    def __init__(self, manager: Any, limits: ConnectionLimits, respond: ErrorResponder, **options: Any) -> None:
        super().__init__(manager, **options)
        self._limits = limits
        self._respond = respond
        self._headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._current_request is not None:
            if self._headers_due is not None:
                self._stop_expecting()
        elif self._headers_due is None and self._waiter is not None:
            self._expect_headers()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:  # aiohttp asks for it with every body, paused or not
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone: aiohttp ends the connection
        return self._respond(status, exc)

    def _expect_headers(self) -> None:
        if self._limits.headers_timeout_s:
            self._headers_due = self._loop.call_later(self._limits.headers_timeout_s, self._headers_overdue)

    def _stop_expecting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _headers_overdue(self) -> None:
        self._headers_due = None
        if self._waiter is None or self.transport is None:
            return  # a request is being served
        limit_s = self._limits.headers_timeout_s
        response = self._respond(408, ApiError(408, f"no request came within {limit_s:g} s", code="headers_timeout"))
        head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: {JSON_TYPE}\r\nContent-Length: {len(response.body)}\r\n"
        self.transport.write(head.encode() + b"Connection: close\r\n\r\n" + response.body)
        self.force_close()
