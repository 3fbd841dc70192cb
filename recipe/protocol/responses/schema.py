"""The body of a Responses request, as it is read.

Unknown fields are ignored; null is a missing value wherever a field is optional. Three unions are not told apart by a
tag alone, so `decode_union` reads them: an item of unknown type is kept as `UnknownItem` and a message may leave its
type out, a tool of unknown type is kept as `UnknownTool`, and a tool choice may be a word. Tools, formats and choices
encode back into the normalised JSON that responses report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from recipe.image_source import ImageDetail
from recipe.json_value import JsonValue

_T = TypeVar("_T")

U8: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]
Summary: TypeAlias = Literal["auto", "concise", "detailed"]
Size: TypeAlias = Literal["low", "medium", "high"]
Execution: TypeAlias = Literal["client", "server"]
Role: TypeAlias = Literal["user", "assistant", "system", "developer"]


class ReasoningConfig(msgspec.Struct):
    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None


class TextFormat(msgspec.Struct, tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, tag="json_object"):
    pass


class JsonSchemaFormat(msgspec.Struct, tag="json_schema"):
    name: str
    schema: JsonValue
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat = msgspec.field(default_factory=TextFormat)
    verbosity: Size | None = None


class Tool:
    """A declared tool: one of the structs below."""

    __slots__ = ()


class FunctionTool(msgspec.Struct, Tool, tag="function"):
    name: str
    description: str | None = None
    parameters: JsonValue = None
    strict: bool | None = None


class CustomTool(msgspec.Struct, Tool, tag="custom"):
    name: str


class NamespaceTool(msgspec.Struct, Tool, tag="namespace", kw_only=True):
    name: str
    description: str | None = None
    tools: list[FunctionTool | CustomTool]


class UserLocation(msgspec.Struct):
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebSearchTool(msgspec.Struct, Tool, tag="web_search"):
    search_context_size: Size | None = None
    user_location: UserLocation | None = None


class DatedWebSearchTool(WebSearchTool, tag="web_search_2025_08_26"):
    pass


class ToolSearchTool(msgspec.Struct, Tool, tag="tool_search"):
    execution: Execution | None = None
    description: str | None = None
    parameters: JsonValue = None


class UnknownTool(msgspec.Struct, Tool):
    """A tool of a type that no model here can use; it is left out."""


class ToolChoice:
    """How the model is to choose a tool: one of the structs below."""

    __slots__ = ()


class PlainChoice(msgspec.Struct, ToolChoice):
    """One of the words `none`, `auto`, `required`."""

    word: Literal["none", "auto", "required"]


class FunctionChoice(msgspec.Struct, ToolChoice, tag="function"):
    name: str


class CustomChoice(msgspec.Struct, ToolChoice, tag="custom"):
    name: str


class WebSearchChoice(msgspec.Struct, ToolChoice, tag="web_search"):
    pass


class DatedWebSearchChoice(WebSearchChoice, tag="web_search_2025_08_26"):
    pass


class InputText(msgspec.Struct, tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag="output_text"):
    text: str


class InputImage(msgspec.Struct, tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None


class InputFile(msgspec.Struct, tag="input_file"):
    pass


ContentBlock: TypeAlias = InputText | OutputText | InputImage | InputFile


class InputItem:
    """One item of the history: one of the structs below."""

    __slots__ = ()


class MessageItem(msgspec.Struct, InputItem):
    role: Role
    content: str | list[ContentBlock]


class ReasoningText(msgspec.Struct):
    text: str


class ReasoningItem(msgspec.Struct, InputItem):
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class FunctionCallItem(msgspec.Struct, InputItem):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class FunctionCallOutputItem(msgspec.Struct, InputItem):
    output: str | list[InputText | InputImage | InputFile]
    call_id: str | None = None


class CustomToolCallItem(msgspec.Struct, InputItem):
    call_id: str
    name: str
    input: str


class CustomToolCallOutputItem(msgspec.Struct, InputItem):
    call_id: str
    output: str | list[InputText | InputImage | InputFile]


class ToolSearchCallItem(msgspec.Struct, InputItem):
    call_id: str
    arguments: dict[str, Any]
    execution: Execution | None = None


class ToolSearchOutputItem(msgspec.Struct, InputItem):
    call_id: str
    tools: list[Tool]
    execution: Execution | None = None


class UnknownItem(msgspec.Struct, InputItem):
    """An item that says nothing to the model; it is left out, but it ends a run of tool outputs."""


class ResponsesBody(msgspec.Struct):
    model: str
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: U32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: U8 | None = None
    stream: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    user: str | None = None


_ITEMS: dict[str, type[InputItem]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "custom_tool_call": CustomToolCallItem,
    "custom_tool_call_output": CustomToolCallOutputItem,
    "tool_search_call": ToolSearchCallItem,
    "tool_search_output": ToolSearchOutputItem,
}
_TOOLS: dict[str, type[Tool]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    "namespace": NamespaceTool,
    "web_search": WebSearchTool,
    "web_search_2025_08_26": DatedWebSearchTool,
    "tool_search": ToolSearchTool,
}
_CHOICES: dict[str, type[ToolChoice]] = {
    "function": FunctionChoice,
    "custom": CustomChoice,
    "web_search": WebSearchChoice,
    "web_search_2025_08_26": DatedWebSearchChoice,
}


def decode_union(kind: type, value: JsonValue) -> object:
    """Read a value of one of the three unions; ValueError when it is none of its variants."""
    return _UNIONS[kind](value)


def _input_item(value: JsonValue) -> InputItem:
    if not isinstance(value, dict) or not ("type" in value or "role" in value):
        raise ValueError("invalid input item")
    kind = value.get("type", "message")
    return _convert(value, _ITEMS.get(_variant(kind), UnknownItem))


def _tool(value: JsonValue) -> Tool:
    if not isinstance(value, dict):
        raise ValueError("a tool must be an object")
    if "type" not in value:
        raise ValueError("missing field `type`")
    return _convert(value, _TOOLS.get(_variant(value["type"]), UnknownTool))


def _tool_choice(value: JsonValue) -> ToolChoice:
    if value in ("none", "auto", "required"):
        return PlainChoice(value)
    if not isinstance(value, dict) or "type" not in value:
        raise ValueError("expected one of `none`, `auto`, `required` or a tool choice object")
    kind = _variant(value["type"])
    if kind not in _CHOICES:
        raise ValueError(f"unknown variant `{kind}`, expected one of {', '.join(f'`{known}`' for known in _CHOICES)}")
    return _convert(value, _CHOICES[kind])


_UNIONS: dict[type, Callable[[JsonValue], object]] = {InputItem: _input_item, Tool: _tool, ToolChoice: _tool_choice}


def _variant(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise ValueError("`type` must be a string")
    return value


def _convert(value: JsonValue, kind: type[_T]) -> _T:
    return msgspec.convert(value, kind, dec_hook=decode_union)
