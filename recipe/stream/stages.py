"""The stages of model output, and the names of the markers between them.

    opening         the start of the reasoning ► reasoning      anything else ► content, or reasoning
    reasoning       </think> ► content
    content         what opens calls ► calls                    a stop string ► finished

With JSON output the content has three stages: JSON search until {, [ or a fence, JSON body until a fence, JSON tail.
The stages of tool calls depend on the markup: those of DSML are in `dsml_calls`, those of all others in `marked_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

Output = Callable[[str, "str | None"], None]
"""Takes a piece of text and its log probabilities."""


class Stage(Enum):
    """What the text at this point of the output is."""

    __hash__ = object.__hash__  # that of Enum is written in Python

    OPENING = auto()
    REASONING = auto()
    CONTENT = auto()
    JSON_SEARCH = auto()
    JSON_BODY = auto()
    JSON_TAIL = auto()
    FINISHED = auto()

    TOOL_BLOCK = auto()
    TOOL_NAME = auto()
    ARGUMENTS = auto()
    ARGUMENT_NAME = auto()
    ARGUMENT_KIND = auto()
    STRING_VALUE = auto()
    JSON_VALUE = auto()

    CALL_BLOCK = auto()
    CALL_TYPE = auto()
    CALL_HEAD = auto()
    CALL_NAME = auto()
    CALL_MIDDLE = auto()
    CALL_ARGUMENTS = auto()
    CALL_REST = auto()
    CALL_AFTER = auto()


class Marker(Enum):
    """What a pattern stands for."""

    __hash__ = object.__hash__  # that of Enum is written in Python

    STOP = auto()
    REASONING_START = auto()
    NO_REASONING_START = auto()
    THINKING_END = auto()
    JSON_OPEN = auto()
    FENCE = auto()
    FENCE_END = auto()

    TOOL_BLOCK = auto()
    INVOKE = auto()
    TOOL_NAME_END = auto()
    TOOL_BLOCK_END = auto()
    PARAMETER = auto()
    ARGUMENT_NAME_END = auto()
    STRING_KIND = auto()
    JSON_KIND = auto()
    TAG_END = auto()

    CALLS_OPEN = auto()
    CALLS_END = auto()
    CALL_OPEN = auto()
    CALL_END = auto()
    LIST_OPEN = auto()
    LIST_NEXT = auto()
    TYPE_END = auto()
    NAME_END = auto()
    BRACE = auto()
    ARGUMENTS_OPEN = auto()
    WHOLE_CALL = auto()
    NO_CALL = auto()
    OBJECT_END = auto()
