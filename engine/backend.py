"""The seam between the entry layer and whatever computes tokens.

An entry point hands a `Backend` one `EngineRequest` (token IDs in) and iterates over the
`InferenceChunk`s it yields (token IDs out): one ready chunk with the prompt usage, then token chunks,
then one finish chunk. Nothing here knows a protocol, a tokenizer or a GPU.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.core.sampling_params import SamplingParams
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceChunk


class EngineError(Exception):
    """One request failed inside the engine; the engine itself goes on. A 5xx to the client."""


class EngineDeadError(EngineError):
    """The engine is gone: raised to every waiter, and to whoever comes later."""


class EnginesUnavailableError(EngineError):
    """No engine can take the request now; one may a little later. A 503 with Retry-After."""


class DeadlineExceededError(EngineError):
    """The request passed its deadline, queued or running, and was dropped."""


class RequestRefusedError(ValueError):
    """The backend cannot serve this request as asked; the message says what to change. A 4xx."""


class ConstraintRefusedError(RequestRefusedError):
    """A constraint that cannot be enforced; the message names the keyword and its path."""


@dataclass(frozen=True, slots=True)
class ConstraintHandle:
    """A compiled constraint, opaque to everyone but the backend that made it; shared between requests."""

    payload: Any


@dataclass(slots=True)
class EngineRequest:
    """What the engine is told of a request: no text, no JSON, no protocol.

    `deadline` is an absolute `time.monotonic()` in seconds, or None. A lower `priority` runs first.
    `stream=False` lets the backend post once, at the finish. `cache_salt` separates prefix caches.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    constraint: ConstraintHandle | None = None
    images: Sequence[Any] = ()
    stream: bool = True
    priority: int = 0
    deadline: float | None = None
    cache_salt: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for /metrics and admission; counters only grow, gauges describe this moment."""

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests can be served now, and if not, why. `needs_restart`: no more of them in this process, then."""

    ok: bool
    reason: str = ""
    needs_restart: bool = True
    details: dict[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """A way to turn token IDs into token IDs. All methods belong to the event loop's thread."""

    def infer(self, request: EngineRequest) -> AsyncGenerator[InferenceChunk, None]:
        """Yield the chunks of `request`: ready, tokens..., finish.

        The request is submitted at the first `__anext__`. Closing the generator early (`aclose`) frees
        everything the request holds within one engine step; that cleanup is shielded, so it completes even when the
        closing task is cancelled again. Raises `RequestRefusedError`, `DeadlineExceededError`, `EngineError`
        or `EngineDeadError`.
        """
        ...

    async def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        """Compile `constraint` off the event loop; raises `ConstraintRefusedError`."""
        ...

    def health(self) -> Health: ...

    def stats(self) -> EngineStats: ...

    async def aclose(self) -> None:
        """Stop the engine; open requests end with `EngineDeadError`. Idempotent."""
        ...
