"""All tools that a Responses request offers, and what its tool choice leaves of them."""

from __future__ import annotations

from collections.abc import Sequence

from recipe.conversation import Message, SystemMessage, ToolDefinition
from recipe.protocol.responses.echo import ResponsesEcho, ResponsesState
from recipe.protocol.responses.history import LateTools
from recipe.protocol.responses.schema import (
    CustomChoice,
    CustomTool,
    FunctionChoice,
    InputItem,
    PlainChoice,
    ResponsesBody,
    ToolChoice,
    ToolSearchOutputItem,
    ToolSearchTool,
    WebSearchChoice,
)
from recipe.protocol.responses.tools import ToolDeclarations, checked_tools, reject_web_search
from recipe.protocol.tools import NamedTool, SelectedTools, select_tools
from recipe.request import ConversionOptions, ModelVersion


class ToolOffer:
    """The functions of a request: those of its own tools first, then those that searches found, item by item.

    `names` gives calls of the history their names; `late_tools` are the found ones, by the index of their item.
    ConversionError for the first bad declaration.
    """

    __slots__ = ("_body", "_found_custom_tool", "_web_search", "late_tools", "names", "tools")

    def __init__(
        self,
        body: ResponsesBody,
        version: ModelVersion,
        options: ConversionOptions,
        items: Sequence[tuple[int, InputItem]],
    ) -> None:
        declarations = ToolDeclarations.of_request(body.tools or [], version, options)
        searches = [(index, item) for index, item in items if isinstance(item, ToolSearchOutputItem)]
        self._body = body
        self._web_search = options.responses_web_search
        self._found_custom_tool = any(isinstance(tool, CustomTool) for _, item in searches for tool in item.tools)
        self.names = declarations.names
        self.tools = declarations.declare(body.tools or [], "tools")
        self.late_tools: LateTools = {
            index: declarations.declare(item.tools, f"input[{index}].tools", defer_loading=True)
            for index, item in searches
        }
        for late in self.late_tools.values():
            self.tools += late

    def select(self, choice: ToolChoice | None, *, thinking: bool) -> SelectedTools:
        """The tools that the choice leaves, with their final parameters; ConversionError for a bad tool or choice."""
        if isinstance(choice, WebSearchChoice):
            reject_web_search(self._web_search)
        wanted = _wanted(choice)
        tools: Sequence[ToolDefinition] = () if wanted == "none" else checked_tools(self.tools)
        return select_tools(tools, wanted, thinking=thinking)

    def state(self) -> ResponsesState:
        """What the event stream of the request needs to know."""
        declared = self._body.tools or ()
        return ResponsesState(
            ResponsesEcho.of_body(self._body),
            self.names.tool_map,
            apply_patch=self._found_custom_tool or any(isinstance(tool, CustomTool) for tool in declared),
            tool_search=any(isinstance(tool, ToolSearchTool) and tool.execution == "client" for tool in declared),
        )


def only_selected(messages: list[Message], selected: SelectedTools) -> list[Message]:
    """The messages where found tools are those that are left, in their final form; a message without any goes."""
    if not any(isinstance(message, SystemMessage) and message.tools for message in messages):
        return messages
    final = {tool.name: tool for tool in selected.tools}
    kept: list[Message] = []
    for message in messages:
        if not isinstance(message, SystemMessage) or not message.tools:
            kept.append(message)
        elif tools := [final[tool.name] for tool in message.tools if tool.name in final]:
            kept.append(SystemMessage.trusted("", tools=tools))
    return kept


def _wanted(choice: ToolChoice | None) -> str | NamedTool | None:
    if isinstance(choice, PlainChoice):
        return choice.word
    return NamedTool(choice.name) if isinstance(choice, FunctionChoice | CustomChoice) else None
