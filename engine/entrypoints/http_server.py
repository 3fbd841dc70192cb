"""HTTP: one dispatcher over a small route table, on aiohttp's low-level server.

The dispatcher gives every request an ID, finds its route, and turns whatever the handler raises into the error
envelope of the route's protocol. A client that disconnects cancels its handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import istr

from engine.entrypoints.auth import KeyRing
from engine.entrypoints.connection import Connection, ConnectionLimits
from engine.entrypoints.cors import Cors
from engine.entrypoints.errors import ApiError, Envelope, as_api_error, openai_envelope, status_of
from engine.entrypoints.http_request import HttpRequest
from engine.entrypoints.ids import new_hex
from engine.entrypoints.json_response import JsonResponse

Handler = Callable[[Any, str], Awaitable[web.StreamResponse]]
"""Takes an `HttpRequest` and its ID."""

MAX_REQUEST_ID_CHARS = 128
_EXPECT, _X_REQUEST_ID = istr("Expect"), istr("x-request-id")


@dataclass(frozen=True, slots=True)
class Route:
    """A handler and the envelope of its errors. A public route needs no API key."""

    handler: Handler
    envelope: Envelope = openai_envelope
    is_public: bool = False


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

    def of(self, request: web.BaseRequest) -> dict[str, Route]:
        """The methods of a request's path; empty for an unknown one."""
        return self._exact.get(request.raw_path) or self.find(request.path)  # most are written as they are in the table

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

    def __init__(
        self,
        routes: RouteTable,
        *,
        max_body_bytes: int,
        keys: KeyRing | None = None,
        cors: Cors | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._routes = routes
        self._max_body_bytes = max_body_bytes
        self._keys = keys or KeyRing(())
        self._cors = cors or Cors(())
        self._limits = limits or ConnectionLimits()

    def server(self) -> web.Server:
        """An aiohttp low-level server; use it with `web.ServerRunner`."""
        return _Server(self.handle, self._limits, request_factory=self._make_request, handler_cancellation=True)

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> HttpRequest:
        loop = asyncio.get_running_loop()
        return HttpRequest(message, payload, protocol, writer, task, loop)

    async def handle(self, request: HttpRequest) -> web.StreamResponse:
        request_id = request_id_of(request)
        envelope: Envelope = openai_envelope
        try:
            request.extra_headers = self._cors.headers_for(request.headers)
            methods = self._routes.of(request)
            if methods:
                envelope = next(iter(methods.values())).envelope
            if request.method == "OPTIONS" and methods:
                return self._options_response(request, methods, request_id)
            route = self._choose(request, methods)
            return await route.handler(request, request_id)
        except asyncio.CancelledError:
            raise
        except ConnectionError:
            raise  # the client is gone: nobody to tell
        except Exception as error:
            return error_response(as_api_error(error, request_id), envelope, request_id)

    def _choose(self, request: HttpRequest, methods: dict[str, Route]) -> Route:
        """The route of a request that may use it."""
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None or not route.is_public:
            request.key = self._keys.identify(request.headers)
        if route is not None:
            return route
        if not methods:
            raise ApiError(404, f"there is no route {request.path[:200]}", code="not_found")
        raise ApiError(405, f"{request.path[:200]} does not take {request.method[:20]}; use {' or '.join(methods)}")

    @staticmethod
    def _options_response(request: HttpRequest, methods: dict[str, Route], request_id: str) -> web.Response:
        allowed = ", ".join(sorted({*methods, "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))
        headers = {"Allow": allowed, "x-request-id": request_id}
        if any(name == "Access-Control-Allow-Origin" for name, _ in request.extra_headers):
            headers |= Cors.preflight_headers(request.headers, allowed)
        return web.Response(status=204, headers=headers)


class _Server(web.Server):
    """A server whose connections are ours: limits on headers, and protocol-level failures in JSON."""

    def __init__(self, handler: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(handler, access_log=None, **limits.aiohttp_options(), **options)
        self._limits = limits

    def __call__(self) -> web.RequestHandler:
        return Connection(self, self._limits, _malformed_response, loop=asyncio.get_running_loop(), **self._kwargs)


def _malformed_response(status: int, error: BaseException | None) -> JsonResponse:
    """What is answered to bytes that were no request, or that kept us waiting."""
    if isinstance(error, HttpProcessingError):
        told = ApiError(400, "malformed HTTP request")
    else:
        told = as_api_error(error or RuntimeError(f"status {status}"), "")
    response = error_response(told, openai_envelope, "")
    response.force_close()
    return response


def request_id_of(request: web.BaseRequest) -> str:
    """The client's `x-request-id` when it is usable, else a fresh one."""
    given = request.headers.get(_X_REQUEST_ID, "")
    if given and len(given) <= MAX_REQUEST_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return "req_" + new_hex(12)


def error_response(error: ApiError, envelope: Envelope, request_id: str) -> JsonResponse:
    """`error` as a response."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    status = status_of(error, envelope)
    return json_response(envelope(error, request_id), request_id, status=status, headers=headers)


def json_response(
    body: bytes | str, request_id: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> JsonResponse:
    """A JSON response with its request ID in the headers both SDKs read."""
    return JsonResponse(body.encode() if isinstance(body, str) else body, request_id, status, headers or {})


async def read_body(request: web.BaseRequest, max_bytes: int, timeout_s: float = 0.0) -> bytes:
    """The whole body, after answering `Expect: 100-continue`; raises a 413 or 408 `ApiError`. 0 s is no limit."""
    content = request.content
    if content.is_eof():  # it came with the headers
        body: bytes = content.read_nowait()
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    if (request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get(_EXPECT, "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if not timeout_s:
            return await _read_up_to(request, max_bytes)
        async with asyncio.timeout(timeout_s):
            return await _read_up_to(request, max_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {timeout_s:g} s", code="body_timeout") from None


async def _read_up_to(request: web.BaseRequest, max_bytes: int) -> bytes:
    """The body, which is not copied where it arrives in one piece."""
    content = request.content
    body = await content.readany()
    if not content.at_eof():
        pieces, size = [body], len(body)
        while size <= max_bytes and (piece := await content.readany()):
            pieces.append(piece)
            size += len(piece)
        body = b"".join(pieces)
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than the limit of {max_bytes} bytes", code="request_too_large")
