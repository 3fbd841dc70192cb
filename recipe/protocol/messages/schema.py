"""The body of a Messages request, as it is read.

Unknown fields are ignored, null is a missing value wherever a field is optional. The content blocks of all three roles
are one union: which block may stand where is a question of the history (`history.py`), not of the shape. A tool that
has any `type` is a server tool, whose other fields are free; so the fields of a tool are checked by itself.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from recipe.json_value import JsonValue
from recipe.protocol.spelling import Beyond

U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

Role: TypeAlias = Literal["user", "assistant", "system"]
ThinkingType: TypeAlias = Literal["adaptive", "enabled", "disabled"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]

CUSTOM = "custom"
"""The type of client tools, for those who write one."""

MEDIA_TYPES = ("image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp")
_ORIGIN_FIELDS = {"base64": ("media_type", "data"), "url": ("url",), "file": ("file_id",)}


class TextBlock(msgspec.Struct, tag="text"):
    text: str


class ImageOrigin(msgspec.Struct):
    """Where an image comes from; each kind has its own fields, and those of the others are free.

    The reference takes the position of a type for the type, so this does.
    """

    type: Literal["base64", "url", "file", 0, 1, 2]
    media_type: JsonValue = UNSET
    data: JsonValue = UNSET
    url: JsonValue = UNSET
    file_id: JsonValue = UNSET

    def __post_init__(self) -> None:
        for name in _ORIGIN_FIELDS[self.kind]:
            _check_field(name, getattr(self, name), str)
        if self.kind == "base64" and self.media_type not in MEDIA_TYPES:
            raise ValueError(f"field `media_type`: expected one of {', '.join(MEDIA_TYPES)}")

    @property
    def kind(self) -> str:
        """The type by its name."""
        return self.type if isinstance(self.type, str) else tuple(_ORIGIN_FIELDS)[self.type]


class ImageBlock(msgspec.Struct, tag="image"):
    source: ImageOrigin


class DocumentSource(msgspec.Struct):
    media_type: str | None = None
    file_id: Beyond = None


class DocumentBlock(msgspec.Struct, tag="document"):
    source: DocumentSource


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str | None = None


class ServerToolUseBlock(msgspec.Struct, tag="server_tool_use"):
    id: str
    name: str
    input: JsonValue


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: JsonValue


class ToolReferenceBlock(msgspec.Struct, tag="tool_reference"):
    """In a tool result: the name of a tool that the result makes available."""

    tool_name: str


class ToolResultBlock(msgspec.Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None


class WebSearchToolResultBlock(msgspec.Struct, tag="web_search_tool_result"):
    tool_use_id: str
    content: JsonValue


class AddedTool(msgspec.Struct):
    type: Literal["tool_reference", 0]  # by name or, like the type of an image's origin, by position
    name: str


class ToolAdditionBlock(msgspec.Struct, tag="tool_addition"):
    """In a system message: a tool that becomes available at this point."""

    tool: AddedTool


ContentBlock: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | ServerToolUseBlock
    | ToolUseBlock
    | ToolResultBlock
    | WebSearchToolResultBlock
    | ToolAdditionBlock
)


class InputMessage(msgspec.Struct):
    role: Role
    content: str | list[ContentBlock]


class Tool(msgspec.Struct):
    """A declared tool: a client tool, or, with any `type`, a server tool. `strict` has no effect in this protocol."""

    type: str | UnsetType = UNSET
    name: str | UnsetType | None = UNSET
    input_schema: JsonValue = None
    description: JsonValue = None
    defer_loading: JsonValue = None

    def __post_init__(self) -> None:
        if self.type is UNSET:
            _check_client_tool(self)


NotATool: TypeAlias = str | float | bool | list[JsonValue] | None
"""What else may stand in the list of tools; it is read so that the error can name the field that it lacks."""


class ExtendedTool(Tool):
    """A declared tool that may also be of the type `custom`, which is a client tool."""

    type: str | UnsetType | None = UNSET  # type: ignore[assignment]  # null is one more way to leave it out

    def __post_init__(self) -> None:
        if self.type is None or self.type == CUSTOM:
            _check_client_tool(self)
        else:
            super().__post_init__()


class AutoChoice(msgspec.Struct, tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(msgspec.Struct, tag="any"):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(msgspec.Struct, tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class NoneChoice(msgspec.Struct, tag="none"):
    pass


ToolChoice: TypeAlias = AutoChoice | AnyChoice | NamedChoice | NoneChoice


class Thinking(msgspec.Struct):
    type: ThinkingType
    budget_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        if self.budget_tokens is not None and self.budget_tokens >= 2**64:
            raise ValueError("field `budget_tokens`: expected an integer below 2^64")


class OutputConfig(msgspec.Struct):
    effort: Effort | None = None


class Metadata(msgspec.Struct):
    user_id: str | None = None


class SystemBlock(msgspec.Struct):
    type: Literal["text"]
    text: str


class JsonSchemaFormat(msgspec.Struct):
    """The form of answer that the extension asks for."""

    type: Literal["json_schema"]
    schema: JsonValue


class ExtendedOutputConfig(OutputConfig):
    format: JsonSchemaFormat | None = None


class MessagesBody(msgspec.Struct):
    model: str
    messages: list[InputMessage]
    system: str | list[SystemBlock] | None = None
    max_tokens: U32 | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool | NotATool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if len(self.declared_tools) != len(self.tools or ()):
            raise ValueError("tools: missing field `name`")

    @property
    def declared_tools(self) -> list[Tool]:
        """The tools; none if the field is missing, null or empty."""
        return [tool for tool in self.tools or () if isinstance(tool, Tool)]


class ExtendedMessagesBody(MessagesBody, kw_only=True):
    """A request with the extensions of this protocol. `output_format` is the older place of `output_config.format`."""

    tools: list[ExtendedTool | NotATool] | None = None  # type: ignore[assignment]  # each is a Tool
    output_config: ExtendedOutputConfig | None = None
    output_format: JsonSchemaFormat | None = None


def _check_client_tool(tool: Tool) -> None:
    _check_field("name", tool.name, str)
    _check_field("description", tool.description, str, type(None))
    _check_field("defer_loading", tool.defer_loading, bool, type(None))


def _check_field(name: str, value: JsonValue, *kinds: type) -> None:
    if value is UNSET:
        raise ValueError(f"missing field `{name}`")
    if not isinstance(value, kinds):
        raise ValueError(f"field `{name}`: expected {kinds[0].__name__}, got {type(value).__name__}")
