"""Chat Completions chunks of what the parser finds."""

from __future__ import annotations

import time

from recipe.protocol.chat_completions.response import (
    ArgumentsChunk,
    CallChunk,
    ChatCompletionChunk,
    ContentChunk,
    FinalChunk,
    OpeningChunk,
    ReasoningChunk,
    StreamFrame,
)
from recipe.protocol.chat_completions.schema import StreamOptions
from recipe.request import ConversationRequest
from recipe.stream.call_id import tool_call_id
from recipe.stream.chunk_queue import ChunkQueue
from recipe.stream.finish import FinishReason, Usage


class ChatCompletionChunkGenerator(ChunkQueue[ChatCompletionChunk]):
    """Makes the chunks of one response; a stream processor consumes it.

    `starts_in_reasoning` says what the first delta announces. The chunks before the last carry `"usage":null` when
    `reports_null_usage`.
    """

    __slots__ = (
        "_calls",
        "_frame",
        "_has_reasoning",
        "_id",
        "_model",
        "_reports_null_usage",
        "_starts_in_reasoning",
        "_thinking_mode",
    )

    def __init__(
        self, response_id: str, model: str, *, thinking_mode: bool, starts_in_reasoning: bool, reports_null_usage: bool
    ) -> None:
        super().__init__()
        self._id = response_id
        self._model = model
        self._thinking_mode = thinking_mode
        self._starts_in_reasoning = starts_in_reasoning
        self._reports_null_usage = reports_null_usage
        self._calls = 0
        self._has_reasoning = False

    @classmethod
    def for_request(cls, request: ConversationRequest, response_id: str, model: str) -> ChatCompletionChunkGenerator:
        """The generator of the response to `request`, whichever protocol it came by."""
        options = request.protocol_state
        include_usage = isinstance(options, StreamOptions) and options.include_usage is True
        stage = request.parsing_options.thinking_initial_stage
        return cls(
            response_id,
            model,
            thinking_mode=request.conversation.thinking_mode,
            starts_in_reasoning=stage is not None and stage.starts_in_reasoning(),
            reports_null_usage=include_usage or not request.stream,
        )

    def open(self, prompt: Usage, system_fingerprint: str | None) -> None:
        """The first delta, with the role."""
        self._frame = StreamFrame(
            response_id=self._id,
            model=self._model,
            created=int(time.time()),
            system_fingerprint=system_fingerprint,
            thinking_mode=self._thinking_mode,
            reports_null_usage=self._reports_null_usage,
        )
        self._chunks.append(OpeningChunk(self._frame, self._starts_in_reasoning))

    def reasoning(self, text: str, logprobs: str | None) -> None:
        """A piece of the reasoning."""
        self._has_reasoning = True
        self._chunks.append(ReasoningChunk(self._frame, text, logprobs))

    def content(self, text: str, logprobs: str | None) -> None:
        """A piece of the answer."""
        self._chunks.append(ContentChunk(self._frame, text, logprobs))

    def tool_call(self, name: str) -> None:
        """A tool call begins."""
        call_id = tool_call_id(self._calls, self._thinking_mode and not self._has_reasoning)
        self._chunks.append(CallChunk(self._frame, self._calls, call_id, name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """A piece of the arguments of the last tool call."""
        self._chunks.append(ArgumentsChunk(self._frame, self._calls - 1, text))

    def finish(self, reason: FinishReason, usage: Usage) -> None:
        """The last chunk, with the finish reason and the usage."""
        if not self._thinking_mode:
            usage = usage._replace(reasoning_tokens=None)
        self._chunks.append(FinalChunk(self._frame, reason.kind, usage))
