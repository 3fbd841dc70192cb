"""What a model family writes around its reasoning and its tool calls.

A marker is a token where the vocabulary has one of that spelling: then only the token counts, never letters that look
like it. Any other marker is text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal as OneOf
from typing import NamedTuple, get_args

from recipe.stream.matcher import Literal

ToolMarkup = OneOf["deepseek-v4", "deepseek-v4.1", "hermes", "llama3", "mistral", "deepseek-v3"]
TOOL_MARKUPS: tuple[ToolMarkup, ...] = get_args(ToolMarkup)


class ReasoningMarkers(NamedTuple):
    """What stands before and behind the reasoning."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class OutputMarkup:
    """The markup of one model. `reasoning` is None for a model that marks none; `tokens` spells the added tokens."""

    tools: ToolMarkup
    reasoning: ReasoningMarkers | None = None
    tokens: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tools: ToolMarkup, reasoning: ReasoningMarkers | None, vocabulary: Iterable[str]) -> OutputMarkup:
        """The markup of a model whose added tokens are spelled as in `vocabulary`. ValueError for an unknown name."""
        if tools not in TOOL_MARKUPS:
            raise ValueError(f"there is no tool markup {tools!r}; there are {', '.join(TOOL_MARKUPS)}")
        return cls(tools, reasoning, frozenset(vocabulary))

    def marker(self, spelling: str) -> Literal:
        """The marker spelled so: a token if there is one, else text."""
        return Literal(spelling, special=spelling in self.tokens)
