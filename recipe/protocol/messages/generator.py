"""Messages events of what the parser finds: one content block at a time, opened by its first piece."""

from __future__ import annotations

from recipe.json_value import utf8_str
from recipe.protocol.messages.content_block import AccumulatedBlock, TextBlock, ThinkingBlock, ToolUseBlock
from recipe.protocol.messages.response import (
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageDelta,
    MessagesStreamEvent,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from recipe.stream.call_id import tool_call_id
from recipe.stream.chunk_queue import ChunkQueue
from recipe.stream.finish import FinishKind, FinishReason, Usage

_STOP_REASONS: dict[FinishKind, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
}


class MessagesChunkGenerator(ChunkQueue[MessagesStreamEvent]):
    """Makes the events of one response; a stream processor consumes it.

    In thinking mode the first block is one of thinking, even if it stays empty.
    """

    __slots__ = ("_block", "_calls", "_has_thinking", "_id", "_index", "_model", "_signature", "_thinking_mode")

    def __init__(self, id: str, model: str, thinking_mode: bool) -> None:  # noqa: A002
        super().__init__()
        if not isinstance(thinking_mode, bool):
            raise TypeError(f"thinking_mode must be a bool, not {type(thinking_mode).__name__}")
        self._id = utf8_str(id)
        self._model = utf8_str(model)
        self._thinking_mode = thinking_mode
        self._signature = self._id
        self._block: AccumulatedBlock | None = None  # the one that is open
        self._index = -1  # of the last block
        self._calls = 0
        self._has_thinking = False

    def with_signature(self, signature: str) -> MessagesChunkGenerator:
        """Consume this generator; the new one ends thinking blocks with `signature` in place of the response ID."""
        signature = utf8_str(signature)
        self.consume()
        generator = MessagesChunkGenerator(self._id, self._model, self._thinking_mode)
        generator._signature = signature
        return generator

    def open(self, prompt: Usage, system_fingerprint: str | None) -> None:
        """The message begins."""
        self._chunks.append(MessageStart(self._id, self._model, prompt))
        if self._thinking_mode:
            self._start(ThinkingBlock())

    def reasoning(self, text: str, logprobs: str | None) -> None:
        """A piece of the reasoning."""
        self._has_thinking = True
        if not isinstance(self._block, ThinkingBlock):
            self._start(ThinkingBlock())
        self._chunks.append(ThinkingDelta(self._index, text))

    def content(self, text: str, logprobs: str | None) -> None:
        """A piece of the answer."""
        if not isinstance(self._block, TextBlock):
            self._start(TextBlock())
        self._chunks.append(TextDelta(self._index, text))

    def tool_call(self, name: str) -> None:
        """A tool call begins."""
        call_id = tool_call_id(self._calls, self._thinking_mode and not self._has_thinking)
        self._calls += 1
        self._start(ToolUseBlock(call_id, name))

    def arguments(self, text: str) -> None:
        """A piece of the arguments of the last tool call."""
        self._chunks.append(InputJsonDelta(self._index, text))

    def finish(self, reason: FinishReason, usage: Usage) -> None:
        """The message is complete."""
        self._stop()
        stop_reason = _STOP_REASONS[reason.kind] if reason.stop_sequence is None else "stop_sequence"
        self._chunks.append(MessageDelta(stop_reason, reason.stop_sequence, usage))
        self._chunks.append(MessageStop())

    def _start(self, block: AccumulatedBlock) -> None:
        self._stop()
        self._block = block
        self._index += 1
        self._chunks.append(ContentBlockStart(self._index, block))
        if self._index == 0:
            self._chunks.append(Ping())

    def _stop(self) -> None:
        """End the open block, if there is one."""
        if self._block is None:
            return
        if isinstance(self._block, ThinkingBlock):
            self._chunks.append(SignatureDelta(self._index, self._signature))
        self._chunks.append(ContentBlockStop(self._index))
        self._block = None
