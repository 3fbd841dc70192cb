"""A fleet of engines somewhere else behind the one seam: vLLM, SGLang, or this very server without its front.

Token IDs go out over HTTP and come back as server-sent events. Nothing of a request is kept here but what is under way,
so several fronts may stand before one fleet.

    infer ─► route (prefix, balance) ─► attempt ─► updates ─► chunks
                                          └─ close: the connection is dropped and the engine told, awaited to its end
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable

from engine.backend import ConstraintHandle, EngineRequest, EngineStats, Health, RequestRefusedError
from engine.backends.endpoint_stats import EndpointStats
from engine.backends.remote_dialect import Dialect, ending_token_ids
from engine.backends.remote_endpoint import RemoteLimits
from engine.backends.remote_fleet import Fleet
from engine.backends.remote_generation import Generation
from engine.backends.remote_self import SelfDialect
from engine.backends.remote_sglang import SglangDialect
from engine.backends.remote_vllm import VllmDialect
from engine.backends.remote_vllm_completions import VllmCompletionsDialect
from engine.backends.request_record import RequestRecord
from engine.backends.shielded import to_the_end
from engine.config import ConfigError
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceChunk

logger = logging.getLogger(__name__)

DIALECTS: dict[str, Callable[[], Dialect]] = {
    "vllm": VllmDialect,
    "vllm-completions": VllmCompletionsDialect,
    "sglang": SglangDialect,
    "self": SelfDialect,
}
"""The kinds of remote engines."""


class RemoteBackend:
    """A `Backend` over the engines at `endpoints`, which are all of one `kind` and serve the same model.

    `endpoints` are URLs with commas between, `unix:PATH` among them, or `@FILE` with one a line, which is followed as
    it changes. `eos_token_ids` end a sequence. `observer` is called with the record of every request that has ended.
    """

    def __init__(
        self,
        endpoints: str,
        kind: str,
        eos_token_ids: Iterable[int] = (),
        *,
        limits: RemoteLimits | None = None,
        api_key: str | None = None,
        observer: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        if kind not in DIALECTS:
            raise ConfigError(f"kind must be one of {', '.join(DIALECTS)}. Given: {kind!r:.40}")
        self.observer = observer
        self._dialect = DIALECTS[kind]()
        self._fleet = Fleet(endpoints, self._dialect, limits or RemoteLimits(), api_key)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._open: set[Generation] = set()
        self._num_prompt_tokens = self._num_cached_tokens = self._num_completion_tokens = 0

    @property
    def fleet(self) -> Fleet:
        return self._fleet

    async def started(self) -> None:
        """Look at the engines, and go on doing so; those that are not up yet are used as soon as they are."""
        await self._fleet.start()

    async def infer(self, request: EngineRequest) -> AsyncGenerator[InferenceChunk, None]:
        """Yield the chunks of `request`; see `Backend.infer`."""
        self._check(request)
        submitted_at = time.monotonic()
        stop_token_ids = ending_token_ids(request, self._eos_token_ids)
        generation = Generation(self._fleet, self._fleet.route(request), stop_token_ids)
        self._open.add(generation)
        try:
            while chunks := await generation.next():
                for chunk in chunks:
                    yield chunk
        finally:
            try:
                await to_the_end(asyncio.ensure_future(generation.close()))
            finally:
                self._open.discard(generation)
                self._report(request, generation, submitted_at)

    async def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        """The engine's own fields for `constraint`; raises `ConstraintRefusedError` naming what it cannot do."""
        return ConstraintHandle(self._dialect.constraint(constraint))

    def health(self) -> Health:
        """Whether any engine can be used, which may change at any time; the details say of each what is known."""
        reason = self._fleet.reason()
        details = {
            endpoint.name: {
                "problem": endpoint.problem or endpoint.misfit,
                "draining": endpoint.is_draining,
                "requests": endpoint.load.requests,
                "kv_tokens": endpoint.load.kv_tokens,
            }
            for endpoint in self._fleet.endpoints
        }
        return Health(ok=not reason, reason=reason, needs_restart=False, details=details)

    def stats(self) -> EngineStats:
        """Counts of what went through here; `running` is what the engines have under way, of others too."""
        return EngineStats(
            running=self._fleet.total_load().requests,
            prompt_tokens=self._num_prompt_tokens,
            cached_prompt_tokens=self._num_cached_tokens,
            completion_tokens=self._num_completion_tokens,
        )

    def endpoint_stats(self) -> list[EndpointStats]:
        """What each engine does and has done."""
        return [endpoint.stats() for endpoint in self._fleet.endpoints]

    async def aclose(self) -> None:
        """Drop every connection; open requests end with `EngineDeadError`. Idempotent."""
        self._fleet.close()
        for generation in self._open:
            generation.interrupt()
        await self._fleet.aclose()

    def _check(self, request: EngineRequest) -> None:
        self._fleet.check_open()
        if request.images:
            raise RequestRefusedError(f"images cannot be sent to engines of the kind {self._dialect.kind!r}")

    def _report(self, request: EngineRequest, generation: Generation, submitted_at: float) -> None:
        usage = generation.usage
        self._num_prompt_tokens += usage.prompt_tokens
        self._num_cached_tokens += usage.prompt_cache_hit_tokens
        self._num_completion_tokens += generation.num_tokens
        if self.observer is None:
            return
        record = RequestRecord(
            request_id=request.request_id,
            outcome=generation.outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.prompt_cache_hit_tokens,
            completion_tokens=generation.num_tokens,
            submitted_at=submitted_at,
            scheduled_at=generation.accepted_at,
            first_token_at=generation.first_token_at,
            ended_at=time.monotonic(),
        )
        try:
            self.observer(record)
        except Exception:
            logger.exception("the observer of requests failed")
