"""Looking at prompts without running them: tokens of a text or of a request, and text of tokens. The workers answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from engine.entrypoints.affinity import affinity_of
from engine.entrypoints.errors import ApiError
from engine.entrypoints.http_server import json_response, read_body
from engine.entrypoints.image_stage import ImageStage
from engine.entrypoints.lifeline import Clock
from engine.entrypoints.preparation import PreparationPool
from recipe.inspection import UncountedImages, detokenize, tokenize
from recipe.prepare import RejectedRequest


class PromptRoutes:
    """POST /tokenize and /detokenize. `model` is the name of requests that give none."""

    def __init__(
        self,
        pool: PreparationPool,
        images: ImageStage,
        clock: Clock,
        model: str,
        *,
        max_body_bytes: int,
        body_timeout_s: float,
    ) -> None:
        self._pool = pool
        self._images = images
        self._clock = clock
        self._model = model
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def tokenize(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        protocol = "messages" if "anthropic-version" in request.headers else None
        body = await read_body(request, self._max_body_bytes, self._body_timeout_s)
        answer = await self._run(tokenize, body, protocol, self._model)
        if isinstance(answer, UncountedImages):
            image_tokens = await self._images.count(answer.image_sources, self._clock)
            answer = await self._run(tokenize, body, protocol, self._model, image_tokens)
        return json_response(answer, request_id)

    async def detokenize(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        body = await read_body(request, self._max_body_bytes, self._body_timeout_s)
        return json_response(await self._run(detokenize, body), request_id)

    async def _run(self, function: Callable[..., Any], body: bytes, *args: Any) -> Any:
        """What a worker's `function` makes of a body; `ApiError` for one that it rejects."""
        answer = await self._pool.run(function, body, *args, affinity=affinity_of(body))
        if isinstance(answer, RejectedRequest):
            raise ApiError(answer.status, answer.message)
        return answer
