"""Inference chunks in, protocol chunks out: one `StreamProcessor` a response.

    tokens ── decoder ──► segments ── parser ──► reasoning, content, tool calls ── generator ──► chunks of the protocol

The processor owns the order of things: the opening, the end (a finish chunk, a stop string, or no more input), the usage, and
that nothing follows an end or an error.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from recipe.stream.decoder import StreamDecoder, StreamTokenizer
from recipe.stream.finish import FinishReason, Usage
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage
from recipe.stream.parser import OutputParser, OutputSink
from recipe.stream.parsing_options import ParsingOptions
from recipe.stream.segment import ANY, Segment

_MAX_COMPLETION_TOKENS = 2**32 - 1

ChunkT = TypeVar("ChunkT", covariant=True)


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


class StreamProcessor(Generic[ChunkT]):
    """Turns the inference chunks of one stream into the chunks of a protocol."""
'''
'''
