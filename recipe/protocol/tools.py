"""Client tools: their names, their schemas, and which of them a tool choice leaves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from recipe.conversation import Message, ToolChoice, ToolDefinition
from recipe.errors import ConversionError
from recipe.json_value import JsonValue
from recipe.protocol.constraint import tool_constraint
from recipe.protocol.json_schema import check_function_schema
from recipe.protocol.strict_schema import strict_parameters
from recipe.protocol.validation import empty_string
from recipe.request import ModelVersion, OutputConstraint

MAX_NAME_BYTES = 128
_CHAT_TEMPLATE = ModelVersion.ChatTemplate
_NAME = re.compile(r"[a-zA-Z0-9_-]+")


class NamedTool(NamedTuple):
    """A tool choice that asks for one function."""

    name: str


class SelectedTools(NamedTuple):
    """The tools of the conversation after the choice, which has become one that encodings know.

    With the choice `required` the prompt opens the block of calls.
    """

    tools: Sequence[ToolDefinition]
    choice: ToolChoice
    requires_call: bool = False

    @property
    def callable(self) -> bool:
        """Whether the model may call anything."""
        return bool(self.tools) and self.choice != "none"

    def opening_no_block(self) -> Self:
        """The same tools and demand, for a prompt that cannot open the block of calls: the model does it itself."""
        return self._replace(choice="auto") if self.choice == "required" else self

    def constraint(self, *, single_call: bool) -> OutputConstraint:
        """What the tools mean for the output."""
        choice = "required" if self.requires_call else self.choice
        return tool_constraint(self.tools, choice, single_call=single_call)


def opens_call_block(version: ModelVersion, messages: Sequence[Message], *, thinking: bool) -> bool:
    """Whether the prompt can open the block of calls: not before the model has thought, not in the middle of an answer,
    and not with a template, which knows no such thing.
    """
    continues = bool(messages) and messages[-1].prefix
    return not (thinking or continues or version is _CHAT_TEMPLATE)


def check_tool_name(name: str, position: str) -> None:
    """ConversionError, naming `position` such as `tools[0].name`, for a name that models are not to be given."""
    if not name:
        raise empty_string(position)
    size = len(name) if name.isascii() else len(name.encode())
    if size > MAX_NAME_BYTES:
        raise ConversionError(
            f"Invalid '{position}': string too long. Expected a string with maximum length {MAX_NAME_BYTES}, "
            f"but got a string with length {size} instead."
        )
    if not _NAME.fullmatch(name):
        raise ConversionError(
            f"Invalid '{position}': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )


def checked_parameters(name: str, parameters: JsonValue, strict: bool | None) -> JsonValue:
    """The parameters to offer for the function `name`: normalised if strict, else as they are; None is `{}` unchecked.

    ConversionError for parameters that are no JSON Schema of an object.
    """
    if strict:
        return strict_parameters(parameters)
    if parameters is None:
        return {}
    check_function_schema(parameters, name)
    return parameters


def checked_tools(tools: Iterable[ToolDefinition]) -> list[ToolDefinition]:
    """The tools with the parameters to offer. ConversionError for the first tool, in their order, whose name repeats or
    whose parameters are bad.
    """
    checked: list[ToolDefinition] = []
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise _repeated_name()
        seen.add(tool.name)
        parameters = checked_parameters(tool.name, tool.parameters, tool.strict)
        if parameters is not tool.parameters:
            tool = ToolDefinition.trusted(tool.name, tool.description, parameters, tool.strict, tool.defer_loading)
        checked.append(tool)
    return checked


def _repeated_name() -> ConversionError:
    return ConversionError("Tool names must be unique.")


def select_tools(tools: Sequence[ToolDefinition], choice: str | NamedTool | None, *, thinking: bool) -> SelectedTools:
    """The tools that `choice` (`auto`, `none`, `required` or one function; None is `auto`) leaves.

    ConversionError for names that repeat, an unknown function, or a demanded call in thinking mode. With the choice
    `none` the tools are dropped unseen. Without tools everything but `none` is `auto`.
    """
    if choice == "none":
        return SelectedTools((), "none")
    if not tools:
        return SelectedTools((), "auto")
    if len({tool.name for tool in tools}) < len(tools):
        raise _repeated_name()
    if isinstance(choice, NamedTool):
        tools = _named(tools, choice.name)
    elif choice != "required":
        return SelectedTools(tools, "auto")
    if thinking:
        raise ConversionError("Thinking mode does not support this tool_choice")
    return SelectedTools(tools, "required", requires_call=True)


def _named(tools: Sequence[ToolDefinition], name: str) -> Sequence[ToolDefinition]:
    chosen = [tool for tool in tools if tool.name == name]
    if not chosen:
        raise ConversionError(
            f"Invalid value for 'tool_call': no function named '{name}' was specified in the 'tools' parameter."
        )
    return chosen


def check_strict_mix(tools: Sequence[ToolDefinition], *, has_response_format: bool) -> None:
    """ConversionError when only some tools are strict, or when they are and a response format is given, even text."""
    strict = sum(1 for tool in tools if tool.strict)
    if not strict:
        return
    if strict < len(tools):
        raise ConversionError("Cannot use strict tool with non-strict tool in the same request")
    if has_response_format:
        raise ConversionError("response_format should not be used with tools")
