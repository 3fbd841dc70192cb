"""POST /v1/completions: prompts as they are, several at a time, each continued once or more.

The pipeline is that of the other generating routes; a request here is a list of choices, which run together and are
read as one stream. They are admitted as one request.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from engine.backend import EngineRequest
from engine.entrypoints.admission import Permit
from engine.entrypoints.affinity import affinity_of
from engine.entrypoints.choices import choice_requests
from engine.entrypoints.errors import ApiError
from engine.entrypoints.generation import Exchange, GenerationHandler
from engine.entrypoints.lifeline import Phase
from recipe.prepare import PreparedRequest, RejectedRequest
from recipe.prepare_completion import prepare_completion
from recipe.stream.processor import StreamProcessor


class CompletionHandler(GenerationHandler):
    """Serves Completions with what `GenerationHandler` has."""

    async def _run(self, exchange: Exchange, permit: Permit) -> web.StreamResponse:
        body = await self._read_body(exchange)
        prepared = await self._prepare_choices(exchange, body)
        requests = await self._engine_requests(exchange, prepared)
        exchange.sink = self._sink(exchange, prepared[0])
        permit.submit(sum(len(request.prompt_token_ids) for request in requests))
        exchange.lifeline.enter(Phase.QUEUE)
        processors: list[StreamProcessor[Any]] = [
            StreamProcessor(choice.generator, choice.parsing_options, self._tokenizer) for choice in prepared
        ]
        number = prepared[0].inference_options.n
        return await self._generate_together(exchange, processors, requests, number)

    async def _prepare_choices(self, exchange: Exchange, body: bytes) -> list[PreparedRequest]:
        prepared: list[PreparedRequest] | RejectedRequest = await self._pool.run(
            prepare_completion, body, exchange.response_id, affinity=affinity_of(body)
        )
        if isinstance(prepared, RejectedRequest):
            raise ApiError(prepared.status, prepared.message)
        exchange.trace.stream = prepared[0].stream
        return prepared

    async def _engine_requests(self, exchange: Exchange, prepared: list[PreparedRequest]) -> list[EngineRequest]:
        """One request a choice, each with an ID of its own, and with a seed of its own among those of one prompt."""
        wanted = prepared[0].inference_options.output_constraint
        constraint = None if wanted is None else await self._compile(exchange, wanted)
        number = prepared[0].inference_options.n
        requests = []
        for index in range(0, len(prepared), number):
            request = self._engine_request(exchange, prepared[index], constraint)
            if index:
                request.request_id += f".{index // number}"
            requests += choice_requests(request, number)
        return requests
