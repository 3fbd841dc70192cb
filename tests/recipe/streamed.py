"""Drive one response of each protocol over the public classes, and read its chunks back as JSON."""

import json
from collections.abc import Sequence
from typing import Any

import recipe
from recipe import InferenceChunk, InferenceFinishReason, ParsingOptions, PromptUsage, StreamProcessor
from tests.oracle.tokenizer_files import get_tokenizer

Json = dict[str, Any]
Fed = str | list[int] | InferenceChunk
DSML = "｜DSML｜"
STOP = InferenceChunk.finish(InferenceFinishReason.Stop)
LENGTH = InferenceChunk.finish(InferenceFinishReason.Length)
READY = InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=3))

REQUESTS: dict[str, Any] = {
    "chat": recipe.ChatCompletionRequest,
    "responses": recipe.ResponsesRequest,
    "messages": recipe.MessagesRequest,
}
RESPONSES: dict[str, Any] = {
    "chat": recipe.ChatCompletionResponse,
    "responses": recipe.ResponsesResponse,
    "messages": recipe.MessagesResponse,
}
BODIES: dict[str, Json] = {
    "chat": {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"model": "DeepSeek-V4.1-Flash", "input": "hi"},
    "messages": {"model": "DeepSeek-V4.1-Flash", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}


class Stream:
    """One response to a request of `protocol`; `fields` are added to a minimal body."""

    def __init__(self, protocol: str, parsing: ParsingOptions | None = None, **fields: Any) -> None:
        body = BODIES[protocol] | fields
        converted = REQUESTS[protocol](body).convert(recipe.ConversionOptions())
        generator = REQUESTS[protocol].chunk_generator(converted, "ID", "model")
        tokenizer = get_tokenizer(recipe, "tiny")
        self.processor: StreamProcessor[Any] = StreamProcessor(
            generator, parsing or converted.parsing_options, tokenizer
        )
        self.response = RESPONSES[protocol]("other", "other", 1, 10, 3)

    def push(self, fed: Fed) -> list[Json]:
        """The chunks that text, token IDs or a chunk bring."""
        if isinstance(fed, str):
            fed = InferenceChunk.text(fed, 1)
        elif isinstance(fed, list):
            fed = InferenceChunk.tokens(fed)
        return self._read(self.processor.push(fed))

    def push_all(self, fed: Sequence[Fed]) -> list[Json]:
        """The chunks of several pieces."""
        return [chunk for piece in fed for chunk in self.push(piece)]

    def finish(self) -> list[Json]:
        """The chunks that the end of the input brings."""
        return self._read(self.processor.finish())

    def whole(self) -> Json:
        """The response so far."""
        response: Json = json.loads(self.response.to_json())
        return response

    def _read(self, chunks: Sequence[Any]) -> list[Json]:
        read = [json.loads(chunk.to_json()) for chunk in chunks]
        for chunk in chunks:
            self.response.accumulate(chunk)
        return read


def deltas(chunks: Sequence[Json]) -> list[Json]:
    """The deltas of Chat Completions chunks."""
    return [chunk["choices"][0]["delta"] for chunk in chunks]


def call(name: str, *parameters: tuple[str, str, str]) -> str:
    """A tool call as the model writes it; a parameter is its name, its `string` attribute and its value."""
    lines = [
        f'<{DSML} parameter name="{key}" string="{is_string}">{value}</{DSML} parameter>\n'
        for key, is_string, value in parameters
    ]
    return f'<{DSML} invoke name="{name}">\n{"".join(lines)}</{DSML} invoke>\n'


def block(*calls: str) -> str:
    """A block of tool calls as the model writes it."""
    return f"\n\n<{DSML} calls>\n{''.join(calls)}</{DSML} calls>"
