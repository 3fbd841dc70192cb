"""Chat Completions chunks of what the parser finds."""

from __future__ import annotations

import time
from typing import NamedTuple

from recipe.protocol.chat_completions.response import (
    ArgumentsChunk,
    CallChunk,
    ChatCompletionChunk,
    ContentChunk,
    FinalChunk,
    OpeningChunk,
    ReasoningChunk,
    StreamFrame,
    UsageChunk,
)
from recipe.request import ConversationRequest
from recipe.stream.call_id import tool_call_id
from recipe.stream.chunk_queue import ChunkQueue
from recipe.stream.finish import FinishReason, Usage


class UsageReport(NamedTuple):
    """Where the usage goes: with the last choice, or `apart` behind it; elsewhere is null, or nothing."""

    in_every_chunk: bool
    apart: bool = False


class UsageTally:
    """The usage of the choices of one response: one prompt, and the completions together."""

    __slots__ = ("_number_open", "_total")

    def __init__(self, number: int) -> None:
        self._number_open = number
        self._total: Usage | None = None

    def add(self, usage: Usage) -> Usage | None:
        """Add the usage of a choice that has ended; the total when it was the last one."""
        self._total = usage if self._total is None else _sum(self._total, usage)
        self._number_open -= 1
        return None if self._number_open else self._total


def _sum(first: Usage, second: Usage) -> Usage:
    reasoning = (first.reasoning_tokens, second.reasoning_tokens)
    return first._replace(
        completion_tokens=first.completion_tokens + second.completion_tokens,
        reasoning_tokens=None if None in reasoning else sum(number or 0 for number in reasoning),
        prompt_cache_hit_tokens=min(first.prompt_cache_hit_tokens, second.prompt_cache_hit_tokens),
    )


class ChatCompletionChunkGenerator(ChunkQueue[ChatCompletionChunk]):
    """Makes the chunks of one response; a stream processor consumes it.

    `starts_in_reasoning` says what the first delta announces.
    """

    __slots__ = (
        "_calls",
        "_frame",
        "_has_reasoning",
        "_id",
        "_index",
        "_model",
        "_report",
        "_starts_in_reasoning",
        "_tally",
        "_thinking_mode",
    )

    def __init__(
        self, response_id: str, model: str, thinking_mode: bool, starts_in_reasoning: bool, report: UsageReport
    ) -> None:
        super().__init__()
        self._id = response_id
        self._model = model
        self._thinking_mode = thinking_mode
        self._starts_in_reasoning = starts_in_reasoning
        self._report = report
        self._calls = 0
        self._has_reasoning = False
        self._index = 0
        self._tally = UsageTally(1)

    @classmethod
    def for_request(cls, request: ConversationRequest, response_id: str, model: str) -> ChatCompletionChunkGenerator:
        """The generator of the response to `request`, whichever protocol it came by."""
        report = request.protocol_state
        if not isinstance(report, UsageReport):
            report = UsageReport(in_every_chunk=not request.stream)
        stage = request.parsing_options.thinking_initial_stage
        return cls(
            response_id,
            model,
            request.conversation.thinking_mode,
            stage is not None and stage.starts_in_reasoning(),
            report,
        )

    def fan_out(self, number: int) -> list[ChatCompletionChunkGenerator]:
        """Generators for `number` choices of the response; the one that finishes last reports the usage of all."""
        tally = UsageTally(number)
        return [self._for_choice(index, tally) for index in range(number)]

    def _for_choice(self, index: int, tally: UsageTally) -> ChatCompletionChunkGenerator:
        generator = ChatCompletionChunkGenerator(
            self._id, self._model, self._thinking_mode, self._starts_in_reasoning, self._report
        )
        generator._index, generator._tally = index, tally
        return generator

    def open(self, prompt: Usage, system_fingerprint: str | None) -> None:
        """The first delta, with the role."""
        self._frame = StreamFrame(
            self._id,
            self._model,
            int(time.time()),
            system_fingerprint,
            self._thinking_mode,
            self._report.in_every_chunk,
            self._index,
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
        """The last chunk of the choice, with the finish reason and, when no other choice is open, the usage."""
        if not self._thinking_mode and usage.reasoning_tokens is not None:
            usage = usage._replace(reasoning_tokens=None)
        total = self._tally.add(usage)
        self._chunks.append(FinalChunk(self._frame, reason.kind, None if self._report.apart else total))
        if self._report.apart and total is not None:
            self._chunks.append(UsageChunk(self._frame, total))
