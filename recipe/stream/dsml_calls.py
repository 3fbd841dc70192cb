"""Reads tool calls in DSML, whose arguments are tags: it writes the JSON around what stands in them.

tool block      invoke name=" ► tool name       </DSML calls> ► finished
tool name       " ► arguments
arguments       parameter name= ► argument name     </DSML ► tool block
argument name   a space ► argument kind
argument kind   true"> ► string value           false"> ► JSON value
either value    </DSML ► arguments
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from json.encoder import encode_basestring as json_string
from typing import TYPE_CHECKING

from recipe.stream.stages import Marker, Output, Stage

if TYPE_CHECKING:
    from recipe.stream.parser import OutputParser


class DsmlCalls:
    """The reader of the calls of one stream."""

    __slots__ = ("_has_arguments", "_name", "_parser")

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._has_arguments = False  # of the current call
        self._name: list[str] = []

    def begin_text(self) -> None:
        """The answer begins; calls have an opening of their own."""

    def output(self, stage: Stage, default: Output) -> Output:
        """Where the text of a stage goes."""
        emit = _OUTPUTS.get(stage)
        return default if emit is None else partial(emit, self)

    def act(self, marker: Hashable, text: str) -> None:
        """Do what a marker asks for."""
        _ACTIONS[marker](self, text)

    def _emit_name(self, text: str, _logprobs: str | None) -> None:
        self._name.append(text)

    def _emit_string(self, text: str, _logprobs: str | None) -> None:
        self._parser.arguments(json_string(text)[1:-1])

    def _emit_raw(self, text: str, _logprobs: str | None) -> None:
        self._parser.arguments(text)

    def _write(self, text: str) -> None:
        self._parser.write(self._parser.arguments, text)

    def _on_tool_block(self, _text: str) -> None:
        self._parser.enter(Stage.TOOL_BLOCK)

    def _on_invoke(self, _text: str) -> None:
        self._parser.enter(Stage.TOOL_NAME)

    def _on_tool_name_end(self, _text: str) -> None:
        self._parser.begin_call("".join(self._name))
        self._name.clear()
        self._has_arguments = False
        self._parser.enter(Stage.ARGUMENTS)

    def _on_tool_block_end(self, _text: str) -> None:
        self._parser.enter(Stage.FINISHED)

    def _on_parameter(self, _text: str) -> None:
        self._write(", " if self._has_arguments else "{")
        self._has_arguments = True
        self._parser.enter(Stage.ARGUMENT_NAME)

    def _on_argument_name_end(self, _text: str) -> None:
        self._write(": ")
        self._parser.enter(Stage.ARGUMENT_KIND)

    def _on_string_kind(self, _text: str) -> None:
        self._write('"')
        self._parser.enter(Stage.STRING_VALUE)

    def _on_json_kind(self, _text: str) -> None:
        self._parser.enter(Stage.JSON_VALUE)

    def _on_tag_end(self, _text: str) -> None:
        """A closing tag ends the innermost thing that is open: a value, else the call."""
        if self._parser.stage is Stage.ARGUMENTS:
            self._write("}" if self._has_arguments else "{}")
            self._parser.enter(Stage.TOOL_BLOCK)
            return
        if self._parser.stage is Stage.STRING_VALUE:
            self._write('"')
        self._parser.enter(Stage.ARGUMENTS)


_OUTPUTS: dict[Stage, Callable[[DsmlCalls, str, str | None], None]] = {
    Stage.TOOL_NAME: DsmlCalls._emit_name,
    Stage.ARGUMENT_NAME: DsmlCalls._emit_raw,
    Stage.STRING_VALUE: DsmlCalls._emit_string,
    Stage.JSON_VALUE: DsmlCalls._emit_raw,
}

_ACTIONS: dict[Hashable, Callable[[DsmlCalls, str], None]] = {
    Marker.TOOL_BLOCK: DsmlCalls._on_tool_block,
    Marker.INVOKE: DsmlCalls._on_invoke,
    Marker.TOOL_NAME_END: DsmlCalls._on_tool_name_end,
    Marker.TOOL_BLOCK_END: DsmlCalls._on_tool_block_end,
    Marker.PARAMETER: DsmlCalls._on_parameter,
    Marker.ARGUMENT_NAME_END: DsmlCalls._on_argument_name_end,
    Marker.STRING_KIND: DsmlCalls._on_string_kind,
    Marker.JSON_KIND: DsmlCalls._on_json_kind,
    Marker.TAG_END: DsmlCalls._on_tag_end,
}
"""What each marker does; it gets the text of the marker."""
