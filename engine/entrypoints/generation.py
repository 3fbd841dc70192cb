"""One handler for the three protocols: body → prepared request → engine → events → frames or one whole body.

A generation has one owner, `Generator.run`: whatever ends it — the last token, a stop string, a failure, a client
that left — the backend stream is closed to its end, then the processor.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Callable
from typing import Any

from aiohttp import web

from engine.backend import Backend, EngineError, EngineRequest
from engine.core.sampling_params import SamplingParams
from engine.entrypoints.cleanup import run_to_completion
from engine.entrypoints.errors import ApiError, as_api_error
from engine.entrypoints.http_server import read_body
from engine.entrypoints.preparation import PreparationPool, PreparationTimeoutError
from engine.entrypoints.protocols import WireProtocol
from engine.entrypoints.sinks import Sink, SseSink, WholeSink
from recipe.encoding.tokenizer import Tokenizer
from recipe.prepare import PreparedRequest, RejectedRequest, prepare
from recipe.stream.processor import StreamProcessor


class GenerationHandler:
    """Serves a protocol's generating route. Holds no state of its own between requests."""

    def __init__(
        self,
        backend: Backend,
        pool: PreparationPool,
        tokenizer: Tokenizer | None,
        *,
        max_body_bytes: int,
        body_timeout_s: float,
        default_seed: int | None,
    ) -> None:
        self._backend = backend
        self._pool = pool
        self._tokenizer = tokenizer
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._default_seed = default_seed

    def route(self, protocol: WireProtocol) -> Callable[[web.BaseRequest, str], Any]:
        """The HTTP handler of `protocol`."""

        async def handle(request: web.BaseRequest, request_id: str) -> web.StreamResponse:
            return await self._serve(request, request_id, protocol)

        return handle

    async def _serve(self, request: web.BaseRequest, request_id: str, protocol: WireProtocol) -> web.StreamResponse:
        body = await read_body(request, self._max_body_bytes, self._body_timeout_s)
        response_id = protocol.new_id()
        prepared = await self._prepare(protocol, body, response_id)
        engine_request = await self._engine_request(prepared, request_id)
        if not prepared.stream:
            whole = WholeSink(protocol, response_id, prepared.model, int(time.time()), request_id)
            return await self._generate(prepared, engine_request, whole)
        sink = SseSink(request, protocol, request_id)
        try:
            return await self._generate(prepared, engine_request, sink)
        except ConnectionError:
            raise
        except Exception as error:
            if not sink.started:
                raise
            return await sink.abort(protocol.error_frame(as_api_error(error, request_id), request_id))

    async def _prepare(self, protocol: WireProtocol, body: bytes, response_id: str) -> PreparedRequest:
        try:
            prepared: PreparedRequest | RejectedRequest = await self._pool.run(
                prepare, protocol.name, body, response_id
            )
        except PreparationTimeoutError as error:
            raise ApiError(503, str(error), code="preparation_timeout", retry_after_s=1) from None
        if isinstance(prepared, RejectedRequest):
            raise ApiError(prepared.status, prepared.message)
        return prepared

    async def _engine_request(self, prepared: PreparedRequest, request_id: str) -> EngineRequest:
        constraint = prepared.inference_options.output_constraint
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=array("I", prepared.token_ids),
            sampling_params=sampling_params(prepared, self._default_seed),
            constraint=None if constraint is None else await self._backend.compile(constraint),
            stream=prepared.stream,
        )

    async def _generate(
        self, prepared: PreparedRequest, engine_request: EngineRequest, sink: Sink
    ) -> web.StreamResponse:
        """Run one generation into `sink`; its cleanup is awaited to the end even when cancelled twice."""
        processor: StreamProcessor[Any] = StreamProcessor(prepared.generator, prepared.parsing_options, self._tokenizer)
        chunks = self._backend.infer(engine_request)
        try:
            async for chunk in chunks:
                await sink.push(processor.push(chunk), chunk.prompt_usage)
                if processor.finished:
                    return await sink.finish()
            raise EngineError("the engine's stream ended without a finish")
        finally:
            await run_to_completion(self._clean_up(chunks, processor))

    @staticmethod
    async def _clean_up(chunks: Any, processor: StreamProcessor[Any]) -> None:
        try:
            await chunks.aclose()
        finally:
            processor.close()


def sampling_params(prepared: PreparedRequest, default_seed: int | None) -> SamplingParams:
    """The engine's settings for a prepared request; an unspecified seed is the server's, else drawn."""
    options = prepared.inference_options
    seed = options.seed if options.seed is not None else default_seed
    return SamplingParams(
        max_tokens=prepared.max_tokens,
        temperature=1.0 if options.temperature is None else options.temperature,
        top_p=1.0 if options.top_p is None else options.top_p,
        seed=secrets.randbits(63) if seed is None else seed,
        logprobs=(options.top_logprobs or 0) if options.logprobs else None,
    )
