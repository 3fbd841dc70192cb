"""How each markup opens, separates and ends tool calls: one table of stages a markup.

hermes       <tool_call>{"name": f, "arguments": {...}}</tool_call> for each call
llama3       {"name": f, "parameters": {...}}; ... as the whole answer, or behind <|python_tag|>
mistral      [TOOL_CALLS][{"name": f, "arguments": {...}}, ...] or [TOOL_CALLS]f[ARGS]{...} for each call
deepseek-v3  <｜tool▁calls▁begin｜>, for each call <｜tool▁call▁begin｜>function<｜tool▁sep｜>f and a fence with {...},
             or, as V3.1 has it, f<｜tool▁sep｜>{...}, then <｜tool▁call▁end｜>; <｜tool▁calls▁end｜>
deepseek-v4  the two dialects of DSML
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recipe.markup.output_markup import OutputMarkup, ToolMarkup
from recipe.stream.matcher import Literal, Pattern, PatternSet
from recipe.stream.stages import Marker, Stage

_NOTHING = PatternSet([])


@dataclass(frozen=True, slots=True)
class CallPatterns:
    """`openings` open calls in text, and, if `open_in_reasoning`, in the reasoning; `stages` are those of the calls.

    The calls begin with the stage `first`; `next` comes behind each of them, None being text. `ends` are the markers
    that end arguments before their time. `is_bare`: the answer itself may be a call, without any opening.
    """

    openings: Sequence[Pattern]
    stages: Mapping[Stage, PatternSet]
    first: Stage
    next: Stage | None = Stage.CALL_AFTER
    ends: PatternSet = _NOTHING
    open_in_reasoning: bool = False
    is_bare: bool = False


def text_pattern(marker: Marker, text: str) -> Pattern:
    """A marker of ordinary text."""
    return Pattern(marker, Literal(text))


def call_patterns(markup: OutputMarkup) -> CallPatterns:
    """The patterns of a markup."""
    return _PATTERNS[markup.tools](markup)


def dsml_patterns(dsml: Literal) -> CallPatterns:
    """The patterns of both dialects of DSML, whose tags hold the token `dsml`.

    Inside a block whatever is no expected marker is ignored, so damaged tags pass.
    """
    tag_end = Pattern(Marker.TAG_END, Literal("</"), dsml)
    block_ends = [
        Pattern(Marker.TOOL_BLOCK_END, Literal("</"), dsml, Literal(tail)) for tail in (" calls>", "tool_calls>")
    ]
    stages = {
        Stage.TOOL_BLOCK: PatternSet([text_pattern(Marker.INVOKE, 'invoke name="'), *block_ends]),
        Stage.TOOL_NAME: PatternSet([text_pattern(Marker.TOOL_NAME_END, '"')]),
        Stage.ARGUMENTS: PatternSet([text_pattern(Marker.PARAMETER, "parameter name="), tag_end]),
        Stage.ARGUMENT_NAME: PatternSet([text_pattern(Marker.ARGUMENT_NAME_END, " ")]),
        Stage.ARGUMENT_KIND: PatternSet(
            [text_pattern(Marker.STRING_KIND, 'true">'), text_pattern(Marker.JSON_KIND, 'false">')]
        ),
        Stage.STRING_VALUE: PatternSet([tag_end]),
        Stage.JSON_VALUE: PatternSet([tag_end]),
    }
    opening = Pattern(Marker.TOOL_BLOCK, Literal("<"), dsml, absorbs_newlines=True)
    return CallPatterns([opening], stages, first=Stage.TOOL_BLOCK, open_in_reasoning=True)


def _dsml(markup: OutputMarkup) -> CallPatterns:
    (dsml,) = markup.tool_markers()
    return dsml_patterns(dsml)


def _hermes(markup: OutputMarkup) -> CallPatterns:
    tag, end_tag = markup.tool_markers()
    opening = Pattern(Marker.CALLS_OPEN, tag, absorbs_newlines=True)
    end = Pattern(Marker.CALLS_END, end_tag)
    stages = {Stage.CALL_AFTER: PatternSet([end, opening])}
    return CallPatterns([opening], stages, first=Stage.CALL_HEAD, ends=PatternSet([end]))


def _llama3(markup: OutputMarkup) -> CallPatterns:
    (tag,) = markup.tool_markers()
    opening = Pattern(Marker.CALLS_OPEN, tag, absorbs_newlines=True)
    return CallPatterns([opening], {}, first=Stage.CALL_HEAD, next=Stage.CALL_HEAD, is_bare=True)


def _mistral(markup: OutputMarkup) -> CallPatterns:
    tag, *behind_name = markup.tool_markers()
    opening = Pattern(Marker.CALLS_OPEN, tag, absorbs_newlines=True)
    name_ends = [Pattern(Marker.NAME_END, marker) for marker in behind_name]
    brace = text_pattern(Marker.BRACE, "{")
    bracket = text_pattern(Marker.LIST_OPEN, "[")
    after = [text_pattern(Marker.LIST_NEXT, ","), text_pattern(Marker.CALLS_END, "]"), opening]
    stages = {
        Stage.CALL_NAME: PatternSet([brace, bracket, *name_ends]),
        Stage.CALL_MIDDLE: PatternSet([brace]),
        Stage.CALL_AFTER: PatternSet(after),
    }
    return CallPatterns([opening], stages, first=Stage.CALL_NAME, next=None, ends=PatternSet([opening]))


def _deepseek_v3(markup: OutputMarkup) -> CallPatterns:
    block, block_end, call_start, call_stop, sep = markup.tool_markers()
    opening = Pattern(Marker.CALLS_OPEN, block, absorbs_newlines=True)
    call = Pattern(Marker.CALL_OPEN, call_start)
    separator = Pattern(Marker.TYPE_END, sep)
    call_end = Pattern(Marker.CALL_END, call_stop)
    end = Pattern(Marker.CALLS_END, block_end)
    damage = [Pattern(Marker.NO_CALL, *pattern.literals) for pattern in (call_end, end)]
    stages = {
        Stage.CALL_BLOCK: PatternSet([call, end]),
        Stage.CALL_TYPE: PatternSet([separator, *damage]),
        Stage.CALL_NAME: PatternSet([text_pattern(Marker.BRACE, "{"), *damage]),
        Stage.CALL_AFTER: PatternSet([call, end]),
    }
    return CallPatterns([opening], stages, first=Stage.CALL_BLOCK, ends=PatternSet([call_end, end]))


_PATTERNS: dict[ToolMarkup, Callable[[OutputMarkup], CallPatterns]] = {
    "deepseek-v4": _dsml,
    "deepseek-v4.1": _dsml,
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "deepseek-v3": _deepseek_v3,
}
