"""Several choices of one Chat Completions response, and the usage in a chunk of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ConversionOptions,
    InferenceChunk,
    InferenceFinishReason,
    PromptUsage,
    StreamProcessor,
)
from recipe.extensions import Extensions

STOP = InferenceChunk.finish(InferenceFinishReason.Stop)
READY = InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=11, prompt_cache_hit_tokens=4))


def converted(extensions: Extensions, **fields: Any) -> Any:
    body = {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "hi"}], **fields}
    body["thinking"] = {"type": "disabled"}
    options = ConversionOptions().with_extensions(extensions)
    return ChatCompletionRequest(json.dumps(body).encode()).convert(options)


def processors(request: Any, number: int) -> list[Any]:
    generator = ChatCompletionRequest.chunk_generator(request, "id", "model")
    return [StreamProcessor(one, request.parsing_options) for one in generator.fan_out(number)]


def test_every_chunk_names_its_choice_and_the_last_to_finish_reports_the_usage_of_all() -> None:
    request = converted(Extensions(), stream=True)
    first, second = processors(request, 2)
    events = [*first.push(READY), *second.push(READY), *second.push(InferenceChunk.text("b", 2))]
    events += [*first.push(InferenceChunk.text("a", 3)), *second.push(STOP), *first.push(STOP)]
    data = [json.loads(event.to_json()) for event in events]
    assert [chunk["choices"][0]["index"] for chunk in data] == [0, 1, 1, 0, 1, 0]
    assert [("usage" in chunk) for chunk in data] == [False] * 5 + [True]
    assert data[-1]["usage"]["prompt_tokens"] == 11 and data[-1]["usage"]["completion_tokens"] == 5
    assert data[-1]["usage"]["prompt_cache_hit_tokens"] == 4


def test_a_whole_response_holds_the_choices_in_order() -> None:
    request = converted(Extensions())
    whole = ChatCompletionResponse("id", "model", 1, 0, 0)
    for number, processor in reversed(list(enumerate(processors(request, 3)))):
        for chunk in (READY, InferenceChunk.text(f"answer {number}", 1), STOP):
            for event in processor.push(chunk):
                whole.accumulate(event)
    answer = json.loads(whole.to_json())
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["answer 0", "answer 1", "answer 2"]
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("asked", [True, False])
def test_usage_that_is_asked_for_comes_in_a_last_chunk_without_choices(asked: bool) -> None:
    request = converted(Extensions(usage_chunk=True), stream=True, stream_options={"include_usage": asked})
    (processor,) = processors(request, 1)
    events = [event for chunk in (READY, InferenceChunk.text("x", 1), STOP) for event in processor.push(chunk)]
    data = [json.loads(event.to_json()) for event in events]
    if asked:
        assert data[-1]["choices"] == [] and data[-1]["usage"]["total_tokens"] == 12
        assert all(chunk["usage"] is None for chunk in data[:-1])
        assert data[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        assert data[-1]["choices"][0]["finish_reason"] == "stop" and data[-1]["usage"]["total_tokens"] == 12
