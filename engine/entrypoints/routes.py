"""The route table, and what its handlers share: who is admitted, how long things may take, what is counted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from engine.backend import Backend
from engine.entrypoints.admission import Admission, AdmissionLimits
from engine.entrypoints.auth import load_keys
from engine.entrypoints.completions import CompletionHandler
from engine.entrypoints.connection import ConnectionLimits
from engine.entrypoints.cors import Cors
from engine.entrypoints.count_routes import CountRoutes
from engine.entrypoints.errors import anthropic_envelope
from engine.entrypoints.generation import GenerationHandler
from engine.entrypoints.http_request import HttpRequest
from engine.entrypoints.http_server import HttpServer, Route, RouteTable
from engine.entrypoints.image_stage import ImageStage, image_policy
from engine.entrypoints.lifeline import Clock, Phase, TimeLimits
from engine.entrypoints.metrics import CONTENT_TYPE, Metrics
from engine.entrypoints.model_routes import ModelRoutes, ServedModel
from engine.entrypoints.operation_routes import OperationRoutes
from engine.entrypoints.options import ServerOptions
from engine.entrypoints.page_route import PageRoute
from engine.entrypoints.preparation import PreparationPool
from engine.entrypoints.prepare_stage import PrepareStage, has_cpu_for_workers
from engine.entrypoints.prompt_routes import PromptRoutes
from engine.entrypoints.protocols import CHAT_COMPLETIONS, COMPLETIONS, MESSAGES, RESPONSES
from engine.entrypoints.telemetry import Telemetry
from engine.entrypoints.token_generation import TokenHandler
from engine.entrypoints.token_response import TOKENS
from recipe.encoding.tokenizer import Tokenizer
from recipe.prepare import Preparer


@dataclass(slots=True)
class Served:
    """What is served: the model's names and longest sequence in tokens, and what does the work.

    Without a `preparer` the pool prepares small bodies as well.
    """

    names: list[str]
    max_model_len: int
    backend: Backend
    pool: PreparationPool
    tokenizer: Tokenizer
    preparer: Preparer | None = None


class Desk:
    """The state that a server's requests share. Belongs to the event loop."""

    def __init__(self, options: ServerOptions, backend: Backend) -> None:
        self.admission = Admission(admission_limits(options))
        self.clock = Clock(time_limits(options))
        self.telemetry = Telemetry(Metrics(backend, self.admission), log_bodies=options.log_bodies)

    async def metrics(self, request: HttpRequest, request_id: str) -> web.StreamResponse:
        """GET /metrics."""
        headers = {"Content-Type": CONTENT_TYPE, "x-request-id": request_id}
        return web.Response(body=self.telemetry.metrics.exposition(), headers=headers)


def make_http_server(options: ServerOptions, served: Served, desk: Desk) -> HttpServer:
    """The dispatcher over every route; raises `OptionError` for keys that cannot be read."""
    max_body_bytes = options.max_body_mib << 20
    return HttpServer(
        RouteTable(_routes(options, served, desk, max_body_bytes)),
        max_body_bytes=max_body_bytes,
        keys=load_keys(options.api_key, options.api_keys),
        cors=Cors(options.cors_origin),
        limits=ConnectionLimits(
            options.max_header_kib << 10, options.max_headers, options.headers_timeout_s, options.idle_timeout_s
        ),
    )


def _routes(options: ServerOptions, served: Served, desk: Desk, max_body_bytes: int) -> dict[tuple[str, str], Route]:
    created = int(time.time())
    models = ModelRoutes([ServedModel(name, created, served.max_model_len) for name in served.names])
    operation = OperationRoutes(served.backend, desk.admission)
    images = ImageStage(image_policy(options), served.pool, served.max_model_len)
    generation, completions, tokens = _generating_handlers(options, served, desk, images, max_body_bytes)
    looking = (served.pool, images, desk.clock)
    limits: dict[str, Any] = {"max_body_bytes": max_body_bytes, "body_timeout_s": options.body_timeout_s}
    counting, prompts = CountRoutes(*looking, **limits), PromptRoutes(*looking, served.names[0], **limits)
    page = {("GET", "/"): Route(PageRoute().show, is_public=True)} if options.page else {}
    return page | {
        ("GET", "/health"): Route(operation.health, is_public=True),
        ("GET", "/ready"): Route(operation.ready, is_public=True),
        ("GET", "/version"): Route(operation.show_version),
        ("GET", "/metrics"): Route(desk.metrics),
        ("POST", "/reset_prefix_cache"): Route(operation.reset_prefix_cache),
        ("POST", "/tokenize"): Route(prompts.tokenize),
        ("POST", "/detokenize"): Route(prompts.detokenize),
        ("GET", "/v1/models"): Route(models.list_models),
        ("GET", "/v1/models/*"): Route(models.show_model),
        ("POST", "/inference/v1/generate"): Route(tokens.route(TOKENS)),
        ("POST", "/v1/completions"): Route(completions.route(COMPLETIONS)),
        ("POST", "/v1/chat/completions"): Route(generation.route(CHAT_COMPLETIONS)),
        ("POST", "/v1/responses"): Route(generation.route(RESPONSES)),
        ("POST", "/v1/messages"): Route(generation.route(MESSAGES), anthropic_envelope),
        ("POST", "/v1/messages/count_tokens"): Route(counting.messages, anthropic_envelope),
    }


def _generating_handlers(
    options: ServerOptions, served: Served, desk: Desk, images: ImageStage, max_body_bytes: int
) -> tuple[GenerationHandler, CompletionHandler, TokenHandler]:
    shared: dict[str, Any] = {
        "backend": served.backend,
        "pool": served.pool,
        "preparation": PrepareStage(
            served.pool, served.preparer, options.inline_preparation_bytes, one_a_turn=has_cpu_for_workers()
        ),
        "tokenizer": served.tokenizer,
        "admission": desk.admission,
        "clock": desk.clock,
        "telemetry": desk.telemetry,
        "max_body_bytes": max_body_bytes,
        "default_seed": options.seed,
        "isolates_keys": options.prefix_cache_per_key,
        "images": images,
    }
    return GenerationHandler(**shared), CompletionHandler(**shared), TokenHandler(names=served.names, **shared)


def admission_limits(options: ServerOptions) -> AdmissionLimits:
    return AdmissionLimits(
        options.max_requests,
        options.max_preparing,
        options.max_queued,
        options.max_queued_tokens,
        options.max_requests_per_key,
    )


def time_limits(options: ServerOptions) -> TimeLimits:
    """The pool kills a worker that takes too long; the phase's limit is for those who wait for one."""
    phases = {
        Phase.BODY: options.body_timeout_s,
        Phase.PREPARE: 2 * options.prepare_timeout_s,
        Phase.IMAGES: options.image_timeout_s,
        Phase.COMPILE: options.compile_timeout_s,
        Phase.QUEUE: options.queue_timeout_s,
        Phase.PREFILL: options.first_token_timeout_s,
        Phase.DECODE: options.token_gap_timeout_s,
        Phase.SEND: options.send_timeout_s,
    }
    return TimeLimits(phases, options.request_timeout_s, options.ping_interval_s)
