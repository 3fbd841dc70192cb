"""The three wire protocols as one table: what differs between them once a request is prepared."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.entrypoints.errors import ApiError, Envelope, anthropic_envelope, openai_envelope
from recipe.protocol.chat_completions.response import ChatCompletionResponse
from recipe.protocol.messages.response import MessagesResponse
from recipe.protocol.responses.response import ResponsesResponse
from recipe.stream.sse import sse_frame


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """One protocol: its name in the recipe, its response type, and how it tells errors.

    `envelope(error, request_id)` is the body of an error response; `error_frame` is what a stream that has already
    begun says before it ends.
    """

    name: str
    id_prefix: str
    response: Any
    envelope: Envelope
    error_frame: Callable[[ApiError, str], bytes]

    def new_id(self) -> str:
        """A fresh response ID."""
        return self.id_prefix + secrets.token_hex(16)

    def frames(self, events: list[Any]) -> bytes:
        """The SSE frames of `events`, to be sent in one write."""
        name = self.response.sse_event_name
        return b"".join(sse_frame(name(event), event.to_json()) for event in events)

    def done_frame(self) -> bytes:
        """What ends a complete stream; empty where the protocol says nothing."""
        data = self.response.sse_done_data()
        return b"" if data is None else sse_frame(None, data)


def _chat_error_frame(error: ApiError, request_id: str) -> bytes:
    return sse_frame(None, openai_envelope(error, request_id).decode())


def _responses_error_frame(error: ApiError, request_id: str) -> bytes:
    detail = {"type": "error", "code": error.code or "server_error", "message": error.message, "param": error.param}
    return sse_frame("error", msgspec.json.encode(detail).decode())


def _messages_error_frame(error: ApiError, request_id: str) -> bytes:
    return sse_frame("error", anthropic_envelope(error, request_id).decode())


CHAT_COMPLETIONS = WireProtocol(
    "chat_completions", "chatcmpl-", ChatCompletionResponse, openai_envelope, _chat_error_frame
)
RESPONSES = WireProtocol("responses", "resp_", ResponsesResponse, openai_envelope, _responses_error_frame)
MESSAGES = WireProtocol("messages", "msg_", MessagesResponse, anthropic_envelope, _messages_error_frame)
