"""Tells whether output begins with a marker, white space aside."""

from __future__ import annotations

from recipe.stream.matcher import Literal, Match, Pattern
from recipe.stream.segment import ANY, SPECIAL
from recipe.stream.stages import Marker

_FOUND = Pattern(Marker.REASONING_START)
_ABSENT = Pattern(Marker.NO_REASONING_START)


class LeadingMarker:
    """One look at the beginning of an output. A match has no length: what was read is markup, or is read again."""

    __slots__ = ("_is_special", "_marker", "_seen")
    held = 0
    is_idle = False

    def __init__(self, marker: Literal) -> None:
        self._marker = marker.text
        self._is_special = marker.special
        self._seen = ""  # of the marker

    def find_start(self, _text: str) -> object:
        """Every text has to be read."""
        return True

    def scan(self, text: str, origin: int, position: int) -> Match | None:
        """Take in `text` from `position` on, up to the end of the marker or to where it is clear that there is none."""
        seen = (self._seen + text[position:]).lstrip()
        if not seen:
            return None
        if origin != ANY and (origin == SPECIAL) is not self._is_special:
            return Match(_ABSENT, len(text), 0)
        if seen.startswith(self._marker):
            return Match(_FOUND, len(text) - len(seen) + len(self._marker), 0)
        if not self._marker.startswith(seen):
            return Match(_ABSENT, len(text), 0)
        self._seen = seen
        return None
