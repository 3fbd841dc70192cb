"""Llama 3: bare JSON objects with `name` and `parameters`, a semicolon between them.

Nothing but the JSON itself tells a call from an answer, so in free output only an answer that begins like a call is
one; the token `<|python_tag|>` may stand in front.
"""

from __future__ import annotations

from engine.grammar.gate import Opening
from engine.grammar.tool_grammar.json_call import json_call
from engine.grammar.tool_grammar.tool_block import ToolBlock
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.writer import GrammarWriter

_TAG = "<|python_tag|>"
_BEGINNING = b'{"name"'


def openings(vocabulary: Vocabulary) -> tuple[Opening, ...]:
    bare = Opening(_BEGINNING, at_start=True)
    return (bare,) if vocabulary.marker_id(_TAG) is None else (bare, Opening.of(vocabulary, _TAG))


def write(writer: GrammarWriter, block: ToolBlock) -> str:
    """The Lark expression of the calls."""
    calls = block.calls(json_call(writer, block, "parameters"), '";" " "?')
    return calls if writer.vocabulary.marker_id(_TAG) is None else f"{writer.symbol(_TAG)}? {calls}"
