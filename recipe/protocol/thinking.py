"""Thinking mode: whether it is on, with what effort, where its output begins, and what history must bring along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from recipe.conversation import AssistantMessage, Message, ReasoningEffort
from recipe.errors import ConversionError
from recipe.protocol.extension_fields import ExtensionFields
from recipe.protocol.template_arguments import thinking_switch
from recipe.request import ConversionOptions, ReasoningContentBehavior, ThinkingSupport
from recipe.stream.parsing_options import ThinkingInitialStage

# Efforts as the protocols spell them (None: not given) and as the encodings know them.
_EFFORTS: dict[str | None, ReasoningEffort] = {
    None: "high",
    "none": "high",
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "xhigh",
    "ultra": "max",
    "max": "max",
}


_REJECT = ReasoningContentBehavior.Reject
_CAN_THINK = {ThinkingSupport.Never: False, ThinkingSupport.Always: True}


class Thinking(NamedTuple):
    """The thinking mode of a request; `effort` is None exactly when it is off."""

    enabled: bool
    effort: ReasoningEffort | None


def resolve_thinking(thinking_type: str | None, effort: str | None, default: bool) -> Thinking:
    """The mode that a request asks for: an explicit type (`enabled`, `adaptive`, `disabled`) wins over an effort, an
    effort (any but `none` means on) over the default.
    """
    if thinking_type is not None:
        enabled = thinking_type != "disabled"
    elif effort is not None:
        enabled = effort != "none"
    else:
        enabled = default
    return Thinking(enabled, _EFFORTS[effort] if enabled else None)


def request_thinking(
    thinking_type: str | None, effort: str | None, fields: ExtensionFields, options: ConversionOptions
) -> Thinking:
    """The mode of a request: as it asks, where an explicit type wins over the switches of extensions, as far as the
    model can.
    """
    switch = thinking_switch(fields, options) if thinking_type is None else None
    if switch is not None:
        thinking_type = "enabled" if switch else "disabled"
    thinking = resolve_thinking(thinking_type, effort, options.default_thinking_mode)
    can = _CAN_THINK.get(options.thinking_support, thinking.enabled)
    return thinking if can is thinking.enabled else Thinking(can, _EFFORTS[effort] if can else None)


def initial_stage(thinking: Thinking, last_message: Message | None) -> ThinkingInitialStage | None:
    """The stage where the output starts, None without thinking; `last_message` decides if it is a prefix."""
    if not thinking.enabled:
        return None
    if last_message is not None and last_message.prefix:
        if last_message.content:
            return ThinkingInitialStage.ContentContinuation
        if last_message.reasoning_content:
            return ThinkingInitialStage.ReasoningContinuation
    return ThinkingInitialStage.ReasoningStart


def complete_reasoning(
    messages: list[Message],
    thinking: Thinking,
    behavior: ReasoningContentBehavior,
    *,
    has_tools: bool,
    field: str,
) -> None:
    """Give every assistant message of `messages`, in place, the reasoning that the mode wants.

    Without thinking there is none. With thinking, missing reasoning becomes "", unless `behavior` is Reject and it had
    to be passed back: after the last user message, where the request has tools or the message has calls. Then
    ConversionError names `field`.
    """
    must_pass_back = _last_user(messages) if behavior is _REJECT else len(messages)
    for index, message in enumerate(messages):
        if not isinstance(message, AssistantMessage):
            continue
        if not thinking.enabled:
            messages[index] = _with_reasoning(message, None)
        elif message.reasoning_content is None:
            if index > must_pass_back and (has_tools or message.tool_calls):
                raise ConversionError(f"The `{field}` in the thinking mode must be passed back to the API.")
            messages[index] = _with_reasoning(message, "")


def _last_user(messages: Sequence[Message]) -> int:
    """The index of the last user message, -1 without one."""
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "user"), -1)


def _with_reasoning(message: AssistantMessage, reasoning: str | None) -> AssistantMessage:
    if message.reasoning_content == reasoning:
        return message
    return AssistantMessage.trusted(message.content, reasoning, message.tool_calls, message.prefix)
