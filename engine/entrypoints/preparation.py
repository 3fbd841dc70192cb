"""Preparation in worker processes: single-worker executors, each with at most one call in flight.

One executor with many workers breaks as a whole when one of them dies; so every worker has an executor of its
own, and the queue is ours. Calls go to the worker their affinity names while it is not busier than the rest, so that
it finds what it kept of the last turn. Calls waiting for one worker travel together in one round trip. A worker that
dies or is overdue is killed and replaced alone: its call fails, and calls that merely travelled along are run again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future as ExecutorFuture
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from recipe.prepare import CallOutcome, run_batch

logger = logging.getLogger(__name__)

MAX_BATCH = 16
"""Calls in one round trip to a worker, at most."""

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

    __slots__ = ("alone", "args", "function", "future")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self.function = function
        self.args = args
        self.future = future
        self.alone = False


class _Worker:
    """One process with its executor, its waiting calls and the batch in flight."""

    def __init__(self, pool: PreparationPool) -> None:
        self.pool = pool
        self.waiting: deque[_Call] = deque()
        self.in_flight: list[_Call] = []
        self.ready = False
        self.overdue: asyncio.TimerHandle | None = None
        self.was_overdue = False
        self.closing = False
        self.pid: int | None = None
        self.executor = pool.make_executor()

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.in_flight) + (0 if self.ready else MAX_AFFINITY_BACKLOG)

    def dispatch(self) -> None:
        """Send the next batch, if the worker is free and something waits."""
        if self.in_flight or not self.ready or self.closing:
            return
        batch = self.take_batch()
        if not batch:
            return
        self.in_flight = batch
        if self.pool.timeout_s:
            self.overdue = self.pool.loop.call_later(self.pool.timeout_s, self.kill_overdue)
        try:
            flight = self.executor.submit(run_batch, [(call.function, call.args) for call in batch])
        except BrokenProcessPool as error:
            self.finish_broken(error)
            return
        flight.add_done_callback(self.post_landing)

    def take_batch(self) -> list[_Call]:
        batch: list[_Call] = []
        while self.waiting and len(batch) < MAX_BATCH:
            call = self.waiting[0]
            if call.future.done():  # its client went away
                self.waiting.popleft()
                continue
            if call.alone and batch:
                break
            batch.append(self.waiting.popleft())
            if call.alone:
                break
        return batch

    def post_landing(self, flight: ExecutorFuture[list[CallOutcome]]) -> None:
        """Runs in the executor's thread."""
        try:
            self.pool.loop.call_soon_threadsafe(self.land, flight)
        except RuntimeError:  # the loop has closed: nobody waits any more
            logger.debug("a preparation finished after the loop had closed")

    def land(self, flight: ExecutorFuture[list[CallOutcome]]) -> None:
        if self.overdue is not None:
            self.overdue.cancel()
            self.overdue = None
        if flight.cancelled() or flight.exception() is not None:
            self.finish_broken(None if flight.cancelled() else flight.exception())
            return
        batch, self.in_flight = self.in_flight, []
        for call, outcome in zip(batch, flight.result(), strict=True):
            outcome.settle(call.future)
        self.dispatch()
        self.pool.rebalance(self)

    def finish_broken(self, error: BaseException | None) -> None:
        """The process is gone: fail its call, queue again what only travelled along, and start another."""
        batch, self.in_flight = self.in_flight, []
        if len(batch) == 1:
            self.fail(batch[0], error)
        else:
            for call in reversed(batch):
                call.alone = True
                self.waiting.appendleft(call)
        if not self.closing:
            self.pool.replace(self)

    def fail(self, call: _Call, error: BaseException | None) -> None:
        if call.future.done():
            return
        if self.was_overdue:
            call.future.set_exception(PreparationTimeoutError(f"preparation took longer than {self.pool.timeout_s} s"))
        else:
            call.future.set_exception(WorkerDiedError(f"the preparation worker died: {error}"))

    def kill_overdue(self) -> None:
        self.was_overdue = True
        self.kill()

    def kill(self) -> None:
        if self.pid is not None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                logger.debug("worker %d was gone already", self.pid)


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
        self._starts: set[asyncio.Task[None]] = set()
        self._workers = [_Worker(self) for _ in range(num_workers)]
        for worker in self._workers:
            self._begin(worker)

    def make_executor(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, self._context, self._initializer, self._initargs)

    @property
    def depth(self) -> int:
        """Calls waiting or in flight."""
        return sum(len(worker.waiting) + len(worker.in_flight) for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def ready(self) -> None:
        """Wait until every worker has run its initializer; raises `WorkerDiedError` when one cannot."""
        await asyncio.gather(*self._starts)

    async def run(self, function: Callable[..., Any], *args: Any, affinity: int | None = None) -> Any:
        """Run a top-level `function` in a worker and return its result, or raise what it raised.

        Cancelling the caller drops a call that still waits; one on its way runs to its end unheard.
        """
        if self._closed:
            raise PoolClosedError("the server is shutting down")
        call = _Call(function, args, self.loop.create_future())
        worker = self._choose(affinity)
        worker.waiting.append(call)
        worker.dispatch()
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
        dead.executor.shutdown(wait=False, cancel_futures=True)
        if self._closed:
            return
        logger.warning("preparation worker %s is gone; starting another", dead.pid)
        fresh = _Worker(self)
        fresh.waiting = dead.waiting
        self._workers[self._workers.index(dead)] = fresh
        self._begin(fresh)

    def _begin(self, worker: _Worker) -> None:
        task = self.loop.create_task(self._bring_up(worker))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _bring_up(self, worker: _Worker) -> None:
        started = time.monotonic()
        try:
            worker.pid = await asyncio.wrap_future(worker.executor.submit(os.getpid))
        except BrokenProcessPool as error:
            self._fail_start(worker, error)
            return
        worker.ready = True
        self._was_ready = True
        logger.debug("preparation worker %d ready after %.2f s", worker.pid, time.monotonic() - started)
        worker.dispatch()
        self.rebalance(worker)

    def _fail_start(self, worker: _Worker, error: BaseException) -> None:
        """A worker that cannot even start fails its waiting calls; in a running pool it is tried again later."""
        failure = WorkerDiedError(f"a preparation worker could not start: {error}")
        while worker.waiting:
            call = worker.waiting.popleft()
            if not call.future.done():
                call.future.set_exception(failure)
        if not self._was_ready:
            raise failure
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
            worker.kill()
        await asyncio.gather(*self._starts, return_exceptions=True)
        shutdowns = [asyncio.to_thread(worker.executor.shutdown, True) for worker in self._workers]
        await asyncio.gather(*shutdowns)
