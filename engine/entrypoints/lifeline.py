"""A request's lifeline: which phase it is in, since when, and what ends it from outside.

One clock looks at all open lifelines a few times a second, so a request costs no timer of its own. A lifeline whose
phase or request takes longer than its limit is ended: its task is cancelled, and what comes out is the error of that
limit. The same way ends what is still open when the server shuts down. A lifeline in which nothing was sent for a
while is kept alive, if its response knows how.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import IntEnum
from types import TracebackType

from engine.entrypoints.errors import ApiError

TICK_S = 0.05


class Phase(IntEnum):
    """Where a generating request is; the names are those of logs and metrics."""

    BODY = 0  # the body arrives
    PREPARE = 1  # a worker converts and tokenises it
    IMAGES = 2  # images are fetched and decoded
    COMPILE = 3  # the constraint becomes a grammar
    QUEUE = 4  # the engine has it, but nothing of it was scheduled
    PREFILL = 5  # scheduled, no token yet
    DECODE = 6  # a stream's next token
    GENERATE = 7  # what follows the first token of a whole response, which comes all at once
    SEND = 8  # the client takes what was sent


_BODY, _NUM_PHASES = Phase.BODY, len(Phase)

_ERRORS: dict[Phase, tuple[int, str, str]] = {
    Phase.BODY: (408, "body_timeout", "the body did not arrive within {:g} s"),
    Phase.PREPARE: (504, "preparation_timeout", "the request could not be prepared within {:g} s"),
    Phase.IMAGES: (504, "image_timeout", "the images could not be fetched and decoded within {:g} s"),
    Phase.COMPILE: (504, "compile_timeout", "the output constraint could not be compiled within {:g} s"),
    Phase.QUEUE: (503, "queue_timeout", "the request was queued for longer than {:g} s"),
    Phase.PREFILL: (504, "first_token_timeout", "no token came within {:g} s of the start of the prompt"),
    Phase.DECODE: (504, "token_gap_timeout", "the next token did not come within {:g} s"),
    Phase.SEND: (499, "slow_reader", "the client took nothing of its stream for {:g} s"),
}
_REQUEST_ERROR = (504, "request_timeout", "the request took longer than {:g} s")


def time_limit_error(status: int, code: str, text: str, limit_s: float) -> ApiError:
    """The error of a limit of `limit_s` seconds, which `text` has a place for."""
    retry_after_s = 1.0 if status == 503 else None
    return ApiError(status, text.format(limit_s), code=code, retry_after_s=retry_after_s)


class TimeLimits:
    """The limits of the phases and of a whole request, in seconds; one that is absent or 0 does not limit."""

    def __init__(self, phases: dict[Phase, float], request_s: float = 0.0, keep_alive_s: float = 0.0) -> None:
        self.by_phase = [phases.get(phase) or float("inf") for phase in Phase]
        self.request_s = request_s or float("inf")
        self.keep_alive_s = keep_alive_s or float("inf")


class Lifeline:
    """One request's; a context manager around what it may end. Belongs to the task that opened it.

    `seconds` holds what was spent in each phase so far. `on_silence` is called when nothing was sent for long.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.opened_at = self.since = self.sent_at = time.monotonic()
        self.deadline = self.opened_at + clock.limits.request_s
        self.phase = _BODY
        self.seconds = [0.0] * _NUM_PHASES
        self.first_token_at: float | None = None
        self.on_silence: Callable[[], None] | None = None
        self.verdict: ApiError | None = None
        self._task: asyncio.Task[object] | None = None

    def enter(self, phase: Phase) -> float:
        """Go on to `phase`, or begin the same one anew; returns the seconds since the last call."""
        now = time.monotonic()
        spent = now - self.since
        self.seconds[self.phase] += spent
        self.phase, self.since = phase, now
        return spent

    def end(self, verdict: ApiError) -> None:
        """Cancel the request; what it raises is `verdict`. The first verdict holds."""
        if self.verdict is None and self._task is not None:
            self.verdict = verdict
            self._task.cancel()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.opened_at

    def check(self, now: float) -> None:
        """End what is overdue at `now`, keep alive what is silent."""
        limits = self._clock.limits
        limit_s = limits.by_phase[self.phase]
        if now - self.since > limit_s:
            self.end(time_limit_error(*_ERRORS[self.phase], limit_s))
        elif now > self.deadline:
            self.end(time_limit_error(*_REQUEST_ERROR, limits.request_s))
        elif self.on_silence is not None and now - self.sent_at > limits.keep_alive_s:
            self.sent_at = now
            self.on_silence()

    def __enter__(self) -> Lifeline:
        self._task = asyncio.current_task()
        self._clock.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock.remove(self)
        self.enter(self.phase)
        task, self._task = self._task, None
        if self.verdict is None or task is None or not isinstance(error, asyncio.CancelledError):
            return
        if task.uncancel() == 0:  # nobody else cancelled it, as a client that left would
            raise self.verdict from None


class Clock:
    """Looks at every open lifeline while there are any. Belongs to one event loop."""

    def __init__(self, limits: TimeLimits) -> None:
        self.limits = limits
        self.open: set[Lifeline] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    def add(self, lifeline: Lifeline) -> None:
        self.open.add(lifeline)
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(TICK_S, self._look)

    def remove(self, lifeline: Lifeline) -> None:
        self.open.discard(lifeline)
        if not self.open and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def end_all(self, verdict: ApiError) -> None:
        for lifeline in list(self.open):
            lifeline.end(verdict)

    async def wait_empty(self, timeout_s: float | None = None) -> bool:
        """Wait until no lifeline is open, for `timeout_s` at most; whether that came to be."""
        if not self.open:
            return True
        self._empty = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._empty,), timeout=timeout_s)
        return not self.open

    def _look(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._look) if self.open else None
        now = time.monotonic()
        for lifeline in list(self.open):
            lifeline.check(now)
