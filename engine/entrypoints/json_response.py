"""A whole JSON response in one write to the transport."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

JSON_TYPE = "application/json"


class JsonResponse(web.StreamResponse):
    """aiohttp builds a response's headers in several layers; this one knows what it has to say."""

    def __init__(self, body: bytes, request_id: str, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status=status)
        self.body = body
        self._code = status
        self._request_id = request_id
        self._own_headers = headers
        self._request: web.BaseRequest | None = None

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        self._request = request
        if self._keep_alive is None:
            self._keep_alive = request.keep_alive
        await request._prepare_hook(self)
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        request, self._request = self._request, None
        if request is None:
            return  # written already
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        transport.write(self._head(request) + (b"" if request.method == "HEAD" else self.body))

    def _head(self, request: web.BaseRequest) -> bytes:
        is_1_1 = request.version >= HttpVersion11
        text = (
            f"HTTP/1.{1 if is_1_1 else 0} {self._code} {reason_of(self._code)}\r\n"
            f"Content-Type: {JSON_TYPE}\r\nContent-Length: {len(self.body)}\r\nDate: {http_date(int(time.time()))}\r\n"
            f"x-request-id: {self._request_id}\r\nrequest-id: {self._request_id}\r\n"
        )
        for name, value in self._own_headers.items():
            text += f"{name}: {value}\r\n"
        for name, value in self._headers.items():
            text += f"{name}: {value}\r\n"
        if bool(self._keep_alive) != is_1_1:
            text += f"Connection: {'keep-alive' if self._keep_alive else 'close'}\r\n"
        return (text + "\r\n").encode("latin-1", "replace")


@lru_cache(maxsize=2)
def http_date(second: int) -> str:
    """The time of a Date header."""
    return formatdate(second, usegmt=True)


@lru_cache
def reason_of(status: int) -> str:
    """The words after a status; 529 is one of Anthropic's own."""
    return "Overloaded" if status == 529 else HTTPStatus(status).phrase
