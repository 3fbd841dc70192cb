"""From options to a listening server and back: start-up phases, signals, shutdown.

Start-up overlaps what can overlap: the workers load their tokenizer while the engine thread imports torch and loads
weights. Each phase says on one line what it did and how long it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from aiohttp import web

from engine.backend import Backend
from engine.config import ConfigError
from engine.entrypoints.assembly import engine_config, make_compiler, make_core, open_files
from engine.entrypoints.fingerprint import system_fingerprint
from engine.entrypoints.listening import check_address, listen, stop_listening
from engine.entrypoints.options import REMOTE_KINDS, OptionError, ServerOptions
from engine.entrypoints.preparation import PreparationPool, WorkerDiedError
from engine.entrypoints.prepare_stage import preparers_ready
from engine.entrypoints.routes import Desk, Served, make_http_server
from engine.entrypoints.served_model import prepare_config, served_names
from engine.entrypoints.shutdown import CLOSE_LIMIT_S, StopSignals, drain, end_for_certain
from engine.entrypoints.statistics import log_statistics
from engine.entrypoints.systemd import notify
from engine.entrypoints.telemetry import ObservableBackend, set_up_logging
from engine.entrypoints.tls import server_context
from engine.runner.weights.model_files import ModelFiles, ModelLoadError
from recipe import prepare as preparation_worker
from recipe.encoding.tokenizer import Tokenizer

logger = logging.getLogger("server")


CLOSE_TIMEOUT_S = 2.0
"""How long a connection may take to close, once its requests were drained."""


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
    desk: Desk
    runner: web.ServerRunner


@contextlib.asynccontextmanager
async def create_server(options: ServerOptions, signals: StopSignals | None = None) -> AsyncIterator[Server]:
    """Run the whole server inside the current event loop for as long as the context is open.

    May be entered many times in one process. `signals` hears of an engine's death, and can hurry the drain at the end.
    Raises `OptionError`, `ConfigError`, `ModelLoadError` or `WorkerDiedError`, each of them saying what to do.
    """
    phases = Phases()
    signals = signals or StopSignals()
    context = server_context(options)
    check_address(options)
    async with contextlib.AsyncExitStack() as stack:
        with phases.phase("model files"):
            files = open_files(options)
        max_model_len = min(options.max_model_len or files.max_model_len, files.max_model_len)
        config = prepare_config(options, files, max_model_len)
        pool = PreparationPool(
            options.workers or default_workers(),
            preparation_worker.initialize,
            (config,),
            options.prepare_timeout_s,
        )
        stack.push_async_callback(pool.aclose)
        backend = await _start_backend(stack, options, files, max_model_len, phases, signals)
        tokenizer = await asyncio.to_thread(Tokenizer.from_str, files.tokenizer_json)
        with phases.phase(f"workers ({options.workers or default_workers()})"):
            is_inline = options.inline_preparation_bytes > 0
            preparer = await preparers_ready(pool, config, tokenizer if is_inline else None)
        desk = Desk(options, backend)
        if isinstance(backend, ObservableBackend):
            backend.observer = desk.telemetry.on_record
        served = Served(served_names(options, files), max_model_len, backend, pool, tokenizer, preparer)
        http = make_http_server(options, served, desk)
        runner = web.ServerRunner(http.server(), shutdown_timeout=CLOSE_TIMEOUT_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(drain, desk.admission, desk.clock, signals.hurry, options.drain_seconds)
        address = await listen(runner, options, context)
        stack.push_async_callback(stop_listening, runner)
        phases.say(
            f"ready after {phases.total_s:.2f} s: serving {', '.join(served_names(options, files))} on {address}"
        )
        yield Server(address, backend, pool, desk, runner)


def default_workers() -> int:
    """Half the cores, at least 1 and at most 4."""
    return max(1, min(4, (os.cpu_count() or 2) // 2))


async def _start_backend(
    stack: contextlib.AsyncExitStack,
    options: ServerOptions,
    files: ModelFiles,
    max_model_len: int,
    phases: Phases,
    signals: StopSignals,
) -> Backend:
    """Start what computes tokens; `stack` closes it."""
    if options.backend == "mock":
        from engine.backends.mock import MockBackend

        mock = MockBackend(tokens=options.mock_tokens, rate=options.mock_rate, script=options.mock_script)
        stack.push_async_callback(mock.aclose)
        return mock
    if options.backend in REMOTE_KINDS:
        return await _start_remote(stack, options, files, phases)
    from engine.backends.local import LocalBackend

    config = engine_config(options, max_model_len)
    local = LocalBackend.start(lambda: make_core(files, config, phases.say))
    stack.push_async_callback(local.aclose)
    core = await local.started()
    local.system_fingerprint = system_fingerprint(files.fingerprint, config, core)
    compiler = make_compiler(files, core)
    local.on_death = signals.on_death
    stack.callback(compiler.close)
    local.compiler = compiler
    if not options.disable_log_stats:
        statistics = asyncio.create_task(log_statistics(local.stats, logger.info))
        stack.callback(statistics.cancel)
    return local


async def _start_remote(
    stack: contextlib.AsyncExitStack, options: ServerOptions, files: ModelFiles, phases: Phases
) -> Backend:
    """Look at the engines of a fleet; those that are not up yet are used as soon as they are."""
    from engine.backends.remote import RemoteBackend
    from engine.backends.remote_endpoint import NO_LIMIT_S, RemoteLimits

    limits = RemoteLimits(
        connect_s=options.endpoint_connect_timeout_s,
        first_token_s=options.endpoint_first_token_timeout_s,
        token_gap_s=options.token_gap_timeout_s or NO_LIMIT_S,
        health_interval_s=options.endpoint_health_interval_s,
    )
    remote = RemoteBackend(
        options.endpoints or "", options.backend, files.eos_token_ids, limits=limits, api_key=options.endpoint_api_key
    )
    stack.push_async_callback(remote.aclose)
    with phases.phase("engines"):
        await remote.started()
    for endpoint in remote.fleet.endpoints:
        phases.say(f"engine {endpoint.name}: {endpoint.problem or 'ready'}")
    return remote


async def serve(options: ServerOptions) -> int:
    """Serve until a signal or the engine's death; returns the process's exit code."""
    signals = StopSignals()
    signals.listen()
    async with create_server(options, signals) as server:
        notify("READY=1", f"STATUS=serving on {server.address}")
        gc.freeze()  # a collection that looked at all that start-up made would stop everyone for 0.1 s
        await signals.stop.wait()
        notify("STOPPING=1")
        last_resort = end_for_certain(options.drain_seconds + CLOSE_LIMIT_S, signals.exit_code)
    last_resort.cancel()
    return signals.exit_code


def run(options: ServerOptions) -> int:
    """Run the program; a failure to start is one line and exit code 2."""
    import uvloop

    set_up_logging(options.log_level)
    try:
        return uvloop.run(serve(options))
    except (ConfigError, ModelLoadError, OptionError, WorkerDiedError) as error:
        print(f"server.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
