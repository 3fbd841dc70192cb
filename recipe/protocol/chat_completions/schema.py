"""The wire shape of Chat Completions requests. Unknown fields are ignored; null stands for a missing optional one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from recipe.protocol.spelling import Beyond
from recipe.protocol.validation import RequestedInference

U8 = Annotated[int, Meta(ge=0, le=2**8 - 1)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]  # a larger integer of a JSON text is a float already


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class ImageUrl(Struct):
    url: str
    detail: Literal["low", "high", "original", "auto"] | None = None


class ImageUrlBlock(Struct, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class FileFields(Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FileBlock(FileFields, tag_field="type", tag="file"):
    """A file, its fields here or, as an extension, in an object of their own."""

    file: Beyond = None


Block: TypeAlias = TextBlock | ImageUrlBlock | FileBlock
BlockContent: TypeAlias = str | list[Block]


class CalledFunction(Struct):
    name: str
    arguments: str


class ToolCallItem(Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class SystemItem(Struct, tag_field="role", tag="system"):
    content: BlockContent
    name: str | None = None


class UserItem(Struct, tag_field="role", tag="user"):
    content: BlockContent
    name: str | None = None


class AssistantItem(Struct, tag_field="role", tag="assistant"):
    content: BlockContent | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallItem] | None = None
    prefix: bool | None = None
    name: str | None = None


class ToolItem(Struct, tag_field="role", tag="tool"):
    content: BlockContent
    tool_call_id: str


class LatestReminderItem(Struct, tag_field="role", tag="latest_reminder"):
    content: str


MessageItem: TypeAlias = SystemItem | UserItem | AssistantItem | ToolItem | LatestReminderItem


class FunctionDefinition(Struct):
    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class FunctionTool(Struct):
    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Struct):
    name: str


class FunctionChoice(Struct):
    type: Literal["function"]
    function: ChosenFunction


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | FunctionChoice


class TextFormat(Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    pass


class JsonSchema(Struct):
    schema: Any
    name: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


class RegexFormat(Struct, tag_field="type", tag="regex"):
    regex: str


Format: TypeAlias = TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat


class ThinkingSetting(Struct):
    type: Literal["adaptive", "enabled", "disabled"]
    budget_tokens: U64 | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatCompletionBody(RequestedInference, kw_only=True):
    """A whole request."""

    messages: list[MessageItem]
    model: str
    thinking: ThinkingSetting | None = None
    n: U8 | None = None
    top_logprobs: U8 | None = None
    max_tokens: U32 | None = None
    seed: U64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: Format | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"] | None = None


class DeveloperItem(SystemItem, tag_field="role", tag="developer"):
    """An extension: a system message by its newer name."""


class ExtendedAssistantItem(AssistantItem, tag_field="role", tag="assistant", kw_only=True):
    """An assistant message with the second name that some servers give its reasoning, and what is refused in it."""

    reasoning: str | None = None
    audio: Any = None
    function_call: Any = None


ExtendedMessageItem: TypeAlias = (
    SystemItem | DeveloperItem | UserItem | ExtendedAssistantItem | ToolItem | LatestReminderItem
)


class ExtendedChatCompletionBody(ChatCompletionBody, kw_only=True):
    """A request with the extensions of this protocol."""

    messages: list[ExtendedMessageItem]  # type: ignore[assignment]  # each is a MessageItem
    max_completion_tokens: U32 | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
