"""The stages of model output, and the markers that each of them ends with or removes.

    reasoning       </think> ► content              <DSML ► tool block
    content         <DSML ► tool block              a stop string ► finished
    tool block      invoke name=" ► tool name       </DSML calls> ► finished
    tool name       " ► arguments
    arguments       parameter name= ► argument name     </DSML ► tool block
    argument name   a space ► argument kind
    argument kind   true"> ► string value           false"> ► JSON value
    either value    </DSML ► arguments

With JSON output the content has three stages: JSON search until {, [ or a fence, JSON body until a fence, JSON tail.
Inside a tool block whatever is no expected marker is ignored, so both spellings of the markup (V4 and V4.1) and damaged
tags pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache

from recipe.prompt import SpecialToken
from recipe.stream.matcher import Literal, Pattern, PatternSet
from recipe.stream.parsing_options import ParsingOptions


class Stage(Enum):
    """What the text at this point of the output is."""

    REASONING = auto()
    CONTENT = auto()
    JSON_SEARCH = auto()
    JSON_BODY = auto()
    JSON_TAIL = auto()
    TOOL_BLOCK = auto()
    TOOL_NAME = auto()
    ARGUMENTS = auto()
    ARGUMENT_NAME = auto()
    ARGUMENT_KIND = auto()
    STRING_VALUE = auto()
    JSON_VALUE = auto()
    FINISHED = auto()


class Marker(Enum):
    """What a pattern stands for."""

    STOP = auto()
    THINKING_END = auto()
    TOOL_BLOCK = auto()
    JSON_OPEN = auto()
    FENCE = auto()
    FENCE_END = auto()
    INVOKE = auto()
    TOOL_NAME_END = auto()
    TOOL_BLOCK_END = auto()
    PARAMETER = auto()
    ARGUMENT_NAME_END = auto()
    STRING_KIND = auto()
    JSON_KIND = auto()
    TAG_END = auto()


def _plain(marker: Marker, text: str) -> Pattern:
    return Pattern(marker, Literal(text))


_FIXED = {
    Stage.TOOL_NAME: PatternSet([_plain(Marker.TOOL_NAME_END, '"')]),
    Stage.ARGUMENT_NAME: PatternSet([_plain(Marker.ARGUMENT_NAME_END, " ")]),
    Stage.ARGUMENT_KIND: PatternSet([_plain(Marker.STRING_KIND, 'true">'), _plain(Marker.JSON_KIND, 'false">')]),
    Stage.FINISHED: PatternSet([]),
}
_JSON_STARTS = (
    _plain(Marker.FENCE, "```json\n"),
    _plain(Marker.FENCE, "```\n"),
    _plain(Marker.JSON_OPEN, "{"),
    _plain(Marker.JSON_OPEN, "["),
)

StagePatterns = Mapping[Stage, PatternSet]


def stage_patterns(options: ParsingOptions) -> StagePatterns:
    """The patterns of every stage; computed once for equal options."""
    tokens = options.special_tokens
    return _stage_patterns(
        tokens.token(SpecialToken.ThinkingEnd),
        tokens.token(SpecialToken.Dsml),
        options.parse_tool_calls,
        tuple(options.stop_sequences),
    )


@lru_cache(maxsize=256)
def _stage_patterns(thinking_end: str, dsml: str, parse_tool_calls: bool, stops: tuple[str, ...]) -> StagePatterns:
    stop = [_plain(Marker.STOP, text) for text in stops]
    end = Literal(thinking_end, special=True)
    removed_end = Pattern(Marker.THINKING_END, end)
    block = _tool_block(dsml) if parse_tool_calls else []
    tag_end = Pattern(Marker.TAG_END, Literal("</"), Literal(dsml, special=True))
    return {
        **_FIXED,
        Stage.REASONING: PatternSet([Pattern(Marker.THINKING_END, end, absorbs_newlines=True), *block]),
        Stage.CONTENT: PatternSet([*stop, removed_end, *block]),
        Stage.JSON_SEARCH: PatternSet([*_JSON_STARTS, removed_end, *block]),
        Stage.JSON_BODY: PatternSet([*stop, _plain(Marker.FENCE_END, "\n```")]),
        Stage.JSON_TAIL: PatternSet(block),
        Stage.TOOL_BLOCK: PatternSet([_plain(Marker.INVOKE, 'invoke name="'), *_tool_block_ends(dsml)]),
        Stage.ARGUMENTS: PatternSet([_plain(Marker.PARAMETER, "parameter name="), tag_end]),
        Stage.STRING_VALUE: PatternSet([tag_end]),
        Stage.JSON_VALUE: PatternSet([tag_end]),
    }


def _tool_block(dsml: str) -> list[Pattern]:
    return [Pattern(Marker.TOOL_BLOCK, Literal("<"), Literal(dsml, special=True), absorbs_newlines=True)]


def _tool_block_ends(dsml: str) -> list[Pattern]:
    """`</DSML calls>` of V4.1 and `</DSMLtool_calls>` of V4."""
    return [
        Pattern(Marker.TOOL_BLOCK_END, Literal("</"), Literal(dsml, special=True), Literal(tail))
        for tail in (" calls>", "tool_calls>")
    ]
