"""Messages events, and the response they add up to."""

import pytest

from recipe import InferenceChunk, InferenceFinishReason, MessagesChunkGenerator, MessagesResponse
from tests.recipe.streamed import LENGTH, READY, STOP, Json, Stream, block, call

OFF = {"type": "disabled"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def kinds(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


def test_blocks_open_and_close_one_after_the_other() -> None:
    stream = Stream("messages", tools=[TOOL])
    events = stream.push_all([READY, "why</think>so" + block(call("f")), STOP])
    assert kinds(events) == [
        "message_start",
        *("content_block_start", "ping", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        "message_delta",
        "message_stop",
    ]
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2]


def test_the_event_name_is_the_type() -> None:
    (event, *_) = Stream("messages").processor.push(READY)
    assert MessagesResponse.sse_event_name(event) == "message_start"
    assert MessagesResponse.sse_done_data() is None


def test_a_thinking_block_is_opened_even_if_it_stays_empty() -> None:
    stream = Stream("messages")
    stream.push_all([READY, STOP])
    assert stream.whole()["content"] == [{"type": "thinking", "thinking": "", "signature": "ID"}]


def test_an_empty_output_without_thinking_has_no_blocks() -> None:
    stream = Stream("messages", thinking=OFF)
    assert kinds(stream.push_all([READY, STOP])) == ["message_start", "message_delta", "message_stop"]
    assert stream.whole()["content"] == []


def test_a_signature_replaces_the_response_id_and_consumes_the_generator() -> None:
    generator = MessagesChunkGenerator("ID", "model", True)
    assert generator.with_signature("signed") is not generator
    with pytest.raises(RuntimeError, match="chunk generator has been consumed"):
        generator.with_signature("again")
    with pytest.raises(TypeError):
        MessagesChunkGenerator("ID", "model", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (STOP, "end_turn"),
        (LENGTH, "max_tokens"),
        (InferenceChunk.finish(InferenceFinishReason.ContentFilter), "refusal"),
    ],
)
def test_finish_reasons_have_the_names_of_the_protocol(chunk: InferenceChunk, reason: str) -> None:
    stream = Stream("messages", thinking=OFF)
    stream.push_all([READY, "a", chunk])
    assert stream.whole()["stop_reason"] == reason


def test_a_call_is_a_tool_use_block_with_its_parsed_input() -> None:
    stream = Stream("messages", thinking=OFF, tools=[TOOL])
    stream.push_all([READY, block(call("f", ("a", "true", 'x"'), ("b", "false", "[1E2, -0]"))), STOP])
    (content,) = stream.whole()["content"]
    assert content["type"] == "tool_use"
    assert content["input"] == {"a": 'x"', "b": [100.0, 0.0]}
    assert stream.whole()["stop_reason"] == "tool_use"


def test_input_that_is_no_json_is_shown_as_an_empty_object() -> None:
    stream = Stream("messages", thinking=OFF, tools=[TOOL])
    stream.push_all([READY, block(call("f", ("a", "false", "{nope"))), STOP])
    assert stream.whole()["content"][0]["input"] == {}


def test_the_response_has_identity_and_usage_of_the_stream() -> None:
    stream = Stream("messages", thinking=OFF)
    stream.push_all([READY, "a", STOP])
    whole = stream.whole()
    assert (whole["id"], whole["model"]) == ("ID", "model")
    assert whole["usage"] == {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 1,
        "service_tier": "standard",
    }
