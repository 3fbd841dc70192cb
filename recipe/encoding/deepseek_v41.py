"""The prompt encoding of DeepSeek V4.1.

Messages keep their places: system messages stand where they were sent, each with a token of its own. Before rendering
the history is brought into a normal form: adjacent user messages are one, of adjacent reminders the first counts, and
the results after a message with calls stand in the order of the calls.
"""

from collections.abc import Callable, Mapping, Sequence

from recipe.conversation import Conversation, ReasoningEffort
from recipe.encoding.deepseek import SCHEMA_INTRODUCTION, DeepseekEncoding, Rendering
from recipe.encoding.dsml import V41_DIALECT
from recipe.message import Message, SystemMessage, UserMessage

_EFFORT = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
_EFFORT_OF_LEVEL: dict[ReasoningEffort | None, str] = {
    "low": _EFFORT.format(50),
    "high": _EFFORT.format(75),
    "xhigh": _EFFORT.format(75),
    None: _EFFORT.format(75),
    "max": _EFFORT.format(100),
}
_JSON_OBJECT_SCHEMA = {"type": "json_object"}


class DeepseekV41Encoding(DeepseekEncoding):
    """The V4.1 prompt encoding. It renders conversations and, with a tokenizer attached, encodes them."""

    __slots__ = ()
    dialect = V41_DIALECT
    efforts = _EFFORT_OF_LEVEL

    def _begin(self, rendering: Rendering) -> list[Message]:
        messages = _with_head(_normal_form(rendering.conversation.messages), rendering)
        rendering.prompt.push_special(rendering.markup.bos)
        if rendering.conversation.thinking_mode and messages:
            rendering.prompt.push_special(rendering.markup.system)
            rendering.prompt.push_text(_EFFORT_OF_LEVEL[rendering.conversation.reasoning_effort])
        return messages

    def _write(self, rendering: Rendering, message: Message, previous: Message | None) -> None:
        _WRITERS[message.role](rendering, message, previous)


def _normal_form(messages: Sequence[Message]) -> list[Message]:
    normal: list[Message] = []
    for message in messages:
        previous = normal[-1] if normal else None
        if isinstance(message, UserMessage) and isinstance(previous, UserMessage):
            normal[-1] = previous.joined(message)
        elif message.role != "latest_reminder" or previous is None or previous.role != "latest_reminder":
            normal.append(message)
    _sort_results(normal)
    return normal


def _sort_results(messages: list[Message]) -> None:
    """In each run of user and tool messages, put the results into the order of the last calls before it.

    Results without an id, and user messages, keep their places. Unknown ids count as the first call.
    """
    rank: dict[str | None, int] = {}
    places: list[int] = []
    for place, message in enumerate(messages):
        if message.role not in ("user", "tool"):
            _sort_run(messages, places, rank)
            places = []
            if calls := message.tool_calls:
                rank = {call.id: position for position, call in reversed(list(enumerate(calls)))}
        elif message.tool_call_id is not None:
            places.append(place)
    _sort_run(messages, places, rank)


def _sort_run(messages: list[Message], places: Sequence[int], rank: Mapping[str | None, int]) -> None:
    """Put the results at these places of one run into the order of their ranks."""
    if len(places) > 1:
        results = sorted((messages[place] for place in places), key=lambda result: rank.get(result.tool_call_id, 0))
        for place, result in zip(places, results, strict=True):
            messages[place] = result


def _with_head(messages: list[Message], rendering: Rendering) -> list[Message]:
    needs_system = rendering.shows_tools or _response_schema(rendering.conversation) is not None
    if needs_system and not (messages and messages[0].role == "system"):
        return [SystemMessage.trusted(""), *messages]
    return messages


def _response_schema(conversation: Conversation) -> str | None:
    if conversation.response_format == "json_object":
        return V41_DIALECT.json(_JSON_OBJECT_SCHEMA)
    if conversation.response_format == "json_schema":
        return V41_DIALECT.json(conversation.response_schema)
    return None


def _push_system(rendering: Rendering, message: Message, previous: Message | None) -> None:
    is_first = previous is None
    if not (is_first and rendering.conversation.thinking_mode):
        rendering.prompt.push_special(rendering.markup.system)
    rendering.push_content(message)
    if is_first:
        _push_instructions(rendering)
    if isinstance(message, SystemMessage) and (tools := message.tools):
        rendering.prompt.push_text("\n\n### Updated Tool Schemas\n\n")
        rendering.prompt.push_text("\n".join(map(rendering.markup.tool_block.schema, tools)))


def _push_instructions(rendering: Rendering) -> None:
    if rendering.shows_tools:
        rendering.prompt.push_text("\n\n")
        rendering.markup.tool_block.push(rendering.prompt, rendering.conversation.tools)
    schema = _response_schema(rendering.conversation)
    if schema is not None:
        rendering.prompt.push_text(f"\n\n{SCHEMA_INTRODUCTION}{schema}")


def _push_user(rendering: Rendering, message: Message, previous: Message | None) -> None:
    _begin_user_turn(rendering, previous)
    rendering.push_content(message)


def _push_tool(rendering: Rendering, message: Message, previous: Message | None) -> None:
    _begin_user_turn(rendering, previous)
    rendering.push_result(message)


def _begin_user_turn(rendering: Rendering, previous: Message | None) -> None:
    if previous is not None and previous.role in ("user", "tool"):
        rendering.prompt.push_text("\n\n")
    else:
        rendering.prompt.push_special(rendering.markup.user)


def _push_reminder(rendering: Rendering, message: Message, previous: Message | None) -> None:
    rendering.prompt.push_special(rendering.markup.latest_reminder)
    rendering.push_content(message)


def _push_assistant(rendering: Rendering, message: Message, previous: Message | None) -> None:
    thinks = rendering.conversation.thinking_mode and previous is not None and (rendering.shows_tools or message.prefix)
    rendering.prompt.push_special(rendering.markup.assistant)
    if thinks:
        rendering.push_reasoning(message)
    if not (thinks and message.prefix and not message.content and not message.tool_calls):
        rendering.prompt.push_special(rendering.markup.thinking_end)
    rendering.push_answer(message, message.tool_calls or None)
    if not message.prefix:
        rendering.prompt.push_special(rendering.markup.eos)


_WRITERS: dict[str, Callable[[Rendering, Message, Message | None], None]] = {
    "system": _push_system,
    "user": _push_user,
    "assistant": _push_assistant,
    "tool": _push_tool,
    "latest_reminder": _push_reminder,
}
