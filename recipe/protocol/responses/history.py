"""The items of a Responses request as the messages of a conversation.

Adjacent reasoning, assistant texts and calls are one assistant message: a *turn*. Once a turn has calls, only further
calls and their outputs may follow until every call has its output; then the next item that is no output ends the turn.
Calls and outputs of a turn are ordered by call ID. Tools that a search found become available in a system message after
the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

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
from recipe.protocol.content import SEPARATOR
from recipe.protocol.json_text import compact_json
from recipe.protocol.responses.blocks import BlockReader
from recipe.protocol.responses.namespace import NamespaceNames
from recipe.protocol.responses.schema import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ToolSearchCallItem,
    ToolSearchOutputItem,
    UnknownItem,
    WebSearchCallItem,
)
from recipe.protocol.responses.tools import TOOL_SEARCH, loaded_tools
from recipe.protocol.validation import empty_string
from recipe.request import ModelVersion

LateTools: TypeAlias = Mapping[int, Sequence[ToolDefinition]]
"""The tools that the tool search output at an index of the input found."""


_KINDS: dict[ModelVersion, dict[str, type[SystemMessage] | type[UserMessage]]] = {
    ModelVersion.DeepseekV4Pro: {"system": SystemMessage, "developer": UserMessage, "user": UserMessage},
    ModelVersion.DeepseekV41Flash: {"system": SystemMessage, "developer": SystemMessage, "user": UserMessage},
    ModelVersion.ChatTemplate: {"system": SystemMessage, "developer": SystemMessage, "user": UserMessage},
}


class Turn:
    """An assistant message under construction, with the outputs of its calls. Falsy while it has nothing to say."""

    __slots__ = ("calls", "has_message", "late_tools", "outputs", "reasoning", "texts")

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.has_message = False  # an assistant message, even an empty one
        self.calls: dict[str, ToolCall] = {}
        self.outputs: dict[str, ToolMessage] = {}
        self.late_tools: list[Sequence[ToolDefinition]] = []

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.has_message or self.calls)

    @property
    def is_answered(self) -> bool:
        """Whether there are calls and all have their outputs."""
        return 0 < len(self.calls) == len(self.outputs)

    def messages(self) -> list[Message]:
        """The messages of the whole turn."""
        order = sorted(self.calls)
        assistant = AssistantMessage.trusted(
            SEPARATOR.join(self.texts),
            "\n".join(self.reasoning) if self.reasoning else None,
            [self.calls[call_id] for call_id in order] or None,
        )
        outputs = [self.outputs[call_id] for call_id in order]
        return [assistant, *outputs, *(SystemMessage.trusted("", tools=tools) for tools in self.late_tools)]


class History:
    """Reads items one after the other; `messages` is complete after `end`.

    The system messages of found tools hold the definitions of `late_tools` as they are. ConversionError for the first
    item that breaks a rule.
    """

    __slots__ = ("_answered_ids", "_blocks", "_call_ids", "_kinds", "_late_tools", "_names", "_turn", "messages")

    def __init__(
        self, version: ModelVersion, blocks: BlockReader, names: NamespaceNames, late_tools: LateTools
    ) -> None:
        self._kinds = _KINDS[version]
        self._blocks = blocks
        self._names = names
        self._late_tools = late_tools
        self._call_ids: set[str] = set()
        self._answered_ids: set[str] = set()
        self._turn = Turn()
        self.messages: list[Message] = []

    def add(self, index: int, item: InputItem) -> None:
        """Read the item at `index` of the input."""
        _READ[type(item)](self, item, index)

    def end(self) -> None:
        """Read the end of the input."""
        self._require_outputs()
        self._end_turn()

    def _message(self, item: MessageItem, index: int) -> None:
        self._require_outputs()
        if item.role == "assistant":
            self._assistant_text(self._blocks.assistant_text(item.content, f"input[{index}]"))
            return
        self._end_turn()
        content = self._blocks.content(item.content, f"input[{index}]", "content")
        message = self._kinds[item.role].trusted(content.text, content.image_sources, content.image_ranges)
        self.messages.append(message)

    def _assistant_text(self, text: str) -> None:
        if self._turn.calls:
            self._end_turn()
        self._turn.has_message = True
        if text:
            self._turn.texts.append(text)

    def _reasoning(self, item: ReasoningItem, index: int) -> None:
        self._require_outputs()
        text = "\n".join(part.text for part in item.content or ())
        if not text:
            return
        if self._turn.texts or self._turn.calls:
            self._end_turn()
        self._turn.reasoning.append(text)

    def _function_call(self, item: FunctionCallItem, index: int) -> None:
        name = item.name if item.namespace is None else self._names.of_call(item.namespace, item.name)
        self._call(item.call_id, name, item.arguments, index)

    def _custom_call(self, item: CustomToolCallItem, index: int) -> None:
        self._call(item.call_id, item.name, compact_json({"input": item.input}), index)

    def _search_call(self, item: ToolSearchCallItem, index: int) -> None:
        self._call(item.call_id, TOOL_SEARCH, compact_json(item.arguments), index)

    def _call(self, call_id: str, name: str, arguments: str, index: int) -> None:
        _check_call_id(call_id, index)
        if call_id in self._call_ids:
            raise ConversionError(f"Duplicate 'call_id': {call_id}.")
        if self._turn.is_answered:
            self._end_turn()
        self._call_ids.add(call_id)
        self._turn.calls[call_id] = ToolCall.trusted(call_id, name, arguments)

    def _function_output(self, item: FunctionCallOutputItem, index: int) -> None:
        message = self._tool_message(item, index)  # a bad image is reported before a bad ID
        if item.call_id is None:
            self._require_outputs()
            self._end_turn()
            self.messages.append(message)
            return
        self._answer(item.call_id, index)
        self._turn.outputs[item.call_id] = message

    def _custom_output(self, item: CustomToolCallOutputItem, index: int) -> None:
        self._answer(item.call_id, index)
        self._turn.outputs[item.call_id] = self._tool_message(item, index)

    def _tool_message(self, item: FunctionCallOutputItem | CustomToolCallOutputItem, index: int) -> ToolMessage:
        content = self._blocks.content(item.output or "", f"input[{index}]", "output")
        return ToolMessage.trusted(content.text, item.call_id, content.image_sources, content.image_ranges)

    def _search_output(self, item: ToolSearchOutputItem, index: int) -> None:
        self._answer(item.call_id, index)
        try:
            text = compact_json(loaded_tools(item.tools))
        except ValueError as error:
            raise ConversionError(f"input[{index}]: {error}") from None
        self._turn.outputs[item.call_id] = ToolMessage.trusted(text, item.call_id)
        if self._late_tools[index]:
            self._turn.late_tools.append(self._late_tools[index])

    def _answer(self, call_id: str, index: int) -> None:
        _check_call_id(call_id, index)
        if call_id not in self._call_ids:
            raise ConversionError(f"No tool call found for tool output with call_id {call_id}.")
        if call_id in self._answered_ids:
            raise ConversionError(f"Duplicate tool output for call_id: {call_id}.")
        self._answered_ids.add(call_id)

    def _web_search_call(self, item: WebSearchCallItem, index: int) -> None:
        self._require_outputs()

    def _left_out(self, item: ItemReference | UnknownItem, index: int) -> None:
        pass

    def _require_outputs(self) -> None:
        for call_id in self._turn.calls:
            if call_id not in self._turn.outputs:
                raise ConversionError(f"No tool output found for tool call {call_id}.")

    def _end_turn(self) -> None:
        if self._turn:
            self.messages += self._turn.messages()
            self._turn = Turn()


_READ: dict[type[InputItem], Callable[[History, Any, int], None]] = {
    MessageItem: History._message,
    ReasoningItem: History._reasoning,
    FunctionCallItem: History._function_call,
    FunctionCallOutputItem: History._function_output,
    CustomToolCallItem: History._custom_call,
    CustomToolCallOutputItem: History._custom_output,
    ToolSearchCallItem: History._search_call,
    ToolSearchOutputItem: History._search_output,
    WebSearchCallItem: History._web_search_call,
    ItemReference: History._left_out,
    UnknownItem: History._left_out,
}


def _check_call_id(call_id: str, index: int) -> None:
    if not call_id:
        raise empty_string(f"input[{index}].call_id")
