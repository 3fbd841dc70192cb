"""Finds the end of a JSON object that arrives in pieces, from behind its opening brace on.

Only brackets, strings and escapes count, so damaged JSON passes as it is. A marker ends the object before its time:
outside strings in any spelling, inside them as a token alone.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from recipe.stream.matcher import Match, Matcher, Pattern, PatternSet, any_of
from recipe.stream.segment import SPECIAL
from recipe.stream.stages import Marker

_STRUCTURE = re.compile(r'[{}\[\]"]')
_STRING_STOP = re.compile(r'["\\]')
_STOPS = frozenset('{}[]"\\')
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}
_OBJECT_END = Pattern(Marker.OBJECT_END)


class _Place(Enum):
    OUTSIDE = auto()
    STRING = auto()
    ESCAPE = auto()  # right behind a backslash in a string


class JsonScanner:
    """The state of one search. `held` is how many characters at the end of the text so far may begin a marker."""

    __slots__ = ("_depth", "_markers", "_place", "find_start")

    def __init__(self, markers: PatternSet) -> None:
        self._markers = Matcher(markers)
        self.find_start = any_of(_STOPS | markers.first).search
        self._depth = 1
        self._place = _Place.OUTSIDE

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, so that text without a quote, a bracket or the start of a marker passes."""
        return self._place is not _Place.ESCAPE and not self.held

    @property
    def held(self) -> int:
        return self._markers.held if self._place is _Place.OUTSIDE else 0

    def scan(self, text: str, origin: int, position: int) -> Match | None:
        """Take in `text` from `position` on, up to the end of the object (a match without length) or a marker."""
        if self._place is not _Place.OUTSIDE and origin == SPECIAL and position < len(text):
            self._place = _Place.STRING
            self._markers.forget()
            return self._markers.scan(text, origin, position)
        while position < len(text):
            if self._place is not _Place.OUTSIDE:
                position = self._pass_string(text, position)
                continue
            found = _STRUCTURE.search(text, position)
            stop = found.end() if found else len(text)
            if match := self._markers.scan(text, origin, position, stop):
                return match
            position = stop
            if found and self._closes(found[0]):
                return Match(_OBJECT_END, position, 0)
        return None

    def _closes(self, character: str) -> bool:
        """Take in a quote or a bracket; whether that closes the object."""
        if character == '"':
            self._place = _Place.STRING
            self._markers.forget()
            return False
        self._depth += _DEPTHS[character]
        return not self._depth

    def _pass_string(self, text: str, position: int) -> int:
        """The position up to which the text belongs to the string or to its end."""
        if self._place is _Place.ESCAPE:
            self._place = _Place.STRING
            return position + 1
        stop = _STRING_STOP.search(text, position)
        if stop is None:
            return len(text)
        self._place = _Place.OUTSIDE if stop[0] == '"' else _Place.ESCAPE
        return stop.end()
