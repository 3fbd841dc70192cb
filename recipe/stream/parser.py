"""Model output to reasoning, content and tool calls.

A state machine over `stages`: a scanner finds the markers of the current stage, the queue gives out the text between
them as soon as it is decided, and a table says what each marker does. State lives across segments, so any split of the
same output has the same meaning. What may turn out to be no markup after all (an `Attempt`) is kept and, if so, read
again as text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

from recipe.stream.attempt import MAX_TEXT_CHARS, Attempt
from recipe.stream.dsml_calls import DsmlCalls
from recipe.stream.leading_marker import LeadingMarker
from recipe.stream.marked_calls import MarkedCalls
from recipe.stream.matcher import Literal, Match, Matcher
from recipe.stream.parsing_options import ParsingOptions, ThinkingInitialStage
from recipe.stream.pending_output import PendingOutput
from recipe.stream.segment import Segment
from recipe.stream.stage_patterns import stage_patterns
from recipe.stream.stages import Marker, Output, Stage

_NEW_OUTPUT = (None, ThinkingInitialStage.ReasoningStart)
_CONTENT, _TOOL_BLOCK, _FINISHED = Stage.CONTENT, Stage.TOOL_BLOCK, Stage.FINISHED
_SKIP_NEWLINES = {(Stage.REASONING, Marker.THINKING_END)} | {
    (stage, marker)
    for stage in (Stage.CALL_ARGUMENTS, Stage.CALL_REST, Stage.CALL_AFTER)
    for marker in (Marker.OBJECT_END, Marker.CALLS_END)
}
"""Behind these the output may not begin with newlines."""


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


class Scanner(Protocol):
    """Finds what ends the text of a stage."""

    @property
    def held(self) -> int:
        """How many characters at the end of the text so far may begin a match."""

    @property
    def is_idle(self) -> bool:
        """Whether text in which `find_start` finds nothing needs no scan."""

    def scan(self, text: str, origin: int, position: int) -> Match | None:
        """Take in `text` from `position` on, up to the first match; None when there is none."""

    def find_start(self, text: str, /) -> object:
        """Where a match could start; None where none can."""


class OutputParser:
    """Parses the output of one stream into calls of a sink.

    `stop_sequence` is the stop string that was met, if any: the output ends before it. `reasoning_pieces` is the
    reasoning so far, and `tool_calls` the number of calls begun. The methods behind `end` are for the readers of calls.
    """

    __slots__ = (
        "_attempt",
        "_attempted_text",
        "_calls",
        "_emit",
        "_find_start",
        "_matcher",
        "_passes",
        "_patterns",
        "_pending",
        "_replayed",
        "_scanner",
        "_single_call",
        "_sink",
        "_stage",
        "_text_stage",
        "_waiting",
        "arguments",
        "reasoning_pieces",
        "stop_sequence",
        "tool_calls",
    )

    def __init__(self, options: ParsingOptions, sink: OutputSink) -> None:
        patterns, initial_stage = stage_patterns(options), options.thinking_initial_stage
        self._sink = sink
        self._patterns = patterns.by_stage
        self._text_stage = Stage.JSON_SEARCH if options.parse_json_output else _CONTENT
        self._pending = PendingOutput(initial_stage in _NEW_OUTPUT)
        self._single_call = options.single_call
        self._calls: DsmlCalls | MarkedCalls
        if patterns.calls.first is _TOOL_BLOCK:
            self._calls = DsmlCalls(self)
        else:
            self._calls = MarkedCalls(self, patterns.calls, options.parse_tool_calls)
        self._attempt: Attempt | None = None
        self._attempted_text = ""
        self._replayed: deque[Segment] = deque()  # what was no markup, to be read again
        self._waiting: list[Callable[[], None]] = []
        self.arguments: Callable[[str], None] = sink.arguments  # takes those of the current call
        self.reasoning_pieces: list[str] = []
        self.stop_sequence: str | None = None
        self.tool_calls = 0
        self._passes = False  # whether text without the start of a marker goes straight through
        self._matcher = Matcher(self._patterns[_FINISHED])
        self._find_start: Callable[[str], object]
        self._begin(options, initial_stage, patterns.reasoning_start)

    def feed(self, segment: Segment) -> None:
        """Take in more output and give out what is decided."""
        text = segment.text
        if self._passes and text and self._find_start(text) is None:
            self._emit(text, segment.logprobs)
            return
        self._read(segment)
        while self._replayed:
            self._read(self._replayed.popleft())

    def end(self) -> None:
        """The output is over: what was held as a possible marker is text."""
        if self._waiting:
            self._write_markers()
        while self._attempt is not None:
            self.give_up()
            while self._replayed:
                self._read(self._replayed.popleft())
        for piece, logprobs in self._pending.release(self._pending.length):
            self._emit(piece, logprobs)

    def close(self) -> None:
        """Let go of what holds the parser in turn, and would have to wait for the garbage collector with it."""
        self._attempt = None
        self._waiting.clear()
        del self._calls, self._emit

    @property
    def stage(self) -> Stage:
        """What the text at this point is."""
        return self._stage

    @property
    def attempted_text(self) -> str:
        """The text before the last marker of an attempt."""
        return self._attempted_text

    def enter(self, stage: Stage, scanner: Scanner | None = None) -> None:
        """Go on with another stage; a scanner of its own takes the place of patterns."""
        self._stage = stage
        text_output = _TEXT_OUTPUTS.get(stage)
        self._emit = self._calls.output(stage, _ignore) if text_output is None else text_output(self)
        if scanner is None:
            scanner = self._matcher
            scanner.restart(self._patterns[stage])
        self._scanner, self._find_start = scanner, scanner.find_start

    def attempt(
        self, stage: Stage, scanner: Scanner | None = None, *, fallback: Callable[[], None] | None = None
    ) -> None:
        """Enter a stage of what may be no markup; within an attempt, go on with that.

        It ends with `begin_call`, `settle` or `give_up`; after the last all of it is read again, by default as text.
        """
        if self._attempt is None:
            self._attempt = Attempt(fallback or self.resume_text)
        self.enter(stage, scanner)

    def give_up(self) -> None:
        """The attempt was no markup."""
        if (attempt := self._attempt) is None:
            return
        self._attempt = None
        attempt.is_over = True
        for text, logprobs in attempt.opening:
            self._pending.add(text, logprobs)
        self._replayed.extendleft(reversed(attempt.segments))
        attempt.fallback()

    def settle(self) -> None:
        """What was attempted, if anything, is markup: nothing of it is text. The output behind it begins as it is."""
        if self._attempt is not None:
            self._attempt = None
            self._pending.skips_newlines = False

    def begin_call(self, name: str) -> None:
        """A call begins; where one is the most, further ones go nowhere."""
        self.settle()
        if self._single_call and self.tool_calls:
            self.arguments = _drop
            return
        self.write(self._sink.tool_call, name)
        self.tool_calls += 1

    def write(self, output: Callable[..., None], *args: str | None) -> None:
        """What a marker itself puts out; it waits while the rest of its segment may as a whole be a marker."""
        self._waiting.append(partial(output, *args))

    def resume_text(self) -> None:
        """Text goes on, outside of calls."""
        self.enter(self._text_stage)

    def _begin(
        self, options: ParsingOptions, initial_stage: ThinkingInitialStage | None, reasoning_start: Literal | None
    ) -> None:
        """Enter the first stage."""
        is_reasoning = initial_stage is not None and _starts_in_reasoning(options, initial_stage)
        begin = self._begin_reasoning if is_reasoning else self._begin_text
        if options.starts_in_tool_calls and isinstance(self._calls, DsmlCalls):
            self.enter(_TOOL_BLOCK)
        elif reasoning_start is None or initial_stage not in _NEW_OUTPUT:
            begin()
        else:
            self.attempt(Stage.OPENING, LeadingMarker(reasoning_start), fallback=begin)

    def _begin_reasoning(self) -> None:
        self.enter(Stage.REASONING)

    def _begin_text(self) -> None:
        self.enter(self._text_stage)
        self._calls.begin_text()

    def _read(self, segment: Segment) -> None:
        """Take in a segment up to its end, or up to where an attempt turns out to be text."""
        text, pending, position = segment.text, self._pending, 0
        if self._attempt is not None:
            self._attempt.segments.append(segment)
        while match := self._scanner.scan(text, segment.origin, position):
            attempt = self._attempt
            if attempt is None:
                self._take_match(match, position, segment)
            else:
                self._try_match(attempt, match, position, segment)
                if attempt.is_over:
                    return
            position = match.end
            if self._attempt is not None and self._attempt is not attempt and position < len(text):
                self._attempt.segments.append(Segment(text[position:], segment.origin, 0, segment.logprobs))
        if self._attempt is not None:
            self._keep(self._attempt, text[position:])
            return
        if position < len(text) or not position:
            pending.add(text[position:], segment.logprobs)
        decided = pending.length - self._scanner.held
        if self._waiting and (decided or not pending.length):
            self._write_markers()
        for piece, logprobs in pending.release(decided):
            self._emit(piece, logprobs)
        self._passes = pending.passes and self._scanner.is_idle

    def _take_match(self, match: Match, position: int, segment: Segment) -> None:
        """Give out the text before a marker, then do what it asks for."""
        self._write_markers()
        pending, marker = self._pending, match.pattern.meaning
        pending.add(segment.text[position : match.end], segment.logprobs)
        opening = pending.tail(match.length) if marker is Marker.CALLS_OPEN else []
        skips_newlines = (self._stage, marker) in _SKIP_NEWLINES
        still_skips = pending.skips_newlines
        for piece, logprobs in pending.cut(pending.length - match.length, skips_newlines):
            self._emit(piece, logprobs)
            still_skips = False
        self._act(match, segment)
        if self._attempt is not None:
            self._attempt.opening = opening
            pending.skips_newlines = skips_newlines or still_skips
        if match.length > match.end - position:  # it began in an earlier segment
            self._write_markers()

    def _try_match(self, attempt: Attempt, match: Match, position: int, segment: Segment) -> None:
        """Do what a marker of an attempt asks for."""
        text = attempt.text + segment.text[position : match.end]
        self._attempted_text = text[: len(text) - match.length]
        attempt.text = ""
        if self._scanner is self._matcher and len(self._attempted_text) > MAX_TEXT_CHARS:
            self.give_up()
            return
        self._act(match, segment)

    def _keep(self, attempt: Attempt, text: str) -> None:
        """Keep more text of an attempt, unless it has too much between two markers."""
        self._passes = False
        if self._scanner is self._matcher:
            attempt.text += text
            if len(attempt.text) - self._matcher.held > MAX_TEXT_CHARS:
                self.give_up()

    def _act(self, match: Match, segment: Segment) -> None:
        """Do what a marker asks for."""
        action = _ACTIONS.get(match.pattern.meaning)
        if action is None:
            self._calls.act(match.pattern.meaning, match.pattern.text)
        else:
            action(self, match.pattern.text, segment.logprobs)

    def _write_markers(self) -> None:
        for output in self._waiting:
            output()
        self._waiting.clear()

    def _emit_blank(self, _text: str, logprobs: str | None) -> None:
        """Text beside JSON output: a space a piece."""
        self._sink.content(" ", logprobs)

    def _emit_reasoning(self, text: str, logprobs: str | None) -> None:
        self.reasoning_pieces.append(text)
        self._sink.reasoning(text, logprobs)

    def _on_stop(self, text: str, _logprobs: str | None) -> None:
        self.stop_sequence = text
        self.enter(_FINISHED)

    def _on_reasoning_start(self, _text: str, _logprobs: str | None) -> None:
        self.settle()
        self._pending.skips_newlines = True
        self.enter(Stage.REASONING)

    def _on_no_reasoning_start(self, _text: str, _logprobs: str | None) -> None:
        self.give_up()

    def _on_thinking_end(self, _text: str, _logprobs: str | None) -> None:
        if self._stage is Stage.REASONING:
            self._begin_text()

    def _on_json_open(self, text: str, logprobs: str | None) -> None:
        self.enter(Stage.JSON_BODY)
        self.write(self._sink.content, text, logprobs)

    def _on_fence(self, _text: str, _logprobs: str | None) -> None:
        self.enter(Stage.JSON_BODY)

    def _on_fence_end(self, _text: str, _logprobs: str | None) -> None:
        self.enter(Stage.JSON_TAIL)

    def _content_output(self) -> Output:
        return self._sink.content

    def _reasoning_output(self) -> Output:
        return self._emit_reasoning

    def _blank_output(self) -> Output:
        return self._emit_blank


_TEXT_OUTPUTS: dict[Stage, Callable[[OutputParser], Output]] = {
    Stage.REASONING: OutputParser._reasoning_output,
    Stage.CONTENT: OutputParser._content_output,
    Stage.JSON_SEARCH: OutputParser._blank_output,
    Stage.JSON_BODY: OutputParser._content_output,
    Stage.JSON_TAIL: OutputParser._blank_output,
}
"""Where the text of each stage goes, but for those of tool calls, whose reader knows that."""


_ACTIONS: dict[Hashable, Callable[[OutputParser, str, str | None], None]] = {
    Marker.STOP: OutputParser._on_stop,
    Marker.REASONING_START: OutputParser._on_reasoning_start,
    Marker.NO_REASONING_START: OutputParser._on_no_reasoning_start,
    Marker.THINKING_END: OutputParser._on_thinking_end,
    Marker.JSON_OPEN: OutputParser._on_json_open,
    Marker.FENCE: OutputParser._on_fence,
    Marker.FENCE_END: OutputParser._on_fence_end,
}
"""What each marker of text does; it gets the text of the marker and the log probabilities of the piece it ended in."""


def _starts_in_reasoning(options: ParsingOptions, stage: ThinkingInitialStage) -> bool:
    """Whether the output of thinking mode is reasoning unless it says otherwise."""
    is_open = options.prompt_opens_reasoning or stage is ThinkingInitialStage.ReasoningContinuation
    has_end = options.markup is None or options.markup.reasoning is not None
    return stage.starts_in_reasoning() and is_open and has_end


def _ignore(_text: str, _logprobs: str | None) -> None:
    """Text that is markup, or that comes after the output has ended."""


def _drop(_text: str) -> None:
    """Arguments of a call that is one too many."""
