"""The conversation that every protocol is converted into and every encoding renders.

All objects are immutable. Constructors check their arguments, for callers that write conversations by hand; `trusted`
skips the checks, for converters whose input has been validated while it was parsed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from recipe.argument import choice, flag, items, option, quoted, text
from recipe.image_source import (
    BytesImageSource,
    DataUrlImageSource,
    ImageDetail,
    ImageSource,
    ImageSourceKind,
    UrlImageSource,
)
from recipe.json_value import JsonValue, json_value
from recipe.message import (
    AssistantMessage,
    LatestReminderMessage,
    Message,
    Role,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from recipe.tool import ToolCall, ToolDefinition

__all__ = [
    "AssistantMessage",
    "BytesImageSource",
    "Conversation",
    "DataUrlImageSource",
    "ImageDetail",
    "ImageSource",
    "ImageSourceKind",
    "LatestReminderMessage",
    "Message",
    "ReasoningEffort",
    "ResponseFormat",
    "Role",
    "SystemMessage",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
]

ToolChoice: TypeAlias = Literal["auto", "none", "required"]
ReasoningEffort: TypeAlias = Literal["low", "high", "xhigh", "max"]
ResponseFormat: TypeAlias = Literal["text", "json_object", "json_schema", "regex"]

_TOOL_CHOICES: tuple[ToolChoice, ...] = ("auto", "none", "required")
_EFFORTS: tuple[ReasoningEffort, ...] = ("low", "high", "xhigh", "max")
_PLAIN_FORMATS: tuple[ResponseFormat, ...] = ("text", "json_object")


class Conversation:
    """The messages and how their prompt is to be built.

    `response_schema` selects the response format "json_schema" (null is no schema), `response_regex` "regex".
    """

    __slots__ = (
        "_messages",
        "_reasoning_effort",
        "_response_format",
        "_response_regex",
        "_response_schema",
        "_template_arguments",
        "_thinking_mode",
        "_tool_choice",
        "_tools",
    )

    def __init__(
        self,
        messages: Sequence[Message] | None = None,
        *,
        thinking_mode: bool = True,
        tools: Sequence[ToolDefinition] | None = None,
        tool_choice: ToolChoice = "auto",
        reasoning_effort: ReasoningEffort | None = None,
        response_format: Literal["text", "json_object"] = "text",
        response_schema: Any | None = None,
        response_regex: str | None = None,
    ) -> None:
        self._messages: Sequence[Message] = () if messages is None else items("messages", messages, Message)
        self._thinking_mode = flag("thinking_mode", thinking_mode)
        self._tools: Sequence[ToolDefinition] = () if tools is None else items("tools", tools, ToolDefinition)
        regex = None if response_regex is None else text("response_regex", response_regex)
        self._reasoning_effort = (
            None if reasoning_effort is None else choice("reasoning_effort", reasoning_effort, _EFFORTS)
        )
        self._tool_choice = choice("tool_choice", tool_choice, _TOOL_CHOICES)
        self._response_format = _response_format(response_format, response_schema, regex)
        self._response_schema = json_value(response_schema)
        self._response_regex = regex
        self._template_arguments: Mapping[str, JsonValue] = {}

    @classmethod
    def trusted(
        cls,
        messages: Sequence[Message],
        *,
        thinking_mode: bool,
        tools: Sequence[ToolDefinition] = (),
        tool_choice: ToolChoice = "auto",
        reasoning_effort: ReasoningEffort | None = None,
        response_format: ResponseFormat = "text",
        response_schema: JsonValue = None,
        response_regex: str | None = None,
        template_arguments: Mapping[str, JsonValue] | None = None,
    ) -> Self:
        self = cls.__new__(cls)
        self._messages, self._thinking_mode, self._tools = messages, thinking_mode, tools
        self._tool_choice, self._reasoning_effort = tool_choice, reasoning_effort
        self._response_format, self._response_schema = response_format, response_schema
        self._response_regex, self._template_arguments = response_regex, template_arguments or {}
        return self

    @property
    def messages(self) -> list[Message]:
        return list(self._messages)

    @property
    def thinking_mode(self) -> bool:
        return self._thinking_mode

    @property
    def tools(self) -> list[ToolDefinition]:
        return list(self._tools)

    @property
    def tool_choice(self) -> ToolChoice:
        return self._tool_choice

    @property
    def reasoning_effort(self) -> ReasoningEffort | None:
        return self._reasoning_effort

    @property
    def response_format(self) -> ResponseFormat:
        """The form of answer asked for; the prompt mentions it, whoever runs the model enforces it."""
        return self._response_format

    @property
    def response_schema(self) -> JsonValue:
        """JSON Schema of the format "json_schema", else None. The object is shared: read it, do not change it."""
        return self._response_schema

    @property
    def response_regex(self) -> str | None:
        return self._response_regex

    @property
    def template_arguments(self) -> Mapping[str, JsonValue]:
        """Further variables for a chat template; other encodings have no use for them."""
        return self._template_arguments

    def __repr__(self) -> str:
        return (
            f"Conversation(messages={len(self._messages)}, thinking_mode={self._thinking_mode}, "
            f"tools={len(self._tools)}, tool_choice={quoted(self._tool_choice)}, "
            f"reasoning_effort={option(self._reasoning_effort)}, response_format={quoted(self._response_format)})"
        )


def _response_format(named: str, schema: object, regex: str | None) -> ResponseFormat:
    plain = choice("response_format", named, _PLAIN_FORMATS)
    if schema is not None and regex is not None:
        raise ValueError("response_schema and response_regex cannot be combined")
    if schema is None and regex is None:
        return plain
    if plain != "text":
        raise ValueError(f"response_format {quoted(plain)} cannot be combined with response_schema or response_regex")
    return "json_schema" if regex is None else "regex"
