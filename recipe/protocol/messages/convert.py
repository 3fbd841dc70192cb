"""Messages requests: from a body to a conversation.

The order of the checks is part of the protocol: model, declared tools, messages, missing reasoning, tool schemas and
choice, stop sequences, inference parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from recipe.conversation import AssistantMessage, Conversation, Message, SystemMessage
from recipe.extensions import Extensions
from recipe.protocol.body import BodyDecoder
from recipe.protocol.constraint import TEXT, ResponseFormat, format_constraint
from recipe.protocol.content import SEPARATOR, image_token
from recipe.protocol.extension_fields import ExtensionFields, extended, extension_fields
from recipe.protocol.known_fields import MESSAGES_REFUSED, RefusedFields
from recipe.protocol.messages.generator import MessagesChunkGenerator
from recipe.protocol.messages.history import History, HistorySettings
from recipe.protocol.messages.schema import ExtendedMessagesBody, MessagesBody, SystemBlock
from recipe.protocol.messages.tools import DeclaredTools, declared_tools, keep_selected, selected_tools
from recipe.protocol.protocol_request import ProtocolRequest
from recipe.protocol.sampling import with_extensions
from recipe.protocol.structured_outputs import with_structured_outputs
from recipe.protocol.template_arguments import template_arguments
from recipe.protocol.thinking import Thinking, complete_reasoning, initial_stage, request_thinking
from recipe.protocol.tools import SelectedTools, opens_call_block
from recipe.protocol.validation import RequestedInference, check_stop_strings, resolve_inference
from recipe.request import (
    ConversationRequest,
    ConversionOptions,
    InferenceOptions,
    ModelVersion,
    OutputConstraint,
    WebSearchBehavior,
)
from recipe.stream.parsing_options import ParsingOptions

_REFUSED = RefusedFields(MESSAGES_REFUSED)
BILLING_HEADER = "x-anthropic-billing-header"


class MessagesRequest(ProtocolRequest[MessagesBody]):
    """A request of the Messages protocol."""

    __slots__ = ()
    decoder = BodyDecoder(MessagesBody)
    extended_decoder = BodyDecoder(extended(ExtendedMessagesBody, MESSAGES_REFUSED))

    @staticmethod
    def chunk_generator(request: ConversationRequest, id: str, model: str) -> MessagesChunkGenerator:  # noqa: A002
        """The generator of the events that answer `request`."""
        return MessagesChunkGenerator(id, model, request.conversation.thinking_mode)

    def _convert(self, body: MessagesBody, options: ConversionOptions) -> ConversationRequest:
        version = options.model_version(body.model)
        fields, extensions = extension_fields(body), options.extensions
        if extensions.refusals and isinstance(body, ExtendedMessagesBody):
            _REFUSED.check(body)
        thinking = _thinking(body, fields, options)
        is_v41 = version is ModelVersion.DeepseekV41Flash
        declared = declared_tools(body.declared_tools, options.messages_web_search, extensions, can_defer=is_v41)
        messages = _messages(body, declared, options, version)
        complete_reasoning(
            messages,
            thinking,
            options.reasoning_content_behavior,
            has_tools=bool(body.tools),
            field="content[].thinking",
        )
        if extensions.prefill and body.messages[-1].role == "assistant":
            messages[-1] = _continued(messages[-1])
        forbids_demand = thinking.enabled and not extensions.required_call_after_thinking
        selected = selected_tools(declared, body.tool_choice, extensions, thinking=forbids_demand)
        if not opens_call_block(version, messages, thinking=thinking.enabled):
            selected = selected.opening_no_block()
        response_format = with_structured_outputs(
            _response_format(body, extensions), fields, options, has_tools=selected.callable
        )
        parsing = _parsing(body, options, thinking, messages, selected)
        constraint = _constraint(body, extensions, response_format, selected)
        inference = _inference(body, options, version, thinking, has_tools=selected.callable, constraint=constraint)
        conversation = Conversation.trusted(
            keep_selected(messages, selected.tools) if declared.tools else messages,
            thinking_mode=thinking.enabled,
            tools=selected.tools,
            tool_choice=selected.choice,
            reasoning_effort=thinking.effort,
            template_arguments=template_arguments(fields, options, version),
            **response_format.shown(),
        )
        inference = with_extensions(inference, fields, options, version)
        return ConversationRequest.converted(conversation, version, inference, parsing, bool(body.stream))


def _continued(message: Message) -> AssistantMessage:
    """The last message of the assistant as the beginning of the answer."""
    return AssistantMessage.trusted(message.content, message.reasoning_content, None, True)


def _response_format(body: MessagesBody, extensions: Extensions) -> ResponseFormat:
    if not isinstance(body, ExtendedMessagesBody) or not extensions.output_format:
        return TEXT
    requested = (body.output_config and body.output_config.format) or body.output_format
    return TEXT if requested is None else ResponseFormat("json_schema", requested.schema)


def _constraint(
    body: MessagesBody, extensions: Extensions, response_format: ResponseFormat, selected: SelectedTools
) -> OutputConstraint | None:
    """What constrains the output: the tools before the format. ConversionError for a bad format."""
    constraint = format_constraint(response_format)
    if not selected.callable:
        return constraint
    no_parallel = bool(getattr(body.tool_choice, "disable_parallel_tool_use", False))
    return selected.constraint(single_call=extensions.single_call and no_parallel)


def _thinking(body: MessagesBody, fields: ExtensionFields, options: ConversionOptions) -> Thinking:
    thinking_type = body.thinking.type if body.thinking else None
    effort = body.output_config.effort if body.output_config else None
    return request_thinking(thinking_type, effort, fields, options)


def _messages(
    body: MessagesBody, declared: DeclaredTools, options: ConversionOptions, version: ModelVersion
) -> list[Message]:
    settings = HistorySettings(
        tools={tool.name: tool for tool in declared.tools},
        image_token=image_token(options, version),
        has_system_turns=version is ModelVersion.DeepseekV41Flash,
        drops_server_tools=options.messages_web_search is WebSearchBehavior.Drop,
        refuses_files=options.extensions.refusals,
    )
    history = History(settings).read(body.messages)
    if body.system is None:
        return history
    return [SystemMessage.trusted(system_text(body.system)), *history]


def system_text(system: str | Sequence[SystemBlock]) -> str:
    """The system prompt as one text; a first block that only serves the client's billing is left out."""
    if isinstance(system, str):
        return system
    texts = [block.text for block in system]
    if texts and texts[0][: len(BILLING_HEADER)].lower() == BILLING_HEADER:
        del texts[0]
    return SEPARATOR.join(texts)


def _parsing(
    body: MessagesBody,
    options: ConversionOptions,
    thinking: Thinking,
    messages: Sequence[Message],
    selected: SelectedTools,
) -> ParsingOptions:
    return ParsingOptions.trusted(
        parse_tool_calls=selected.callable,
        starts_in_tool_calls=selected.choice == "required",
        thinking_initial_stage=initial_stage(thinking, messages[-1] if messages else None),
        stop_sequences=check_stop_strings(body.stop_sequences),
        special_tokens=options.special_tokens,
    )


def _inference(
    body: MessagesBody,
    options: ConversionOptions,
    version: ModelVersion,
    thinking: Thinking,
    *,
    has_tools: bool,
    constraint: OutputConstraint | None,
) -> InferenceOptions:
    """The inference parameters. `max_tokens` is lowered to the bound, where the other protocols refuse it."""
    max_tokens = body.max_tokens
    if max_tokens is not None:
        max_tokens = min(max_tokens, options.max_tokens_upper_bound(thinking.enabled))
    return resolve_inference(
        RequestedInference(temperature=body.temperature, top_p=body.top_p, max_tokens=max_tokens),
        options,
        version,
        thinking,
        has_tools=has_tools,
        constraint=constraint,
    )
