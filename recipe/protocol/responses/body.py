"""The decoder of Responses bodies, and its reading of the unions that a tag alone does not tell apart.

An item or a tool of unknown type is kept as such, a message may leave its type out, a tool choice may be a word.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import Type, type_info

from recipe.json_value import JsonValue
from recipe.protocol.body import BodyDecoder
from recipe.protocol.responses.schema import (
    CustomChoice,
    CustomTool,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    DatedWebSearchChoice,
    DatedWebSearchTool,
    FoundTool,
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionChoice,
    FunctionTool,
    InputItem,
    ItemReference,
    MessageItem,
    NamespacedTool,
    NamespaceTool,
    PlainChoice,
    ReasoningItem,
    ResponsesBody,
    Tool,
    ToolChoice,
    ToolSearchCallItem,
    ToolSearchOutputItem,
    ToolSearchTool,
    UnknownItem,
    UnknownTool,
    WebSearchCallItem,
    WebSearchChoice,
    WebSearchTool,
)
from recipe.protocol.spelling import first_spelling

_T = TypeVar("_T")

_ITEMS: dict[str, type[InputItem]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "custom_tool_call": CustomToolCallItem,
    "custom_tool_call_output": CustomToolCallOutputItem,
    "tool_search_call": ToolSearchCallItem,
    "tool_search_output": ToolSearchOutputItem,
    "web_search_call": WebSearchCallItem,
    "item_reference": ItemReference,
}
_TOOLS: dict[str, type[Tool]] = {
    "function": FunctionTool,
    "web_search": WebSearchTool,
    "web_search_2025_08_26": DatedWebSearchTool,
    "namespace": NamespaceTool,
    "custom": CustomTool,
    "tool_search": ToolSearchTool,
}
_NAMESPACED: dict[str, type[NamespacedTool]] = {"function": FunctionTool, "custom": CustomTool}
_CHOICES: dict[str, type[ToolChoice]] = {
    "function": FunctionChoice,
    "custom": CustomChoice,
    "web_search": WebSearchChoice,
    "web_search_2025_08_26": DatedWebSearchChoice,
}


class ResponsesDecoder(BodyDecoder[ResponsesBody]):
    """See `BodyDecoder`."""

    __slots__ = ()

    def __init__(self, schema: type[ResponsesBody] = ResponsesBody) -> None:
        super().__init__(schema)
        self._decode = msgspec.json.Decoder(schema, dec_hook=_read_union).decode

    def _from_value(self, value: Any) -> ResponsesBody:
        try:
            return _convert(value, self._schema)
        except msgspec.ValidationError as error:
            raise ValueError(f"invalid request body: {error}") from None


def _read_union(kind: type, value: JsonValue) -> object:
    """Read a value of a union; ValueError when it is none of its variants."""
    try:
        return _UNIONS[kind](value)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _input_item(value: JsonValue) -> InputItem:
    if not isinstance(value, dict) or not ("type" in value or "role" in value):
        raise ValueError("invalid input item")
    kind = value.get("type", "message")
    return _convert(value, _ITEMS.get(_variant(kind), UnknownItem))


def _tool(value: JsonValue) -> Tool:
    kind = _TOOLS.get(_variant(_type(value)))
    if kind is not None:
        return _convert(value, kind)
    if isinstance(value, list) and len(value) > 1:
        raise ValueError("a tool of unknown type has no fields")
    return UnknownTool()


def _found_tool(value: JsonValue) -> Tool:
    return _tool(_with_named_type(value, tuple(_TOOLS)))


def _namespaced_tool(value: JsonValue) -> NamespacedTool:
    value = _with_named_type(value, tuple(_NAMESPACED))
    kind = _variant(_type(value))
    if kind not in _NAMESPACED:
        raise ValueError(f"unknown variant `{kind}`, expected `function` or `custom`")
    return _convert(value, _NAMESPACED[kind])


def _type(tool: JsonValue) -> JsonValue:
    """The type of a tool, which is the first item of one that is written as an array."""
    if isinstance(tool, dict) and "type" in tool:
        return tool["type"]
    if isinstance(tool, list) and tool:
        return tool[0]
    raise ValueError("missing field `type`")


def _with_named_type(tool: JsonValue, names: tuple[str, ...]) -> JsonValue:
    """A tool inside another object, whose type may also be the number of the variant."""
    number = _type(tool)
    if type(number) is not int or number < 0:
        return tool
    name = names[number] if number < len(names) else f"variant {number}"
    return {**tool, "type": name} if isinstance(tool, dict) else [name, *tool[1:]]


def _tool_choice(value: JsonValue) -> ToolChoice:
    if value in ("none", "auto", "required"):
        return PlainChoice(value)
    if not isinstance(value, dict) or "type" not in value:
        raise ValueError("expected one of `none`, `auto`, `required` or a tool choice object")
    kind = _variant(value["type"])
    if kind not in _CHOICES:
        raise ValueError(f"unknown variant `{kind}`, expected one of {', '.join(f'`{known}`' for known in _CHOICES)}")
    return _convert(value, _CHOICES[kind])


_UNIONS: dict[type, Callable[[JsonValue], object]] = {
    InputItem: _input_item,
    Tool: _tool,
    FoundTool: _found_tool,
    NamespacedTool: _namespaced_tool,
    ToolChoice: _tool_choice,
}


def _variant(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise ValueError("`type` must be a string")
    return value


def _convert(value: JsonValue, kind: type[_T]) -> _T:
    with suppress(msgspec.ValidationError):
        return msgspec.convert(value, kind, dec_hook=_read_union)
    structure = _structure(kind)  # type: ignore[arg-type]  # types are hashable
    return msgspec.convert(first_spelling(value, structure), kind, dec_hook=_read_union)


@cache
def _structure(kind: Any) -> Type:
    """What a type is made of; finding that out takes a millisecond."""
    return type_info(kind)
