"""POST /inference/v1/generate: token IDs in, token IDs out, for fronts that have this server as their engine.

The pipeline is that of the other generating routes, without preparation and without a parser.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from engine.backend import EngineError, EngineRequest
from engine.entrypoints.admission import Permit
from engine.entrypoints.cleanup import run_to_completion
from engine.entrypoints.errors import ApiError
from engine.entrypoints.generation import Exchange, GenerationHandler, cache_salt
from engine.entrypoints.ids import new_seed
from engine.entrypoints.lifeline import Phase
from engine.entrypoints.protocols import StreamSoFar
from engine.entrypoints.sinks import Sink, SseSink, WholeSink
from engine.entrypoints.token_request import TokenRequest, parse_token_request
from engine.entrypoints.token_response import TokenEvents


class TokenHandler(GenerationHandler):
    """Serves tokens with what `GenerationHandler` has. `names` are those of the model."""

    def __init__(self, *, names: Sequence[str], **shared: Any) -> None:
        super().__init__(**shared)
        self._names = names

    async def _run(self, exchange: Exchange, permit: Permit) -> web.StreamResponse:
        trace, lifeline = exchange.trace, exchange.lifeline
        asked = parse_token_request(await self._read_body(exchange))
        if asked.model is not None and asked.model not in self._names:
            raise ApiError(404, f"there is no model {asked.model[:100]!r} here", code="model_not_found")
        trace.stream = bool(asked.stream)
        engine_request = await self._token_request(exchange, asked)
        exchange.sink = sink = self._token_sink(exchange, asked)
        permit.submit(len(asked.token_ids))
        lifeline.enter(Phase.QUEUE)
        return await self._generate_tokens(exchange, asked, engine_request, sink)

    async def _token_request(self, exchange: Exchange, asked: TokenRequest) -> EngineRequest:
        key, deadline, sampling = exchange.request.key, exchange.lifeline.deadline, asked.sampling_params
        params = sampling.params(new_seed() if self._default_seed is None else self._default_seed)
        constraint = sampling.constraint()
        if constraint is not None:
            exchange.lifeline.enter(Phase.COMPILE)
        return EngineRequest(
            request_id=exchange.trace.request_id,
            prompt_token_ids=array("I", asked.token_ids),
            sampling_params=params,
            constraint=None if constraint is None else await self._backend.compile(constraint),
            stream=exchange.trace.stream,
            priority=asked.priority if key is None else max(key.priority, asked.priority),
            deadline=None if deadline == float("inf") else deadline,
            cache_salt=cache_salt(asked.cache_salt or "", key if self._isolates_keys else None),
        )

    def _token_sink(self, exchange: Exchange, asked: TokenRequest) -> Sink:
        identity = (asked.request_id or exchange.response_id, self._names[0], int(time.time()))
        if not asked.stream:
            return WholeSink(exchange.protocol, exchange.trace, identity)
        so_far = StreamSoFar(exchange.trace.request_id, *identity)
        return SseSink(exchange.request, exchange.protocol, exchange.trace, so_far)

    async def _generate_tokens(
        self, exchange: Exchange, asked: TokenRequest, engine_request: EngineRequest, sink: Sink
    ) -> web.StreamResponse:
        events = TokenEvents(asked.request_id or exchange.response_id, asked.wants_usage or not asked.stream)
        chunks = self._backend.infer(engine_request)
        try:
            async for chunk in chunks:
                self._note(exchange, chunk)
                sink.push(events.of(chunk), chunk.prompt_usage if chunk.kind == "ready" else None)
                if sink.is_congested:
                    await self._wait_for_reader(exchange, sink)
        finally:
            await run_to_completion(chunks.aclose())
        if not events.has_finished:
            raise EngineError("the engine's stream ended without a finish")
        exchange.trace.outcome = "ok"
        return sink.finish()
