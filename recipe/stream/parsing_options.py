"""How model output is to be parsed: what the conversion of a request tells the stream parser."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Self

from recipe.markup.output_markup import OutputMarkup
from recipe.prompt import SpecialTokens

_DEFAULT_TOKENS = SpecialTokens()
_SEQUENCES = (tuple, list)  # known to be some, without asking the abstract class


class ThinkingInitialStage(Enum):
    """The stage where parsing begins in thinking mode."""

    ReasoningStart = 0
    """Begin the reasoning of a new assistant turn, discarding leading newlines."""
    ReasoningContinuation = 1
    """Continue the reasoning of a prefix continuation, preserving leading newlines."""
    ContentContinuation = 2
    """Continue the answer of a prefix continuation whose reasoning has ended, preserving leading newlines."""

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"ThinkingInitialStage.{self.name}"

    def starts_in_reasoning(self) -> bool:
        """Return whether parsing begins in reasoning content."""
        return self is not ThinkingInitialStage.ContentContinuation


class ParsingOptions:
    """Settings of the stream parser. Every property can be set; TypeError for a value of another type."""

    __slots__ = (
        "_markup",
        "_parse_json_output",
        "_parse_tool_calls",
        "_prompt_opens_reasoning",
        "_single_call",
        "_special_tokens",
        "_starts_in_tool_calls",
        "_stop_sequences",
        "_thinking_initial_stage",
    )

    def __init__(
        self,
        *,
        parse_tool_calls: bool = True,
        starts_in_tool_calls: bool = False,
        parse_json_output: bool = False,
        thinking_initial_stage: ThinkingInitialStage | None = None,
        stop_sequences: Sequence[str] | None = None,
        special_tokens: SpecialTokens | None = None,
        markup: OutputMarkup | None = None,
        prompt_opens_reasoning: bool = True,
        single_call: bool = False,
    ) -> None:
        self._parse_tool_calls = _checked_bool(parse_tool_calls)
        self._starts_in_tool_calls = _checked_bool(starts_in_tool_calls)
        self._parse_json_output = _checked_bool(parse_json_output)
        self.thinking_initial_stage = thinking_initial_stage
        self._stop_sequences = () if stop_sequences is None else _checked_stops(stop_sequences)
        self.special_tokens = _DEFAULT_TOKENS if special_tokens is None else special_tokens
        self.markup = markup
        self._prompt_opens_reasoning = _checked_bool(prompt_opens_reasoning)
        self._single_call = _checked_bool(single_call)

    @classmethod
    def trusted(
        cls,
        *,
        parse_tool_calls: bool = True,
        starts_in_tool_calls: bool = False,
        parse_json_output: bool = False,
        thinking_initial_stage: ThinkingInitialStage | None = None,
        stop_sequences: Sequence[str] = (),
        special_tokens: SpecialTokens,
    ) -> Self:
        """The outcome of a conversion, from values known to be of the right types."""
        self = cls.__new__(cls)
        self._parse_tool_calls, self._starts_in_tool_calls = parse_tool_calls, starts_in_tool_calls
        self._parse_json_output, self._thinking_initial_stage = parse_json_output, thinking_initial_stage
        self._stop_sequences, self._special_tokens = tuple(stop_sequences), special_tokens
        self._markup, self._prompt_opens_reasoning, self._single_call = None, True, False
        return self

    @property
    def parse_tool_calls(self) -> bool:
        """Whether to parse model-specific tool-call markup."""
        return self._parse_tool_calls

    @parse_tool_calls.setter
    def parse_tool_calls(self, value: bool) -> None:
        self._parse_tool_calls = _checked_bool(value)

    @property
    def starts_in_tool_calls(self) -> bool:
        """Whether parsing begins inside the tool-call block that the prompt opened.

        Used for a required tool choice; takes precedence over `thinking_initial_stage`.
        """
        return self._starts_in_tool_calls

    @starts_in_tool_calls.setter
    def starts_in_tool_calls(self, value: bool) -> None:
        self._starts_in_tool_calls = _checked_bool(value)

    @property
    def parse_json_output(self) -> bool:
        """Whether to recognize fenced or bare JSON output and replace the text around it with spaces."""
        return self._parse_json_output

    @parse_json_output.setter
    def parse_json_output(self, value: bool) -> None:
        self._parse_json_output = _checked_bool(value)

    @property
    def thinking_initial_stage(self) -> ThinkingInitialStage | None:
        """The stage where parsing begins in thinking mode; `None` means thinking mode is off.

        A stage also makes the processor report reasoning tokens.
        """
        return self._thinking_initial_stage

    @thinking_initial_stage.setter
    def thinking_initial_stage(self, value: ThinkingInitialStage | None) -> None:
        if value is not None and not isinstance(value, ThinkingInitialStage):
            raise TypeError(f"expected a ThinkingInitialStage or None, not {type(value).__name__}")
        self._thinking_initial_stage = value

    @property
    def stop_sequences(self) -> list[str]:
        """A copy of the strings that end the output."""
        return list(self._stop_sequences)

    @stop_sequences.setter
    def stop_sequences(self, value: Sequence[str]) -> None:
        self._stop_sequences = _checked_stops(value)

    @property
    def special_tokens(self) -> SpecialTokens:
        """The spellings of the markers."""
        return self._special_tokens

    @special_tokens.setter
    def special_tokens(self, value: SpecialTokens) -> None:
        if not isinstance(value, SpecialTokens):
            raise TypeError(f"expected SpecialTokens, not {type(value).__name__}")
        self._special_tokens = value

    @property
    def markup(self) -> OutputMarkup | None:
        """How the model marks reasoning and tool calls; `None` is DSML, spelled as in `special_tokens`."""
        return self._markup

    @markup.setter
    def markup(self, value: OutputMarkup | None) -> None:
        if value is not None and not isinstance(value, OutputMarkup):
            raise TypeError(f"expected an OutputMarkup or None, not {type(value).__name__}")
        self._markup = value

    @property
    def prompt_opens_reasoning(self) -> bool:
        """Whether the reasoning of thinking mode is open from the beginning; else the model opens it, if it thinks."""
        return self._prompt_opens_reasoning

    @prompt_opens_reasoning.setter
    def prompt_opens_reasoning(self, value: bool) -> None:
        self._prompt_opens_reasoning = _checked_bool(value)

    @property
    def single_call(self) -> bool:
        """Whether only the first tool call counts; others are dropped."""
        return self._single_call

    @single_call.setter
    def single_call(self, value: bool) -> None:
        self._single_call = _checked_bool(value)


def _checked_bool(value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected a bool, not {type(value).__name__}")
    return value


def _checked_stops(value: Sequence[str]) -> tuple[str, ...]:
    """The strings; TypeError for other types, UnicodeEncodeError for a lone surrogate."""
    if type(value) not in _SEQUENCES and (isinstance(value, str) or not isinstance(value, Sequence)):
        raise TypeError(f"stop_sequences must be a sequence of strings, not {type(value).__name__}")
    for stop in value:
        if not isinstance(stop, str):
            raise TypeError(f"a stop sequence must be a str, not {type(stop).__name__}")
        if not stop.isascii():
            stop.encode()
    return tuple(value)
