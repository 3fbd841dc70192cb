"""Tools: names, schemas, the choice, and the constraint that they make."""

from typing import Any

import pytest

from recipe.conversation import ToolDefinition
from recipe.errors import ConversionError
from recipe.protocol.constraint import tool_constraint
from recipe.protocol.json_schema import check_schema
from recipe.protocol.json_text import compact_json
from recipe.protocol.tools import (
    NamedTool,
    check_strict_mix,
    check_tool_name,
    checked_parameters,
    checked_tools,
    select_tools,
)

F, G = ToolDefinition("f", parameters={}), ToolDefinition("g", parameters={})


@pytest.mark.parametrize("name", ["f", "a-b_C9", "f" * 128])
def test_letters_digits_underscores_and_dashes_make_a_name(name: str) -> None:
    check_tool_name(name, "tools[0].name")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty string. Expected a string with minimum length 1, but got an empty string instead."),
        (
            "é" * 65,
            "string too long. Expected a string with maximum length 128, but got a string with length 130 instead.",
        ),
        ("a b", "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."),
        ("a\n", "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."),
    ],
)
def test_a_bad_name_is_refused_with_its_position(name: str, problem: str) -> None:
    with pytest.raises(ConversionError) as caught:
        check_tool_name(name, "tools[3].name")
    assert str(caught.value) == f"Invalid 'tools[3].name': {problem}"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("x", '"x" is not of types "boolean", "object"'),
        ({"type": "bogus"}, "\"bogus\" is not valid under any of the schemas listed in the 'anyOf' keyword"),
        ({"type": "object", "properties": 1}, '1 is not of type "object"'),
        ({"type": "object", "required": ["a", "a"]}, '["a","a"] has non-unique elements'),
        ({"type": "object", "properties": {"a": {"$ref": "#/x"}}}, "Pointer '/x' does not exist"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, '"(" is not a "regex"'),
        ({}, "schema must be a JSON Schema of 'type: \"object\"', got 'type: null'."),
        (True, "schema must be a JSON Schema of 'type: \"object\"', got 'type: null'."),
        ({"type": ["object"]}, "schema must be a JSON Schema of 'type: \"object\"', got 'type: [\"object\"]'."),
    ],
)
def test_parameters_must_be_the_schema_of_an_object(schema: Any, problem: str) -> None:
    for _ in range(2):  # the second verdict is a remembered one
        with pytest.raises(ConversionError) as caught:
            checked_parameters("f", schema, None)
        assert str(caught.value) == f"Invalid schema for function 'f': {problem}"


def test_a_schema_elsewhere_is_never_fetched() -> None:
    with pytest.raises(ConversionError, match="Retrieval is disabled, cannot fetch http://localhost/s"):
        check_schema({"$ref": "http://localhost/s"}, "")


def test_the_draft_follows_the_schema_keyword() -> None:
    tuple_items = {"type": "array", "items": [{"type": "string"}]}
    check_schema({"$schema": "http://json-schema.org/draft-07/schema#", **tuple_items}, "")
    with pytest.raises(ConversionError):
        check_schema(tuple_items, "")


def test_missing_parameters_are_empty_and_those_of_a_strict_tool_the_empty_object() -> None:
    assert checked_parameters("f", None, False) == {}
    assert checked_parameters("f", None, True) == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
        "required": [],
    }


def test_the_first_tool_with_a_problem_is_told() -> None:
    bad = ToolDefinition("f", parameters={"type": "bogus"})
    good = ToolDefinition("f", parameters={"type": "object"})
    with pytest.raises(ConversionError, match="Tool names must be unique"):
        checked_tools([good, bad])
    with pytest.raises(ConversionError, match="Invalid schema for function 'f'"):
        checked_tools([bad, good])


@pytest.mark.parametrize(
    ("tools", "choice", "names", "resolved"),
    [
        ([F, G], None, ["f", "g"], "auto"),
        ([F, G], "auto", ["f", "g"], "auto"),
        ([F, G], "none", [], "none"),
        ([F, G], "required", ["f", "g"], "required"),
        ([F, G], NamedTool("g"), ["g"], "required"),
        ([], "none", [], "none"),
        ([], "required", [], "auto"),
        ([], NamedTool("g"), [], "auto"),
    ],
)
def test_a_choice_leaves_its_tools(tools: list[ToolDefinition], choice: Any, names: list[str], resolved: str) -> None:
    selected = select_tools(tools, choice, thinking=False)
    assert [tool.name for tool in selected.tools] == names
    assert selected.choice == resolved
    assert selected.callable == bool(names)


def test_thinking_does_not_let_a_call_be_demanded_and_an_unknown_function_is_told_first() -> None:
    for choice in ("required", NamedTool("f")):
        with pytest.raises(ConversionError, match="Thinking mode does not support this tool_choice"):
            select_tools([F], choice, thinking=True)
    with pytest.raises(ConversionError, match="no function named 'z' was specified"):
        select_tools([F], NamedTool("z"), thinking=True)


def test_tools_are_strict_all_or_none_and_then_alone() -> None:
    strict = ToolDefinition("s", strict=True)
    check_strict_mix([F, G], has_response_format=True)
    check_strict_mix([strict], has_response_format=False)
    with pytest.raises(ConversionError, match="Cannot use strict tool with non-strict tool in the same request"):
        check_strict_mix([F, strict], has_response_format=True)
    with pytest.raises(ConversionError, match="response_format should not be used with tools"):
        check_strict_mix([strict], has_response_format=True)


def test_the_constraint_lists_the_tools_as_chat_tools() -> None:
    deferred = ToolDefinition("f", "d", {"type": "object", "x": 1e22}, None, True)
    constraint = tool_constraint([deferred], "auto")
    assert constraint.kind == "tool_call"
    assert constraint.schema == (
        '[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","x":1e+22},'
        '"strict":null},"defer_loading":true}]'
    )
    assert tool_constraint([F], "required").kind == "tool_call_required"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e22, "1e+22"),
        (1e-7, "1e-7"),
        (1e15, "1000000000000000.0"),
        (-0.0, "-0.0"),
        ({"é": ["1e5", 1e16, None, True]}, '{"é":["1e5",1e+16,null,true]}'),
    ],
)
def test_compact_json_spells_numbers_as_the_reference(value: Any, text: str) -> None:
    assert compact_json(value) == text
