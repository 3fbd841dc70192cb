"""HTTP: one dispatcher over a small route table, on aiohttp's low-level server.

The dispatcher gives every request an ID, finds its route, and turns whatever the handler raises into the error
envelope of the route's protocol. A client that disconnects cancels its handler.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from engine.entrypoints.errors import ApiError, Envelope, as_api_error, openai_envelope

Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]

JSON_TYPE = "application/json"
MAX_REQUEST_ID_CHARS = 128


@dataclass(frozen=True, slots=True)
class Route:
    """A handler and the envelope of its errors. `handler(request, request_id)`."""

    handler: Handler
    envelope: Envelope = openai_envelope


class RouteTable:
    """Routes by exact path and method; a path that ends in `/*` stands for everything below it."""

    def __init__(self, routes: Mapping[tuple[str, str], Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._below: list[tuple[str, dict[str, Route]]] = []
        for (method, path), route in routes.items():
            self._methods_of(path)[method] = route

    def _methods_of(self, path: str) -> dict[str, Route]:
        if not path.endswith("/*"):
            return self._exact.setdefault(path, {})
        prefix = path[:-1]
        for known, methods in self._below:
            if known == prefix:
                return methods
        self._below.append((prefix, {}))
        return self._below[-1][1]

    def find(self, path: str) -> dict[str, Route]:
        """The methods of a path; empty for an unknown one. A trailing slash makes no difference."""
        methods = self._exact.get(path) or self._exact.get(path.rstrip("/") or "/")
        if methods is not None:
            return methods
        for prefix, below in self._below:
            if path.startswith(prefix) and len(path) > len(prefix):
                return below
        return {}


class HttpServer:
    """Dispatches requests. `server()` makes the aiohttp server that calls it; `max_body_bytes` bounds a body."""

    def __init__(self, routes: RouteTable, *, max_body_bytes: int) -> None:
        self._routes = routes
        self._max_body_bytes = max_body_bytes

    def server(self) -> web.Server:
        """An aiohttp low-level server; use it with `web.ServerRunner`."""
        return _JsonErrorServer(
            self.handle, request_factory=self._make_request, handler_cancellation=True, access_log=None
        )

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._max_body_bytes)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        request_id = request_id_of(request)
        envelope: Envelope = openai_envelope
        try:
            methods = self._routes.find(request.path)
            if methods:
                envelope = next(iter(methods.values())).envelope
            route = self._choose(request, methods)
            if route is None:
                return _options_response(methods, request_id)
            return await route.handler(request, request_id)
        except asyncio.CancelledError:
            raise
        except ConnectionError:
            raise  # the client is gone: nobody to tell
        except Exception as error:
            return error_response(as_api_error(error, request_id), envelope, request_id)

    @staticmethod
    def _choose(request: web.BaseRequest, methods: dict[str, Route]) -> Route | None:
        """The route of a request; None for OPTIONS."""
        if not methods:
            raise ApiError(404, f"there is no route {request.path[:200]}", code="not_found")
        method = "GET" if request.method == "HEAD" else request.method
        if method in methods:
            return methods[method]
        if method == "OPTIONS":
            return None
        raise ApiError(405, f"{request.path[:200]} does not take {method[:20]}; use {' or '.join(methods)}")


class _JsonErrorServer(web.Server):
    """A server whose protocol-level failures (malformed HTTP) are JSON too."""

    def __call__(self) -> web.RequestHandler:
        return _JsonErrorHandler(self, loop=asyncio.get_running_loop(), **self._kwargs)


class _JsonErrorHandler(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError) or status < 500:
            error = ApiError(status, "malformed HTTP request")
        else:
            error = as_api_error(exc or RuntimeError(message or "unknown failure"), "")
        response = error_response(error, openai_envelope, "")
        response.force_close()
        return response


def request_id_of(request: web.BaseRequest) -> str:
    """The client's `x-request-id` when it is usable, else a fresh one."""
    given = request.headers.get("x-request-id", "")
    if given and len(given) <= MAX_REQUEST_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return "req_" + secrets.token_hex(12)


def error_response(error: ApiError, envelope: Envelope, request_id: str) -> web.Response:
    """`error` as a response."""
    response = json_response(envelope(error, request_id), request_id, status=error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return response


def json_response(body: bytes | str, request_id: str, *, status: int = 200) -> web.Response:
    """A JSON response with its request ID in the headers both SDKs read."""
    data = body.encode() if isinstance(body, str) else body
    headers = {"x-request-id": request_id, "request-id": request_id}
    return web.Response(body=data, status=status, content_type=JSON_TYPE, headers=headers)


def _options_response(methods: dict[str, Route], request_id: str) -> web.Response:
    allowed = ", ".join(sorted({*methods, "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))
    return web.Response(status=204, headers={"Allow": allowed, "x-request-id": request_id})


async def read_body(request: web.BaseRequest, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body, after answering `Expect: 100-continue`; raises a 413 or 408 `ApiError`."""
    if (request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        async with asyncio.timeout(timeout_s or None):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(max_bytes) from None
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {timeout_s:g} s") from None


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than the limit of {max_bytes} bytes", code="request_too_large")
