"""Inference chunks in, protocol chunks out: one `StreamProcessor` a response.

    tokens ── decoder ──► segments ── parser ──► reasoning, content, tool calls ── generator ──► chunks of the protocol

The processor owns the order of things: the opening, the end (a finish chunk, a stop string, or no more input), the
usage, and that nothing follows an end or an error.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, Protocol, TypeVar

from recipe.stream.decoder import StreamDecoder, StreamTokenizer
from recipe.stream.finish import FinishKind, FinishReason, Usage
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage
from recipe.stream.parser import OutputParser, OutputSink
from recipe.stream.parsing_options import ParsingOptions
from recipe.stream.segment import ANY, Segment

_MAX_COMPLETION_TOKENS = 2**32 - 1
_KINDS: dict[InferenceFinishReason, FinishKind] = {
    InferenceFinishReason.Stop: "stop",
    InferenceFinishReason.Length: "length",
    InferenceFinishReason.ContentFilter: "content_filter",
}

ChunkT = TypeVar("ChunkT")


class ChunkGenerator(OutputSink, Protocol[ChunkT]):
    """Makes the chunks of one protocol of what the parser finds."""

    def consume(self) -> None:
        """Take the generator for a stream. RuntimeError when it has been taken before."""

    def open(self, prompt: Usage, system_fingerprint: str | None) -> None:
        """The response begins. Called once, before everything else."""

    def finish(self, reason: FinishReason, usage: Usage) -> None:
        """The response is complete."""

    def take(self) -> list[ChunkT]:
        """The chunks made since the last call."""


class _State(Enum):
    """The life of a stream; the value completes the sentence that refuses what the state forbids."""

    UNOPENED = "is not open"
    OPEN = "is open"
    FINISHED = "has finished"
    CLOSED = "is closed"


_NO_PROMPT = PromptUsage()
_UNOPENED, _OPEN, _FINISHED, _CLOSED = _State  # looking a member up in its class takes longer than most of what follows


class StreamProcessor(Generic[ChunkT]):
    """Turns the inference chunks of one stream into the chunks of a protocol.

    The reason reported is that of the finish chunk, except that a stop after a tool call is reported as `tool_calls`;
    input that ends without a finish chunk is a plain stop.
    """

    __slots__ = (
        "_completion_tokens",
        "_decoder",
        "_generator",
        "_parser",
        "_prompt",
        "_reports_reasoning",
        "_state",
        "_tokenizer",
    )

    def __init__(
        self, generator: ChunkGenerator[ChunkT], options: ParsingOptions, tokenizer: StreamTokenizer | None = None
    ) -> None:
        """Consume the generator; RuntimeError when it has been consumed before.

        The optional tokenizer decodes `tokens` chunks. Without one, such a chunk raises RuntimeError and closes the
        processor.
        """
        _check_arguments(generator, options, tokenizer)
        generator.consume()
        self._generator = generator
        self._parser = OutputParser(options, generator)
        self._tokenizer = tokenizer
        self._decoder = None if tokenizer is None else StreamDecoder(tokenizer)
        self._reports_reasoning = tokenizer is not None and options.thinking_initial_stage is not None
        self._prompt = _NO_PROMPT
        self._completion_tokens = 0
        self._state = _UNOPENED

    @property
    def finished(self) -> bool:
        """Whether processing completed normally and the processor has not been closed since."""
        return self._state is _FINISHED

    def push(self, chunk: InferenceChunk) -> list[ChunkT]:
        """Process one chunk.

        Raises RuntimeError after completion or close, or on a stream error: a `tokens` chunk without a tokenizer, or
        log probabilities for another number of tokens. A stream error closes the processor.
        """
        if not isinstance(chunk, InferenceChunk):
            raise TypeError(f"expected an InferenceChunk, not {type(chunk).__name__}")
        if self._state is not _OPEN and self._state is not _UNOPENED:
            self._require()
        _HANDLERS[chunk.kind](self, chunk)
        return self._generator.take()

    def finish(self) -> list[ChunkT]:
        """End the input and process what is held. Calls after completion yield nothing.

        Raises RuntimeError after close or a stream error.
        """
        self._require(_UNOPENED, _OPEN, _FINISHED)
        if self._state is not _FINISHED:
            self._end("stop")
        return self._generator.take()

    def close(self) -> None:
        """Release the state of the stream; it can no longer complete."""
        if self._state is not _CLOSED:
            self._state = _CLOSED
            self._parser.close()

    def _require(self, *allowed: _State) -> None:
        if self._state not in allowed:
            raise RuntimeError(f"stream processor {self._state.value}")

    def _on_ready(self, chunk: InferenceChunk) -> None:
        """The prompt's usage; it counts only at the very beginning."""
        if self._state is _UNOPENED:
            self._open(chunk.prompt_usage or _NO_PROMPT, chunk.system_fingerprint)

    def _on_text(self, chunk: InferenceChunk) -> None:
        self._feed(Segment(chunk.content or "", ANY, chunk.token_count or 0))

    def _on_tokens(self, chunk: InferenceChunk) -> None:
        try:
            segments = self._decode(chunk)
        except ValueError as problem:
            self.close()
            raise RuntimeError(str(problem)) from None
        for segment in segments:
            self._feed(segment)
            if self._state is _FINISHED:
                return

    def _on_finish(self, chunk: InferenceChunk) -> None:
        self._prompt = chunk.prompt_usage or self._prompt
        self._completion_tokens += chunk.token_count or 0
        kind = _KINDS[chunk.finish_reason or InferenceFinishReason.Stop]
        self._end("tool_calls" if kind == "stop" and self._parser.tool_calls else kind)

    def _decode(self, chunk: InferenceChunk) -> list[Segment]:
        if self._decoder is None:
            raise ValueError("token chunk received without a tokenizer")
        return self._decoder.decode(chunk.token_ids or (), chunk.logprobs)

    def _open(self, prompt: PromptUsage, system_fingerprint: str | None = None) -> None:
        self._state = _OPEN
        self._prompt = prompt
        self._generator.open(self._usage(), system_fingerprint)

    def _feed(self, segment: Segment) -> None:
        if self._state is _UNOPENED:
            self._open(self._prompt)
        self._completion_tokens += segment.token_count
        self._parser.feed(segment)
        if self._parser.stop_sequence is not None:
            self._complete(FinishReason("stop", self._parser.stop_sequence))

    def _end(self, kind: FinishKind) -> None:
        """No more input: what is held is text, in which a stop string may turn up."""
        if self._state is _UNOPENED:
            self._open(self._prompt)
        self._parser.end()
        stop_sequence = self._parser.stop_sequence
        self._complete(FinishReason(kind) if stop_sequence is None else FinishReason("stop", stop_sequence))

    def _complete(self, reason: FinishReason) -> None:
        self._state = _FINISHED
        self._generator.finish(reason, self._usage(self._reasoning_tokens()))

    def _usage(self, reasoning_tokens: int | None = None) -> Usage:
        prompt = self._prompt
        completion_tokens = min(self._completion_tokens, _MAX_COMPLETION_TOKENS)
        return Usage(prompt.prompt_tokens, prompt.prompt_cache_hit_tokens, completion_tokens, reasoning_tokens)

    def _reasoning_tokens(self) -> int | None:
        """The tokens of the reasoning text, counted by encoding it again; None where they are not reported."""
        if self._tokenizer is None or not self._reports_reasoning:
            return None
        return len(self._tokenizer.encode("".join(self._parser.reasoning_pieces)))


_HANDLERS = {
    "ready": StreamProcessor._on_ready,
    "text": StreamProcessor._on_text,
    "tokens": StreamProcessor._on_tokens,
    "finish": StreamProcessor._on_finish,
}


def _check_arguments(generator: object, options: object, tokenizer: object) -> None:
    """TypeError for an argument of another kind."""
    if not hasattr(generator, "consume"):
        raise TypeError("expected a protocol chunk generator")
    if not isinstance(options, ParsingOptions):
        raise TypeError(f"options must be ParsingOptions, not {type(options).__name__}")
    if tokenizer is not None and not hasattr(tokenizer, "added_spellings"):
        raise TypeError(f"tokenizer must be a Tokenizer, not {type(tokenizer).__name__}")
