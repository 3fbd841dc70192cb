r"""Reads a tool call that is written as a JSON object, up to where its arguments begin.

    {"name": "f", "arguments": {          here the call is known, and the arguments pass as they come
    {"arguments": {...}, "name": "f"}     here it is known at its end

The keys come in any order; `parameters` is `arguments`; arguments in a string are decoded. What has arrived is kept
until it is decided, at most `MAX_CHARS` of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from recipe.stream.matcher import Match, Pattern
from recipe.stream.segment import SPECIAL
from recipe.stream.stages import Marker

MAX_CHARS = 65_536
_TOKEN = re.compile(
    r"""\s*(?: (?P<mark>[{}\[\]:,;])
              | (?P<string>"(?:[^"\\]|\\.)*")
              | (?P<word>[^\s{}\[\]:,;"]+)(?=[\s{}\[\]:,;"]))""",
    re.DOTALL | re.VERBOSE,
)
CALL_NAME = re.compile(r"[\w.:/-]{1,128}")
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_BARE_KEYS = _ARGUMENT_KEYS | {"name", "type", "id"}
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}
_NO_CALL = Pattern(Marker.NO_CALL)
_ARGUMENTS_OPEN = Pattern(Marker.ARGUMENTS_OPEN)
_WHOLE_CALL = Pattern(Marker.WHOLE_CALL)


class JsonHead:
    """The beginning of one call. `is_bare`: no marker says that it is one, so the keys must be those of a call.

    `is_open`: the opening brace has been seen. A match has no length. With `ARGUMENTS_OPEN` the arguments go on behind
    their opening brace, with `WHOLE_CALL` the object is over and `arguments` is their JSON text.
    """

    __slots__ = ("_depth", "_expect", "_is_bare", "_key", "_position", "_text", "_value_start", "arguments", "name")
    held = 0
    is_idle = False

    def __init__(self, *, is_bare: bool = False, is_open: bool = False) -> None:
        self._is_bare = is_bare
        self._expect: Callable[[JsonHead, re.Match[str]], Pattern | None]  # takes the next token
        self._expect = JsonHead._key_or_end if is_open else JsonHead._opening
        self._text = ""
        self._position = 0  # behind the last token
        self._key = ""
        self._value_start = 0
        self._depth = 0
        self.name = ""
        self.arguments = ""

    def find_start(self, _text: str) -> object:
        """Every text has to be read."""
        return True

    def scan(self, text: str, origin: int, position: int) -> Match | None:
        """Take in `text` from `position` on, up to where the call is known or it is clear that there is none."""
        if position == len(text):
            return None
        if origin == SPECIAL and not self._is_in_string:
            return Match(_NO_CALL, position, 0)
        offset = position - len(self._text)  # from the head to `text`
        self._text += text[position:]
        while token := _TOKEN.match(self._text, self._position):
            self._position = token.end()
            if self._position > MAX_CHARS:
                break
            if (found := self._expect(self, token)) is not None:
                return Match(found, self._position + offset, 0)
        return Match(_NO_CALL, len(text), 0) if self._is_hopeless else None

    @property
    def _is_in_string(self) -> bool:
        return self._text[self._position :].lstrip().startswith('"')

    @property
    def _is_hopeless(self) -> bool:
        """Whether what cannot be read yet does not begin an object, or is too much."""
        if len(self._text) > MAX_CHARS:
            return True
        return self._expect is JsonHead._opening and self._text[self._position :].strip() != ""

    def _opening(self, token: re.Match[str]) -> Pattern | None:
        if token["mark"] == ";":
            return None  # between two calls
        self._expect = JsonHead._key_or_end
        return None if token["mark"] == "{" else _NO_CALL

    def _key_or_end(self, token: re.Match[str]) -> Pattern | None:
        if token["mark"] == "}":
            return self._end()
        key = _decoded(token["string"])
        if key is None or (self._is_bare and key not in _BARE_KEYS):
            return _NO_CALL
        self._key = key
        self._expect = JsonHead._colon
        return None

    def _colon(self, token: re.Match[str]) -> Pattern | None:
        self._expect = JsonHead._value
        return None if token["mark"] == ":" else _NO_CALL

    def _value(self, token: re.Match[str]) -> Pattern | None:
        if token["mark"] == "{" and self._key in _ARGUMENT_KEYS and self.name:
            return _ARGUMENTS_OPEN
        self._value_start = token.start(token.lastgroup or 0)
        if token["mark"] is None:
            return self._end_value(token)
        self._depth = _DEPTHS.get(token["mark"], 0)
        self._expect = JsonHead._nested
        return None if self._depth == 1 else _NO_CALL

    def _nested(self, token: re.Match[str]) -> Pattern | None:
        self._depth += _DEPTHS.get(token["mark"] or "", 0)
        return None if self._depth else self._end_value(token)

    def _end_value(self, token: re.Match[str]) -> Pattern | None:
        value = self._text[self._value_start : token.end()]
        self._expect = JsonHead._comma_or_end
        if self._key == "name":
            name = _decoded(value) or ""
            self.name = name if CALL_NAME.fullmatch(name) else ""
            return None if self.name else _NO_CALL
        if self._key in _ARGUMENT_KEYS:
            self.arguments = _arguments(value)
            return None if self.arguments else _NO_CALL
        return None

    def _comma_or_end(self, token: re.Match[str]) -> Pattern | None:
        self._expect = JsonHead._key_or_end
        if token["mark"] == "}":
            return self._end()
        return None if token["mark"] == "," else _NO_CALL

    def _end(self) -> Pattern:
        """The object is over."""
        if not self.name or (self._is_bare and not self.arguments):
            return _NO_CALL
        self.arguments = self.arguments or "{}"
        return _WHOLE_CALL


def _decoded(value: str | None) -> str | None:
    """The text of a JSON string; None for anything else."""
    try:
        text = json.loads(value or "", strict=False)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _arguments(value: str) -> str:
    """The JSON text of complete arguments, "" for what cannot be any."""
    if value == "null":
        return "{}"
    text = _decoded(value) if value.startswith('"') else value
    return text if text and text.lstrip().startswith("{") else ""
