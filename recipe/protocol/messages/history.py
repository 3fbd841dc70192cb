"""The messages of a request, read in order into the messages of a conversation.

Each role has its reader. Every block of a user message becomes a message of its own, an assistant message is one
message, and a system message in mid-conversation depends on the model: V4.1 has such messages, V4 gets a reminder in
the user's voice. Tool calls are to be answered at once (`OpenCalls`). Errors come in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from recipe.conversation import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from recipe.errors import ConversionError
from recipe.protocol.content import Content
from recipe.protocol.messages.arguments import argument_text
from recipe.protocol.messages.assistant_turn import AssistantTurn
from recipe.protocol.messages.blocks import Place, ShownBlock, add_block, refuse_file
from recipe.protocol.messages.open_calls import OpenCalls
from recipe.protocol.messages.schema import (
    ContentBlock,
    InputMessage,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    WebSearchToolResultBlock,
)

_USE_ELSEWHERE = ": `tool_use` blocks can only be in `assistant` messages"
_ELSEWHERE: Mapping[type, str] = {
    ThinkingBlock: ".content: thinking blocks may only be in `assistant` messages",
    ToolUseBlock: _USE_ELSEWHERE,
    ServerToolUseBlock: _USE_ELSEWHERE,
    WebSearchToolResultBlock: ": `web_search_tool_result` blocks can only be in `assistant` messages",
    ToolResultBlock: ": `tool_result` blocks can only be in `user` messages",
    ToolAdditionBlock: ": `tool_addition` blocks can only be in `system` messages",
}
"""What is said of blocks that belong to one role when they stand in a message of another."""


class HistorySettings(NamedTuple):
    """What reading depends on. `image_token` is None for a model without images."""

    tools: Mapping[str, ToolDefinition]
    image_token: str | None
    has_system_turns: bool
    drops_server_tools: bool
    refuses_files: bool


class History:
    """Reads messages; `read` is called once."""

    def __init__(self, settings: HistorySettings) -> None:
        self._settings = settings
        self._messages: list[Message] = []
        self._calls = OpenCalls()

    def read(self, messages: Sequence[InputMessage]) -> list[Message]:
        """The messages of the conversation; ConversionError for the first thing that may not be."""
        if not messages:
            raise ConversionError("messages: at least one message is required")
        for index, message in enumerate(messages):
            where = f"messages.{index}"
            if message.role == "user":
                self._read_user(message.content, where, index)
            elif message.role == "assistant":
                self._read_assistant(message.content, where)
            else:
                self._read_system(message.content, where)
        self._calls.require_answered(f"messages.{len(messages) - 1}:")
        return self._messages

    def _read_user(self, content: str | list[ContentBlock], where: str, index: int) -> None:
        if isinstance(content, str):
            self._calls.require_answered(f"{where}: ")
            self._messages.append(UserMessage.trusted(content))
            return
        if not content:
            raise ConversionError(f"{where}: all messages must have non-empty content")
        referenced: list[ToolDefinition] = []
        for position, block in enumerate(content):
            if isinstance(block, ToolResultBlock):
                referenced += self._read_result(block, f"{where}.content.{position}")
            elif isinstance(block, ShownBlock):
                self._calls.require_answered(f"{where}: ")
                self._read_user_block(block, f"{where}.content[{position}]")
            else:
                raise _misplaced(block, where)
        self._calls.require_answered(f"messages.{index - 1}:")
        self._calls.clear()
        if referenced and self._settings.has_system_turns:
            self._messages.append(SystemMessage.trusted("", tools=referenced))

    def _read_user_block(self, block: ShownBlock, where: str) -> None:
        shown = Content()
        self._show(shown, block, Place(where, where))
        self._messages.append(UserMessage.trusted(shown.text, shown.image_sources, shown.image_ranges))

    def _show(self, content: Content, block: ShownBlock, place: Place) -> None:
        if self._settings.refuses_files:
            refuse_file(block, place)
        add_block(content, block, self._settings.image_token, place)

    def _read_result(self, block: ToolResultBlock, where: str) -> list[ToolDefinition]:
        """Append a tool result; returns the tools that it refers to."""
        self._calls.answer(block.tool_use_id, where)
        if block.content is None or isinstance(block.content, str):
            self._messages.append(ToolMessage.trusted(block.content or "", block.tool_use_id))
            return []
        names = [part.tool_name for part in block.content if isinstance(part, ToolReferenceBlock)]
        referenced = [self._referenced_tool(name, where) for name in names]
        shown = Content()
        for position, part in enumerate(block.content):
            if isinstance(part, ToolReferenceBlock):
                shown.add_text(part.tool_name)
            else:
                path = f"{where}.tool_result"
                self._show(shown, part, Place(f"{path}.content[{position}]", path))
        self._messages.append(
            ToolMessage.trusted(shown.text, block.tool_use_id, shown.image_sources, shown.image_ranges)
        )
        return referenced

    def _referenced_tool(self, name: str, where: str) -> ToolDefinition:
        tool = self._settings.tools.get(name)
        if tool is None:
            raise ConversionError(f"{where}: tool reference '{name}' not found in available tools")
        return tool

    def _read_assistant(self, content: str | list[ContentBlock], where: str) -> None:
        self._calls.require_answered(f"{where}: ")
        if isinstance(content, str):
            self._messages.append(AssistantMessage.trusted(content))
            return
        if not content:
            raise ConversionError(f"{where}: all messages must have non-empty content")
        self._calls.clear()
        turn = AssistantTurn()
        for position, block in enumerate(content):
            self._read_assistant_block(turn, block, where, position)
        self._messages.append(turn.message())

    def _read_assistant_block(self, turn: AssistantTurn, block: ContentBlock, where: str, position: int) -> None:
        if isinstance(block, ThinkingBlock):
            turn.thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            self._calls.open(block.id, f"{where}.content.{position}")
            turn.calls.append(ToolCall.trusted(block.id, block.name, argument_text(block.input)))
        elif isinstance(block, ServerToolUseBlock | WebSearchToolResultBlock):
            if not self._settings.drops_server_tools:
                raise ConversionError("Unsupported content block: server tools are not supported")
        elif isinstance(block, ShownBlock):
            self._calls.require_answered(f"{where}.{position}: ")
            turn.texts.append(self._assistant_text(block, f"{where}.content[{position}]"))
        else:
            raise _misplaced(block, where)

    def _assistant_text(self, block: ShownBlock, where: str) -> str:
        shown = Content()
        self._show(shown, block, Place(where, where))
        if shown.image_sources:
            raise ConversionError("Image in assistant message is unsupported")
        return shown.text

    def _read_system(self, content: str | list[ContentBlock], where: str) -> None:
        self._calls.require_answered(f"{where}: ")
        self._calls.clear()
        shown, added = Content(), []
        for position, block in enumerate([TextBlock(content)] if isinstance(content, str) else content):
            if isinstance(block, ToolAdditionBlock):
                added.append(self._added_tool(block.tool.name, f"{where}.content.{position}"))
            elif isinstance(block, ShownBlock):
                self._show(shown, block, Place(f"{where}.content[{position}]", where))
            else:
                raise _misplaced(block, where)
        self._append_system(shown, added)

    def _added_tool(self, name: str, where: str) -> ToolDefinition:
        tool = self._settings.tools.get(name)
        if tool is None:
            raise ConversionError(f"{where}: `tool_addition` references unknown tool '{name}'")
        return tool

    def _append_system(self, shown: Content, added: list[ToolDefinition]) -> None:
        text = shown.text
        if self._settings.has_system_turns:
            self._messages.append(SystemMessage.trusted(text, shown.image_sources, shown.image_ranges, added or None))
        elif text:
            self._messages.append(UserMessage.trusted(f"<system-reminder>\n{text}\n</system-reminder>"))


def _misplaced(block: ContentBlock, where: str) -> ConversionError:
    return ConversionError(where + _ELSEWHERE[type(block)])
