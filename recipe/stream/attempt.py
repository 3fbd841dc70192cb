"""Output that may turn out to be markup: kept until that is clear, then dropped, or read again as what it is."""

from __future__ import annotations

from collections.abc import Callable

from recipe.stream.pending_output import Piece
from recipe.stream.segment import Segment

MAX_TEXT_CHARS = 256
"""How much text may stand between two markers of a call."""


class Attempt:
    """What has come since the output could be markup. `fallback` enters the stage in which it is read again.

    `opening` is the marker that it began with, which stays text then. `text` is what came since the last marker.
    """

    __slots__ = ("fallback", "is_over", "opening", "segments", "text")

    def __init__(self, fallback: Callable[[], None]) -> None:
        self.fallback = fallback
        self.opening: list[Piece] = []
        self.segments: list[Segment] = []
        self.text = ""
        self.is_over = False
