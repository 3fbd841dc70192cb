"""Mistral: `[TOOL_CALLS]` and a JSON array of calls; with `[ARGS]` in the vocabulary, `[TOOL_CALLS]f[ARGS]{...}`."""

from __future__ import annotations

from engine.grammar.gate import Opening
from engine.grammar.tool_grammar.json_call import arguments_of, json_call
from engine.grammar.tool_grammar.tool_block import ToolBlock
from engine.grammar.vocabulary import Vocabulary, literal
from engine.grammar.writer import GrammarWriter

_OPEN, _ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"


def openings(vocabulary: Vocabulary) -> tuple[Opening, ...]:
    return (Opening.of(vocabulary, _OPEN),)


def write(writer: GrammarWriter, block: ToolBlock) -> str:
    """The Lark expression of the calls, from the first marker on."""
    if writer.vocabulary.marker_id(_ARGUMENTS) is None:
        calls = block.calls(json_call(writer, block), '"," " "?')
        return f'{writer.symbol(_OPEN)} " "? "[" {calls} "]"'
    named = " | ".join(
        f"{literal(tool.name)} {writer.symbol(_ARGUMENTS)} {arguments_of(writer, tool)}" for tool in block.tools
    )
    return block.calls(writer.rule(f"{writer.symbol(_OPEN)} ({named})"))
