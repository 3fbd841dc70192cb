"""Chat Completions requests: from the decoded body to a conversation, rule by rule in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recipe.conversation import Conversation, Message, ToolDefinition
from recipe.errors import ConversionError
from recipe.protocol.body import BodyDecoder
from recipe.protocol.chat_completions.generator import ChatCompletionChunkGenerator
from recipe.protocol.chat_completions.history import History
from recipe.protocol.chat_completions.schema import (
    ChatCompletionBody,
    Format,
    FunctionChoice,
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ToolChoice,
)
from recipe.protocol.constraint import TEXT, ResponseFormat, check_json_word, format_constraint, tool_constraint
from recipe.protocol.protocol_request import ProtocolRequest, check_generator_arguments
from recipe.protocol.thinking import complete_reasoning, initial_stage, resolve_thinking
from recipe.protocol.tools import NamedTool, check_strict_mix, check_tool_name, checked_tools, select_tools
from recipe.protocol.validation import check_stop_strings, resolve_inference
from recipe.request import ConversationRequest, ConversionOptions
from recipe.stream.parsing_options import ParsingOptions

_NO_JSON_WORD = "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'."
_PREFIX_NOT_LAST = (
    "Invalid completion message: prefix set true with message which is not final message "
    "or message role is not assistant"
)


class ChatCompletionRequest(ProtocolRequest[ChatCompletionBody]):
    """A Chat Completions request."""

    __slots__ = ()
    decoder = BodyDecoder(ChatCompletionBody)

    @staticmethod
    def chunk_generator(request: ConversationRequest, id: str, model: str) -> ChatCompletionChunkGenerator:  # noqa: A002
        """The generator of the chunks that answer `request` under the given response ID and model name."""
        check_generator_arguments(request, id, model)
        return ChatCompletionChunkGenerator.for_request(request, id, model)

    def _convert(self, body: ChatCompletionBody, options: ConversionOptions) -> ConversationRequest:
        version = options.model_version(body.model)
        for index, tool in enumerate(body.tools or ()):
            check_tool_name(tool.function.name, f"tools[{index}].function.name")
        thinking = resolve_thinking(
            None if body.thinking is None else body.thinking.type,
            body.reasoning_effort,
            options.default_thinking_mode,
        )
        messages = History(options, version).convert(body.messages)
        complete_reasoning(
            messages,
            thinking,
            options.reasoning_content_behavior,
            has_tools=bool(body.tools),
            field="reasoning_content",
        )
        if any(message.prefix for message in messages[:-1]):
            raise ConversionError(_PREFIX_NOT_LAST)
        response_format = TEXT if body.response_format is None else _response_format(body.response_format)
        if response_format.kind == "json_object":
            check_json_word((message.content for message in messages), _NO_JSON_WORD)
        offered = () if body.tool_choice == "none" else checked_tools(_declared_tools(body.tools or ()))
        tools, choice = select_tools(offered, _choice(body.tool_choice), thinking=thinking.enabled)
        _check_prefix(body, messages, response_format)
        stops = check_stop_strings(body.stop)
        if body.stream_options is not None and not body.stream:
            raise ConversionError("stream_options should be set along with stream = true")
        constraint = format_constraint(response_format)
        if tools:
            check_strict_mix(tools, has_response_format=body.response_format is not None)
            constraint = tool_constraint(tools, choice)
        inference = resolve_inference(body, options, version, thinking, has_tools=bool(tools), constraint=constraint)
        conversation = Conversation.trusted(
            messages,
            thinking_mode=thinking.enabled,
            tools=tools,
            tool_choice=choice,
            reasoning_effort=thinking.effort,
            response_format=response_format.kind,
            response_schema=response_format.schema,
            response_regex=response_format.regex,
        )
        parsing = ParsingOptions(
            parse_tool_calls=bool(tools),
            starts_in_tool_calls=choice == "required",
            parse_json_output=response_format.kind == "json_object",
            thinking_initial_stage=initial_stage(thinking, messages[-1] if messages else None),
            stop_sequences=stops,
            special_tokens=options.special_tokens,
        )
        return ConversationRequest.converted(
            conversation, version, inference, parsing, bool(body.stream), body.stream_options
        )


def _check_prefix(body: ChatCompletionBody, messages: Sequence[Message], response_format: ResponseFormat) -> None:
    """ConversionError for a prefix beside what would not continue it."""
    if not (messages and messages[-1].prefix):
        return
    if response_format.kind == "json_object":
        raise ConversionError("response_format json_object should not be used with prefix")
    if body.tools or any(message.role == "tool" for message in messages):
        raise ConversionError("Function call should not be used with prefix")


def _declared_tools(tools: Sequence[FunctionTool]) -> Iterator[ToolDefinition]:
    """The tools as they were declared."""
    for tool in tools:
        function = tool.function
        yield ToolDefinition.trusted(function.name, function.description, function.parameters, function.strict)


def _choice(choice: ToolChoice | None) -> str | NamedTool | None:
    return NamedTool(choice.function.name) if isinstance(choice, FunctionChoice) else choice


def _response_format(requested: Format) -> ResponseFormat:
    if isinstance(requested, JsonObjectFormat):
        return ResponseFormat("json_object")
    if isinstance(requested, RegexFormat):
        return ResponseFormat("regex", regex=requested.regex)
    if isinstance(requested, JsonSchemaFormat):
        json_schema = requested.json_schema
        return ResponseFormat("json_schema", json_schema.schema, bool(json_schema.strict))
    return TEXT
