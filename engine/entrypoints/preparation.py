"""Preparation in worker processes, each on its own with at most one batch of calls in flight.

A pool that shares its queue breaks as a whole when one process dies; so every worker has a connection of its own, and
the queue is ours. Calls go to the worker their affinity names while it is not busier than the rest, so that
it finds what it kept of the last turn. Calls waiting for one worker travel together in one round trip. A worker that
dies or is overdue is killed and replaced alone: its call fails, and calls that merely travelled along are run again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.entrypoints.worker_process import WorkerProcess
from recipe.prepare import CallOutcome

logger = logging.getLogger(__name__)

MAX_BATCH = 16
"""Calls in one round trip to a worker, at most."""

MAX_BATCH_BYTES = 1 << 15
"""Bytes of arguments in one round trip of several calls: those in it wait for each other."""

RESTART_DELAY_S = 1.0
"""Pause before a worker that failed to start is started again."""

MAX_AFFINITY_BACKLOG = 4
"""How many calls more than the least busy worker a call's favourite worker may have waiting."""


class PreparationError(Exception):
    """A request could not be prepared for a reason of ours."""


class WorkerDiedError(PreparationError):
    """The worker process died while it prepared this request."""


class PreparationTimeoutError(PreparationError):
    """The request took longer than the preparation limit; its worker was killed."""


class PoolClosedError(PreparationError):
    """The pool is closed or closing, as the server shuts down."""


class _Call:
    """One call waiting for a worker, or on its way. `alone` keeps it from travelling with others."""

    __slots__ = ("alone", "args", "function", "future", "num_bytes")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self.function = function
        self.args = args
        self.future = future
        self.alone = False
        self.num_bytes = sum(len(argument) for argument in args if type(argument) is bytes)


class _Worker:
    """One process with its waiting calls and the batch in flight."""

    def __init__(self, pool: PreparationPool) -> None:
        self.pool = pool
        self.waiting: deque[_Call] = deque()
        self.in_flight: list[_Call] = []
        self.started: asyncio.Future[str | None] = pool.loop.create_future()  # None, or why it did not
        self.overdue: asyncio.TimerHandle | None = None
        self.was_overdue = False
        self.closing = False
        self.is_dispatch_due = False
        self.process = WorkerProcess(self.on_reply, self.on_lost)

    @property
    def ready(self) -> bool:
        return self.started.done() and self.started.result() is None and not self.closing

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.in_flight) + (0 if self.ready else MAX_AFFINITY_BACKLOG)

    def add(self, call: _Call) -> None:
        """Queue a call. It is sent with the others that came in the same turn of the event loop."""
        self.waiting.append(call)
        if not self.is_dispatch_due and not self.in_flight:
            self.is_dispatch_due = True
            self.pool.loop.call_soon(self.dispatch)

    def dispatch(self) -> None:
        """Send the next batch, if the worker is free and something waits."""
        self.is_dispatch_due = False
        if self.in_flight or not self.waiting or not self.ready:
            return
        self.in_flight = self.take_batch()
        if not self.in_flight:
            return
        if self.pool.timeout_s:
            self.overdue = self.pool.loop.call_later(self.pool.timeout_s, self.kill_overdue)
        self.process.send([(call.function, call.args) for call in self.in_flight])

    def take_batch(self) -> list[_Call]:
        batch: list[_Call] = []
        size = 0
        while self.waiting and len(batch) < MAX_BATCH:
            call = self.waiting[0]
            if call.future.done():  # its client went away
                self.waiting.popleft()
                continue
            size += call.num_bytes
            if batch and (call.alone or size > MAX_BATCH_BYTES):
                break
            batch.append(self.waiting.popleft())
            if call.alone:
                break
        return batch

    def on_reply(self, outcomes: list[CallOutcome]) -> None:
        """The process says that it is ready, or what a batch came to."""
        if not self.started.done():
            self.started.set_result(outcomes[0].fault)
            return
        self.rest()
        batch, self.in_flight = self.in_flight, []
        for call, outcome in zip(batch, outcomes, strict=True):
            outcome.settle(call.future)
        self.dispatch()
        self.pool.rebalance(self)

    def on_lost(self) -> None:
        """The process is gone: fail its call, queue again what only travelled along, and start another."""
        self.rest()
        if not self.started.done():
            self.started.set_result("it died")
        batch, self.in_flight = self.in_flight, []
        if len(batch) == 1:
            self.fail(batch[0])
        else:
            for call in reversed(batch):
                call.alone = True
                self.waiting.appendleft(call)
        if not self.closing and self.started.result() is None:
            self.pool.replace(self)

    def rest(self) -> None:
        if self.overdue is not None:
            self.overdue.cancel()
            self.overdue = None

    def fail(self, call: _Call) -> None:
        if call.future.done():
            return
        if self.was_overdue:
            call.future.set_exception(PreparationTimeoutError(f"preparation took longer than {self.pool.timeout_s} s"))
        else:
            call.future.set_exception(WorkerDiedError("the preparation worker died"))

    def kill_overdue(self) -> None:
        self.was_overdue = True
        self.process.kill()


class PreparationPool:
    """Worker processes that hold the tokenizer and prepare requests. Belongs to one event loop.

    `initializer(*initargs)` runs once in each process before its first call. `timeout_s` bounds one round trip;
    0 means no limit.
    """

    def __init__(
        self,
        num_workers: int,
        initializer: Callable[..., None],
        initargs: tuple[Any, ...],
        timeout_s: float = 0.0,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.timeout_s = timeout_s
        self._initializer = initializer
        self._initargs = initargs
        self._context = multiprocessing.get_context("spawn")
        self._closed = False
        self._was_ready = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers = [_Worker(self) for _ in range(num_workers)]
        for worker in self._workers:
            self._begin(worker)

    @property
    def depth(self) -> int:
        """Calls waiting or in flight."""
        return sum(len(worker.waiting) + len(worker.in_flight) for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    async def ready(self) -> None:
        """Wait until every worker has run its initializer; raises `WorkerDiedError` when one could not."""
        for fault in await asyncio.gather(*(worker.started for worker in self._workers)):
            if fault is not None:
                raise _start_failure(fault)

    async def run(self, function: Callable[..., Any], *args: Any, affinity: int | None = None) -> Any:
        """Run a top-level `function` in a worker and return its result, or raise what it raised.

        Cancelling the caller drops a call that still waits; one on its way runs to its end unheard.
        """
        if self._closed:
            raise PoolClosedError("the server is shutting down")
        call = _Call(function, args, self.loop.create_future())
        self._choose(affinity).add(call)
        return await call.future

    def _choose(self, affinity: int | None) -> _Worker:
        least = min(self._workers, key=lambda worker: worker.load)
        if affinity is None:
            return least
        favourite = self._workers[affinity % len(self._workers)]
        return favourite if favourite.load <= least.load + MAX_AFFINITY_BACKLOG else least

    def rebalance(self, idle: _Worker) -> None:
        """Let a worker without work take a waiting call from the busiest one."""
        if idle.in_flight or idle.waiting or not idle.ready:
            return
        busiest = max(self._workers, key=lambda worker: len(worker.waiting))
        if busiest.waiting:
            idle.waiting.append(busiest.waiting.pop())
            idle.dispatch()

    def replace(self, dead: _Worker) -> None:
        """Put a fresh worker in the place of a dead one; it inherits the calls that wait."""
        dead.closing = True
        if self._closed:
            return
        logger.warning("preparation worker %s is gone; starting another", dead.process.pid)
        fresh = _Worker(self)
        fresh.waiting = dead.waiting
        self._workers[self._workers.index(dead)] = fresh
        self._keep(self.loop.create_task(dead.process.reap()))
        self._begin(fresh)

    def _begin(self, worker: _Worker) -> None:
        self._keep(self.loop.create_task(self._bring_up(worker)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring_up(self, worker: _Worker) -> None:
        started = time.monotonic()
        try:
            await worker.process.start(self._context, self._initializer, self._initargs)
        except OSError as error:
            worker.started.set_result(f"its process could not be started: {error}")
        if (fault := await worker.started) is not None:
            self._fail_start(worker, fault)
            return
        self._was_ready = True
        logger.debug("preparation worker %d ready after %.2f s", worker.process.pid, time.monotonic() - started)
        worker.dispatch()
        self.rebalance(worker)

    def _fail_start(self, worker: _Worker, fault: str) -> None:
        """A worker that cannot even start fails its waiting calls; in a running pool it is tried again later."""
        failure = _start_failure(fault)
        while worker.waiting:
            call = worker.waiting.popleft()
            if not call.future.done():
                call.future.set_exception(failure)
        if not self._was_ready:
            return  # `ready` tells
        logger.error("%s; trying again in %.0f s", failure, RESTART_DELAY_S)
        self.loop.call_later(RESTART_DELAY_S, self.replace, worker)

    async def aclose(self) -> None:
        """Fail what waits, kill the workers and wait for them. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.closing = True
            for call in [*worker.waiting, *worker.in_flight]:
                if not call.future.done():
                    call.future.set_exception(PoolClosedError("the server is shutting down"))
            worker.waiting.clear()
            worker.process.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.process.reap() for worker in self._workers))


def _start_failure(fault: str) -> WorkerDiedError:
    return WorkerDiedError(f"a preparation worker could not start: {fault.strip().splitlines()[-1]}")
