"""Chat Completions requests: from the decoded body to a conversation, rule by rule in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from recipe.conversation import Conversation, Message, ToolDefinition
from recipe.errors import ConversionError
from recipe.protocol.body import BodyDecoder
from recipe.protocol.chat_completions.generator import ChatCompletionChunkGenerator, UsageReport
from recipe.protocol.chat_completions.history import History
from recipe.protocol.chat_completions.schema import (
    AssistantItem,
    ChatCompletionBody,
    ExtendedChatCompletionBody,
    Format,
    FunctionChoice,
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
)
from recipe.protocol.constraint import TEXT, ResponseFormat, check_json_word, format_constraint
from recipe.protocol.extension_fields import ExtensionFields, extended, extension_fields
from recipe.protocol.known_fields import CHAT_COMPLETIONS_REFUSED, RefusedFields
from recipe.protocol.protocol_request import ProtocolRequest, check_generator_arguments
from recipe.protocol.sampling import with_extensions
from recipe.protocol.structured_outputs import with_structured_outputs
from recipe.protocol.template_arguments import template_arguments
from recipe.protocol.thinking import Thinking, complete_reasoning, initial_stage, request_thinking
from recipe.protocol.tools import (
    NamedTool,
    SelectedTools,
    check_strict_mix,
    check_tool_name,
    checked_tools,
    opens_call_block,
    select_tools,
)
from recipe.protocol.validation import check_stop_strings, out_of_range, resolve_inference
from recipe.request import ConversationRequest, ConversionOptions, ModelVersion, OutputConstraint
from recipe.stream.parsing_options import ParsingOptions

_REFUSED = RefusedFields(CHAT_COMPLETIONS_REFUSED)
_NO_JSON_WORD = "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'."
_PREFIX_NOT_LAST = (
    "Invalid completion message: prefix set true with message which is not final message "
    "or message role is not assistant"
)


class ChatCompletionRequest(ProtocolRequest[ChatCompletionBody]):
    """A Chat Completions request."""

    __slots__ = ()
    decoder = BodyDecoder(ChatCompletionBody)
    extended_decoder = BodyDecoder(extended(ExtendedChatCompletionBody, CHAT_COMPLETIONS_REFUSED))

    @staticmethod
    def chunk_generator(request: ConversationRequest, id: str, model: str) -> ChatCompletionChunkGenerator:  # noqa: A002
        """The generator of the chunks that answer `request` under the given response ID and model name."""
        check_generator_arguments(request, id, model)
        return ChatCompletionChunkGenerator.for_request(request, id, model)

    def _convert(self, body: ChatCompletionBody, options: ConversionOptions) -> ConversationRequest:
        version = options.model_version(body.model)
        fields = extension_fields(body)
        if isinstance(body, ExtendedChatCompletionBody):
            _apply_extensions(body, options)
        for index, tool in enumerate(body.tools or ()):
            check_tool_name(tool.function.name, f"tools[{index}].function.name")
        thinking = _thinking(body, fields, options)
        messages = _messages(body, options, version, thinking)
        response_format = _response_format(body.response_format)
        if response_format.kind == "json_object":
            check_json_word((message.content for message in messages), _NO_JSON_WORD)
        selected = _selected_tools(body, options, thinking)
        response_format = with_structured_outputs(response_format, fields, options, has_tools=selected.callable)
        _check_prefix(body, messages, response_format)
        if not opens_call_block(version, messages, thinking=thinking.enabled):
            selected = selected.opening_no_block()
        parsing = _parsing(body, options, thinking, messages, selected)
        if body.stream_options is not None and not body.stream:
            raise ConversionError("stream_options should be set along with stream = true")
        constraint = _constraint(body, options, response_format, selected)
        inference = resolve_inference(
            body, options, version, thinking, has_tools=bool(selected.tools), constraint=constraint
        )
        conversation = Conversation.trusted(
            messages,
            thinking_mode=thinking.enabled,
            tools=selected.tools,
            tool_choice=selected.choice,
            reasoning_effort=thinking.effort,
            template_arguments=template_arguments(fields, options, version),
            **response_format.shown(),
        )
        inference = with_extensions(inference, fields, options, version)
        return ConversationRequest.converted(
            conversation, version, inference, parsing, bool(body.stream), _usage_report(body, options)
        )


def _apply_extensions(body: ExtendedChatCompletionBody, options: ConversionOptions) -> None:
    """Continue the last message if asked to; ConversionError for what is known but not done here."""
    extensions = options.extensions
    if extensions.refusals:
        _REFUSED.check(body)
        if body.add_generation_prompt is False and not body.continue_final_message:
            raise ConversionError("add_generation_prompt is only supported as false with continue_final_message")
    if extensions.prefill and body.continue_final_message:
        last = body.messages[-1] if body.messages else None
        if not isinstance(last, AssistantItem):
            raise ConversionError("continue_final_message needs a final message of the assistant")
        last.prefix = True


def _thinking(body: ChatCompletionBody, fields: ExtensionFields, options: ConversionOptions) -> Thinking:
    thinking_type = None if body.thinking is None else body.thinking.type
    thinking = request_thinking(thinking_type, body.reasoning_effort, fields, options)
    if isinstance(body, ExtendedChatCompletionBody) and body.max_completion_tokens is not None:
        _take_max_completion_tokens(body, body.max_completion_tokens, options, thinking)
    return thinking


def _take_max_completion_tokens(
    body: ExtendedChatCompletionBody, number: int, options: ConversionOptions, thinking: Thinking
) -> None:
    """The newer name of `max_tokens` wins over the older one, where it is known."""
    if not options.extensions.max_completion_tokens:
        return
    bound = options.max_tokens_upper_bound(thinking.enabled)
    if not 1 <= number <= bound:
        raise out_of_range("max_completion_tokens", f"[1, {bound}]")
    body.max_tokens = number


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
    if len(messages) > 1 and any(message.prefix for message in messages[:-1]):
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


def _selected_tools(body: ChatCompletionBody, options: ConversionOptions, thinking: Thinking) -> SelectedTools:
    choice = body.tool_choice
    forbids_demand = thinking.enabled and not options.extensions.required_call_after_thinking
    if choice == "none" or not body.tools:
        return select_tools((), "none" if choice == "none" else None, thinking=forbids_demand)
    tools = checked_tools(_declared(tool.function) for tool in body.tools)
    named = NamedTool(choice.function.name) if isinstance(choice, FunctionChoice) else choice
    return select_tools(tools, named, thinking=forbids_demand)


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
    return ParsingOptions.trusted(
        parse_tool_calls=selected.callable,
        starts_in_tool_calls=selected.choice == "required",
        parse_json_output=isinstance(body.response_format, JsonObjectFormat),
        thinking_initial_stage=initial_stage(thinking, messages[-1] if messages else None),
        stop_sequences=check_stop_strings(body.stop),
        special_tokens=options.special_tokens,
    )


def _constraint(
    body: ChatCompletionBody, options: ConversionOptions, response_format: ResponseFormat, selected: SelectedTools
) -> OutputConstraint | None:
    """What constrains the output: the tools before the format. ConversionError for a bad format or mix of both."""
    constraint = format_constraint(response_format)
    if not selected.tools:
        return constraint
    check_strict_mix(selected.tools, has_response_format=body.response_format is not None)
    return selected.constraint(single_call=options.extensions.single_call and body.parallel_tool_calls is False)


def _usage_report(body: ChatCompletionBody, options: ConversionOptions) -> UsageReport:
    asked = body.stream_options is not None and body.stream_options.include_usage is True
    return UsageReport(in_every_chunk=asked or not body.stream, apart=asked and options.extensions.usage_chunk)
