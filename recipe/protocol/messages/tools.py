"""The tools of a request: which declarations count, and which tools a choice leaves.

Server tools are refused; declarations of web search, and choices of them, may be dropped instead. A deferred tool is
one that the conversation offers only where a message refers to it; V4 knows no such tools and gets them from the start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from recipe.conversation import Message, SystemMessage, ToolDefinition
from recipe.errors import ConversionError
from recipe.extensions import Extensions
from recipe.protocol.json_schema import check_function_schema
from recipe.protocol.messages.schema import CUSTOM, AnyChoice, NamedChoice, NoneChoice, Tool, ToolChoice
from recipe.protocol.tools import NamedTool, SelectedTools, check_tool_name, select_tools
from recipe.request import WebSearchBehavior

WEB_SEARCH = "web_search"
"""How the types of web search begin, and the name of one that has none."""


class DeclaredTools(NamedTuple):
    """The client tools of a request, of which only the names are checked, and the names of dropped web searches."""

    tools: Sequence[ToolDefinition]
    dropped: Collection[str]


def declared_tools(
    tools: Sequence[Tool], web_search: WebSearchBehavior, extensions: Extensions, *, can_defer: bool
) -> DeclaredTools:
    """The tools to offer; ConversionError for a bad name, a server tool that is not dropped, or only deferred tools."""
    offered: list[ToolDefinition] = []
    dropped: list[str] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool.type, str) or (tool.type == CUSTOM and extensions.custom_tool_type):
            offered.append(_definition(tool, f"tools[{index}].name", can_defer))
        elif tool.type.startswith(WEB_SEARCH) and web_search is WebSearchBehavior.Drop:
            dropped.append(tool.name if isinstance(tool.name, str) else WEB_SEARCH)
        else:
            raise ConversionError(f"tools[{index}]: server tools are not supported")
    if offered and all(tool.defer_loading for tool in offered):
        raise ConversionError("tools: at least one tool must have defer_loading=false. All tools cannot be deferred.")
    return DeclaredTools(offered, dropped)


def _definition(tool: Tool, position: str, can_defer: bool) -> ToolDefinition:
    name = tool.name if isinstance(tool.name, str) else ""
    check_tool_name(name, position)
    deferred = can_defer and bool(tool.defer_loading)
    return ToolDefinition.trusted(name, tool.description, tool.input_schema, None, deferred)


def selected_tools(
    declared: DeclaredTools, choice: ToolChoice | None, extensions: Extensions, *, thinking: bool
) -> SelectedTools:
    """The tools that the choice leaves. With the choice `none` nothing is checked.

    ConversionError for a name that repeats or a schema that is none, in the order of the tools, for a choice of an
    unknown tool, and for a choice of one tool in thinking mode.
    """
    if isinstance(choice, NoneChoice):
        return select_tools((), "none", thinking=thinking)
    _check_schemas(declared.tools)
    if isinstance(choice, AnyChoice) and extensions.any_requires_call:
        return select_tools(declared.tools, "required", thinking=thinking)
    if not isinstance(choice, NamedChoice) or choice.name in declared.dropped:
        return select_tools(declared.tools, "auto", thinking=thinking)
    if declared.dropped and not declared.tools:
        raise ConversionError(
            f"Invalid value for 'tool_call': no function named '{choice.name}' was specified in the 'tools' parameter."
        )
    return select_tools(declared.tools, NamedTool(choice.name), thinking=thinking)


def _check_schemas(tools: Sequence[ToolDefinition]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise ConversionError("Tool names must be unique.")
        seen.add(tool.name)
        check_function_schema(tool.parameters, tool.name)


def keep_selected(messages: Sequence[Message], selected: Sequence[ToolDefinition]) -> list[Message]:
    """The messages with only the selected tools in them; a system message that has nothing left is left out."""
    names = {tool.name for tool in selected}
    kept = (_with_tools_of(message, names) for message in messages)
    return [message for message in kept if message is not None]


def _with_tools_of(message: Message, names: Collection[str]) -> Message | None:
    if not isinstance(message, SystemMessage) or message.tools is None:
        return message
    tools = [tool for tool in message.tools if tool.name in names]
    if not tools and not message.content:
        return None
    return SystemMessage.trusted(message.content, message.image_sources, message.image_ranges, tools)
