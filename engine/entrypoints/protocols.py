"""The three wire protocols as one table: what differs between them once a request is prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.entrypoints.errors import ApiError, Envelope, anthropic_envelope, openai_envelope
from engine.entrypoints.ids import new_hex
from recipe.protocol.chat_completions.response import ChatCompletionResponse
from recipe.protocol.completions.response import CompletionResponse
from recipe.protocol.messages.response import MessagesResponse
from recipe.protocol.responses.response import ResponsesResponse
from recipe.stream.sse import sse_frame


@dataclass(slots=True)
class StreamSoFar:
    """What an error frame has to know of its stream: the identity, and the first and the last event as JSON."""

    request_id: str
    response_id: str
    model: str
    created: int
    first: str | None = None
    last: str | None = None


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """One protocol: its name in the recipe, its response type, and how it tells errors.

    `envelope(error, request_id)` is the body of an error response; `error_frame` is what a stream that has already
    begun says before it ends; `keep_alive_frame` is what it says when there is nothing to say.
    """

    name: str
    id_prefix: str
    response: Any
    envelope: Envelope
    error_frame: Callable[[ApiError, StreamSoFar], bytes]
    keep_alive_frame: bytes

    def new_id(self) -> str:
        """A fresh response ID."""
        return self.id_prefix + new_hex(16)

    def done_frame(self) -> bytes:
        """What ends a complete stream; empty where the protocol says nothing."""
        data = self.response.sse_done_data()
        return b"" if data is None else sse_frame(None, data)


def _chat_error_frame(error: ApiError, so_far: StreamSoFar) -> bytes:
    return sse_frame(None, openai_envelope(error, so_far.request_id).decode())


def _responses_error_frame(error: ApiError, so_far: StreamSoFar) -> bytes:
    """`response.failed` with the response object of the stream's beginning, which now has failed."""
    if so_far.first is not None:
        response = msgspec.json.decode(so_far.first)["response"]
    else:
        blank = ResponsesResponse(so_far.response_id, so_far.model, so_far.created, 0, 0)
        response = msgspec.json.decode(blank.to_json())
    number = 0 if so_far.last is None else msgspec.json.decode(so_far.last)["sequence_number"] + 1
    code = "invalid_prompt" if error.status == 400 else "server_error"  # the protocol has no word for other requests
    response |= {"status": "failed", "error": {"code": code, "message": error.message}}
    event = {"type": "response.failed", "sequence_number": number, "response": response}
    return sse_frame("response.failed", msgspec.json.encode(event).decode())


def _messages_error_frame(error: ApiError, so_far: StreamSoFar) -> bytes:
    return sse_frame("error", anthropic_envelope(error, so_far.request_id).decode())


_COMMENT = b": keep-alive\n\n"
_PING = sse_frame("ping", '{"type":"ping"}')

CHAT_COMPLETIONS = WireProtocol(
    "chat_completions", "chatcmpl-", ChatCompletionResponse, openai_envelope, _chat_error_frame, _COMMENT
)
COMPLETIONS = WireProtocol("completions", "cmpl-", CompletionResponse, openai_envelope, _chat_error_frame, _COMMENT)
RESPONSES = WireProtocol("responses", "resp_", ResponsesResponse, openai_envelope, _responses_error_frame, _COMMENT)
MESSAGES = WireProtocol("messages", "msg_", MessagesResponse, anthropic_envelope, _messages_error_frame, _PING)
