"""The prompt encoding of DeepSeek V4.

All system messages move to the front and share one text with the tools and the response format; what is left is turns
of users, tools and assistants. Among the messages that answer the calls of an assistant, results come first, in the
order of their ids.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter

from recipe.conversation import ReasoningEffort
from recipe.encoding.deepseek import SCHEMA_INTRODUCTION, DeepseekEncoding, Rendering
from recipe.encoding.dsml import V4_DIALECT
from recipe.message import Message, UserMessage

_HIGH_EFFORT = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.

"""
_MAX_EFFORT = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the \
problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause \
rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no \
assumption remains unchecked and no error remains undiscovered.

"""
_EFFORT_OF_LEVEL: dict[ReasoningEffort | None, str] = {
    "low": "",
    "high": _HIGH_EFFORT,
    "xhigh": _HIGH_EFFORT,
    None: _HIGH_EFFORT,
    "max": _MAX_EFFORT,
}
_CALL_ID = attrgetter("id")
_JSON_OBJECT_FORMAT = (
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY."
)


class DeepseekV4Encoding(DeepseekEncoding):
    """The V4 prompt encoding. It renders conversations and, with a tokenizer attached, encodes them."""

    __slots__ = ()
    dialect = V4_DIALECT
    efforts = _EFFORT_OF_LEVEL

    def _begin(self, rendering: Rendering) -> list[Message]:
        messages = rendering.conversation.messages
        rendering.prompt.push_special(rendering.markup.bos)
        if rendering.conversation.thinking_mode:
            rendering.prompt.push_text(_EFFORT_OF_LEVEL[rendering.conversation.reasoning_effort])
        _push_system(rendering, [message for message in messages if message.role == "system" and message.content])
        return _normal_form([message for message in messages if message.role != "system"])

    def _write(self, rendering: Rendering, message: Message, previous: Message | None) -> None:
        _WRITERS[message.role](rendering, message, previous)


def _push_system(rendering: Rendering, messages: Iterable[Message]) -> None:
    separator = ""
    for message in messages:
        rendering.prompt.push_text(separator)
        rendering.push_content(message)
        separator = "\n\n"
    if rendering.shows_tools:
        rendering.prompt.push_text("\n\n")
        rendering.markup.tool_block.push(rendering.prompt, rendering.conversation.tools)
    if rendering.conversation.response_format == "json_object":
        rendering.prompt.push_text(f"\n\n{_JSON_OBJECT_FORMAT}")
    elif rendering.conversation.response_format == "json_schema":
        schema = V4_DIALECT.json(rendering.conversation.response_schema)
        rendering.prompt.push_text(f"\n\n{SCHEMA_INTRODUCTION}{schema}")


def _normal_form(messages: Iterable[Message]) -> list[Message]:
    """Make one of adjacent user messages, then bring results before other answers."""
    normal: list[Message] = []
    for message in messages:
        previous = normal[-1] if normal else None
        if isinstance(message, UserMessage) and isinstance(previous, UserMessage):
            both = previous.content and message.content
            normal[-1] = previous.joined(message) if both else _either(previous, message)
        else:
            normal.append(message)
    _sort_answers(normal)
    return normal


def _sort_answers(messages: list[Message]) -> None:
    """Sort what follows each message with calls, as many messages as calls, if there are so many: results by id first.

    Which messages have calls, and where, is read before anything moves.
    """
    call_counts = [len(message.tool_calls or ()) for message in messages]
    for index, count in enumerate(call_counts, start=1):
        if count and index + count <= len(messages):
            messages[index : index + count] = sorted(messages[index : index + count], key=_answer_order)


def _answer_order(answer: Message) -> tuple[bool, bool, str]:
    return answer.role != "tool", answer.tool_call_id is not None, answer.tool_call_id or ""


def _either(first: UserMessage, second: UserMessage) -> UserMessage:
    """The message of two that has a content, with the images of both."""
    kept = first if first.content else second
    return UserMessage.trusted(kept.content, first.image_sources + second.image_sources, kept.image_ranges)


def _push_user(rendering: Rendering, message: Message, previous: Message | None) -> None:
    _begin_user_turn(rendering, continues=previous is not None and previous.role in ("user", "tool"))
    rendering.push_content(message)


def _push_tool(rendering: Rendering, message: Message, previous: Message | None) -> None:
    _begin_user_turn(rendering, continues=previous is not None and previous.role == "tool")
    rendering.push_result(message)


def _begin_user_turn(rendering: Rendering, *, continues: bool) -> None:
    if continues:
        rendering.prompt.push_text("\n\n")
    else:
        rendering.prompt.push_special(rendering.markup.user)


def _push_reminder(rendering: Rendering, message: Message, previous: Message | None) -> None:
    rendering.prompt.push_special(rendering.markup.latest_reminder)
    rendering.push_content(message)


def _push_assistant(rendering: Rendering, message: Message, previous: Message | None) -> None:
    rendering.prompt.push_special(rendering.markup.assistant)
    if message.reasoning_content is not None and (rendering.shows_tools or message.prefix):
        rendering.push_reasoning(message)
    if not (rendering.conversation.thinking_mode and message.prefix and not message.content):
        rendering.prompt.push_special(rendering.markup.thinking_end)
    calls = message.tool_calls
    rendering.push_answer(message, None if calls is None else sorted(calls, key=_CALL_ID))
    if not (message.prefix and message is rendering.last_message):
        rendering.prompt.push_special(rendering.markup.eos)


_WRITERS: dict[str, Callable[[Rendering, Message, Message | None], None]] = {
    "user": _push_user,
    "assistant": _push_assistant,
    "tool": _push_tool,
    "latest_reminder": _push_reminder,
}
