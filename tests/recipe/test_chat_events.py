"""Chat Completions chunks, and the response they add up to."""

import pytest

from recipe import ChatCompletionResponse, InferenceChunk, MessagesChunkGenerator, ParsingOptions, StreamProcessor
from tests.recipe.streamed import LENGTH, READY, STOP, Stream, block, call, deltas

OFF = {"type": "disabled"}
TOOL = {"type": "function", "function": {"name": "f"}}


def test_the_first_delta_announces_reasoning_when_the_output_starts_with_it() -> None:
    assert deltas(Stream("chat").push(READY)) == [{"role": "assistant", "content": None, "reasoning_content": ""}]


def test_the_first_delta_announces_content_when_thinking_is_off() -> None:
    assert deltas(Stream("chat", thinking=OFF).push(READY)) == [{"role": "assistant", "content": ""}]


def test_a_continued_answer_of_a_thinking_request_announces_content() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hel", "prefix": True}]
    stream = Stream("chat", messages=messages)
    assert deltas(stream.push(READY)) == [{"role": "assistant", "content": "", "reasoning_content": None}]


def test_the_reasoning_key_exists_in_thinking_mode_alone() -> None:
    assert deltas(Stream("chat", thinking=OFF).push("a"))[-1] == {"content": "a"}
    assert deltas(Stream("chat").push("</think>a"))[-1] == {"content": "a", "reasoning_content": None}


def test_a_call_is_its_head_and_then_its_arguments() -> None:
    stream = Stream("chat", thinking=OFF, tools=[TOOL])
    head, *arguments = deltas(stream.push(block(call("f", ("a", "true", "x"))))[1:])
    assert head["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert [piece["tool_calls"] for piece in arguments] == [
        [{"index": 0, "function": {"arguments": text}}] for text in ("{", '"a"', ": ", '"', "x", '"', "}")
    ]


@pytest.mark.parametrize(("output", "mark"), [("</think>", "call_00_ET_"), ("why</think>", "call_00_")])
def test_the_identifier_of_a_call_tells_whether_the_model_thought_before_it(output: str, mark: str) -> None:
    stream = Stream("chat", tools=[TOOL])
    stream.push(output + block(call("f")))
    (made,) = stream.whole()["choices"][0]["message"]["tool_calls"]
    assert made["id"].startswith(mark)
    assert made["id"].removeprefix(mark).isalnum()
    assert len(made["id"].removeprefix(mark)) == 24


def test_the_last_chunk_has_the_finish_reason_and_the_usage() -> None:
    stream = Stream("chat", thinking=OFF)
    stream.push_all([READY, "abc"])
    (last,) = stream.push(LENGTH)
    assert last["choices"] == [{"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "length"}]
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 1,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 3},
        "prompt_cache_hit_tokens": 3,
        "prompt_cache_miss_tokens": 7,
    }


def test_all_chunks_carry_the_head_of_the_stream() -> None:
    stream = Stream("chat")
    chunks = stream.push_all([InferenceChunk.ready(system_fingerprint="fp"), "a", STOP])
    assert {(chunk["id"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks} == {("ID", "model", "fp")}
    assert len({chunk["created"] for chunk in chunks}) == 1


def test_log_probabilities_are_accumulated_apart_for_reasoning_and_content() -> None:
    stream = Stream("chat", logprobs=True)
    end = 303
    stream.push(InferenceChunk.tokens([97, end, 98, 99], [(-0.5, [])] * 4))
    logprobs = stream.whole()["choices"][0]["logprobs"]
    assert [item["token"] for item in logprobs["reasoning_content"]] == ["a"]
    assert [item["token"] for item in logprobs["content"]] == ["b", "c"]


def test_a_response_keeps_the_identity_it_was_made_with() -> None:
    stream = Stream("chat", thinking=OFF)
    assert stream.whole()["choices"] == []
    assert "usage" not in stream.whole()
    stream.push_all([READY, "a", "b", STOP])
    whole = stream.whole()
    assert (whole["id"], whole["model"], whole["created"]) == ("other", "other", 1)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "ab"}
    assert whole["usage"]["completion_tokens"] == 2


def test_a_chunk_is_consumed_by_its_response() -> None:
    stream = Stream("chat", thinking=OFF)
    (chunk,) = stream.processor.push(READY)
    stream.response.accumulate(chunk)
    for use in (chunk.to_json, lambda: stream.response.accumulate(chunk)):
        with pytest.raises(RuntimeError, match="protocol chunk has been consumed"):
            use()


def test_events_of_another_protocol_are_refused() -> None:
    (event,) = StreamProcessor(MessagesChunkGenerator("ID", "model", False), ParsingOptions()).push(READY)
    with pytest.raises(TypeError):
        Stream("chat").response.accumulate(event)
    with pytest.raises(TypeError):
        ChatCompletionResponse.sse_event_name(event)  # type: ignore[arg-type]


def test_the_events_have_no_names_and_the_stream_ends_with_done() -> None:
    (chunk,) = Stream("chat").processor.push(READY)
    assert ChatCompletionResponse.sse_event_name(chunk) is None
    assert ChatCompletionResponse.sse_done_data() == "[DONE]"
