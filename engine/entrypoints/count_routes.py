"""Counting a prompt's tokens without running it. Never waits behind generation: the workers answer."""

from __future__ import annotations

import msgspec
from aiohttp import web

from engine.entrypoints.affinity import affinity_of
from engine.entrypoints.errors import ApiError
from engine.entrypoints.http_server import json_response, read_body
from engine.entrypoints.image_stage import ImageStage
from engine.entrypoints.lifeline import Clock
from engine.entrypoints.preparation import PreparationPool
from recipe.prepare import CountedPrompt, RejectedRequest, count_tokens


class CountRoutes:
    """POST /v1/messages/count_tokens."""

    def __init__(
        self, pool: PreparationPool, images: ImageStage, clock: Clock, *, max_body_bytes: int, body_timeout_s: float
    ) -> None:
        self._pool = pool
        self._images = images
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def messages(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        body = await read_body(request, self._max_body_bytes, self._body_timeout_s)
        counted: CountedPrompt | RejectedRequest = await self._pool.run(
            count_tokens, "messages", body, affinity=affinity_of(body)
        )
        if isinstance(counted, RejectedRequest):
            raise ApiError(counted.status, counted.message)
        num_tokens = counted.num_tokens + await self._images.count(counted.image_sources, self._clock)
        return json_response(msgspec.json.encode({"input_tokens": num_tokens}), request_id)
