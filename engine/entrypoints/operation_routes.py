"""What whoever runs the server asks: whether it lives, whether to send it requests, what it is; and a clean cache."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, runtime_checkable

import msgspec
from aiohttp import web

from engine.backend import Backend
from engine.entrypoints.admission import Admission
from engine.entrypoints.errors import ApiError
from engine.entrypoints.http_server import json_response

PACKAGE = "recipe-server"
UNINSTALLED = "0.0.0"


@runtime_checkable
class CachingBackend(Protocol):
    """A backend that keeps the KV of earlier prompts and can forget it."""

    async def reset_prefix_cache(self) -> None: ...


class OperationRoutes:
    """GET /health, /ready and /version, POST /reset_prefix_cache."""

    def __init__(self, backend: Backend, admission: Admission) -> None:
        self._backend = backend
        self._admission = admission

    async def health(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        """Whether the process can serve at all; a supervisor starts it anew if not."""
        health = self._backend.health()
        return _status(request_id, "" if health.ok or not health.needs_restart else health.reason)

    async def ready(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        """Whether new requests are welcome: not before the warm-up, and not while the server drains."""
        health = self._backend.health()
        reason = "the server is shutting down" if self._admission.is_closed else "" if health.ok else health.reason
        return _status(request_id, reason)

    async def show_version(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        return json_response(msgspec.json.encode({"version": server_version()}), request_id)

    async def reset_prefix_cache(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        """Forget the KV of finished requests; those that run keep theirs."""
        if not isinstance(self._backend, CachingBackend):
            raise ApiError(400, "this backend has no prefix cache", code="no_prefix_cache")
        await self._backend.reset_prefix_cache()
        return json_response(b"{}", request_id)


def server_version() -> str:
    """The version of the installed package, or what stands for it in a plain checkout."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return UNINSTALLED


def _status(request_id: str, reason: str) -> web.StreamResponse:
    body: dict[str, Any] = {"status": "unavailable", "reason": reason} if reason else {"status": "ok"}
    return json_response(msgspec.json.encode(body), request_id, status=503 if reason else 200)
