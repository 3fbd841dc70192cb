"""Responses requests: from the decoded body to a conversation.

Problems are reported in a fixed order: the model, the declared tools and those that searches found, the input, the tool
choice and the schemas of the tools, the text format, the inference parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recipe.conversation import Conversation, Message, SystemMessage, ToolDefinition, UserMessage
from recipe.errors import ConversionError
from recipe.protocol.constraint import TEXT, ResponseFormat, check_json_word, format_constraint, tool_constraint
from recipe.protocol.protocol_request import ProtocolRequest
from recipe.protocol.responses.blocks import BlockReader
from recipe.protocol.responses.body import ResponsesDecoder
from recipe.protocol.responses.echo import ResponsesEcho, ResponsesState
from recipe.protocol.responses.history import History, LateTools
from recipe.protocol.responses.schema import (
    CustomChoice,
    CustomTool,
    FunctionChoice,
    FunctionTool,
    InputItem,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamespaceTool,
    PlainChoice,
    ResponsesBody,
    TextConfig,
    ToolChoice,
    ToolSearchCallItem,
    ToolSearchOutputItem,
    ToolSearchTool,
    UnknownTool,
    WebSearchChoice,
)
from recipe.protocol.responses.tools import ToolDeclarations, checked_tools, namespace_names, reject_web_search
from recipe.protocol.thinking import complete_reasoning, initial_stage, resolve_thinking
from recipe.protocol.tools import NamedTool, SelectedTools, check_strict_mix, select_tools
from recipe.protocol.validation import RequestedInference, resolve_inference
from recipe.request import ConversationRequest, ConversionOptions, ModelVersion, WebSearchBehavior
from recipe.stream.parsing_options import ParsingOptions

if TYPE_CHECKING:
    from recipe.protocol.responses.generator import ResponsesChunkGenerator

_NO_JSON_WORD = (
    "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'."
)


class ResponsesRequest(ProtocolRequest[ResponsesBody]):
    """A Responses request."""

    __slots__ = ()
    decoder = ResponsesDecoder()

    def namespace_tool_map(self, options: ConversionOptions) -> dict[str, tuple[str, str]]:
        """The (namespace, local name) of each function name that conversion gives to a declared namespace tool.

        Read it before `convert`. ConversionError for an unknown model or a bad declaration.
        """
        if not isinstance(options, ConversionOptions):
            raise TypeError(f"expected ConversionOptions, not {type(options).__name__}")
        body = self._peek()
        version = options.model_version(body.model)
        tools = body.tools or []
        named = [tool if isinstance(tool, FunctionTool | NamespaceTool) else UnknownTool() for tool in tools]
        declarations = ToolDeclarations(version, namespace_names(version, tools), options.responses_web_search)
        declarations.declare(named, "tools")
        return declarations.names.tool_map

    def echo(self) -> ResponsesEcho:
        """The settings that responses report; read it before `convert`."""
        return ResponsesEcho.of_body(self._peek())

    @staticmethod
    def chunk_generator(request: ConversationRequest, id: str, model: str) -> ResponsesChunkGenerator:  # noqa: A002
        """The generator of the events that answer `request` under the given response ID and model name."""
        from recipe.protocol.responses.generator import ResponsesChunkGenerator

        return ResponsesChunkGenerator.for_request(request, id, model)

    def _convert(self, body: ResponsesBody, options: ConversionOptions) -> ConversationRequest:
        version = options.model_version(body.model)
        items = _items(body, version)
        offer = _Offer(body, version, options, items)
        thinking = resolve_thinking(
            None, None if body.reasoning is None else body.reasoning.effort, options.default_thinking_mode
        )
        messages = _messages(
            body, items, History(version, BlockReader(options, version), offer.names, offer.late_tools)
        )
        complete_reasoning(
            messages,
            thinking,
            options.reasoning_content_behavior,
            has_tools=bool(offer.tools),
            field="reasoning_text",
        )
        selected = _select(offer.tools, body.tool_choice, options.responses_web_search, thinking.enabled)
        messages = _with_selected(messages, selected)
        response_format = _response_format(body.text)
        if response_format.kind == "json_object":
            check_json_word((message.content for message in messages), _NO_JSON_WORD)
        constraint = format_constraint(response_format)
        if selected.tools:
            check_strict_mix(selected.tools, has_response_format=response_format is not TEXT)
            constraint = tool_constraint(selected.tools, selected.choice)
        inference = resolve_inference(
            _requested(body), options, version, thinking, has_tools=bool(selected.tools), constraint=constraint
        )
        conversation = Conversation.trusted(
            messages,
            thinking_mode=thinking.enabled,
            tools=selected.tools,
            tool_choice=selected.choice,
            reasoning_effort=thinking.effort,
            response_format=response_format.kind,
            response_schema=response_format.schema,
        )
        parsing = ParsingOptions(
            parse_tool_calls=bool(selected.tools),
            starts_in_tool_calls=selected.choice == "required",
            parse_json_output=response_format.kind == "json_object",
            thinking_initial_stage=initial_stage(thinking, None),
            special_tokens=options.special_tokens,
        )
        return ConversationRequest.converted(
            conversation, version, inference, parsing, bool(body.stream), offer.state(body)
        )


class _Offer:
    """Every function that the request offers: its own tools first, then those that searches found, item by item."""

    __slots__ = ("_has_custom_tool", "late_tools", "names", "tools")

    def __init__(
        self,
        body: ResponsesBody,
        version: ModelVersion,
        options: ConversionOptions,
        items: Sequence[tuple[int, InputItem]],
    ) -> None:
        declared = body.tools or []
        declarations = ToolDeclarations(version, namespace_names(version, declared), options.responses_web_search)
        searches = [(index, item) for index, item in items if isinstance(item, ToolSearchOutputItem)]
        self.names = declarations.names
        self.tools = declarations.declare(declared, "tools")
        self.late_tools: LateTools = {
            index: declarations.declare(item.tools, f"input[{index}].tools", defer_loading=True)
            for index, item in searches
        }
        for late in self.late_tools.values():
            self.tools += late
        found = (tool for _, item in searches for tool in item.tools)
        self._has_custom_tool = any(isinstance(tool, CustomTool) for tool in (*declared, *found))

    def state(self, body: ResponsesBody) -> ResponsesState:
        """What the event stream needs to know."""
        has_search = any(isinstance(tool, ToolSearchTool) and tool.execution == "client" for tool in body.tools or ())
        return ResponsesState(ResponsesEcho.of_body(body), self.names.tool_map, self._has_custom_tool, has_search)


def _items(body: ResponsesBody, version: ModelVersion) -> list[tuple[int, InputItem]]:
    """The items of the input with their indices; V4 knows no tool search, so its calls and outputs are left out."""
    if body.input is None or isinstance(body.input, str):
        return []
    indexed = enumerate(body.input)
    if version is ModelVersion.DeepseekV4Pro:
        return [entry for entry in indexed if not isinstance(entry[1], ToolSearchCallItem | ToolSearchOutputItem)]
    return list(indexed)


def _messages(body: ResponsesBody, items: Sequence[tuple[int, InputItem]], history: History) -> list[Message]:
    """The messages of instructions and input; ConversionError when there is neither, or for the first bad item."""
    if body.input is None and not body.instructions:
        raise ConversionError("Either input or instructions must be provided")
    if body.input == []:
        raise ConversionError("Input items array must not be empty")
    for index, item in items:
        history.add(index, item)
    history.end()
    instructions: list[Message] = [SystemMessage.trusted(body.instructions)] if body.instructions else []
    text: list[Message] = [UserMessage.trusted(body.input)] if isinstance(body.input, str) else []
    return instructions + text + history.messages


def _select(
    tools: Sequence[ToolDefinition], choice: ToolChoice | None, web_search: WebSearchBehavior, thinking: bool
) -> SelectedTools:
    if isinstance(choice, WebSearchChoice):
        reject_web_search(web_search)
    word = _choice(choice)
    return select_tools(() if word == "none" else checked_tools(tools), word, thinking=thinking)


def _choice(choice: ToolChoice | None) -> str | NamedTool | None:
    if isinstance(choice, PlainChoice):
        return choice.word
    return NamedTool(choice.name) if isinstance(choice, FunctionChoice | CustomChoice) else None


def _with_selected(messages: list[Message], selected: SelectedTools) -> list[Message]:
    """The messages where found tools are only those that are left, in their final form."""
    if not any(isinstance(message, SystemMessage) and message.tools for message in messages):
        return messages
    final = {tool.name: tool for tool in selected.tools}
    kept: list[Message] = []
    for message in messages:
        if isinstance(message, SystemMessage) and message.tools:
            tools = [final[tool.name] for tool in message.tools if tool.name in final]
            if tools:
                kept.append(SystemMessage.trusted("", tools=tools))
        else:
            kept.append(message)
    return kept


def _response_format(text: TextConfig | None) -> ResponseFormat:
    requested = None if text is None else text.format
    if isinstance(requested, JsonObjectFormat):
        return ResponseFormat("json_object")
    if isinstance(requested, JsonSchemaFormat):
        return ResponseFormat("json_schema", requested.schema, bool(requested.strict))
    return TEXT


def _requested(body: ResponsesBody) -> RequestedInference:
    return RequestedInference(
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=body.top_logprobs is not None,
        top_logprobs=body.top_logprobs,
        max_tokens=body.max_output_tokens,
    )
