"""Tells from a chat template and a vocabulary how a model marks its reasoning and its tool calls.

A template shows how calls and reasoning of the history are written, which is how the model has learned to write them.
Where it shows none, the added tokens may tell; and where they do not, calls are those of Hermes, the most widespread.
"""

from __future__ import annotations

from collections.abc import Container

from recipe.markup.output_markup import TOOL_MARKERS, OutputMarkup, ReasoningMarkers, ToolMarkup

_SIGNS: tuple[tuple[ToolMarkup, tuple[str, ...]], ...] = (
    ("deepseek-v4.1", TOOL_MARKERS["deepseek-v4.1"][:1]),
    ("deepseek-v3", TOOL_MARKERS["deepseek-v3"][:1]),
    ("mistral", TOOL_MARKERS["mistral"][:1]),
    ("hermes", TOOL_MARKERS["hermes"][:1]),
    ("llama3", (*TOOL_MARKERS["llama3"], "ipython")),
)
_SWITCH = "enable_thinking"
_DEFAULT: ToolMarkup = "hermes"
_REASONING = (
    ReasoningMarkers("<think>", "</think>"),
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("<seed:think>", "</seed:think>"),
    ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarkers("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningMarkers("<reasoning>", "</reasoning>"),
)


def detect_markup(template: str, vocabulary: Container[str]) -> OutputMarkup:
    """The markup of a model, by its chat template and the spellings of its added tokens."""
    return OutputMarkup.of(detect_tools(template, vocabulary), detect_reasoning(template, vocabulary), vocabulary)


def detect_tools(template: str, vocabulary: Container[str]) -> ToolMarkup:
    """How calls are written."""
    for evidence in (template, vocabulary):
        for markup, signs in _SIGNS:
            if any(sign in evidence for sign in signs):
                return markup
    return _DEFAULT


def detect_reasoning(template: str, vocabulary: Container[str]) -> ReasoningMarkers | None:
    """What stands around the reasoning: a pair whose end the template knows, or both of which are tokens.

    A template that asks for a switch of thinking, and shows nothing else of it, belongs to the most widespread pair.
    """
    for markers in _REASONING:
        if markers.end in template or (markers.start in vocabulary and markers.end in vocabulary):
            return markers
    return _REASONING[0] if _SWITCH in template else None
