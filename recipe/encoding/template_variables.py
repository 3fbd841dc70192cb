"""A conversation as chat templates expect it: messages and tools in the shapes of the Chat Completions API.

Every string that a user could have written goes through `wrap`; what is not wrapped is ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from recipe.conversation import Conversation
from recipe.encoding.call_shape import PLAIN, CallShape, short_id
from recipe.encoding.pyjson import python_json
from recipe.encoding.told_tools import calls_in_text, tools_instruction
from recipe.json_value import JsonValue, parse_json
from recipe.message import Message, SystemMessage
from recipe.tool import ToolCall, ToolDefinition

_SCHEMA_INTRODUCTION = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
_ROLES = {"latest_reminder": "system"}


class TextWrapper(Protocol):
    """What happens to the texts of a user on their way into a template."""

    def text(self, text: str) -> str: ...

    def key(self, key: str) -> str: ...


def template_variables(
    conversation: Conversation, wrap: TextWrapper, shape: CallShape = PLAIN, *, takes_system: bool = True
) -> dict[str, Any]:
    """Return `messages`, `tools` (None without any), the settings of thinking, and what the request itself sets.

    `shape` is what the template wants of tool calls. Instructions of ours stand in the first system message, or, where
    the template takes none, in the first message.
    """
    tools = [] if conversation.tool_choice == "none" else _tools(conversation)
    thinking = conversation.thinking_mode
    shaped_tools = [_tool(tool, wrap) for tool in tools]
    messages = _messages(conversation, wrap, shape)
    if instructions := _instructions(conversation, wrap, shaped_tools if shape.in_text else ()):
        _instruct(messages, "\n\n".join(instructions), takes_system=takes_system)
    variables: dict[str, Any] = {
        "messages": messages,
        "tools": shaped_tools or None,
        "enable_thinking": thinking,
        "thinking": thinking,
    }
    if conversation.reasoning_effort is not None:
        variables["reasoning_effort"] = conversation.reasoning_effort
    return variables | {name: _json(value, wrap) for name, value in conversation.template_arguments.items()}


def _tools(conversation: Conversation) -> list[ToolDefinition]:
    """The tools that are there from the beginning, and those that a message adds."""
    added = [
        tool for message in conversation.messages if isinstance(message, SystemMessage) for tool in message.tools or ()
    ]
    names = {tool.name for tool in added}
    return [tool for tool in conversation.tools if not tool.defer_loading and tool.name not in names] + added


def _messages(conversation: Conversation, wrap: TextWrapper, shape: CallShape) -> list[dict[str, Any]]:
    messages = conversation.messages
    call_names = {call.id: call.name for message in messages for call in message.tool_calls or ()}
    shaped = [_message(message, call_names, wrap, shape) for message in messages]
    return calls_in_text(shaped) if shape.in_text else shaped


def _instructions(conversation: Conversation, wrap: TextWrapper, told: Sequence[dict[str, Any]]) -> list[str]:
    """What the model is told beyond the messages: of tools, and of the form of its answer."""
    instructions = [tools_instruction(told)] if told else []
    if (schema := _response_schema(conversation)) is not None:
        instructions.append(f"{_SCHEMA_INTRODUCTION}{wrap.text(schema)}")
    return instructions


def _instruct(messages: list[dict[str, Any]], instruction: str, *, takes_system: bool) -> None:
    first = messages[0] if messages else {"role": ""}
    if first["role"] == "system":
        first["content"] = f"{first['content']}\n\n{instruction}" if first["content"] else instruction
    elif takes_system or first["role"] != "user":
        messages.insert(0, {"role": "system", "content": instruction})
    else:
        first["content"] = f"{instruction}\n\n{first['content']}"


def _response_schema(conversation: Conversation) -> str | None:
    if conversation.response_format == "json_object":
        return python_json({"type": "json_object"})
    if conversation.response_format == "json_schema":
        return python_json(conversation.response_schema)
    return None


def _message(message: Message, call_names: Mapping[str, str], wrap: TextWrapper, shape: CallShape) -> dict[str, Any]:
    shaped: dict[str, Any] = {
        "role": _ROLES.get(message.role, message.role),
        "content": wrap.text(message.content),
    }
    if message.reasoning_content:  # a template may find it in the text where there is none
        shaped["reasoning_content"] = shaped["thinking"] = wrap.text(message.reasoning_content)
    if message.tool_calls:
        shaped["tool_calls"] = [_call(call, wrap, shape) for call in message.tool_calls]
        if shape.null_content and not message.content:
            shaped["content"] = None
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = _call_id(message.tool_call_id, wrap, shape)
        if message.tool_call_id in call_names:
            shaped["name"] = wrap.text(call_names[message.tool_call_id])
    return shaped


def _call(call: ToolCall, wrap: TextWrapper, shape: CallShape) -> dict[str, Any]:
    arguments = wrap.text(call.arguments) if shape.text_arguments else _arguments(call.arguments, wrap)
    function = {"name": wrap.text(call.name), "arguments": arguments}
    return {"id": _call_id(call.id, wrap, shape), "type": "function", "function": function}


def _call_id(call_id: str, wrap: TextWrapper, shape: CallShape) -> str:
    return wrap.text(short_id(call_id) if shape.short_ids else call_id)


def _arguments(arguments: str, wrap: TextWrapper) -> JsonValue:
    """An object, as templates want it; what is not one stays text."""
    try:
        value = parse_json(arguments)
    except ValueError:
        value = None
    return _json(value, wrap) if isinstance(value, dict) else wrap.text(arguments)


def _tool(tool: ToolDefinition, wrap: TextWrapper) -> dict[str, Any]:
    function: dict[str, Any] = {"name": wrap.text(tool.name)}
    if tool.description is not None:
        function["description"] = wrap.text(tool.description)
    function["parameters"] = _json(tool.parameters or {"type": "object", "properties": {}}, wrap)
    return {"type": "function", "function": function}


def _json(value: JsonValue, wrap: TextWrapper) -> JsonValue:
    if isinstance(value, str):
        return wrap.text(value)
    if isinstance(value, dict):
        return {wrap.key(key): _json(item, wrap) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item, wrap) for item in value]
    return value
