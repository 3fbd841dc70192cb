"""What POST /inference/v1/generate answers: events with token IDs, or one response that is the fold of them.

The token that stopped the sequence is counted in the usage and is in no event.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.backend import EngineError
from engine.entrypoints.errors import openai_envelope
from engine.entrypoints.protocols import StreamSoFar, WireProtocol
from recipe.stream.inference import InferenceChunk, PromptUsage, TokenLogprob
from recipe.stream.sse import sse_frame

_ENCODER = msgspec.json.Encoder()
_OF_THE_WHOLE = ("usage", "system_fingerprint")


class TokenEvent:
    """One event, as the document that it is on the wire."""

    __slots__ = ("document",)

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def to_json(self) -> str:
        return _ENCODER.encode(self.document).decode()


class TokenEvents:
    """Makes the events of one stream from the engine's chunks. Usage comes first, as far as is known, and last."""

    def __init__(self, request_id: str, wants_usage: bool) -> None:
        self.has_finished = False
        self._request_id = request_id
        self._wants_usage = wants_usage
        self._usage = PromptUsage()
        self._num_tokens = 0

    def of(self, chunk: InferenceChunk) -> list[TokenEvent]:
        self._num_tokens += chunk.token_count or len(chunk.token_ids or ())
        self._usage = chunk.prompt_usage or self._usage
        if chunk.kind == "ready":
            return self._usage_events(chunk.system_fingerprint)
        if chunk.kind == "tokens":
            return [self._choice(chunk.token_ids or [], _content(chunk), None)]
        if chunk.finish_reason is None:
            raise EngineError("this backend makes text and no tokens")
        self.has_finished = True
        return [self._choice([], None, chunk.finish_reason.name.lower()), *self._usage_events()]

    def _choice(self, token_ids: list[int], content: list[Any] | None, finish_reason: str | None) -> TokenEvent:
        logprobs = None if content is None else {"content": content}
        choice = {"index": 0, "token_ids": token_ids, "logprobs": logprobs, "finish_reason": finish_reason}
        return TokenEvent({"request_id": self._request_id, "choices": [choice]})

    def _usage_events(self, system_fingerprint: str | None = None) -> list[TokenEvent]:
        if not self._wants_usage:
            return []
        prompt = self._usage.prompt_tokens
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": self._num_tokens,
            "total_tokens": prompt + self._num_tokens,
            "prompt_tokens_details": {"cached_tokens": self._usage.prompt_cache_hit_tokens},
        }
        told = {} if system_fingerprint is None else {"system_fingerprint": system_fingerprint}
        return [TokenEvent({"request_id": self._request_id, "choices": [], "usage": usage} | told)]


class TokenResponse:
    """A whole response."""

    def __init__(self, response_id: str, model: str, created: int, prompt_tokens: int, cached_tokens: int) -> None:
        self._choice: dict[str, Any] = {"index": 0, "token_ids": [], "logprobs": None, "finish_reason": None}
        self._document: dict[str, Any] = {"request_id": response_id, "choices": [self._choice], "usage": None}

    def accumulate(self, event: TokenEvent) -> None:
        for choice in event.document["choices"]:
            self._choice["token_ids"] += choice["token_ids"]
            self._choice["finish_reason"] = choice["finish_reason"]
            if choice["logprobs"] is not None:
                folded = self._choice["logprobs"] or {"content": []}
                self._choice["logprobs"] = {"content": folded["content"] + choice["logprobs"]["content"]}
        self._document |= {name: event.document[name] for name in _OF_THE_WHOLE if name in event.document}

    def to_json(self) -> str:
        return _ENCODER.encode(self._document).decode()

    @staticmethod
    def sse_event_name(event: TokenEvent) -> str | None:
        return None

    @staticmethod
    def sse_done_data() -> str | None:
        return "[DONE]"


def _content(chunk: InferenceChunk) -> list[Any] | None:
    if chunk.logprobs is None:
        return None
    return [_entry(token_id, entry) for token_id, entry in zip(chunk.token_ids or (), chunk.logprobs, strict=True)]


def _entry(token_id: int, entry: TokenLogprob) -> dict[str, Any]:
    logprob, top = entry
    tops = [{"token_id": other, "logprob": value} for other, value in top]
    return {"token_id": token_id, "logprob": logprob, "top_logprobs": tops}


def _error_frame(error: Any, so_far: StreamSoFar) -> bytes:
    return sse_frame(None, openai_envelope(error, so_far.request_id).decode())


TOKENS = WireProtocol("tokens", "gen-", TokenResponse, openai_envelope, _error_frame, b": keep-alive\n\n")
