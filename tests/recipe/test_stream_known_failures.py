"""Failures known of other servers, on the way from model output to protocol events: one test each."""

import json

import pytest

from tests.recipe.streamed import LENGTH, READY, STOP, Stream, block, call, deltas

TOOL = {"type": "function", "function": {"name": "f"}}
OFF = {"type": "disabled"}


def test_three_calls_in_two_chunks_are_three_calls() -> None:
    text = block(call("f", ("a", "true", "x")), call("f", ("a", "false", "1")), call("f"))
    stream = Stream("chat", tools=[TOOL], thinking=OFF)
    stream.push_all([READY, text[:120], text[120:], STOP])
    (choice,) = stream.whole()["choices"]
    assert [made["function"]["arguments"] for made in choice["message"]["tool_calls"]] == [
        '{"a": "x"}',
        '{"a": 1}',
        "{}",
    ]
    assert [made["index"] for made in choice["message"]["tool_calls"]] == [0, 1, 2]
    assert len({made["id"] for made in choice["message"]["tool_calls"]}) == 3
    assert choice["finish_reason"] == "tool_calls"


def test_nested_array_arguments_are_streamed_as_they_come() -> None:
    value = '[[1, [2, {"k": [3]}]], []]'
    stream = Stream("messages", tools=[{"name": "f", "input_schema": {"type": "object"}}], thinking=OFF)
    opening, rest = block(call("f", ("a", "false", value))).split(value)
    stream.push_all([READY, opening])
    pieces = [
        event["delta"]["partial_json"]
        for piece in ("[[1, [2", ', {"k": [3]', "}]], []]")
        for event in stream.push(piece)
    ]
    assert pieces == ["[[1, [2", ', {"k": [3]', "}]], []]"]
    stream.push_all([rest, STOP])
    assert stream.whole()["content"][0]["input"] == {"a": json.loads(value)}


def test_a_long_string_argument_arrives_in_pieces_not_at_the_end() -> None:
    value = "0123456789abcdef" * 128  # 2 KB
    opening, rest = block(call("f", ("a", "true", value))).split(value)
    stream = Stream("chat", tools=[TOOL], thinking=OFF)
    stream.push_all([READY, opening])
    arrived = [len(stream.push(value[at : at + 16])) for at in range(0, len(value), 16)]
    assert arrived == [1] * 128
    stream.push_all([rest, STOP])
    (made,) = stream.whole()["choices"][0]["message"]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"a": value}


def test_the_end_of_thinking_within_a_chunk_gives_two_deltas_in_order() -> None:
    stream = Stream("chat")
    stream.push(READY)
    assert deltas(stream.push("why</think>because")) == [
        {"content": None, "reasoning_content": "why"},
        {"content": "because", "reasoning_content": None},
    ]


def test_a_token_limit_amid_thinking_gives_reasoning_alone_and_length() -> None:
    stream = Stream("chat")
    stream.push_all([READY, "I think", " that", LENGTH])
    (choice,) = stream.whole()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "", "reasoning_content": "I think that"}
    assert choice["finish_reason"] == "length"


def test_a_stop_string_split_over_tokens_leaks_no_head_and_loses_no_text_before_it() -> None:
    stream = Stream("messages", thinking=OFF, stop_sequences=["STOP"])
    events = stream.push_all([READY, *([ord(character)] for character in "a STSTO")])
    assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == "a ST"
    events = stream.push([ord("P"), ord("!")])
    assert [event["type"] for event in events] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "STOP"}
    assert stream.whole()["content"] == [{"type": "text", "text": "a ST"}]


def test_the_head_of_a_stop_string_at_the_end_of_the_output_is_text() -> None:
    stream = Stream("chat", thinking=OFF, stop="STOP")
    stream.push_all([READY, "a ST", STOP])
    assert stream.whole()["choices"][0]["message"]["content"] == "a ST"


def test_a_stop_string_inside_reasoning_does_not_stop() -> None:
    stream = Stream("chat", stop=["STOP"])
    stream.push_all(
        [
            READY,
            "not STOP here",
            "</think>yes STOP",
        ]
    )
    (choice,) = stream.whole()["choices"]
    assert choice["message"]["reasoning_content"] == "not STOP here"
    assert choice["message"]["content"] == "yes "
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_invalid_utf8_from_the_model_is_replaced(protocol: str) -> None:
    stream = Stream(protocol)
    events = stream.push_all([READY, [0xFF, 0xFE], [0xE4, ord("a")], STOP])
    assert "\ufffd\ufffd\ufffda" in json.dumps(events, ensure_ascii=False)


def test_the_usage_is_in_the_last_chunk_before_done_when_it_is_asked_for() -> None:
    stream = Stream("chat", stream=True, stream_options={"include_usage": True})
    chunks = stream.push_all([READY, "a</think>b", STOP])
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["usage"]["total_tokens"] == 11
    assert type(stream.response).sse_done_data() == "[DONE]"


def test_the_other_chunks_of_a_stream_do_not_mention_usage_when_it_is_not_asked_for() -> None:
    stream = Stream("chat", stream=True)
    chunks = stream.push_all([READY, "a</think>b", STOP])
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_alternative_tokens_keep_their_leading_space() -> None:
    from recipe import InferenceChunk

    stream = Stream("chat", thinking=OFF, logprobs=True, top_logprobs=1)
    space_w = 264  # " w" in the tiny tokenizer
    chunks = stream.push(InferenceChunk.tokens([space_w], [(-0.5, [(space_w, -0.5)])]))
    (token,) = chunks[-1]["choices"][0]["logprobs"]["content"]
    assert token["token"] == " w"
    assert token["top_logprobs"] == [{"token": " w", "logprob": -0.5, "bytes": [32, 119]}]


def test_apply_patch_comes_back_as_a_custom_tool_call_with_its_plain_input() -> None:
    patch = '*** Begin Patch\n+"quoted" \\ 你\n*** End Patch'
    stream = Stream("responses", tools=[{"type": "custom", "name": "apply_patch"}], reasoning={"effort": "none"})
    stream.push_all([READY, block(call("apply_patch", ("input", "true", patch))), STOP])
    (item,) = stream.whole()["output"]
    assert item["type"] == "custom_tool_call"
    assert (item["name"], item["input"], item["status"]) == ("apply_patch", patch, "completed")


def test_input_tokens_are_right_in_message_start() -> None:
    (start, *_) = Stream("messages").push(READY)
    assert start["type"] == "message_start"
    assert start["message"]["usage"]["input_tokens"] == 7
    assert start["message"]["usage"]["cache_read_input_tokens"] == 3
