"""Declared tools as the functions that the model is offered.

Declaring happens in two steps, because problems of the history are reported between them: `ToolDeclarations` names
every function, `checked_tools` then looks at their schemas. In between a definition has the parameters as they were
declared, None if it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from recipe.conversation import ToolDefinition
from recipe.errors import ConversionError
from recipe.json_value import JsonValue
from recipe.protocol.responses import apply_patch
from recipe.protocol.responses.namespace import NamespaceNames
from recipe.protocol.responses.schema import (
    CustomTool,
    DatedWebSearchTool,
    FunctionTool,
    NamespacedTool,
    NamespaceTool,
    Tool,
    ToolSearchTool,
    UnknownTool,
    WebSearchTool,
)
from recipe.protocol.tools import check_tool_name, checked_parameters
from recipe.request import ConversionOptions, ModelVersion, WebSearchBehavior

TOOL_SEARCH = "tool_search"


class ToolDeclarations:
    """The tools of one request and the function names it gives them."""

    __slots__ = ("_version", "_web_search", "names")

    def __init__(self, version: ModelVersion, names: NamespaceNames, web_search: WebSearchBehavior) -> None:
        self._version = version
        self._web_search = web_search
        self.names = names

    @classmethod
    def of_request(cls, tools: Sequence[Tool], version: ModelVersion, options: ConversionOptions) -> Self:
        """For a request with `tools`, none of them declared yet; the names of its plain functions are taken."""
        plain = (tool.name for tool in tools if isinstance(tool, FunctionTool))
        return cls(version, NamespaceNames(version, plain), options.responses_web_search)

    def declare(self, tools: Sequence[Tool], path: str, *, defer_loading: bool = False) -> list[ToolDefinition]:
        """The functions that `tools`, found at `path` of the request, stand for; ConversionError for a bad one."""
        functions: list[FunctionTool] = []
        for index, tool in enumerate(tools):
            functions += _DECLARE[type(tool)](self, tool, f"{path}[{index}]")
        return [
            ToolDefinition.trusted(tool.name, tool.description, tool.parameters, tool.strict, defer_loading)
            for tool in functions
        ]

    def _function(self, tool: FunctionTool, path: str) -> list[FunctionTool]:
        check_tool_name(tool.name, f"{path}.name")
        return [tool]

    def _namespace(self, namespace: NamespaceTool, path: str) -> list[FunctionTool]:
        check_tool_name(namespace.name, f"{path}.name")
        functions: dict[str, FunctionTool] = {}
        for index, declared in enumerate(namespace.tools):
            tool = _namespace_function(declared, f"{path}.tools[{index}]")
            if tool.name in functions:
                raise ConversionError("Tool names within a namespace must be unique.")
            functions[tool.name] = self._flat(namespace, tool)
        return list(functions.values())

    def _flat(self, namespace: NamespaceTool, tool: FunctionTool) -> FunctionTool:
        description = tool.description
        if namespace.description and self._version is ModelVersion.DeepseekV41Flash:
            description = f"{namespace.description}\n{description or ''}"
        name = self.names.declare(namespace.name, tool.name)
        return FunctionTool(name, description, tool.parameters, tool.strict)

    def _custom(self, tool: CustomTool, path: str) -> list[FunctionTool]:
        if tool.name != apply_patch.NAME:
            raise ConversionError(f"Unsupported custom tool: '{tool.name}'. Only 'apply_patch' is supported.")
        return [FunctionTool(apply_patch.NAME, apply_patch.description(self._version), apply_patch.PARAMETERS)]

    def _tool_search(self, tool: ToolSearchTool, path: str) -> list[FunctionTool]:
        if tool.execution != "client" or self._version is not ModelVersion.DeepseekV41Flash:
            return []
        return [FunctionTool(TOOL_SEARCH, tool.description, tool.parameters)]

    def _web_search_tool(self, tool: WebSearchTool, path: str) -> list[FunctionTool]:
        reject_web_search(self._web_search)
        return []

    def _left_out(self, tool: Tool, path: str) -> list[FunctionTool]:
        return []


_DECLARE: dict[type[Tool], Callable[[ToolDeclarations, Any, str], list[FunctionTool]]] = {
    FunctionTool: ToolDeclarations._function,
    NamespaceTool: ToolDeclarations._namespace,
    CustomTool: ToolDeclarations._custom,
    ToolSearchTool: ToolDeclarations._tool_search,
    WebSearchTool: ToolDeclarations._web_search_tool,
    DatedWebSearchTool: ToolDeclarations._web_search_tool,
    UnknownTool: ToolDeclarations._left_out,
}


def is_named(tool: Tool) -> bool:
    """Whether a tool is one that its declaration names, not one that stands for a feature."""
    return isinstance(tool, FunctionTool | NamespaceTool)


def reject_web_search(behavior: WebSearchBehavior) -> None:
    """ConversionError unless a web search is to be dropped."""
    if behavior is WebSearchBehavior.Reject:
        raise ConversionError("Server tools are not supported")


def checked_tools(tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """The definitions with their final parameters; ConversionError for a name that repeats or a bad schema."""
    checked: dict[str, ToolDefinition] = {}
    for tool in tools:
        if tool.name in checked:
            raise ConversionError("Tool names must be unique.")
        parameters = checked_parameters(tool.name, tool.parameters, tool.strict)
        checked[tool.name] = ToolDefinition.trusted(
            tool.name, tool.description, parameters, tool.strict, tool.defer_loading
        )
    return list(checked.values())


def loaded_tools(tools: Sequence[Tool]) -> list[JsonValue]:
    """The tools that a search found as the model is to read them, those of namespaces in one row with the others.

    ValueError for a tool of unknown type.
    """
    loaded: list[JsonValue] = []
    for tool in tools:
        if isinstance(tool, UnknownTool):
            raise ValueError("the enum variant ResponsesTool::Unsupported cannot be serialized")
        if isinstance(tool, NamespaceTool):
            namespace = {"name": tool.name, "description": tool.description or ""}
            loaded += [{**msgspec.to_builtins(inner), "namespace": namespace} for inner in tool.tools]
        else:
            loaded.append(msgspec.to_builtins(tool))
    return loaded


def _namespace_function(tool: NamespacedTool, path: str) -> FunctionTool:
    if not isinstance(tool, FunctionTool):
        raise ConversionError(
            f"Currently custom tools are not allowed inside a namespace. Found custom tool '{tool.name}' in {path}."
        )
    check_tool_name(tool.name, f"{path}.name")
    return tool
