"""What a model family writes around its reasoning and its tool calls.

A marker is a token where the vocabulary has one of that spelling: then only the token counts, never letters that look
like it. Any other marker is text.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal as OneOf
from typing import NamedTuple

from recipe.stream.matcher import Literal

ToolMarkup = OneOf["deepseek-v4", "deepseek-v4.1", "hermes", "llama3", "mistral", "deepseek-v3"]

TOOL_MARKERS: Mapping[ToolMarkup, tuple[str, ...]] = {
    "deepseek-v4": ("｜DSML｜",),
    "deepseek-v4.1": ("｜DSML｜",),
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "deepseek-v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
}
"""The markers of each markup; the first one opens calls, or is part of what does."""


class ReasoningMarkers(NamedTuple):
    """What stands before and behind the reasoning."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class OutputMarkup:
    """The markup of one model. `reasoning` is None for a model that marks none.

    `tokens` are the markers that are tokens; it goes with every request, so it holds nothing else of the vocabulary.
    """

    tools: ToolMarkup
    reasoning: ReasoningMarkers | None = None
    tokens: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tools: ToolMarkup, reasoning: ReasoningMarkers | None, vocabulary: Container[str]) -> OutputMarkup:
        """The markup of a model with added tokens spelled as in `vocabulary`."""
        markers = (*TOOL_MARKERS[tools], *(reasoning or ()))
        return cls(tools, reasoning, frozenset(marker for marker in markers if marker in vocabulary))

    def marker(self, spelling: str) -> Literal:
        """The marker spelled so: a token if there is one, else text."""
        return Literal(spelling, special=spelling in self.tokens)

    def tool_markers(self) -> list[Literal]:
        """The markers of tool calls, in the order of `TOOL_MARKERS`."""
        return [self.marker(spelling) for spelling in TOOL_MARKERS[self.tools]]
