"""The patterns of every stage, for the options of a stream: those of text, and those of the calls of its markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from recipe.markup.output_markup import OutputMarkup
from recipe.prompt import SpecialToken, SpecialTokens
from recipe.stream.call_patterns import CallPatterns, call_patterns, dsml_patterns, text_pattern
from recipe.stream.matcher import Literal, Pattern, PatternSet
from recipe.stream.parsing_options import ParsingOptions
from recipe.stream.stages import Marker, Stage

_JSON_STARTS = (
    text_pattern(Marker.FENCE, "```json\n"),
    text_pattern(Marker.FENCE, "```\n"),
    text_pattern(Marker.JSON_OPEN, "{"),
    text_pattern(Marker.JSON_OPEN, "["),
)


@dataclass(frozen=True, slots=True)
class StagePatterns:
    """The patterns by stage, the start of reasoning if the output may hold it, and how calls are written."""

    by_stage: Mapping[Stage, PatternSet]
    reasoning_start: Literal | None
    calls: CallPatterns


def stage_patterns(options: ParsingOptions) -> StagePatterns:
    """The patterns of a stream; computed once for equal options with the same special tokens."""
    stops = tuple(options.stop_sequences)
    if options.markup is not None:
        return _markup_patterns(options.markup, options.parse_tool_calls, stops)
    return _special_token_patterns(options.special_tokens, options.parse_tool_calls, stops)


@lru_cache(maxsize=256)
def _special_token_patterns(tokens: SpecialTokens, parse_tool_calls: bool, stops: tuple[str, ...]) -> StagePatterns:
    calls = dsml_patterns(Literal(tokens.token(SpecialToken.Dsml), special=True))
    end = Literal(tokens.token(SpecialToken.ThinkingEnd), special=True)
    return StagePatterns(_by_stage(end, calls, parse_tool_calls, stops), None, calls)


@lru_cache(maxsize=256)
def _markup_patterns(markup: OutputMarkup, parse_tool_calls: bool, stops: tuple[str, ...]) -> StagePatterns:
    calls = call_patterns(markup)
    start, end = (None, None) if markup.reasoning is None else map(markup.marker, markup.reasoning)
    return StagePatterns(_by_stage(end, calls, parse_tool_calls, stops), start, calls)


def _by_stage(
    reasoning_end: Literal | None, calls: CallPatterns, parse_tool_calls: bool, stops: Sequence[str]
) -> Mapping[Stage, PatternSet]:
    """A further end of the reasoning is removed from content where it is a token."""
    stop = [text_pattern(Marker.STOP, text) for text in stops]
    openings = calls.openings if parse_tool_calls else []
    end, removed_end = [], []
    if reasoning_end is not None:
        end = [Pattern(Marker.THINKING_END, reasoning_end, absorbs_newlines=True)]
        removed_end = [Pattern(Marker.THINKING_END, reasoning_end)] if reasoning_end.special else []
    return {
        **calls.stages,
        Stage.REASONING: PatternSet([*end, *(openings if calls.open_in_reasoning else ())]),
        Stage.CONTENT: PatternSet([*stop, *removed_end, *openings]),
        Stage.JSON_SEARCH: PatternSet([*_JSON_STARTS, *removed_end, *openings]),
        Stage.JSON_BODY: PatternSet([*stop, text_pattern(Marker.FENCE_END, "\n```")]),
        Stage.JSON_TAIL: PatternSet(openings),
        Stage.FINISHED: PatternSet([]),
    }
