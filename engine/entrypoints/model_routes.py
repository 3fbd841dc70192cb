"""Which models there are, in the shape of the protocol that asks: Anthropic's version header tells the two apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec
from aiohttp import web

from engine.entrypoints.errors import ApiError
from engine.entrypoints.http_server import json_response

MAX_PAGE = 1000


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

    def anthropic_object(self) -> dict[str, Any]:
        created_at = datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "type": "model",
            "id": self.name,
            "display_name": self.name,
            "created_at": created_at,
            "max_input_tokens": self.max_model_len,
            "max_tokens": self.max_model_len,
        }


class ModelRoutes:
    """GET /v1/models and /v1/models/NAME."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = list(models)

    async def list_models(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        if _asks_for_anthropic(request):
            return json_response(msgspec.json.encode(self._page(request)), request_id)
        data = [model.openai_object() for model in self._models]
        return json_response(msgspec.json.encode({"object": "list", "data": data}), request_id)

    async def show_model(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        name = unquote(request.path.removeprefix("/v1/models/"))
        model = self._models[self._position(name, status=404)]
        shown = model.anthropic_object() if _asks_for_anthropic(request) else model.openai_object()
        return json_response(msgspec.json.encode(shown), request_id)

    def _page(self, request: web.BaseRequest) -> dict[str, Any]:
        """The models behind `after_id` or before `before_id`, `limit` of them at most."""
        query = request.query
        limit = _limit(query.get("limit", "20"))
        if "before_id" in query:
            end = self._position(query["before_id"], status=400)
            begin = max(0, end - limit)
            has_more = begin > 0
        else:
            begin = self._position(query["after_id"], status=400) + 1 if "after_id" in query else 0
            end = min(begin + limit, len(self._models))
            has_more = end < len(self._models)
        data = [model.anthropic_object() for model in self._models[begin:end]]
        first_id, last_id = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return {"data": data, "has_more": has_more, "first_id": first_id, "last_id": last_id}

    def _position(self, name: str, *, status: int) -> int:
        for position, model in enumerate(self._models):
            if model.name == name:
                return position
        raise ApiError(status, f"there is no model {name[:200]!r} here", param="model", code="model_not_found")


def _asks_for_anthropic(request: web.BaseRequest) -> bool:
    return "anthropic-version" in request.headers


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= MAX_PAGE):
        raise ApiError(400, f"limit must be an integer in [1, {MAX_PAGE}]", param="limit")
    return int(text)
