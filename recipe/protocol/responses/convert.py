"""Responses requests: from the decoded body to a conversation.

Problems are reported in a fixed order: the model, the declared tools and those that searches found, the input, the tool
choice and the schemas of the tools, the text format, the inference parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recipe.conversation import Conversation, Message, SystemMessage, UserMessage
from recipe.errors import ConversionError
from recipe.protocol.constraint import TEXT, ResponseFormat, check_json_word, format_constraint
from recipe.protocol.extension_fields import extended, extension_fields
from recipe.protocol.known_fields import RESPONSES_REFUSED, STATELESS, RefusedFields
from recipe.protocol.protocol_request import ProtocolRequest
from recipe.protocol.responses.blocks import BlockReader
from recipe.protocol.responses.body import ResponsesDecoder
from recipe.protocol.responses.echo import ResponsesEcho
from recipe.protocol.responses.history import History
from recipe.protocol.responses.offer import ToolOffer, only_selected
from recipe.protocol.responses.schema import (
    ExtendedResponsesBody,
    InputItem,
    ItemReference,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponsesBody,
    TextConfig,
    ToolSearchCallItem,
    ToolSearchOutputItem,
    UnknownTool,
)
from recipe.protocol.responses.tools import ToolDeclarations, is_named
from recipe.protocol.sampling import with_extensions
from recipe.protocol.structured_outputs import with_structured_outputs
from recipe.protocol.template_arguments import template_arguments
from recipe.protocol.thinking import Thinking, complete_reasoning, initial_stage, request_thinking
from recipe.protocol.tools import SelectedTools, check_strict_mix, opens_call_block
from recipe.protocol.validation import RequestedInference, check_stop_strings, resolve_inference
from recipe.request import ConversationRequest, ConversionOptions, ModelVersion, OutputConstraint
from recipe.stream.parsing_options import ParsingOptions

if TYPE_CHECKING:
    from recipe.protocol.responses.generator import ResponsesChunkGenerator

_REFUSED = RefusedFields(RESPONSES_REFUSED)
_LOGPROBS = "message.output_text.logprobs"
_NO_JSON_WORD = (
    "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'."
)

DecodedResponsesBody = extended(ExtendedResponsesBody, RESPONSES_REFUSED, name="DecodedResponsesBody", module=__name__)
"""A response reports its request, so the class needs a place where another process finds it."""


class ResponsesRequest(ProtocolRequest[ResponsesBody]):
    """A Responses request."""

    __slots__ = ()
    decoder = ResponsesDecoder()
    extended_decoder = ResponsesDecoder(DecodedResponsesBody)

    def namespace_tool_map(self, options: ConversionOptions) -> dict[str, tuple[str, str]]:
        """The (namespace, local name) of each function name that conversion gives to a declared namespace tool.

        Read it before `convert`. ConversionError for an unknown model or a bad declaration.
        """
        if not isinstance(options, ConversionOptions):
            raise TypeError(f"expected ConversionOptions, not {type(options).__name__}")
        body = self._peek()
        version = options.model_version(body.model)
        declarations = ToolDeclarations.of_request(body.tools or [], version, options)
        declarations.declare([tool if is_named(tool) else UnknownTool() for tool in body.tools or ()], "tools")
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
        fields = extension_fields(body)
        if options.extensions.refusals and isinstance(body, ExtendedResponsesBody):
            _REFUSED.check(body)
            _refuse_references(body)
        items = _items(body, version)
        offer = ToolOffer(body, version, options, items)
        thinking = request_thinking(None, None if body.reasoning is None else body.reasoning.effort, fields, options)
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
        selected = _selected(offer, body, options, version, thinking)
        messages = only_selected(messages, selected)
        response_format = _response_format(body.text)
        if response_format.kind == "json_object":
            check_json_word((message.content for message in messages), _NO_JSON_WORD)
        response_format = with_structured_outputs(response_format, fields, options, has_tools=selected.callable)
        single_call = options.extensions.single_call and fields.parallel_tool_calls is False
        constraint = _constraint(response_format, selected, single_call)
        inference = resolve_inference(
            _requested(body, options), options, version, thinking, has_tools=bool(selected.tools), constraint=constraint
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
        parsing = ParsingOptions.trusted(
            parse_tool_calls=bool(selected.tools),
            starts_in_tool_calls=selected.choice == "required",
            parse_json_output=response_format.kind == "json_object",
            thinking_initial_stage=initial_stage(thinking, None),
            stop_sequences=_stop_strings(body, options),
            special_tokens=options.special_tokens,
        )
        inference = with_extensions(inference, fields, options, version)
        return ConversationRequest.converted(
            conversation, version, inference, parsing, bool(body.stream), offer.state()
        )


def _refuse_references(body: ResponsesBody) -> None:
    for index, item in enumerate(body.input or ()):
        if isinstance(item, ItemReference):
            raise ConversionError(f"input[{index}]: item_reference is not supported. {STATELESS}")


def _items(body: ResponsesBody, version: ModelVersion) -> list[tuple[int, InputItem]]:
    """The items of the input with their indices; calls and outputs of tool search are for V4.1 alone."""
    if body.input is None or isinstance(body.input, str):
        return []
    indexed = enumerate(body.input)
    if version is not ModelVersion.DeepseekV41Flash:
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


def _selected(
    offer: ToolOffer, body: ResponsesBody, options: ConversionOptions, version: ModelVersion, thinking: Thinking
) -> SelectedTools:
    """What the tool choice leaves; ConversionError for a bad tool or choice."""
    forbids_demand = thinking.enabled and not options.extensions.required_call_after_thinking
    selected = offer.select(body.tool_choice, thinking=forbids_demand)
    return selected if opens_call_block(version, (), thinking=thinking.enabled) else selected.opening_no_block()


def _constraint(response_format: ResponseFormat, selected: SelectedTools, single_call: bool) -> OutputConstraint | None:
    """What constrains the output: the tools before the format. ConversionError for a bad format or mix of both."""
    constraint = format_constraint(response_format)
    if not selected.tools:
        return constraint
    check_strict_mix(selected.tools, has_response_format=response_format is not TEXT)
    return selected.constraint(single_call=single_call)


def _response_format(text: TextConfig | None) -> ResponseFormat:
    requested = None if text is None else text.format
    if isinstance(requested, JsonObjectFormat):
        return ResponseFormat("json_object")
    if isinstance(requested, JsonSchemaFormat):
        return ResponseFormat("json_schema", requested.schema, bool(requested.strict))
    return TEXT


def _requested(body: ResponsesBody, options: ConversionOptions) -> RequestedInference:
    includes = isinstance(body, ExtendedResponsesBody) and options.extensions.sampling and _LOGPROBS in body.includes
    return RequestedInference(
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=body.top_logprobs is not None or includes,
        top_logprobs=body.top_logprobs,
        max_tokens=body.max_output_tokens,
    )


def _stop_strings(body: ResponsesBody, options: ConversionOptions) -> list[str]:
    """The protocol has none; `stop` is an extension."""
    if not isinstance(body, ExtendedResponsesBody) or not options.extensions.sampling:
        return []
    return check_stop_strings(body.stop)
