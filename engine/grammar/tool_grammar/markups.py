"""The markups by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.backend import ConstraintRefusedError
from engine.grammar.gate import Opening
from engine.grammar.tool_grammar import deepseek_v3, dsml, hermes, llama3, mistral
from engine.grammar.tool_grammar.tool_block import ToolBlock
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.writer import GrammarWriter


@dataclass(frozen=True, slots=True)
class ToolMarkup:
    """`openings`: what opens a block in free output. `write`: the Lark expression of a block, with its opening.

    `opens_in_reasoning`: a marker inside the reasoning opens a block, too.
    """

    openings: Callable[[Vocabulary], tuple[Opening, ...]]
    write: Callable[[GrammarWriter, ToolBlock], str]
    opens_in_reasoning: bool = False


_MARKUPS = {
    "deepseek-v4": ToolMarkup(dsml.openings, dsml.write_v4, opens_in_reasoning=True),
    "deepseek-v4.1": ToolMarkup(dsml.openings, dsml.write_v41, opens_in_reasoning=True),
    "hermes": ToolMarkup(hermes.openings, hermes.write),
    "llama3": ToolMarkup(llama3.openings, llama3.write),
    "mistral": ToolMarkup(mistral.openings, mistral.write),
    "deepseek-v3": ToolMarkup(deepseek_v3.openings, deepseek_v3.write),
}


def markup_of(name: str) -> ToolMarkup:
    """Raises `ConstraintRefusedError` for an unknown name."""
    if name not in _MARKUPS:
        raise ConstraintRefusedError(f"the tool markup {name!r:.40} is not known; one of {', '.join(_MARKUPS)} is")
    return _MARKUPS[name]
