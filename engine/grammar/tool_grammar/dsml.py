"""DSML, the markup of the two DeepSeek encodings: tags with a token of their own inside.

<D calls>                                  A parameter is either raw text (string="true") or JSON of
<D invoke name="f">                        any other type (string="false"). What its schema asks of
<D parameter name="k" string="true">v</D parameter>          strings becomes a pattern of the raw text.
</D invoke>
</D calls>                                 Parameters come in the order of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.backend import ConstraintRefusedError
from engine.grammar.gate import Opening
from engine.grammar.tool_grammar.raw_text import raw_text
from engine.grammar.tool_grammar.schema_types import resolved, split
from engine.grammar.tool_grammar.tool_block import Tool, ToolBlock
from engine.grammar.vocabulary import Vocabulary, literal
from engine.grammar.writer import GrammarWriter

_TOKEN = "｜DSML｜"
_ENFORCED = {"type", "properties", "required", "additionalProperties", "description", "title", "$defs", "definitions",
             "$schema", "$id", "$comment", "default", "examples", "deprecated"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tags:
    """How a dialect spells the tags behind the token. `blank`: what may stand in a call without parameters."""

    calls: str
    invoke: str
    parameter: str
    blank: str


V4_TAGS = Tags("tool_calls", "invoke", "parameter", "")
V41_TAGS = Tags(" calls", " invoke", " parameter", "\n")


def openings(vocabulary: Vocabulary) -> tuple[Opening, ...]:
    return (Opening.of(vocabulary, _TOKEN, after="<"),)


def write_v4(writer: GrammarWriter, block: ToolBlock) -> str:
    """The Lark expression of the block in the dialect of V4; without its opening if the prompt has that."""
    return _BlockWriter(writer, V4_TAGS).write(block)


def write_v41(writer: GrammarWriter, block: ToolBlock) -> str:
    """As `write_v4`, in the dialect of V4.1."""
    return _BlockWriter(writer, V41_TAGS).write(block)


class _BlockWriter:
    def __init__(self, writer: GrammarWriter, tags: Tags) -> None:
        if writer.vocabulary.marker_id(_TOKEN) is None:
            raise ConstraintRefusedError(f"this model's vocabulary has no token {_TOKEN}")
        self._writer = writer
        self._tags = tags

    def write(self, block: ToolBlock) -> str:
        calls = block.calls(self._writer.rule(" | ".join(self._call(tool) for tool in block.tools)))
        opening = "" if block.is_open else self._tag("<", f"{self._tags.calls}>\n")
        return f"{opening} {calls} {self._tag('</', f'{self._tags.calls}>')}"

    def _tag(self, start: str, rest: str) -> str:
        return f"{literal(start)} {self._writer.symbol(_TOKEN)} {literal(rest)}"

    def _call(self, tool: Tool) -> str:
        expressions = list(self._parameters(tool))
        parameters = " ".join(expressions)
        if self._tags.blank and all(expression.endswith(("?", "*")) for expression in expressions):
            blank = literal(self._tags.blank) + "?"
            parameters = f"({parameters} | {blank})" if parameters else blank
        opening = self._tag("<", f'{self._tags.invoke} name="{tool.name}">\n')
        return f"{opening} {parameters} {self._tag('</', f'{self._tags.invoke}>{chr(10)}')}"

    def _parameters(self, tool: Tool) -> Iterator[str]:
        """The Lark expressions of the parameters, in order."""
        schema = resolved(tool.parameters, tool.parameters)
        if tool.is_promise and (unknown := sorted(set(schema) - _ENFORCED)):
            raise ConstraintRefusedError(f"{tool.where} cannot be enforced: keyword {unknown[0]!r} at /{unknown[0]}")
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        for name, part in properties.items():
            expression = self._parameter(tool, literal(name)[1:-1], part, literal(f'{name}" string="'))
            yield expression if name in required else f"{expression}?"
        others = schema.get("additionalProperties", not properties)
        if others is not False:
            yield f"{self._other_parameter(tool, list(properties), others)}*"

    def _parameter(self, tool: Tool, name: str, schema: Any, head: str) -> str:
        """The rule of a parameter whose name, and what follows it, is `head`."""
        strings, rest = split(schema, tool.parameters)
        values = []
        if strings:
            text = self._writer.terminal(raw_text(strings, f"{tool.where}, {name},", tool.is_promise) + ' "</"')
            values.append(f'"true\\">" {text}')
        if rest is not None:
            value = self._writer.json(tool.shared | rest, is_promise=tool.is_promise, where=f"{tool.where}, {name},")
            values.append(f'"false\\">" {value} "</"')
        if not values:
            raise ConstraintRefusedError(f"{tool.where} cannot be enforced: {name} allows no value")
        opening = self._tag("<", f'{self._tags.parameter} name="')
        closing = f"{self._writer.symbol(_TOKEN)} {literal(f'{self._tags.parameter}>{chr(10)}')}"
        return self._writer.rule(f"{opening} {head} ({' | '.join(values)}) {closing}")

    def _other_parameter(self, tool: Tool, known: list[str], schema: Any) -> str:
        """The rule of a parameter that has another name than the known ones."""
        names = r"/[^\"<>\n]+/"
        if known:
            names += f" & ~({' | '.join(literal(name) for name in known)})"
        head = f"""{self._writer.terminal(names)} "\\" string=\\"" """
        return self._parameter(tool, "another one", {} if schema is True else schema, head)
