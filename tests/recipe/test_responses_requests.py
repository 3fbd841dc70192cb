"""Bodies, text formats, limits and the echo of Responses requests."""

import json
import pickle
from typing import Any

import pytest

from recipe.errors import ConversionError
from recipe.protocol.responses.convert import ResponsesRequest
from recipe.protocol.responses.echo import ResponsesEcho, shortest_f32
from recipe.protocol.validation import f32
from recipe.request import ConversationRequest, ConversionOptions

V41 = "DeepSeek-V4.1-Flash"
OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}


def request(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest({"model": V41, "input": "x json", **fields})


def convert(**fields: Any) -> ConversationRequest:
    return request(**fields).convert(ConversionOptions())


def complaint(**fields: Any) -> str:
    with pytest.raises(ConversionError) as caught:
        convert(**fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, r"`call_id` - at `\$.input\[0\]`"),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "`type`"),
        ({"input": ["x"]}, r"invalid input item - at `\$.input\[0\]`"),
        ({"input": [{}]}, "invalid input item"),
        ({"input": [{"role": "tool", "content": "x"}]}, "role"),
        ({"input": 5}, "input"),
        ({"tools": [{"name": "f"}]}, "`type`"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}, "tools"),
        ({"tools": [{"type": 0, "name": "f"}]}, "type"),
        ({"tool_choice": "any"}, "expected one of `none`, `auto`, `required` or a tool choice object"),
        ({"tool_choice": {"type": "mcp"}}, "unknown variant `mcp`"),
        ({"text": {"format": None}}, "format"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "`schema`"),
        ({"top_logprobs": 256}, "top_logprobs"),
        ({"max_output_tokens": 1.0}, "max_output_tokens"),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_with_the_field(fields: dict[str, Any], named: str) -> None:
    body = {"model": V41, "input": "x", **fields}
    for form in (body, json.dumps(body), json.dumps(body).encode()):
        with pytest.raises(ValueError, match=rf"^invalid request body: .*{named}"):
            ResponsesRequest(form)


def test_nested_tools_may_have_the_number_of_their_type() -> None:
    tools = [{"type": "namespace", "name": "n", "tools": [{"type": 0, "name": "f"}]}]
    assert [tool.name for tool in convert(tools=tools).conversation.tools] == ["n::f"]


def test_structs_may_be_arrays_and_strings_of_a_set_objects() -> None:
    function = ["function", "f", None, None, None]
    tools = [function, {"type": "namespace", "name": "n", "tools": [function]}]
    spelled = {"reasoning": [{"none": None}, None, None], "text": [["text"], "low"], "tools": tools}
    blocks = [["input_text", "x"], ["input_file"]]
    converted = convert(**spelled, input=[{"role": {"user": None}, "content": blocks}])
    assert not converted.conversation.thinking_mode
    assert [tool.name for tool in converted.conversation.tools] == ["f", "n::f"]
    assert converted.conversation.messages[0].content == "x\n\n[Unsupported Document]"


def test_a_request_is_used_up_by_its_conversion() -> None:
    used = request()
    used.convert(ConversionOptions())
    for use in (used.echo, lambda: used.namespace_tool_map(ConversionOptions()), lambda: used.model):
        with pytest.raises(RuntimeError, match="protocol request has been consumed"):
            use()


def test_json_output_needs_the_word_in_some_message() -> None:
    text = {"format": {"type": "json_object"}}
    found = convert(text=text, input="a JSON object")
    assert found.parsing_options.parse_json_output
    assert found.inference_options.output_constraint is not None
    assert found.inference_options.output_constraint.schema == ""
    assert "must contain the word 'json'" in complaint(text=text, input="hello")
    assert convert(text=text, input="hello", instructions="json").conversation.response_format == "json_object"


def test_a_strict_schema_is_normalised_for_the_constraint_alone() -> None:
    strict = {"type": "json_schema", "name": "n", "schema": OBJECT, "strict": True}
    converted = convert(text={"format": strict})
    assert converted.conversation.response_schema == OBJECT
    assert converted.inference_options.output_constraint is not None
    assert json.loads(converted.inference_options.output_constraint.schema)["required"] == ["a"]
    assert complaint(text={"format": {**strict, "schema": 5, "strict": False}}).startswith("Invalid json schema: ")


def test_top_logprobs_ask_for_logprobs() -> None:
    assert not convert().inference_options.logprobs
    assert convert(top_logprobs=0).inference_options.logprobs
    assert complaint(top_logprobs=21).startswith("Invalid top_logprobs value")


def test_the_echo_of_nothing_has_the_defaults() -> None:
    assert ResponsesEcho().fields() == {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": None},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "user": None,
    }


def test_the_echo_reports_what_was_requested_in_normalised_shapes() -> None:
    echo = request(
        temperature=0.3,
        reasoning={"effort": "none", "generate_summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": OBJECT}, "verbosity": "low"},
        tool_choice={"type": "function", "name": "f", "other": 1},
        tools=[
            {"type": "function", "name": "f"},
            {"type": "custom", "name": "apply_patch", "description": "d"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
            {"type": "web_search", "user_location": {"type": "approximate", "city": "c"}},
            {"type": "tool_search"},
            {"type": "mcp"},
        ],
    ).echo()
    nothing = {"description": None, "parameters": None, "strict": None}
    location = {"city": "c", "country": None, "region": None, "timezone": None}
    fields = echo.fields()
    assert (echo.temperature, fields["temperature"]) == (f32(0.3), 0.3)
    assert fields["reasoning"] == {"effort": "none", "summary": "auto"}
    assert fields["text"]["format"]["strict"] is None
    assert fields["tool_choice"] == {"type": "function", "name": "f"}
    assert fields["tools"] == [
        {"type": "function", "name": "f", **nothing},
        {"type": "custom", "name": "apply_patch"},
        {
            "type": "namespace",
            "name": "n",
            "description": None,
            "tools": [{"type": "function", "name": "g", **nothing}],
        },
        {"type": "web_search", "search_context_size": None, "user_location": location},
        {"type": "tool_search", "execution": None, "description": None, "parameters": None},
    ]


@pytest.mark.parametrize("number", [0.3, 1.0, 0.1234567, 1e-40, 16777216.0, 3.4e38])
def test_single_precision_numbers_are_spelled_as_short_as_they_can(number: float) -> None:
    assert shortest_f32(f32(number)) == number
    assert shortest_f32(f32(1e39)) is None


def test_an_echo_crosses_a_process_border_without_the_input() -> None:
    body = {
        "model": "DeepSeek-V4-Pro",
        "input": "x" * 100_000,
        "instructions": "be brief",
        "temperature": 0.3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    }
    for extended in (False, True):
        echo = ResponsesRequest(json.dumps(body).encode(), extended=extended).echo()
        packed = pickle.dumps(echo)
        assert len(packed) < 5_000
        assert pickle.loads(packed).fields() == echo.fields()
        assert pickle.loads(packed).instructions == "be brief"
