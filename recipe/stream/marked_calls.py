"""Reads tool calls whose arguments are JSON: it finds the name, and the arguments pass as they come.

    a call opens    ► call head, call block or call name, as the markup has it; until the arguments open all of it is an
                      attempt: what does not become a call is text
    call block      a call opens ► call type        calls end ► content
    call type       the separator ► call name
    call head       a JSON object, see `json_head`: its arguments open ► call arguments
    call name       { ► call arguments      [ ► call head       a marker behind the name ► call middle
    call middle     { ► call arguments
    call arguments  the object ends ► call rest where it is part of an object, else what comes behind a call
    call rest       the outer object ends ► what comes behind a call
    call after      a call opens ► the next one     calls end ► content

A call is known when its arguments open. From then on it stays one: damaged JSON passes as it is, up to the marker that
ends the call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from recipe.stream.call_patterns import CallPatterns
from recipe.stream.json_head import CALL_NAME, JsonHead
from recipe.stream.json_scanner import JsonScanner
from recipe.stream.stages import Marker, Output, Stage

if TYPE_CHECKING:
    from recipe.stream.parser import OutputParser


class MarkedCalls:
    """The reader of the calls of one stream."""

    __slots__ = ("_head", "_is_in_list", "_is_in_object", "_name", "_parser", "_patterns", "_tries_text")

    def __init__(self, parser: OutputParser, patterns: CallPatterns, parse_tool_calls: bool) -> None:
        self._parser = parser
        self._patterns = patterns
        self._tries_text = patterns.is_bare and parse_tool_calls
        self._head = JsonHead()  # of the last call that is an object
        self._is_in_object = False  # whether the arguments are
        self._is_in_list = False  # whether the call is
        self._name = ""  # what stood where the name may be

    def begin_text(self) -> None:
        """The answer begins, which may be a call."""
        if self._tries_text:
            self._attempt_head()

    def output(self, stage: Stage, default: Output) -> Output:
        """Where the text of a stage goes."""
        return self._emit_arguments if stage is Stage.CALL_ARGUMENTS else default

    def act(self, marker: Hashable, text: str) -> None:
        """Do what a marker asks for."""
        _ACTIONS[marker](self, text)

    def _emit_arguments(self, text: str, _logprobs: str | None) -> None:
        self._parser.arguments(text)

    def _attempt_head(self, *, is_open: bool = False) -> None:
        """Read a call that is a JSON object."""
        self._head = JsonHead(is_bare=self._patterns.is_bare, is_open=is_open)
        self._parser.attempt(Stage.CALL_HEAD, self._head)

    def _begin_arguments(self, name: str, *, is_in_object: bool) -> None:
        if not CALL_NAME.fullmatch(name):
            self._parser.give_up()
            return
        self._is_in_object = is_in_object
        self._parser.begin_call(name)
        self._parser.write(self._parser.arguments, "{")
        self._parser.enter(Stage.CALL_ARGUMENTS, JsonScanner(self._patterns.ends))

    def _end_call(self) -> None:
        """Go on behind a call."""
        stage = Stage.CALL_AFTER if self._is_in_list else self._patterns.next
        if stage is Stage.CALL_HEAD:
            self._attempt_head()
        elif stage is None:
            self._parser.resume_text()
        else:
            self._parser.enter(stage)

    def _on_calls_open(self, _text: str) -> None:
        self._is_in_list = False
        self._name = ""
        if self._patterns.first is Stage.CALL_HEAD:
            self._attempt_head()
        else:
            self._parser.attempt(self._patterns.first)

    def _on_calls_end(self, _text: str) -> None:
        self._parser.settle()
        self._parser.resume_text()

    def _on_call_open(self, _text: str) -> None:
        self._parser.attempt(Stage.CALL_TYPE)

    def _on_call_end(self, _text: str) -> None:
        self._parser.enter(Stage.CALL_AFTER)

    def _on_list_open(self, text: str) -> None:
        """A list of calls, or, behind a name, a marker that is no token."""
        if self._parser.attempted_text.strip():
            self._on_name_end(text)
            return
        self._is_in_list = True
        self._attempt_head()

    def _on_list_next(self, _text: str) -> None:
        self._attempt_head()

    def _on_type_end(self, _text: str) -> None:
        self._name = self._parser.attempted_text.strip()
        self._parser.enter(Stage.CALL_NAME)

    def _on_name_end(self, _text: str) -> None:
        self._name = self._parser.attempted_text.strip()
        self._parser.enter(Stage.CALL_MIDDLE)

    def _on_brace(self, _text: str) -> None:
        """The arguments, or, without a name before them, the whole call."""
        first_line = self._parser.attempted_text.strip().partition("\n")[0].strip()
        name = (first_line if self._parser.stage is Stage.CALL_NAME else "") or self._name
        if name:
            self._begin_arguments(name, is_in_object=False)
        else:
            self._attempt_head(is_open=True)

    def _on_arguments_open(self, _text: str) -> None:
        self._begin_arguments(self._head.name, is_in_object=True)

    def _on_whole_call(self, _text: str) -> None:
        self._parser.begin_call(self._head.name)
        self._parser.write(self._parser.arguments, self._head.arguments)
        self._end_call()

    def _on_no_call(self, _text: str) -> None:
        self._parser.give_up()

    def _on_object_end(self, _text: str) -> None:
        if self._parser.stage is Stage.CALL_ARGUMENTS and self._is_in_object:
            self._parser.enter(Stage.CALL_REST, JsonScanner(self._patterns.ends))
        else:
            self._end_call()


_ACTIONS: dict[Hashable, Callable[[MarkedCalls, str], None]] = {
    Marker.CALLS_OPEN: MarkedCalls._on_calls_open,
    Marker.CALLS_END: MarkedCalls._on_calls_end,
    Marker.CALL_OPEN: MarkedCalls._on_call_open,
    Marker.CALL_END: MarkedCalls._on_call_end,
    Marker.LIST_OPEN: MarkedCalls._on_list_open,
    Marker.LIST_NEXT: MarkedCalls._on_list_next,
    Marker.TYPE_END: MarkedCalls._on_type_end,
    Marker.NAME_END: MarkedCalls._on_name_end,
    Marker.BRACE: MarkedCalls._on_brace,
    Marker.ARGUMENTS_OPEN: MarkedCalls._on_arguments_open,
    Marker.WHOLE_CALL: MarkedCalls._on_whole_call,
    Marker.NO_CALL: MarkedCalls._on_no_call,
    Marker.OBJECT_END: MarkedCalls._on_object_end,
}
"""What each marker does; it gets the text of the marker."""
