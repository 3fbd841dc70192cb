"""What a client asks before it sends a prompt: which models there are, and whether the server lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from aiohttp import web

from engine.backend import Backend
from engine.entrypoints.errors import ApiError
from engine.entrypoints.http_server import json_response


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One name that clients may use. `created` is in Unix seconds, `max_model_len` in tokens."""

    name: str
    created: int
    max_model_len: int

    def openai_object(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "local",
            "max_model_len": self.max_model_len,
        }


class ModelRoutes:
    """GET /v1/models, /v1/models/NAME and /health."""

    def __init__(self, models: Sequence[ServedModel], backend: Backend) -> None:
        self._models = list(models)
        self._backend = backend

    async def list_models(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        data = [model.openai_object() for model in self._models]
        return json_response(msgspec.json.encode({"object": "list", "data": data}), request_id)

    async def show_model(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        name = unquote(request.path.removeprefix("/v1/models/"))
        for model in self._models:
            if model.name == name:
                return json_response(msgspec.json.encode(model.openai_object()), request_id)
        raise ApiError(404, f"there is no model {name[:200]!r} here", param="model", code="model_not_found")

    async def health(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        health = self._backend.health()
        body = {"status": "ok"} if health.ok else {"status": "unavailable", "reason": health.reason}
        return json_response(msgspec.json.encode(body), request_id, status=200 if health.ok else 503)
