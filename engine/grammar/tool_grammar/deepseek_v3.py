"""DeepSeek V3 and R1: a block of calls between tokens, each with its arguments as fenced JSON."""

from __future__ import annotations

from engine.grammar.gate import Opening
from engine.grammar.tool_grammar.json_call import arguments_of
from engine.grammar.tool_grammar.tool_block import Tool, ToolBlock
from engine.grammar.vocabulary import Vocabulary, literal
from engine.grammar.writer import GrammarWriter

_BLOCK_OPEN, _BLOCK_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_OPEN, _SEPARATOR, _CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def openings(vocabulary: Vocabulary) -> tuple[Opening, ...]:
    return (Opening.of(vocabulary, _BLOCK_OPEN),)


def write(writer: GrammarWriter, block: ToolBlock) -> str:
    """The Lark expression of the whole block."""
    call = writer.rule(" | ".join(_call(writer, tool) for tool in block.tools))
    return f"{writer.symbol(_BLOCK_OPEN)} {block.calls(call, literal(chr(10)) + '?')} {writer.symbol(_BLOCK_CLOSE)}"


def _call(writer: GrammarWriter, tool: Tool) -> str:
    head, foot = literal(f"{tool.name}\n```json\n"), literal("\n```")
    opening = f'{writer.symbol(_OPEN)} "function" {writer.symbol(_SEPARATOR)}'
    return f"{opening} {head} {arguments_of(writer, tool)} {foot} {writer.symbol(_CLOSE)}"
