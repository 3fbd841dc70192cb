"""Looking at prompts without running them: tokens of a text or of a request, and text of tokens. The workers answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from engine.entrypoints.affinity import affinity_of
from engine.entrypoints.errors import ApiError
from engine.entrypoints.http_server import json_response, read_body
from engine.entrypoints.preparation import PreparationPool
from recipe.inspection import detokenize, tokenize
from recipe.prepare import RejectedRequest


class PromptRoutes:
    """POST /tokenize and /detokenize. `model` is the name of requests that give none."""

    def __init__(self, pool: PreparationPool, model: str, *, max_body_bytes: int, body_timeout_s: float) -> None:
        self._pool = pool
        self._model = model
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def tokenize(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        protocol = "messages" if "anthropic-version" in request.headers else None
        return await self._answer(request, request_id, tokenize, protocol, self._model)

    async def detokenize(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        return await self._answer(request, request_id, detokenize)

    async def _answer(
        self, request: web.BaseRequest, request_id: str, function: Callable[..., Any], *args: Any
    ) -> web.StreamResponse:
        body = await read_body(request, self._max_body_bytes, self._body_timeout_s)
        answer: bytes | RejectedRequest = await self._pool.run(function, body, *args, affinity=affinity_of(body))
        if isinstance(answer, RejectedRequest):
            raise ApiError(answer.status, answer.message)
        return json_response(answer, request_id)
