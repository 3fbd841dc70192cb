"""What every kind of remote engine is asked and answers, whatever its wire format: one dialect a kind.

A dialect turns a request into the bytes of a POST, and the payloads of the server-sent events that come back into
`EngineUpdate`s. It knows no sockets. Whatever an engine sends that makes no sense is an `EndpointFault`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.backend import EngineError, EngineRequest
from engine.backends.balancer import Load
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceFinishReason, PromptUsage, TokenLogprob

DONE = b"[DONE]"
"""The payload of the event that ends a stream."""

MAX_TOKEN_ID = 2**32 - 1

FINISH_REASONS = {"stop": InferenceFinishReason.Stop, "length": InferenceFinishReason.Length}


class EndpointFault(EngineError):
    """An engine could not be reached, refused to work, or sent nonsense. Another engine may do better."""


class EndpointBusyError(EndpointFault):
    """An engine has too much to do: no sign that anything is wrong with it."""


class EndpointMisfitError(EndpointFault):
    """An engine runs, but was started in another way than this front: the message says what to change.

    It names no address, so that clients may be told.
    """


@dataclass(frozen=True, slots=True)
class EngineUpdate:
    """What one event says. `token_ids` are new ones, without the token that stopped the sequence.

    `num_hidden_tokens` counts generated tokens that are in no update, once that is known. `system_fingerprint` is the
    engine's own, if it has one.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish_reason: InferenceFinishReason | None = None
    usage: PromptUsage | None = None
    num_hidden_tokens: int | None = None
    system_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteRequest:
    """A request as one engine gets it: under an ID of its own, with every token that ends it."""

    request_id: str
    request: EngineRequest
    stop_token_ids: frozenset[int]

    @property
    def constraint(self) -> Mapping[str, Any]:
        """The engine's own fields for the constraint, as the dialect made them."""
        handle = self.request.constraint
        return {} if handle is None else handle.payload


class UpdateReader(Protocol):
    """Reads the events of one stream; keeps what must be known of the events before."""

    def read(self, payload: bytes) -> EngineUpdate:
        """The update of the payload of one event. Raises `EndpointFault`."""
        ...


class Dialect(Protocol):
    """A kind of engine. At `identity_paths` it says in which version it is and which model it serves.

    `without_route` says what to change where there is nothing at `generate_path`.
    """

    kind: str
    generate_path: str
    health_path: str
    load_path: str
    identity_paths: tuple[str, ...]
    without_route: str

    def body(self, remote: RemoteRequest) -> bytes:
        """The POST that starts a generation. Raises `RequestRefusedError` naming what the engine cannot do."""
        ...

    def reader(self, remote: RemoteRequest) -> UpdateReader: ...

    def abort(self, remote: RemoteRequest) -> tuple[str, bytes] | None:
        """Path and body of the POST that ends a generation; None where closing the connection is all there is."""
        ...

    def load(self, body: bytes) -> Load | None:
        """How much the engine says it has under way, in the answer of `load_path`; None if it does not say."""
        ...

    def constraint(self, constraint: OutputConstraint) -> dict[str, Any]:
        """The engine's sampling fields that enforce `constraint`. Raises `ConstraintRefusedError`."""
        ...


REFUSALS = frozenset({400, 413, 422})
"""The statuses by which an engine says that the request itself is wrong."""


def prompt_usage(prompt_tokens: int, cached_tokens: int | None) -> PromptUsage:
    return PromptUsage(prompt_tokens=prompt_tokens, prompt_cache_hit_tokens=min(cached_tokens or 0, prompt_tokens))


def ending_token_ids(request: EngineRequest, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Every token at which the request ends."""
    params = request.sampling_params
    return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_token_ids)
