"""Model output to reasoning, content and tool calls.

A state machine over `stages`: the matcher finds the markers of the current stage, the queue gives out the text
between them as soon as it is decided, and a table says what each marker does. State lives across segments, so any
split of the same output has the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from json.encoder import encode_basestring as json_string
from typing import Protocol

from recipe.stream.matcher import Match, Matcher
from recipe.stream.parsing_options import ParsingOptions, ThinkingInitialStage
from recipe.stream.pending_output import PendingOutput
from recipe.stream.segment import Segment
from recipe.stream.stages import Marker, Stage, stage_patterns


class OutputSink(Protocol):
    """Takes what the parser finds. `logprobs` are JSON array items, those of the tokens that the text arrived with."""

    def reasoning(self, text: str, logprobs: str | None) -> None:
        """A piece of the reasoning."""

    def content(self, text: str, logprobs: str | None) -> None:
        """A piece of the answer."""

    def tool_call(self, name: str) -> None:
        """A tool call begins."""

    def arguments(self, text: str) -> None:
        """A piece of the JSON text of the arguments of the last tool call."""


class OutputParser:
    """Parses the output of one stream into calls of a sink.

    `stop_sequence` is the stop string that was met, if any: the output ends before it. `reasoning_pieces` is the
    reasoning so far, and `tool_calls` the number of calls begun.
    """

    __slots__ = (
        "_emit",
        "_find_start",
        "_has_arguments",
        "_initial_stage",
        "_matcher",
        "_name",
        "_outputs",
        "_passes",
        "_patterns",
        "_pending",
        "_sink",
        "_stage",
        "_text_stage",
        "_waiting",
        "reasoning_pieces",
        "stop_sequence",
        "tool_calls",
    )

    def __init__(self, options: ParsingOptions, sink: OutputSink) -> None:
        self._sink = sink
        self._patterns = stage_patterns(options)
        self._initial_stage = options.thinking_initial_stage
        self._text_stage = Stage.JSON_SEARCH if options.parse_json_output else Stage.CONTENT
        self._pending = PendingOutput(self._initial_stage in (None, ThinkingInitialStage.ReasoningStart))
        self._has_arguments = False  # of the current call
        self._name: list[str] = []
        self._outputs: dict[Stage, Callable[[str, str | None], None]] = {
            Stage.REASONING: self._emit_reasoning,
            Stage.CONTENT: sink.content,
            Stage.JSON_SEARCH: self._emit_blank,
            Stage.JSON_BODY: sink.content,
            Stage.JSON_TAIL: self._emit_blank,
            Stage.TOOL_NAME: self._emit_name,
            Stage.ARGUMENT_NAME: self._emit_raw,
            Stage.STRING_VALUE: self._emit_string,
            Stage.JSON_VALUE: self._emit_raw,
        }
        self._waiting: list[Callable[[], None]] = []
        self.reasoning_pieces: list[str] = []
        self.stop_sequence: str | None = None
        self.tool_calls = 0
        self._passes = False  # whether text without the start of a marker goes straight through
        stage = self._first_stage(options)
        self._matcher = Matcher(self._patterns[stage])
        self._enter(stage)

    def feed(self, segment: Segment) -> None:
        """Take in more output and give out what is decided."""
        text, pending, matcher = segment.text, self._pending, self._matcher
        if self._passes and text and self._find_start(text) is None:
            self._emit(text, segment.logprobs)
            return
        position = 0
        while match := matcher.scan(text, segment.origin, position):
            self._take_match(match, position, segment)
            position = match.end
        if position < len(text) or not position:
            pending.add(text[position:], segment.logprobs)
        decided = pending.length - matcher.held
        if decided or not pending.length:
            self._write_markers()
        for piece, logprobs in pending.release(decided):
            self._emit(piece, logprobs)
        self._passes = pending.passes and not matcher.held

    def end(self) -> None:
        """The output is over: what was held as a possible marker is text."""
        self._write_markers()
        for piece, logprobs in self._pending.release(self._pending.length):
            self._emit(piece, logprobs)

    def _take_match(self, match: Match, position: int, segment: Segment) -> None:
        """Give out the text before a marker, then do what it asks for."""
        self._write_markers()
        pending, marker = self._pending, match.pattern.meaning
        pending.add(segment.text[position : match.end], segment.logprobs)
        skips_newlines = marker is Marker.THINKING_END and self._stage is Stage.REASONING
        for piece, logprobs in pending.cut(pending.length - match.length, skips_newlines):
            self._emit(piece, logprobs)
        _ACTIONS[marker](self, match.pattern.text, segment.logprobs)
        if match.length > match.end - position:  # it began in an earlier segment
            self._write_markers()

    def _write(self, output: Callable[..., None], *args: str | None) -> None:
        """What a marker itself puts out; it waits while the rest of its segment may as a whole be a marker."""
        self._waiting.append(partial(output, *args))

    def _write_markers(self) -> None:
        for output in self._waiting:
            output()
        self._waiting.clear()

    def _first_stage(self, options: ParsingOptions) -> Stage:
        if options.starts_in_tool_calls:
            return Stage.TOOL_BLOCK
        if self._initial_stage is not None and self._initial_stage.starts_in_reasoning():
            return Stage.REASONING
        return self._text_stage

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._matcher.restart(self._patterns[stage])
        self._find_start = self._patterns[stage].start.search
        self._emit = self._outputs.get(stage, _ignore)

    def _emit_blank(self, _text: str, logprobs: str | None) -> None:
        """Text beside JSON output: a space a piece."""
        self._sink.content(" ", logprobs)

    def _emit_reasoning(self, text: str, logprobs: str | None) -> None:
        self.reasoning_pieces.append(text)
        self._sink.reasoning(text, logprobs)

    def _emit_name(self, text: str, _logprobs: str | None) -> None:
        self._name.append(text)

    def _emit_string(self, text: str, _logprobs: str | None) -> None:
        self._sink.arguments(json_string(text)[1:-1])

    def _emit_raw(self, text: str, _logprobs: str | None) -> None:
        self._sink.arguments(text)

    def _on_stop(self, text: str, _logprobs: str | None) -> None:
        self.stop_sequence = text
        self._enter(Stage.FINISHED)

    def _on_thinking_end(self, _text: str, _logprobs: str | None) -> None:
        if self._stage is Stage.REASONING:
            self._enter(self._text_stage)

    def _on_tool_block(self, _text: str, _logprobs: str | None) -> None:
        self._enter(Stage.TOOL_BLOCK)

    def _on_json_open(self, text: str, logprobs: str | None) -> None:
        self._enter(Stage.JSON_BODY)
        self._write(self._sink.content, text, logprobs)

    def _on_fence(self, _text: str, _logprobs: str | None) -> None:
        self._enter(Stage.JSON_BODY)

    def _on_fence_end(self, _text: str, _logprobs: str | None) -> None:
        self._enter(Stage.JSON_TAIL)

    def _on_invoke(self, _text: str, _logprobs: str | None) -> None:
        self._enter(Stage.TOOL_NAME)

    def _on_tool_name_end(self, _text: str, _logprobs: str | None) -> None:
        self._write(self._sink.tool_call, "".join(self._name))
        self.tool_calls += 1
        self._name.clear()
        self._has_arguments = False
        self._enter(Stage.ARGUMENTS)

    def _on_tool_block_end(self, _text: str, _logprobs: str | None) -> None:
        self._enter(Stage.FINISHED)

    def _on_parameter(self, _text: str, _logprobs: str | None) -> None:
        self._write(self._sink.arguments, ", " if self._has_arguments else "{")
        self._has_arguments = True
        self._enter(Stage.ARGUMENT_NAME)

    def _on_argument_name_end(self, _text: str, _logprobs: str | None) -> None:
        self._write(self._sink.arguments, ": ")
        self._enter(Stage.ARGUMENT_KIND)

    def _on_string_kind(self, _text: str, _logprobs: str | None) -> None:
        self._write(self._sink.arguments, '"')
        self._enter(Stage.STRING_VALUE)

    def _on_json_kind(self, _text: str, _logprobs: str | None) -> None:
        self._enter(Stage.JSON_VALUE)

    def _on_tag_end(self, _text: str, _logprobs: str | None) -> None:
        """A closing tag ends the innermost thing that is open: a value, else the call."""
        if self._stage is Stage.ARGUMENTS:
            self._write(self._sink.arguments, "}" if self._has_arguments else "{}")
            self._enter(Stage.TOOL_BLOCK)
            return
        if self._stage is Stage.STRING_VALUE:
            self._write(self._sink.arguments, '"')
        self._enter(Stage.ARGUMENTS)


_ACTIONS: dict[Hashable, Callable[[OutputParser, str, str | None], None]] = {
    Marker.STOP: OutputParser._on_stop,
    Marker.THINKING_END: OutputParser._on_thinking_end,
    Marker.TOOL_BLOCK: OutputParser._on_tool_block,
    Marker.JSON_OPEN: OutputParser._on_json_open,
    Marker.FENCE: OutputParser._on_fence,
    Marker.FENCE_END: OutputParser._on_fence_end,
    Marker.INVOKE: OutputParser._on_invoke,
    Marker.TOOL_NAME_END: OutputParser._on_tool_name_end,
    Marker.TOOL_BLOCK_END: OutputParser._on_tool_block_end,
    Marker.PARAMETER: OutputParser._on_parameter,
    Marker.ARGUMENT_NAME_END: OutputParser._on_argument_name_end,
    Marker.STRING_KIND: OutputParser._on_string_kind,
    Marker.JSON_KIND: OutputParser._on_json_kind,
    Marker.TAG_END: OutputParser._on_tag_end,
}
"""What each marker does; it gets the text of the marker and the log probabilities of the piece it ended in."""


def _ignore(_text: str, _logprobs: str | None) -> None:
    """Text that is markup, or that comes after the output has ended."""
