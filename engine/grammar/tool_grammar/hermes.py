"""Hermes and Qwen: one `<tool_call>` with a JSON object for each call, on lines of their own."""

from __future__ import annotations

from engine.grammar.gate import Opening
from engine.grammar.tool_grammar.json_call import json_call
from engine.grammar.tool_grammar.tool_block import ToolBlock
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.writer import GrammarWriter

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def openings(vocabulary: Vocabulary) -> tuple[Opening, ...]:
    return (Opening.of(vocabulary, _OPEN),)


def write(writer: GrammarWriter, block: ToolBlock) -> str:
    """The Lark expression of the calls, from the first opening tag to the last closing one."""
    newline = r'"\n"?'
    call = f"{writer.symbol(_OPEN)} {newline} {json_call(writer, block)} {newline} {writer.symbol(_CLOSE)}"
    return block.calls(writer.rule(call), newline)
