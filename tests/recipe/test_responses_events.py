"""Responses events, and the response they add up to."""

import json

import pytest

from recipe import (
    ConversionOptions,
    InferenceChunk,
    InferenceFinishReason,
    ResponsesEcho,
    ResponsesRequest,
    ResponsesResponse,
)
from recipe.protocol.responses.custom_input import CustomInput
from tests.recipe.streamed import LENGTH, READY, STOP, Json, Stream, block, call

NO_THINKING = {"effort": "none"}
FUNCTION = {"type": "function", "name": "f"}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "CRM", "tools": [{"type": "function", "name": "get"}]}
SEARCH = {"type": "tool_search", "execution": "client"}
PATCH = {"type": "custom", "name": "apply_patch"}


def kinds(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_items_open_and_close_one_after_the_other_and_events_are_numbered() -> None:
    stream = Stream("responses", tools=[FUNCTION])
    events = stream.push_all([READY, "why</think>so" + block(call("f")), STOP])
    text = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
    assert kinds(events) == [
        *("created", "in_progress"),
        *(kind.format("reasoning_text") for kind in text),
        *(kind.format("output_text") for kind in text),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_the_last_event_holds_the_same_response_as_the_fold() -> None:
    stream = Stream("responses", tools=[FUNCTION])
    *_, last = stream.push_all([READY, "why</think>so" + block(call("f")), STOP])
    assert last["response"] == stream.whole()
    assert [item["id"] for item in stream.whole()["output"]] == ["rs_ID_0", "msg_ID_1", "fc_ID_2"]


def test_the_fold_of_every_prefix_of_the_events_shows_the_items_so_far() -> None:
    stream = Stream("responses")
    stream.push_all([READY, "why</think>s", "o"])
    reasoning, message = stream.whole()["output"]
    assert reasoning["status"] == "completed"
    assert message["status"] == "in_progress"
    assert message["content"][0]["text"] == "so"


def test_a_message_before_a_call_is_commentary() -> None:
    stream = Stream("responses", reasoning=NO_THINKING, tools=[FUNCTION])
    stream.push_all([READY, "so" + block(call("f")), STOP])
    assert stream.whole()["output"][0]["phase"] == "commentary"


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (LENGTH, "max_output_tokens"),
        (InferenceChunk.finish(InferenceFinishReason.ContentFilter), "content_filter"),
    ],
)
def test_a_response_that_was_cut_off_is_incomplete_and_so_is_its_last_item(chunk: InferenceChunk, reason: str) -> None:
    stream = Stream("responses")
    *_, last = stream.push_all([READY, "why</think>so", chunk])
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": reason}
    assert [item["status"] for item in last["response"]["output"]] == ["completed", "incomplete"]


def test_functions_of_a_namespace_are_reported_as_namespace_and_name() -> None:
    stream = Stream("responses", reasoning=NO_THINKING, tools=[NAMESPACE])
    stream.push_all([READY, block(call("crm::get")), STOP])
    (item,) = stream.whole()["output"]
    assert (item["namespace"], item["name"]) == ("crm", "get")


def test_a_client_tool_search_has_parsed_arguments_and_no_argument_events() -> None:
    stream = Stream("responses", reasoning=NO_THINKING, tools=[SEARCH, FUNCTION])
    events = stream.push_all([READY, block(call("tool_search", ("query", "true", "x"))), STOP])
    assert kinds(events)[2:-1] == ["output_item.added", "output_item.done"]
    (item,) = stream.whole()["output"]
    assert item["type"] == "tool_search_call"
    assert (item["status"], item["arguments"]) == ("completed", {"query": "x"})


def test_a_tool_search_whose_arguments_are_no_json_is_incomplete() -> None:
    stream = Stream("responses", reasoning=NO_THINKING, tools=[SEARCH, FUNCTION])
    stream.push_all([READY, block(call("tool_search", ("query", "false", "{nope"))), STOP])
    (item,) = stream.whole()["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", {})


def test_custom_input_is_streamed_as_the_text_it_stands_for() -> None:
    stream = Stream("responses", reasoning=NO_THINKING, tools=[PATCH])
    opening, rest = block(call("apply_patch", ("input", "true", "VALUE"))).split("VALUE")
    stream.push_all([READY, opening])
    deltas = [event["delta"] for piece in ('a"', "\n", "你") for event in stream.push(piece)]
    assert deltas == ['a"', "\n", "你"]
    stream.push_all([rest, STOP])
    assert stream.whole()["output"][0]["input"] == 'a"\n你'


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (['{"input": "', "x\\", "n", '"', "}"], "x\n"),
        (['{"input":  "\\ud83d', '\\ude00"}'], "😀"),
        (['{"input": "\\ud83dx\\n"}'], "\\ud83dx\n"),
        (['{"input": "a\\qb"}'], "a\\qb"),
        (['{"input": "x\\u00'], "x\\u00"),
        (['{"input": 1', "}"], '{"input": 1}'),
        (['{"inp', 'ut2": "x"}'], '{"input2": "x"}'),
        (['{"inp'], '{"inp'),
        (["{}"], "{}"),
    ],
)
def test_custom_input_is_decoded_across_pieces_and_other_arguments_stay(pieces: list[str], text: str) -> None:
    custom = CustomInput()
    assert "".join(map(custom.feed, pieces)) + custom.end() == text


def test_the_response_echoes_the_request_unless_another_echo_is_given() -> None:
    stream = Stream("responses", instructions="be nice", temperature=0.3)
    stream.push(READY)
    assert (stream.whole()["instructions"], stream.whole()["temperature"]) == ("be nice", 0.3)
    converted = ResponsesRequest({"model": "DeepSeek-V4-Pro", "input": "x", "instructions": "y"})
    generator = ResponsesRequest.chunk_generator(converted.convert(ConversionOptions()), "ID", "model")
    assert generator.with_echo(ResponsesEcho()) is not generator
    with pytest.raises(RuntimeError, match="chunk generator has been consumed"):
        generator.with_echo(ResponsesEcho())


def test_a_namespace_map_of_another_type_is_refused() -> None:
    converted = ResponsesRequest({"model": "DeepSeek-V4-Pro", "input": "x"}).convert(ConversionOptions())
    generator = ResponsesRequest.chunk_generator(converted, "ID", "model")
    with pytest.raises(TypeError):
        generator.with_namespace_tool_map({"f": ["a", "b"]})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="expected tuple of length 2"):
        generator.with_namespace_tool_map({"f": ("a",)})  # type: ignore[dict-item]


def test_a_response_without_events_is_that_of_its_constructor() -> None:
    whole = json.loads(ResponsesResponse("A", "m", 7, 1, 0).to_json())
    assert (whole["id"], whole["model"], whole["created_at"], whole["status"]) == ("A", "m", 7, "in_progress")
    assert ResponsesResponse.sse_done_data() is None
