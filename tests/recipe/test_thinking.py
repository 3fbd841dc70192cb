"""Thinking: an explicit type, then an effort, then the default decide; history brings its reasoning along."""

import pytest

from recipe.conversation import AssistantMessage, Message, ToolCall, UserMessage
from recipe.errors import ConversionError
from recipe.protocol.thinking import Thinking, complete_reasoning, initial_stage, resolve_thinking
from recipe.request import ReasoningContentBehavior
from recipe.stream.parsing_options import ThinkingInitialStage

ON, OFF = Thinking(True, "high"), Thinking(False, None)


@pytest.mark.parametrize(
    ("thinking_type", "effort", "default", "expected"),
    [
        (None, None, True, ON),
        (None, None, False, OFF),
        (None, "none", True, OFF),
        (None, "low", False, Thinking(True, "low")),
        ("disabled", "max", True, OFF),
        ("enabled", "none", False, ON),
        ("adaptive", None, False, ON),
        (None, "minimal", False, Thinking(True, "low")),
        (None, "medium", False, ON),
        (None, "xhigh", False, Thinking(True, "xhigh")),
        (None, "ultra", False, Thinking(True, "max")),
    ],
)
def test_the_type_wins_over_the_effort_and_the_effort_over_the_default(
    thinking_type: str | None, effort: str | None, default: bool, expected: Thinking
) -> None:
    assert resolve_thinking(thinking_type, effort, default) == expected


@pytest.mark.parametrize(
    ("message", "stage"),
    [
        (None, ThinkingInitialStage.ReasoningStart),
        (AssistantMessage("a", "r"), ThinkingInitialStage.ReasoningStart),
        (AssistantMessage("", "", prefix=True), ThinkingInitialStage.ReasoningStart),
        (AssistantMessage("", "r", prefix=True), ThinkingInitialStage.ReasoningContinuation),
        (AssistantMessage("a", "r", prefix=True), ThinkingInitialStage.ContentContinuation),
    ],
)
def test_a_prefix_decides_where_the_output_starts(message: Message | None, stage: ThinkingInitialStage) -> None:
    assert initial_stage(ON, message) is stage
    assert initial_stage(OFF, message) is None


def reasoning(messages: list[Message]) -> list[str | None]:
    return [message.reasoning_content for message in messages]


def test_missing_reasoning_becomes_empty_and_without_thinking_there_is_none() -> None:
    messages: list[Message] = [AssistantMessage("a"), AssistantMessage("b", "r"), UserMessage("q")]
    complete_reasoning(messages, ON, ReasoningContentBehavior.FillEmpty, has_tools=True, field="f")
    assert reasoning(messages) == ["", "r", None]
    complete_reasoning(messages, OFF, ReasoningContentBehavior.Reject, has_tools=True, field="f")
    assert reasoning(messages) == [None, None, None]


CALL = AssistantMessage("", tool_calls=[ToolCall("i", "n", "{}")])


@pytest.mark.parametrize(
    ("messages", "has_tools", "refused"),
    [
        ([UserMessage("q"), AssistantMessage("a")], True, True),
        ([UserMessage("q"), AssistantMessage("a")], False, False),
        ([UserMessage("q"), CALL], False, True),
        ([CALL, UserMessage("q")], True, False),
        ([AssistantMessage("a")], True, True),
        ([UserMessage("q"), AssistantMessage("a", "")], True, False),
    ],
)
def test_reasoning_must_come_back_after_the_last_user_message_where_tools_are_used(
    messages: list[Message], has_tools: bool, refused: bool
) -> None:
    messages = list(messages)
    if not refused:
        complete_reasoning(messages, ON, ReasoningContentBehavior.Reject, has_tools=has_tools, field="f")
        return
    with pytest.raises(ConversionError, match="The `f` in the thinking mode must be passed back to the API"):
        complete_reasoning(messages, ON, ReasoningContentBehavior.Reject, has_tools=has_tools, field="f")
