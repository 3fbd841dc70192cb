"""The tools of a constraint, and what is asked of the block of their calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.backend import ConstraintRefusedError
from recipe.request import OutputConstraint

_SHARED = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. `is_promise`: its arguments are promised to follow the schema `parameters`, an object."""

    name: str
    parameters: dict[str, Any]
    is_promise: bool

    @property
    def where(self) -> str:
        """How errors name its schema."""
        return f"the parameters of tool {self.name!r}"

    @property
    def shared(self) -> dict[str, Any]:
        """The definitions that any part of the parameters may refer to."""
        return {name: self.parameters[name] for name in _SHARED if name in self.parameters}


@dataclass(frozen=True, slots=True)
class ToolBlock:
    """`is_open`: the prompt has opened the block. `is_single`: one call at most."""

    tools: Sequence[Tool]
    is_required: bool
    is_open: bool
    is_single: bool

    @classmethod
    def of(cls, constraint: OutputConstraint) -> ToolBlock:
        """The block of a `tool_call` or `tool_call_required`. Raises `ConstraintRefusedError` without tools."""
        try:
            tools = [_tool(entry["function"]) for entry in json.loads(constraint.schema)]
        except (ValueError, TypeError, KeyError) as error:
            raise ConstraintRefusedError(f"the tools cannot be read: {error!r}") from None
        if not tools:
            raise ConstraintRefusedError("there is no tool to call")
        is_required = constraint.kind == "tool_call_required"
        return cls(tools, is_required, is_required and constraint.in_tool_block, constraint.single_call)

    def calls(self, call: str, separator: str = "") -> str:
        """The Lark expression of the calls of the block, given that of one."""
        return call if self.is_single else f"{call} ({separator} {call})*"


def _tool(function: dict[str, Any]) -> Tool:
    parameters = function.get("parameters")
    if not isinstance(parameters, dict):
        parameters = {}
    return Tool(function["name"], {"type": "object", **parameters}, function.get("strict") is True)
