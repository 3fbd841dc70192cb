"""From options to a listening server and back: start-up phases, signals, shutdown.

Start-up overlaps what can overlap: the workers load their tokenizer while the engine thread imports torch and loads
weights. Each phase says on one line what it did and how long it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from aiohttp import web

from engine.backend import Backend
from engine.config import ConfigError
from engine.entrypoints.count_routes import CountRoutes
from engine.entrypoints.errors import anthropic_envelope
from engine.entrypoints.generation import GenerationHandler
from engine.entrypoints.http_server import HttpServer, Route, RouteTable
from engine.entrypoints.model_routes import ModelRoutes, ServedModel
from engine.entrypoints.options import OptionError, ServerOptions
from engine.entrypoints.preparation import PreparationPool, WorkerDiedError
from engine.entrypoints.protocols import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from engine.entrypoints.served_model import prepare_config, served_names
from engine.runner.weights.model_files import ModelFiles, ModelLoadError, open_model
from recipe import prepare as preparation_worker
from recipe.encoding.tokenizer import Tokenizer

logger = logging.getLogger("server")


class StartupError(Exception):
    """The server cannot start; the message is one line that says what to do."""


class Phases:
    """Prints one line a start-up phase."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.say(f"{name}: {time.perf_counter() - started:.2f} s")

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    @property
    def total_s(self) -> float:
        return time.perf_counter() - self._started


@dataclass(slots=True)
class Server:
    """A server that is up: where it listens, and what it stands on."""

    address: str
    backend: Backend
    pool: PreparationPool
    runner: web.ServerRunner


@contextlib.asynccontextmanager
async def create_server(options: ServerOptions) -> AsyncIterator[Server]:
    """Run the whole server inside the current event loop for as long as the context is open.

    May be entered many times in one process. Raises `StartupError`, `ConfigError` or `ModelLoadError`.
    """
    phases = Phases()
    async with contextlib.AsyncExitStack() as stack:
        with phases.phase("model files"):
            files = open_model(options.model, chat_template_file=options.chat_template, revision=options.revision)
        max_model_len = min(options.max_model_len or files.max_model_len, files.max_model_len)
        config = prepare_config(options, files, max_model_len)
        pool = PreparationPool(
            options.workers or default_workers(),
            preparation_worker.initialize,
            (config,),
            options.prepare_timeout_s,
        )
        stack.push_async_callback(pool.aclose)
        backend = await _start_backend(stack, options, files, max_model_len, phases)
        tokenizer = await asyncio.to_thread(Tokenizer.from_str, files.tokenizer_json)
        with phases.phase(f"workers ({options.workers or default_workers()})"):
            await pool.ready()
        http = _http_server(options, files, backend, pool, tokenizer, max_model_len)
        runner = web.ServerRunner(http.server())
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        address = await _listen(runner, options)
        phases.say(
            f"ready after {phases.total_s:.2f} s: serving {', '.join(served_names(options, files))} on {address}"
        )
        yield Server(address, backend, pool, runner)


def default_workers() -> int:
    """Half the cores, at least 1 and at most 4."""
    return max(1, min(4, (os.cpu_count() or 2) // 2))


async def _start_backend(
    stack: contextlib.AsyncExitStack, options: ServerOptions, files: ModelFiles, max_model_len: int, phases: Phases
) -> Backend:
    """Start what computes tokens; `stack` closes it."""
    if options.backend == "mock":
        from engine.backends.mock import MockBackend

        mock = MockBackend(tokens=options.mock_tokens, rate=options.mock_rate, script=options.mock_script)
        stack.push_async_callback(mock.aclose)
        return mock
    from engine.backends.local import LocalBackend
    from engine.entrypoints.assembly import engine_config, make_compiler, make_core

    config = engine_config(options, max_model_len)
    local = LocalBackend.start(lambda: make_core(files, config, phases.say), system_fingerprint=files.fingerprint)
    stack.push_async_callback(local.aclose)
    compiler = make_compiler(files, await local.started())
    stack.callback(compiler.close)
    local.compiler = compiler
    return local


def _http_server(
    options: ServerOptions,
    files: ModelFiles,
    backend: Backend,
    pool: PreparationPool,
    tokenizer: Tokenizer,
    max_model_len: int,
) -> HttpServer:
    max_body_bytes = options.max_body_mib << 20
    created = int(time.time())
    models = ModelRoutes([ServedModel(name, created, max_model_len) for name in served_names(options, files)], backend)
    generation = GenerationHandler(
        backend,
        pool,
        tokenizer,
        max_body_bytes=max_body_bytes,
        body_timeout_s=options.body_timeout_s,
        default_seed=options.seed,
    )
    counting = CountRoutes(pool, max_body_bytes=max_body_bytes, body_timeout_s=options.body_timeout_s)
    routes = {
        ("GET", "/health"): Route(models.health),
        ("GET", "/v1/models"): Route(models.list_models),
        ("GET", "/v1/models/*"): Route(models.show_model),
        ("POST", "/v1/chat/completions"): Route(generation.route(CHAT_COMPLETIONS)),
        ("POST", "/v1/responses"): Route(generation.route(RESPONSES)),
        ("POST", "/v1/messages"): Route(generation.route(MESSAGES), anthropic_envelope),
        ("POST", "/v1/messages/count_tokens"): Route(counting.messages, anthropic_envelope),
    }
    return HttpServer(RouteTable(routes), max_body_bytes=max_body_bytes)


async def _listen(runner: web.ServerRunner, options: ServerOptions) -> str:
    try:
        if options.uds is not None:
            await web.UnixSite(runner, options.uds).start()
            return f"unix:{options.uds}"
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        where = options.uds or f"{options.host}:{options.port}"
        raise StartupError(f"cannot listen on {where}: {error.strerror or error}; choose another --port") from None
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


async def serve(options: ServerOptions) -> int:
    """Serve until SIGINT or SIGTERM; returns the process's exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with create_server(options):
        await stop.wait()
    return 0


def run(options: ServerOptions) -> int:
    """Run the program; a failure to start is one line and exit code 2."""
    import uvloop

    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return uvloop.run(serve(options))
    except (StartupError, ConfigError, ModelLoadError, OptionError, WorkerDiedError) as error:
        print(f"server.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
