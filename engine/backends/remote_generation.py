"""One request's way through the fleet: attempts at engines, one after the other, until one has sent a token.

    choose ─► attempt ─► first update ─► ready ─► tokens ... ─► finish ─► usage
       ▲         │ fault: the engine is noted, the next one gets the request
       └─────────┘ fault after the first token: the request has failed

The finish is kept back until the engine's stream is complete, since usage may come behind it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from engine.backend import DeadlineExceededError, EngineError, RequestRefusedError
from engine.backends.remote_attempt import Attempt
from engine.backends.remote_dialect import (
    EndpointBusyError,
    EndpointFault,
    EndpointMisfitError,
    EngineUpdate,
    RemoteRequest,
)
from engine.backends.remote_fleet import Fleet, Route
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Engines that one request may fail at: what brings engines down must not see all of them."""


class Generation:
    """Iterated by calling `next`; `close` it, whatever happened. Counts and times are for the request's record."""

    def __init__(self, fleet: Fleet, route: Route, stop_token_ids: frozenset[int]) -> None:
        self.num_tokens = 0
        self.usage = PromptUsage(prompt_tokens=len(route.request.prompt_token_ids))
        self.accepted_at: float | None = None
        self.first_token_at: float | None = None
        self.outcome = "cancelled"
        self._fleet = fleet
        self._route = route
        self._stop_token_ids = stop_token_ids
        self._attempt: Attempt | None = None
        self._finish_reason: InferenceFinishReason | None = None
        self._num_hidden = 0
        self._limit: asyncio.Timeout | None = None

    async def next(self) -> list[InferenceChunk]:
        """The next chunks; empty at the end. Raises what `Backend.infer` does."""
        try:
            while self.outcome == "cancelled":
                if chunks := self._chunks(await self._next_update()):
                    return chunks
        except Exception as error:
            self.outcome = type(error).__name__
            raise
        return []

    def interrupt(self) -> None:
        """End what `next` waits for, now that the fleet was closed."""
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Free what the request holds at its engine."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.endpoint.circuit.abandon()
            await attempt.close()

    async def _next_update(self) -> EngineUpdate | None:
        """The next update of whichever engine; None at the end."""
        while True:
            try:
                return await self._read()
            except EndpointFault as fault:
                self._fail_over(fault)

    async def _read(self) -> EngineUpdate | None:
        """The next update of the attempt under way, or of a new one, within the limit of time that applies."""
        request, limits = self._route.request, self._fleet.limits
        limit_s = limits.first_token_s if self.first_token_at is None else limits.token_gap_s
        left_s = limit_s if request.deadline is None else min(limit_s, request.deadline - time.monotonic())
        if left_s <= 0:
            raise DeadlineExceededError("the deadline passed while the request was at an engine")
        if self._attempt is None:
            self._attempt = self._new_attempt()
        try:
            async with asyncio.timeout(left_s) as self._limit:
                return await self._attempt.read()
        except TimeoutError:
            self._fleet.check_open()
            if left_s < limit_s:
                raise DeadlineExceededError("the deadline passed while the request was at an engine") from None
            raise EndpointFault(f"it sent nothing for {limit_s:g} s") from None
        except RequestRefusedError:
            self._attempt.endpoint.circuit.succeed()
            raise
        finally:
            self._limit = None

    def _new_attempt(self) -> Attempt:
        request = self._route.request
        remote = RemoteRequest(f"{request.request_id}-{uuid.uuid4().hex[:12]}", request, self._stop_token_ids)
        endpoint = self._fleet.choose(self._route)
        endpoint.num_attempts += 1
        endpoint.num_retries += len(self._route.tried) > 1
        return Attempt(endpoint, self._fleet.dialect, remote)

    def _fail_over(self, fault: EndpointFault) -> None:
        """Note the fault. Raises `EngineError` if tokens have been sent; else the next attempt is at another engine.

        What exactly went wrong is for the log: it may tell of addresses that are no business of clients.
        """
        self._fleet.check_open()
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            raise fault
        endpoint, request_id = attempt.endpoint, self._route.request.request_id
        logger.warning("request %s failed at %s: %s", request_id, endpoint.name, fault)
        self._note(attempt, fault)
        self._fleet.clean_up(attempt.close())
        if self.num_tokens or self._finish_reason is not None:
            raise EngineError("an engine failed in the middle of the answer") from fault
        if len(self._route.tried) >= MAX_ATTEMPTS and not self._fleet.reason():
            raise EngineError(f"{MAX_ATTEMPTS} engines failed the request{self._fleet.misfits()}") from fault

    def _note(self, attempt: Attempt, fault: EndpointFault) -> None:
        if isinstance(fault, EndpointBusyError):
            self._fleet.note_busy(attempt.endpoint)
        elif isinstance(fault, EndpointMisfitError):
            self._fleet.note_misfit(attempt.endpoint, str(fault))
        elif attempt.was_connected:
            self._fleet.note_failure(attempt.endpoint)
        else:
            self._fleet.note_unreachable(attempt.endpoint, str(fault))

    def _chunks(self, update: EngineUpdate | None) -> list[InferenceChunk]:
        if update is None:
            return [self._finish()]
        if update.usage is not None:
            self.usage = update.usage
        if update.num_hidden_tokens is not None:
            self._num_hidden = update.num_hidden_tokens
        self._finish_reason = self._finish_reason or update.finish_reason
        chunks = []
        if self.accepted_at is None:
            self.accepted_at = time.monotonic()
            fingerprint = update.system_fingerprint or self._endpoint_fingerprint()
            chunks.append(InferenceChunk.ready(prompt_usage=self.usage, system_fingerprint=fingerprint))
        if update.token_ids:
            self._count(len(update.token_ids))
            chunks.append(InferenceChunk.tokens(update.token_ids, update.logprobs))
        return chunks

    def _endpoint_fingerprint(self) -> str | None:
        return None if self._attempt is None else self._attempt.endpoint.system_fingerprint

    def _count(self, number: int) -> None:
        self.num_tokens += number
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()
        if self._attempt is not None:
            self._attempt.share.grow(number)

    def _finish(self) -> InferenceChunk:
        reason = self._finish_reason
        if reason is None or self._attempt is None:
            raise EngineError("the engine's stream ended without a finish")
        self._attempt.endpoint.circuit.succeed()
        self._attempt.endpoint.misfit = ""
        self.num_tokens += self._num_hidden
        self._fleet.note_output(self.num_tokens)
        self.outcome = reason.name.lower()
        return InferenceChunk.finish(reason, prompt_usage=self.usage, token_count=self._num_hidden)
