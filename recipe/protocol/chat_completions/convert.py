"""Chat Completions requests: from the decoded body to a conversation, rule by rule in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from recipe.conversation import Conversation, Message, ToolDefinition
from recipe.errors import ConversionError
from recipe.protocol.body import BodyDecoder
from recipe.protocol.chat_completions.generator import ChatCompletionChunkGenerator
from recipe.protocol.chat_completions.history import History
from recipe.protocol.chat_completions.schema import (
    ChatCompletionBody,
    Format,
    FunctionChoice,
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
)
from recipe.protocol.constraint import TEXT, ResponseFormat, check_json_word, format_constraint, tool_constraint
from recipe.protocol.protocol_request import ProtocolRequest, check_generator_arguments
from recipe.protocol.thinking import Thinking, complete_reasoning, initial_stage, resolve_thinking
from recipe.protocol.tools import (
    NamedTool,
    SelectedTools,
    check_strict_mix,
    check_tool_name,
    checked_tools,
    select_tools,
)
from recipe.protocol.validation import check_stop_strings, resolve_inference
from recipe.request import ConversationRequest, ConversionOptions, ModelVersion, OutputConstraint
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
        thinking = _thinking(body, options)
        messages = _messages(body, options, version, thinking)
        response_format = _response_format(body.response_format)
        if response_format.kind == "json_object":
            check_json_word((message.content for message in messages), _NO_JSON_WORD)
        selected = _selected_tools(body, thinking)
        _check_prefix(body, messages, response_format)
        parsing = _parsing(body, options, thinking, messages, selected)
        if body.stream_options is not None and not body.stream:
            raise ConversionError("stream_options should be set along with stream = true")
        constraint = _constraint(body, response_format, selected)
        inference = resolve_inference(
            body, options, version, thinking, has_tools=bool(selected.tools), constraint=constraint
        )
        conversation = Conversation.trusted(
            messages,
            thinking_mode=thinking.enabled,
            tools=selected.tools,
            tool_choice=selected.choice,
            reasoning_effort=thinking.effort,
            response_format=response_format.kind,
            response_schema=response_format.schema,
            response_regex=response_format.regex,
        )
        return ConversationRequest.converted(
            conversation, version, inference, parsing, bool(body.stream), body.stream_options
        )


def _thinking(body: ChatCompletionBody, options: ConversionOptions) -> Thinking:
    thinking_type = None if body.thinking is None else body.thinking.type
    return resolve_thinking(thinking_type, body.reasoning_effort, options.default_thinking_mode)


def _messages(
    body: ChatCompletionBody, options: ConversionOptions, version: ModelVersion, thinking: Thinking
) -> list[Message]:
    """The conversation, its reasoning complete. Only its last message may be a prefix."""
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
    return messages


def _response_format(requested: Format | None) -> ResponseFormat:
    if isinstance(requested, JsonObjectFormat):
        return ResponseFormat("json_object")
    if isinstance(requested, RegexFormat):
        return ResponseFormat("regex", regex=requested.regex)
    if isinstance(requested, JsonSchemaFormat):
        json_schema = requested.json_schema
        return ResponseFormat("json_schema", json_schema.schema, bool(json_schema.strict))
    return TEXT


def _selected_tools(body: ChatCompletionBody, thinking: Thinking) -> SelectedTools:
    choice = body.tool_choice
    if choice == "none" or not body.tools:
        return select_tools((), "none" if choice == "none" else None, thinking=thinking.enabled)
    tools = checked_tools(_declared(tool.function) for tool in body.tools)
    named = NamedTool(choice.function.name) if isinstance(choice, FunctionChoice) else choice
    return select_tools(tools, named, thinking=thinking.enabled)


def _declared(function: FunctionDefinition) -> ToolDefinition:
    return ToolDefinition.trusted(function.name, function.description, function.parameters, function.strict)


def _check_prefix(body: ChatCompletionBody, messages: Sequence[Message], response_format: ResponseFormat) -> None:
    """ConversionError for a prefix beside what would not continue it."""
    if not (messages and messages[-1].prefix):
        return
    if response_format.kind == "json_object":
        raise ConversionError("response_format json_object should not be used with prefix")
    if body.tools or any(message.role == "tool" for message in messages):
        raise ConversionError("Function call should not be used with prefix")


def _parsing(
    body: ChatCompletionBody,
    options: ConversionOptions,
    thinking: Thinking,
    messages: Sequence[Message],
    selected: SelectedTools,
) -> ParsingOptions:
    return ParsingOptions(
        parse_tool_calls=selected.callable,
        starts_in_tool_calls=selected.choice == "required",
        parse_json_output=isinstance(body.response_format, JsonObjectFormat),
        thinking_initial_stage=initial_stage(thinking, messages[-1] if messages else None),
        stop_sequences=check_stop_strings(body.stop),
        special_tokens=options.special_tokens,
    )


def _constraint(
    body: ChatCompletionBody, response_format: ResponseFormat, selected: SelectedTools
) -> OutputConstraint | None:
    """What constrains the output: the tools before the format. ConversionError for a bad format or mix of both."""
    constraint = format_constraint(response_format)
    if not selected.tools:
        return constraint
    check_strict_mix(selected.tools, has_response_format=body.response_format is not None)
    return tool_constraint(selected.tools, selected.choice)
