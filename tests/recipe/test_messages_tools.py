"""Tools, tool choice, limits and shapes of Messages requests."""

import json
from typing import Any

import pytest

from recipe.errors import ConversionError
from recipe.protocol.messages.arguments import argument_text
from recipe.protocol.messages.blocks import canonical_base64
from recipe.protocol.messages.convert import MessagesRequest
from recipe.request import ConversationRequest, ConversionOptions, WebSearchBehavior

V41, V4 = "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"
F = {"name": "f", "input_schema": {"type": "object"}}
G = {"name": "g", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
OFF = {"type": "disabled"}
DROP = ConversionOptions(messages_web_search=WebSearchBehavior.Drop)


def convert(model: str = V41, options: ConversionOptions | None = None, **fields: Any) -> ConversationRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "q"}], **fields}
    return MessagesRequest(body).convert(options or ConversionOptions())


def complaint(**fields: Any) -> str:
    with pytest.raises(ConversionError) as caught:
        convert(**fields)
    return str(caught.value)


def refusal(**fields: Any) -> str:
    with pytest.raises(ValueError, match="invalid request body: ") as caught:
        convert(**fields)
    return str(caught.value)


def test_any_choice_is_auto_and_a_named_one_leaves_one_required_tool() -> None:
    conversation = convert(tools=[F, G], tool_choice={"type": "any"}).conversation
    assert (conversation.tool_choice, len(conversation.tools)) == ("auto", 2)
    request = convert(tools=[F, G], tool_choice={"type": "tool", "name": "g"}, thinking=OFF)
    assert (request.conversation.tool_choice, [t.name for t in request.conversation.tools]) == ("required", ["g"])
    assert request.parsing_options.starts_in_tool_calls
    constraint = request.inference_options.output_constraint
    assert constraint is not None
    assert constraint.kind == "tool_call_required"


def test_a_named_choice_needs_a_known_tool_and_no_thinking() -> None:
    assert "no function named 'q'" in complaint(tools=[F], tool_choice={"type": "tool", "name": "q"})
    assert complaint(tools=[F], tool_choice={"type": "tool", "name": "f"}).startswith("Thinking mode does not support")
    assert convert(tools=[], tool_choice={"type": "tool", "name": "q"}).conversation.tool_choice == "auto"


def test_the_choice_none_drops_tools_without_a_look_at_their_schemas() -> None:
    bad = {"name": "f", "input_schema": 5}
    request = convert(tools=[bad, bad], tool_choice={"type": "none"})
    assert (request.conversation.tools, request.conversation.tool_choice) == ([], "none")
    assert not request.parsing_options.parse_tool_calls


def test_names_and_schemas_are_checked_tool_by_tool() -> None:
    bad = {"name": "g", "input_schema": {"type": 5}}
    assert complaint(tools=[F, F, bad]) == "Tool names must be unique."
    assert complaint(tools=[F, bad, F]).startswith("Invalid schema for function 'g': ")
    assert complaint(tools=[{"name": "f"}]).startswith("Invalid schema for function 'f': null is not of types")


def test_a_tool_with_a_type_is_a_server_tool() -> None:
    assert complaint(tools=[F, {"type": "custom", **G}]) == "tools[1]: server tools are not supported"
    assert complaint(tools=[{"type": "bash_20250124", "name": "bash"}], options=DROP).startswith("tools[0]: server")


def test_web_search_and_a_choice_of_it_are_refused_or_dropped() -> None:
    assert complaint(tools=[SEARCH]) == "tools[0]: server tools are not supported"
    conversation = convert(
        tools=[SEARCH, F], tool_choice={"type": "tool", "name": "web_search"}, options=DROP
    ).conversation
    assert (conversation.tool_choice, [tool.name for tool in conversation.tools]) == ("auto", ["f"])
    assert "no function named 'q'" in complaint(tools=[SEARCH], tool_choice={"type": "tool", "name": "q"}, options=DROP)


def test_some_tool_must_not_be_deferred_unless_the_model_knows_no_deferring() -> None:
    deferred = {**F, "defer_loading": True}
    assert complaint(tools=[deferred]).startswith("tools: at least one tool must have defer_loading=false.")
    assert [t.defer_loading for t in convert(tools=[deferred, G]).conversation.tools] == [True, False]
    assert [t.defer_loading for t in convert(tools=[deferred], model=V4).conversation.tools] == [False]


def test_a_body_of_the_wrong_shape_is_refused_by_the_name_of_the_field() -> None:
    assert "name" in refusal(tools=[{}])
    assert "name" in refusal(tools=[None])
    assert "description" in refusal(tools=[{**F, "description": 5}])
    assert "defer_loading" in refusal(tools=[{**F, "defer_loading": "x"}])
    assert "type" in refusal(system=[{"text": "x"}])
    assert "budget_tokens" in refusal(thinking={"type": "enabled", "budget_tokens": -1})
    assert "max_tokens" in refusal(max_tokens=2**32)


def test_max_tokens_is_lowered_to_the_bound_and_zero_is_refused() -> None:
    bounded = ConversionOptions(thinking_max_tokens_upper_bound=100, non_thinking_max_tokens_upper_bound=50)
    assert convert(max_tokens=400, options=bounded).inference_options.max_tokens == 100
    assert convert(max_tokens=400, options=bounded, thinking=OFF).inference_options.max_tokens == 50
    assert complaint(max_tokens=0).startswith("Invalid max_tokens value")
    assert convert().inference_options.max_tokens is None


def test_conversion_consumes_the_request() -> None:
    request = MessagesRequest({"model": V41, "messages": []})
    assert request.model == V41
    with pytest.raises(ConversionError):
        request.convert(ConversionOptions())
    with pytest.raises(RuntimeError, match="has been consumed"):
        request.convert(ConversionOptions())


@pytest.mark.parametrize(
    ("number", "spelled"),
    [("1e-5", "0.00001"), ("1.2e-5", "0.000012"), ("1e-6", "1e-6"), ("-1.5e-9", "-1.5e-9"), ("1e-10", "1e-10")]
    + [("0.0001", "0.0001"), ("1e16", "1e+16"), ("1.0", "1.0"), ("-0.0", "-0.0"), ("7", "7")],
)
def test_arguments_spell_numbers_as_the_reference_does(number: str, spelled: str) -> None:
    value = json.loads(number)
    assert argument_text({"e-05": [value, 'a "1e-07"']}) == f'{{"e-05": [{spelled}, "a \\"1e-07\\""]}}'


@pytest.mark.parametrize("data", ["AAAA", "AA==", "AAA=", "", "+/+/"])
def test_base64_with_its_padding_is_taken_as_it_is(data: str) -> None:
    assert canonical_base64(data) == data


@pytest.mark.parametrize(("data", "padded"), [("AA=", "AA=="), ("AA===", "AA=="), ("AAAA=", "AAAA"), ("=", "")])
def test_the_amount_of_base64_padding_is_put_right(data: str, padded: str) -> None:
    assert canonical_base64(data) == padded


@pytest.mark.parametrize(
    "data", ["A", "AA", "AAA", "A=", "AB==", "AAB=", "AA=A", "AA AA", "AAAA\n", "-_-_", "é", "AAAAA"]
)
def test_other_base64_is_refused(data: str) -> None:
    with pytest.raises(ValueError):
        canonical_base64(data)
