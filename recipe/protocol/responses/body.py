"""The decoder of Responses bodies, and its reading of the unions that a tag alone does not tell apart.

An item or a tool of unknown type is kept as such, a message may leave its type out, a tool choice may be a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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
}
_TOOLS: dict[str, type[Tool]] = {
    "function": FunctionTool,
    "web_search": WebSearchTool,
    "web_search_2025_08_26": DatedWebSearchTool,
    "namespace": NamespaceTool,
    "custom": CustomTool,
    "tool_search": ToolSearchTool,
}
_NAMESPACED = ("function", "custom")
_CHOICES: dict[str, type[ToolChoice]] = {
    "function": FunctionChoice,
    "custom": CustomChoice,
    "web_search": WebSearchChoice,
    "web_search_2025_08_26": DatedWebSearchChoice,
}


class ResponsesDecoder(BodyDecoder[ResponsesBody]):
    """See `BodyDecoder`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._schema = ResponsesBody
        self._decode = msgspec.json.Decoder(ResponsesBody, dec_hook=_read_union).decode

    def _from_value(self, value: Any) -> ResponsesBody:
        try:
            return _convert(value, ResponsesBody)
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
    if not isinstance(value, dict) or "type" not in value:
        raise ValueError("a tool is an object; missing field `type`")
    return _convert(value, _TOOLS.get(_variant(value["type"]), UnknownTool))


def _found_tool(value: JsonValue) -> Tool:
    return _tool(_with_named_type(value, tuple(_TOOLS)))


def _namespaced_tool(value: JsonValue) -> NamespacedTool:
    tool: NamespacedTool = msgspec.convert(_with_named_type(value, _NAMESPACED), FunctionTool | CustomTool)
    return tool


def _with_named_type(value: JsonValue, names: tuple[str, ...]) -> JsonValue:
    """A tool inside another object, whose type may also be the number of the variant."""
    number = value.get("type") if isinstance(value, dict) else None
    if type(number) is not int or number < 0:
        return value
    return {**value, "type": names[number] if number < len(names) else f"variant {number}"}


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
    return msgspec.convert(value, kind, dec_hook=_read_union)
