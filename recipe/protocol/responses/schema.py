"""The body of a Responses request, as it is read.

Unknown fields are ignored; null is a missing value wherever a field is optional. `Tool`, `FoundTool`, `NamespacedTool`,
`ToolChoice` and `InputItem` stand for unions that a tag alone does not tell apart: the decoder reads those itself.
Tools, formats and choices encode back into the normalised JSON that responses report.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from recipe.image_source import ImageDetail
from recipe.json_value import JsonValue
from recipe.protocol.spelling import Beyond

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


class FoundTool(Tool):
    """A tool that a search found: any tool."""

    __slots__ = ()


class NamespacedTool(FoundTool):
    """A tool that may stand in a namespace: a FunctionTool or a CustomTool."""

    __slots__ = ()
    name: str


class FunctionTool(msgspec.Struct, NamespacedTool, tag="function"):
    name: str
    description: str | None = None
    parameters: JsonValue = None
    strict: bool | None = None


class CustomTool(msgspec.Struct, NamespacedTool, tag="custom"):
    name: str


class NamespaceTool(msgspec.Struct, FoundTool, tag="namespace", kw_only=True):
    name: str
    description: str | None = None
    tools: list[NamespacedTool]


class UserLocation(msgspec.Struct):
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebSearchTool(msgspec.Struct, FoundTool, tag="web_search"):
    search_context_size: Size | None = None
    user_location: UserLocation | None = None


class DatedWebSearchTool(WebSearchTool, tag="web_search_2025_08_26"):
    pass


class ToolSearchTool(msgspec.Struct, FoundTool, tag="tool_search"):
    execution: Execution | None = None
    description: str | None = None
    parameters: JsonValue = None


class UnknownTool(msgspec.Struct, FoundTool):
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
    detail: ImageDetail | None = None
    file_id: str | None = None


class InputFile(msgspec.Struct, tag="input_file"):
    file_id: Beyond = None


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
    output: str | list[InputText | InputImage | InputFile] | None = None


class ToolSearchCallItem(msgspec.Struct, InputItem):
    call_id: str
    arguments: dict[str, Any]
    execution: Execution | None = None


class ToolSearchOutputItem(msgspec.Struct, InputItem):
    call_id: str
    tools: list[FoundTool]
    execution: Execution | None = None


class WebSearchCallItem(msgspec.Struct, InputItem):
    """A search that a server made; it says nothing to the model, but no output may be missing when it comes."""


class ItemReference(msgspec.Struct, InputItem):
    """An item that a server has stored; as if it were not there, but for an extension that refuses it."""


class UnknownItem(msgspec.Struct, InputItem):
    """An item of a type that says nothing to the model; as if it were not there."""


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


class ExtendedResponsesBody(ResponsesBody, kw_only=True):
    """A request with the extensions of this protocol."""

    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    stop: str | list[str] | None = None

    @property
    def includes(self) -> list[str]:
        """What the response is to include beyond its usual fields."""
        return self.include or []
