"""One request's way out of the engine: outputs pushed as they come, taken as fast as the reader can."""

from __future__ import annotations

import asyncio
import time

from engine.backend import EngineError, EngineRequest, RequestRefusedError
from engine.backends.request_record import RequestRecord
from engine.core.sequence import Sequence
from engine.core.sequence_output import SequenceOutput


class OutputStream:
    """Belongs to the event loop, but for `sequence` and `due`, which are the engine thread's.

    What was not taken yet is one output that grows, so a slow reader costs no more than its own tokens.
    """

    def __init__(self, request: EngineRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.sequence: Sequence | None = None  # None until the engine took the request
        self.has_ended = False  # the last output has arrived, whether taken or not
        self.is_drained = False  # the last output was taken
        self._loop = loop
        self._gathered: SequenceOutput | None = None
        self._pending: SequenceOutput | None = None
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._outcome = "cancelled"
        self._submitted_at = time.monotonic()

    def due(self, output: SequenceOutput) -> SequenceOutput | None:
        """What is to be delivered now: all of a streamed request, the first token and the end of another."""
        if self.request.stream or output.sequence.num_completion_tokens <= 1:
            return output
        if self._gathered is None:
            self._gathered = output
        else:
            self._gathered.extend(output)
        return self._gathered if output.is_last else None

    def push(self, output: SequenceOutput) -> None:
        if self._pending is None:
            self._pending = output
        else:
            self._pending.extend(output)
        self.has_ended = self.has_ended or output.is_last
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the stream with `error`, after what is pending. An ended stream stays as it is."""
        if self.has_ended:
            return
        self.has_ended = True
        self._failure = error if isinstance(error, (EngineError, RequestRefusedError)) else _wrapped(error)
        self._wake()

    async def take(self) -> SequenceOutput:
        """Everything that came since the last call; waits if that is nothing. Raises what `fail` was told."""
        while self._pending is None:
            if self._failure is not None:
                self.is_drained, self._outcome = True, type(self._failure).__name__
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter
        output, self._pending = self._pending, None
        if output.is_last:
            self.is_drained, self._outcome = True, _outcome(output)
        return output

    def record(self) -> RequestRecord:
        """What happened to the request, once it is over."""
        sequence = self.sequence
        return RequestRecord(
            request_id=self.request.request_id,
            outcome=self._outcome,
            prompt_tokens=len(self.request.prompt_token_ids),
            cached_prompt_tokens=sequence.num_cached_tokens if sequence else 0,
            completion_tokens=sequence.num_completion_tokens if sequence else 0,
            submitted_at=self._submitted_at,
            scheduled_at=sequence.scheduled_at if sequence else None,
            first_token_at=sequence.first_token_at if sequence else None,
            ended_at=time.monotonic(),
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _outcome(output: SequenceOutput) -> str:
    if output.error is not None:
        return type(output.error).__name__
    return output.finish_reason.name.lower() if output.finish_reason is not None else "cancelled"


def _wrapped(error: Exception) -> EngineError:
    wrapped = EngineError(f"the request failed in the engine: {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped
