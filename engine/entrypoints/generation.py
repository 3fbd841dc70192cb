"""One handler for the three protocols, from the headers of a request to the last byte of its answer.

    admit ─► read body ─► prepare ─► images ─► compile ─► submit ─► infer ─► deliver     phases of the lifeline

Whatever ends a generation — the last token, a stop string, a failure, a time limit, a client that left — the backend
stream is closed to its end, then the processor, then the permit is given back.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from multidict import istr

from engine.backend import Backend, ConstraintHandle, EngineError, EngineRequest
from engine.core.sampling_params import SamplingParams
from engine.entrypoints.admission import Admission, Permit
from engine.entrypoints.auth import ApiKey
from engine.entrypoints.choices import Choices, choice_requests
from engine.entrypoints.cleanup import run_to_completion
from engine.entrypoints.errors import ApiError, as_api_error
from engine.entrypoints.http_request import HttpRequest
from engine.entrypoints.http_server import read_body
from engine.entrypoints.ids import new_seed
from engine.entrypoints.image_stage import ImageStage
from engine.entrypoints.lifeline import Clock, Lifeline, Phase
from engine.entrypoints.preparation import PreparationPool
from engine.entrypoints.prepare_stage import PrepareStage
from engine.entrypoints.protocols import StreamSoFar, WireProtocol
from engine.entrypoints.sinks import Sink, SseSink, WholeSink
from engine.entrypoints.telemetry import RequestTrace, Telemetry
from recipe.encoding.tokenizer import Tokenizer
from recipe.image import ImageInfo
from recipe.prepare import PreparedRequest, RejectedRequest
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceChunk
from recipe.stream.processor import StreamProcessor

_PREPARE, _QUEUE, _PREFILL = Phase.PREPARE, Phase.QUEUE, Phase.PREFILL
_DECODE, _GENERATE = Phase.DECODE, Phase.GENERATE
_X_TIMINGS = istr("x-timings")
_YES = frozenset({"1", "true", "on", "yes"})


@dataclass(slots=True)
class Exchange:
    """One request and its answer, as far as they have come."""

    request: HttpRequest
    protocol: WireProtocol
    response_id: str
    trace: RequestTrace
    lifeline: Lifeline
    permit: Permit | None = None
    sink: Sink | None = None


class GenerationHandler:
    """Serves a protocol's generating route. Holds no state of its own between requests."""

    def __init__(
        self,
        backend: Backend,
        pool: PreparationPool,
        preparation: PrepareStage,
        tokenizer: Tokenizer | None,
        admission: Admission,
        clock: Clock,
        telemetry: Telemetry,
        *,
        max_body_bytes: int,
        default_seed: int | None,
        isolates_keys: bool = False,
        images: ImageStage,
    ) -> None:
        self._backend = backend
        self._pool = pool
        self._preparation = preparation
        self._tokenizer = tokenizer
        self._admission = admission
        self._clock = clock
        self._telemetry = telemetry
        self._max_body_bytes = max_body_bytes
        self._default_seed = default_seed
        self._isolates_keys = isolates_keys
        self._images = images

    def route(self, protocol: WireProtocol) -> Callable[[HttpRequest, str], Any]:
        """The HTTP handler of `protocol`."""

        async def handle(request: HttpRequest, request_id: str) -> web.StreamResponse:
            key = None if request.key is None else request.key.name
            lifeline = Lifeline(self._clock)
            trace = RequestTrace(request_id, protocol.name, key, lifeline)
            trace.shows_timings = request.headers.get(_X_TIMINGS, "").lower() in _YES
            return await self._serve(Exchange(request, protocol, protocol.new_id(), trace, lifeline))

        return handle

    async def _serve(self, exchange: Exchange) -> web.StreamResponse:
        """Run the exchange, and account for it however it ends."""
        trace = exchange.trace
        self._telemetry.begin(trace)
        try:
            with self._admission.admit(exchange.request.key) as exchange.permit, exchange.lifeline:
                return await self._run(exchange, exchange.permit)
        except (asyncio.CancelledError, ConnectionError):
            trace.status, trace.outcome = 499, "disconnected"
            raise
        except Exception as error:
            told = as_api_error(error, trace.request_id)
            trace.status, trace.outcome = told.status, told.word
            if exchange.sink is None or not exchange.sink.started:
                raise told from error
            return exchange.sink.fail(told)
        finally:
            self._telemetry.finish(trace)

    async def _run(self, exchange: Exchange, permit: Permit) -> web.StreamResponse:
        """The pipeline of one request."""
        lifeline = exchange.lifeline
        body = await self._read_body(exchange)
        prepared = await self._prepare(exchange, body)
        images = await self._resolve_images(exchange, prepared) if prepared.image_sources else ()
        wanted = prepared.inference_options.output_constraint
        constraint = None if wanted is None else await self._compile(exchange, wanted)
        engine_request = self._engine_request(exchange, prepared, constraint)
        engine_request.images = images
        exchange.sink = self._sink(exchange, prepared)
        number = prepared.inference_options.n
        permit.submit(len(engine_request.prompt_token_ids) * number)
        lifeline.enter(_QUEUE)
        if number > 1:
            return await self._generate_choices(exchange, prepared, choice_requests(engine_request, number))
        return await self._generate(exchange, prepared, engine_request, exchange.sink)

    async def _read_body(self, exchange: Exchange) -> bytes:
        body = await read_body(exchange.request, self._max_body_bytes)
        if self._telemetry.log_bodies:
            exchange.trace.body = body
        exchange.lifeline.enter(_PREPARE)
        return body

    async def _prepare(self, exchange: Exchange, body: bytes) -> PreparedRequest:
        prepared = await self._preparation.prepare(exchange.protocol.name, body, exchange.response_id)
        if isinstance(prepared, RejectedRequest):
            raise ApiError(prepared.status, prepared.message)
        texts = self._telemetry.metrics.prompt_texts
        texts["hit"] += prepared.known_texts
        texts["miss"] += prepared.new_texts
        exchange.trace.stream = prepared.stream
        return prepared

    async def _resolve_images(self, exchange: Exchange, prepared: PreparedRequest) -> Sequence[ImageInfo]:
        """The images of the prompt; `prepared` gets the `max_tokens` that they leave."""
        exchange.lifeline.enter(Phase.IMAGES)
        resolved = await self._images.resolve(prepared)
        prepared.max_tokens = resolved.max_tokens
        return resolved.images

    async def _compile(self, exchange: Exchange, constraint: OutputConstraint) -> ConstraintHandle:
        exchange.lifeline.enter(Phase.COMPILE)
        return await self._backend.compile(constraint)

    def _engine_request(
        self, exchange: Exchange, prepared: PreparedRequest, constraint: ConstraintHandle | None
    ) -> EngineRequest:
        key, deadline = exchange.request.key, exchange.lifeline.deadline
        options = prepared.inference_options
        return EngineRequest(
            request_id=exchange.trace.request_id,
            prompt_token_ids=array("I", prepared.token_ids),
            sampling_params=sampling_params(prepared, self._default_seed),
            constraint=constraint,
            stream=prepared.stream or bool(prepared.parsing_options.stop_sequences),  # to be told of a stop at once
            priority=options.priority if key is None else max(key.priority, options.priority),
            deadline=None if deadline == float("inf") else deadline,
            cache_salt=cache_salt(options.cache_salt, key if self._isolates_keys else None),
        )

    @staticmethod
    def _sink(exchange: Exchange, prepared: PreparedRequest) -> Sink:
        identity = (exchange.response_id, prepared.model, int(time.time()))
        if not prepared.stream:
            return WholeSink(exchange.protocol, exchange.trace, identity)
        so_far = StreamSoFar(exchange.trace.request_id, *identity)
        return SseSink(exchange.request, exchange.protocol, exchange.trace, so_far)

    async def _generate(
        self, exchange: Exchange, prepared: PreparedRequest, engine_request: EngineRequest, sink: Sink
    ) -> web.StreamResponse:
        """Run one generation into `sink`; its cleanup is awaited to the end even when cancelled twice."""
        processor: StreamProcessor[Any] = StreamProcessor(prepared.generator, prepared.parsing_options, self._tokenizer)
        chunks = self._backend.infer(engine_request)
        is_exhausted = False
        try:
            async for chunk in chunks:
                self._note(exchange, chunk)
                if chunk.finish_reason is not None and chunk.prompt_usage is not None:  # known better by now
                    exchange.trace.cached_tokens = chunk.prompt_usage.prompt_cache_hit_tokens
                sink.push(processor.push(chunk), chunk.prompt_usage)
                if chunk.finish_reason is None and processor.finished:
                    break  # a stop string: the engine would go on
                if sink.is_congested:
                    await self._wait_for_reader(exchange, sink)
            else:
                is_exhausted = True
            if not processor.finished:
                raise EngineError("the engine's stream ended without a finish")
            exchange.trace.outcome = "ok"
            return sink.finish()
        finally:
            if is_exhausted:
                processor.close()
            else:
                await run_to_completion(self._clean_up(chunks, processor))

    @staticmethod
    async def _wait_for_reader(exchange: Exchange, sink: Sink) -> None:
        exchange.lifeline.enter(Phase.SEND)
        await sink.drain()
        exchange.lifeline.enter(Phase.DECODE)

    async def _generate_choices(
        self, exchange: Exchange, prepared: PreparedRequest, requests: list[EngineRequest]
    ) -> web.StreamResponse:
        """Run several generations of one prompt."""
        generators = prepared.generator.fan_out(len(requests))
        processors = [StreamProcessor(each, prepared.parsing_options, self._tokenizer) for each in generators]
        return await self._generate_together(exchange, processors, requests, len(requests))

    async def _generate_together(
        self,
        exchange: Exchange,
        processors: Sequence[StreamProcessor[Any]],
        requests: Sequence[EngineRequest],
        num_choices: int,
    ) -> web.StreamResponse:
        """Run several generations into one sink; `num_choices` in a row have the same prompt."""
        sink = exchange.sink
        if sink is None:
            raise EngineError("there is nowhere to deliver to")
        async with Choices(self._backend, requests) as choices:
            async for index, chunk in choices:
                self._note(exchange, chunk)
                if index and index % num_choices == 0:
                    self._note_prompt(exchange, chunk)
                sink.push(processors[index].push(chunk), None)
                if processors[index].finished and chunk.finish_reason is None:
                    choices.stop(index)
                if sink.is_congested:
                    await self._wait_for_reader(exchange, sink)
        if not all(processor.finished for processor in processors):
            raise EngineError("the engine's stream ended without a finish")
        exchange.trace.outcome = "ok"
        return sink.finish()

    def _note(self, exchange: Exchange, chunk: InferenceChunk) -> None:
        """Take a chunk into the accounts: phase, times, tokens."""
        trace, lifeline = exchange.trace, exchange.lifeline
        number = chunk.token_count or len(chunk.token_ids or ())
        if number:
            trace.completion_tokens += number
            gap_s = lifeline.enter(_DECODE if trace.stream else _GENERATE)
            if lifeline.first_token_at is None:
                lifeline.first_token_at = lifeline.since
                self._telemetry.metrics.first_token.observe(lifeline.since - lifeline.opened_at)
            elif trace.stream:
                self._telemetry.metrics.inter_token.observe(gap_s)
        elif chunk.prompt_usage is not None and lifeline.phase is _QUEUE and exchange.permit is not None:
            exchange.permit.start()
            lifeline.enter(_PREFILL)
            self._note_prompt(exchange, chunk)

    @staticmethod
    def _note_prompt(exchange: Exchange, chunk: InferenceChunk) -> None:
        """Count the prompt that a ready chunk tells of."""
        if chunk.kind == "ready" and chunk.prompt_usage is not None:
            exchange.trace.prompt_tokens += chunk.prompt_usage.prompt_tokens
            exchange.trace.cached_tokens += chunk.prompt_usage.prompt_cache_hit_tokens

    @staticmethod
    async def _clean_up(chunks: Any, processor: StreamProcessor[Any]) -> None:
        try:
            await chunks.aclose()
        finally:
            processor.close()


def cache_salt(asked: str, key: ApiKey | None) -> bytes:
    """What separates prefix caches: what the request asks for, and its API key where keys are kept apart."""
    return asked.encode() if key is None else f"{key.name}\0{asked}".encode()


def sampling_params(prepared: PreparedRequest, default_seed: int | None) -> SamplingParams:
    """The engine's settings for a prepared request; an unspecified seed is the server's, else drawn."""
    options = prepared.inference_options
    seed = options.seed if options.seed is not None else default_seed
    return SamplingParams(
        max_tokens=prepared.resolved_max_tokens,
        temperature=1.0 if options.temperature is None else options.temperature,
        top_p=1.0 if options.top_p is None else options.top_p,
        seed=new_seed() if seed is None else seed,
        logprobs=(options.top_logprobs or 0) if options.logprobs else None,
        top_k=options.top_k,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=options.logit_bias,
        min_tokens=options.min_tokens,
        bad_words_token_ids=options.bad_words_token_ids,
        stop_token_ids=options.stop_token_ids,
        ignore_eos=options.ignore_eos,
    )
