"""Tools of Responses requests: namespaces, apply_patch, tool search, web search, tool choice."""

from typing import Any

import pytest

from recipe.errors import ConversionError
from recipe.protocol.responses import apply_patch
from recipe.protocol.responses.convert import ResponsesRequest
from recipe.protocol.responses.echo import ResponsesState
from recipe.request import ConversationRequest, ConversionOptions, ModelVersion, WebSearchBehavior

V41, V4 = "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"
OFF = {"effort": "none"}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
SEARCH = {"type": "tool_search", "execution": "client"}
REJECT = ConversionOptions(responses_web_search=WebSearchBehavior.Reject)
UNIQUE = "Tool names must be unique."


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


def namespace(name: str, *tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools), **fields}


def request(*tools: dict[str, Any], model: str = V41, **fields: Any) -> ResponsesRequest:
    return ResponsesRequest({"model": model, "input": "x json", "tools": list(tools), **fields})


def convert(*tools: dict[str, Any], options: ConversionOptions | None = None, **fields: Any) -> ConversationRequest:
    return request(*tools, **fields).convert(options or ConversionOptions())


def names(*tools: dict[str, Any], **fields: Any) -> list[str]:
    return [tool.name for tool in convert(*tools, **fields).conversation.tools]


def complaint(*tools: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(ConversionError) as caught:
        convert(*tools, **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "tools", "expected"),
    [
        (V41, [namespace("a", function("b"))], ["a::b"]),
        (V41, [namespace("a_", function("_b")), function("a__b")], ["a_::_b", "a__b"]),
        (V41, [namespace("a", function("b")), namespace("a", function("b"))], ["a::b", "a::b_1"]),
        (V4, [namespace("a", function("b"))], ["a__b"]),
        (V4, [namespace("a_", function("b")), namespace("a", function("_b"))], ["a_b", "a_b_1"]),
        (V4, [namespace("a", function("b")), function("a__b"), function("a__b_1")], ["a__b_2", "a__b", "a__b_1"]),
        (V4, [namespace("a", function("b__c")), namespace("a__b", function("c"))], ["a__b__c", "a__b__c_1"]),
    ],
)
def test_namespaces_give_flat_names_that_leave_plain_functions_alone(
    model: str, tools: list[dict[str, Any]], expected: list[str]
) -> None:
    assert names(*tools, model=model) == expected


def test_the_map_tells_where_flat_names_come_from_without_judging_other_tools() -> None:
    tools = (namespace("n", function("a")), {"type": "custom", "name": "other"}, {"type": "web_search"})
    assert request(*tools).namespace_tool_map(REJECT) == {"n::a": ("n", "a")}
    with pytest.raises(ConversionError, match=r"Invalid 'tools\[1\].name': empty string"):
        request(PATCH, function("")).namespace_tool_map(REJECT)
    with pytest.raises(ConversionError, match="The supported API model names are"):
        request(model="?").namespace_tool_map(REJECT)


def test_a_namespace_describes_its_tools_on_v41() -> None:
    tools = (namespace("n", function("a"), function("b", description="B"), description="N"),)
    assert [tool.description for tool in convert(*tools).conversation.tools] == ["N\n", "N\nB"]
    assert [tool.description for tool in convert(*tools, model=V4).conversation.tools] == [None, "B"]
    assert convert(namespace("n", function("a"), description="")).conversation.tools[0].description is None


def test_problems_inside_a_namespace_are_found_in_order() -> None:
    assert complaint(namespace("n", function("a"), function("a"), function(""))) == (
        "Tool names within a namespace must be unique."
    )
    assert complaint(function("f"), namespace("n", PATCH)) == (
        "Currently custom tools are not allowed inside a namespace. "
        "Found custom tool 'apply_patch' in tools[1].tools[0]."
    )
    assert "'tools[0].tools[1].name'" in complaint(namespace("n", function("a"), function("b c")))


def test_calls_of_the_history_have_the_names_of_the_tools() -> None:
    def called(*tools: dict[str, Any], model: str = V4, **pairs: str) -> list[str]:
        calls = [
            {"type": "function_call", "call_id": name, "name": name, "arguments": "{}", "namespace": space}
            for space, name in pairs.items()
        ]
        outputs = [{"type": "function_call_output", "call_id": name, "output": ""} for name in pairs.values()]
        messages = convert(*tools, model=model, input=[*calls, *outputs]).conversation.messages
        return [call.name for message in messages for call in message.tool_calls or ()]

    assert called(namespace("a", function("b")), function("a__b"), a="b") == ["a__b_1"]
    assert called(function("a__b"), a="b") == ["a__b_1"]
    assert called(namespace("a", function("b")), namespace("a", function("b")), a="b") == ["a__b"]
    assert called(a="b__c", a__b="c") == ["a__b__c", "a__b__c_1"]
    assert called(a="b", model=V41) == ["a::b"]


def test_apply_patch_is_a_function_with_the_words_of_the_version() -> None:
    for model, version in ((V41, ModelVersion.DeepseekV41Flash), (V4, ModelVersion.DeepseekV4Pro)):
        (tool,) = convert(PATCH, model=model).conversation.tools
        assert tool.description == apply_patch.description(version)
        assert tool.parameters["required"] == ["input"]
    assert complaint({"type": "custom", "name": "zz"}) == (
        "Unsupported custom tool: 'zz'. Only 'apply_patch' is supported."
    )
    assert complaint(PATCH, function("apply_patch")) == UNIQUE


def test_tool_search_is_a_function_for_clients_of_v41() -> None:
    assert names(SEARCH, function("f")) == ["tool_search", "f"]
    assert names(SEARCH, function("tool_search"), model=V4) == ["tool_search"]
    assert names({"type": "tool_search"}, {"type": "tool_search", "execution": "server"}) == []
    assert complaint(SEARCH, function("tool_search")) == UNIQUE


@pytest.mark.parametrize("kind", ["web_search", "web_search_2025_08_26"])
def test_web_search_is_dropped_or_refused(kind: str) -> None:
    tool = {"type": kind}
    assert names(tool, function("f"), tool_choice=tool) == ["f"]
    assert complaint(tool, function("f"), options=REJECT) == "Server tools are not supported"
    assert complaint(function("f"), tool_choice=tool, options=REJECT) == "Server tools are not supported"
    assert names({"type": "web_search_preview"}, options=REJECT) == []


def test_a_refused_choice_is_reported_after_the_input_and_before_the_tools() -> None:
    twice = (function("f"), function("f"))
    choice = {"type": "web_search"}
    assert complaint(*twice, tool_choice=choice, options=REJECT) == "Server tools are not supported"
    assert complaint(*twice, tool_choice=choice, options=REJECT, input=[]) == "Input items array must not be empty"


def test_names_and_schemas_are_checked_tool_by_tool() -> None:
    bad = {"parameters": {"type": "string"}}
    assert complaint(function("f"), function("g", **bad), function("f")).startswith("Invalid schema for function 'g'")
    assert complaint(function("f"), function("f"), function("g", **bad)) == UNIQUE
    assert names(function("f"), function("f", **bad), tool_choice="none") == []


def test_a_named_choice_keeps_its_tool() -> None:
    kept = convert(function("f"), PATCH, tool_choice={"type": "custom", "name": "f"}, reasoning=OFF)
    assert [tool.name for tool in kept.conversation.tools] == ["f"]
    assert kept.parsing_options.starts_in_tool_calls
    assert names(tool_choice={"type": "function", "name": "f"}) == []
    assert complaint(function("f"), tool_choice={"type": "function", "name": "g"}) == (
        "Invalid value for 'tool_call': no function named 'g' was specified in the 'tools' parameter."
    )


def test_strict_tools_allow_the_format_text_only() -> None:
    strict = function("f", strict=True)
    assert names(strict, text={"format": {"type": "text"}}) == ["f"]
    assert complaint(strict, text={"format": {"type": "json_object"}}) == (
        "response_format should not be used with tools"
    )
    assert complaint(strict, function("g")).startswith("Cannot use strict tool with non-strict tool")
    assert names(strict, function("g"), tool_choice={"type": "function", "name": "f"}, reasoning=OFF) == ["f"]


def test_the_state_tells_which_calls_are_no_function_calls() -> None:
    def state(*tools: dict[str, Any], **fields: Any) -> ResponsesState:
        known = convert(*tools, **fields).protocol_state
        assert isinstance(known, ResponsesState)
        return known

    both = state(PATCH, SEARCH, namespace("n", function("a")), tool_choice="none")
    assert (both.apply_patch, both.tool_search, both.namespace_tool_map) == (True, True, {"n::a": ("n", "a")})
    assert state(SEARCH, model=V4).tool_search
    neither = state(function("apply_patch"), {"type": "tool_search"})
    assert (neither.apply_patch, neither.tool_search) == (False, False)
    items = [
        {"type": "tool_search_call", "call_id": "s", "arguments": {}},
        {"type": "tool_search_output", "call_id": "s", "tools": [PATCH, SEARCH, namespace("n", function("a"))]},
    ]
    found = state(input=items)
    assert (found.apply_patch, found.tool_search, found.namespace_tool_map) == (True, False, {"n::a": ("n", "a")})
