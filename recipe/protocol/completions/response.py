"""Completions chunks, and the response that they add up to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from recipe.json_value import utf8_str
from recipe.protocol.chat_completions.response import usage_json
from recipe.protocol.completions.logprobs import Logprobs
from recipe.stream.chunk import ProtocolChunk
from recipe.stream.finish import FinishKind, Usage


class CompletionFrame(msgspec.Struct, frozen=True):
    """What every chunk of a response repeats. `created` is in seconds since the epoch."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None = None


class CompletionChunk(ProtocolChunk["CompletionResponse"]):
    """A piece of the text of one choice, or its end, or the usage of all. Accumulating it consumes it."""

    __slots__ = ("_finish_reason", "_frame", "_index", "_logprobs", "_text", "_usage")

    def __init__(
        self,
        frame: CompletionFrame,
        index: int,
        text: str = "",
        logprobs: Logprobs | None = None,
        finish_reason: FinishKind | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__()
        self._frame = frame
        self._index = index
        self._text = text
        self._logprobs = logprobs
        self._finish_reason = finish_reason
        self._usage = usage

    def _json(self) -> str:
        choice = _choice(self._index, self._text, self._logprobs, self._finish_reason)
        return _response_json(self._frame, [choice] if self._usage is None else [], self._usage)

    def _add_to(self, response: CompletionResponse) -> None:
        response.frame = self._frame
        if self._usage is not None:
            response.usage = self._usage
            return
        choice = response.choices.setdefault(self._index, AccumulatedText())
        choice.pieces.append(self._text)
        choice.finish_reason = self._finish_reason
        if self._logprobs is not None:
            choice.logprobs = self._logprobs if choice.logprobs is None else choice.logprobs + self._logprobs


@dataclass(slots=True)
class AccumulatedText:
    """One choice, as far as its chunks have brought it."""

    pieces: list[str] = field(default_factory=list)
    logprobs: Logprobs | None = None
    finish_reason: FinishKind | None = None


class CompletionResponse:
    """A whole response: the fold of the chunks of a stream, under an ID, model and creation time of its own.

    The usage is that of the chunks; the constructor's counts are those of protocols whose chunks bring less.
    """

    __slots__ = ("_created", "_id", "_model", "choices", "frame", "usage")

    def __init__(
        self,
        id: str,  # noqa: A002
        model: str,
        created: int,
        prompt_tokens: int,
        prompt_cache_hit_tokens: int,
    ) -> None:
        self._id = utf8_str(id)
        self._model = utf8_str(model)
        self._created = created
        self.choices: dict[int, AccumulatedText] = {}
        self.frame: CompletionFrame | None = None
        self.usage: Usage | None = None

    def accumulate(self, chunk: CompletionChunk) -> None:
        """Consume the chunk and apply it. RuntimeError when it has been consumed before."""
        chunk.consume_into(self)

    def to_json(self) -> str:
        """The response as far as it has come."""
        fingerprint = None if self.frame is None else self.frame.system_fingerprint
        frame = CompletionFrame(self._id, "text_completion", self._created, self._model, fingerprint)
        choices = [
            _choice(index, "".join(choice.pieces), choice.logprobs, choice.finish_reason)
            for index, choice in sorted(self.choices.items())
        ]
        return _response_json(frame, choices, self.usage)

    @staticmethod
    def sse_event_name(chunk: CompletionChunk) -> str | None:
        """None: the events have no names."""
        return None

    @staticmethod
    def sse_done_data() -> str | None:
        """The data of the message that ends a stream."""
        return "[DONE]"


def _choice(index: int, text: str, logprobs: Logprobs | None, finish_reason: FinishKind | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _response_json(frame: CompletionFrame, choices: list[dict[str, Any]], usage: Usage | None) -> str:
    body: dict[str, Any] = {**msgspec.structs.asdict(frame), "choices": choices}
    if usage is not None:
        body["usage"] = msgspec.Raw(usage_json(usage).encode())
    return msgspec.json.encode(body).decode()
