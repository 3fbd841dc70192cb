"""Every failure a client can see, in the envelope of the protocol that asked.

Whoever fails raises an `ApiError`, or an exception that `as_api_error` knows; the route writes it. One table
maps a status to the type name that each protocol gives it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from engine.backend import (
    DeadlineExceededError,
    EngineDeadError,
    EngineError,
    EnginesUnavailableError,
    RequestRefusedError,
)
from engine.entrypoints.preparation import PoolClosedError, PreparationTimeoutError

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2000
"""An error message never echoes more than this of anybody's input."""

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(slots=True)
class ApiError(Exception):
    """A failure with its HTTP status; `message` says what to change (4xx) or that it is ours (5xx).

    `param` names the offending field if there is one, `code` is a machine-readable word. `retry_after_s` becomes a
    Retry-After header. `body` is a ready response body that is used as it is (the OpenAI envelope of the recipe).
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        if len(self.message) > MAX_MESSAGE_CHARS:
            self.message = self.message[: MAX_MESSAGE_CHARS - 1] + "…"

    def __str__(self) -> str:
        return self.message

    @property
    def word(self) -> str:
        """What logs and metrics call it."""
        return self.code or _OPENAI_TYPES.get(self.status, "server_error")


Envelope = Callable[[ApiError, str], bytes]
"""Makes the body of an error response from the error and the request's ID."""


def openai_envelope(error: ApiError, request_id: str) -> bytes:
    """The body of an error response in the OpenAI shape."""
    kind = _OPENAI_TYPES.get(error.status, "server_error")
    detail = {"message": error.message, "type": kind, "param": error.param, "code": error.code or kind}
    return msgspec.json.encode({"error": detail})


def anthropic_envelope(error: ApiError, request_id: str) -> bytes:
    """The body of an error response in the Anthropic shape."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    detail = {"type": kind, "message": error.message}
    return msgspec.json.encode({"type": "error", "error": detail, "request_id": request_id})


_OVERLOAD_STATUS: dict[Envelope, int] = {anthropic_envelope: 529}


def status_of(error: ApiError, envelope: Envelope) -> int:
    """The HTTP status of `error` in that protocol: an overload has a status of its own in some."""
    return _OVERLOAD_STATUS.get(envelope, error.status) if error.code == "overloaded" else error.status


def as_api_error(error: BaseException, request_id: str) -> ApiError:
    """Map an exception to what the client is told; what we did not foresee is a logged 500."""
    match error:
        case ApiError():
            return error
        case RequestRefusedError():
            return ApiError(400, str(error))
        case DeadlineExceededError():
            return ApiError(504, str(error) or "the request ran into its time limit", code="request_timeout")
        case PreparationTimeoutError():
            return ApiError(504, str(error), code="preparation_timeout")
        case PoolClosedError():
            return ApiError(503, "the server is shutting down", code="shutting_down", retry_after_s=5)
        case EngineDeadError():
            return ApiError(
                503, "the engine has stopped; the server is restarting", code="engine_dead", retry_after_s=5
            )
        case EnginesUnavailableError():
            return ApiError(503, str(error), code="engines_unavailable", retry_after_s=2)
        case EngineError():
            logger.error("request %s failed in the engine: %s", request_id, error)
            return ApiError(500, f"the engine could not complete the request: {error}")
    logger.error("request %s failed", request_id, exc_info=error)
    return ApiError(500, "internal error; the server's log has the details under this request's id")
