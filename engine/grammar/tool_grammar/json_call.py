"""Calls written as one JSON object: `{"name": "f", "arguments": {...}}`."""

from __future__ import annotations

from engine.grammar.tool_grammar.tool_block import Tool, ToolBlock
from engine.grammar.writer import GrammarWriter


def json_call(writer: GrammarWriter, block: ToolBlock, arguments: str = "arguments") -> str:
    """The rule of a call of any of the tools; `arguments` is the key of the arguments."""
    return writer.rule(" | ".join(_call(writer, tool, arguments) for tool in block.tools))


def arguments_of(writer: GrammarWriter, tool: Tool) -> str:
    """The rule of the arguments of `tool` as a JSON object."""
    return writer.json(tool.parameters, is_promise=tool.is_promise, where=tool.where)


def _call(writer: GrammarWriter, tool: Tool, arguments: str) -> str:
    schema = {
        **tool.shared,
        "type": "object",
        "properties": {"name": {"const": tool.name}, arguments: tool.parameters},
        "required": ["name", arguments],
        "additionalProperties": False,
    }
    return writer.json(schema, is_promise=tool.is_promise, where=tool.where)
