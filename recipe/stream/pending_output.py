"""Text that has been taken in but not given out, in the pieces in which it arrived.

A piece is given out as a whole, once no part of it can belong to a marker, so that every piece of output
corresponds to what the model produced in one step. A piece without text follows the text before it; directly after
a marker it vanishes.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

Piece = tuple[str, str | None]
"""A text, and the log probabilities of the tokens it arrived with."""


class _Flow(Enum):
    FRESH = auto()  # the start of the output: pieces without text wait
    AFTER_MARKER = auto()  # pieces without text vanish
    FLOWING = auto()  # pieces without text pass


_FRESH, _AFTER_MARKER, _FLOWING = _Flow


class PendingOutput:
    """The queue between matcher and output. `skips_newlines` drops the newlines that the output would begin with."""

    __slots__ = ("_flow", "_pieces", "length", "skips_newlines")

    def __init__(self, skips_newlines: bool) -> None:
        self._pieces: deque[Piece] = deque()
        self._flow = _FRESH
        self.length = 0  # characters queued
        self.skips_newlines = skips_newlines

    @property
    def passes(self) -> bool:
        """Whether a piece without a possible marker would come out at once and unchanged."""
        return self._flow is _FLOWING and not self._pieces

    def add(self, text: str, logprobs: str | None) -> None:
        """Queue a piece."""
        if text or self._pieces or self._flow is not _AFTER_MARKER:
            self._pieces.append((text, logprobs))
            self.length += len(text)

    def release(self, decided: int) -> list[Piece]:
        """Take the pieces that end within the first `decided` characters."""
        released: list[Piece] = []
        if not decided and self._flow is not _FLOWING:
            return released
        while self._pieces and len(self._pieces[0][0]) <= decided:
            text, logprobs = self._pieces.popleft()
            decided -= len(text)
            self.length -= len(text)
            self._give(text, logprobs, released)
        return released

    def tail(self, length: int) -> list[Piece]:
        """The pieces of the last `length` characters; the log probabilities of one that begins before go with them."""
        skipped = self.length - length
        tail: list[Piece] = []
        for text, logprobs in self._pieces:
            if kept := text[skipped:]:
                tail.append((kept, logprobs))
            skipped = max(0, skipped - len(text))
        return tail

    def cut(self, start: int, skips_newlines: bool) -> list[Piece]:
        """Take the text before a marker that begins at `start`; the rest of the queue is the marker and is dropped.

        `skips_newlines` tells whether the output after it may begin with newlines.
        """
        queued = self.length
        released = self.release(start)
        before_marker = start - (queued - self.length)
        if before_marker:
            text, logprobs = self._pieces[0]
            self._give(text[:before_marker], logprobs, released)
        self._pieces.clear()
        self.length = 0
        self._flow = _AFTER_MARKER
        self.skips_newlines = skips_newlines
        return released

    def _give(self, text: str, logprobs: str | None, released: list[Piece]) -> None:
        """Append a piece to the output, without the newlines it must not begin with."""
        if self.skips_newlines:
            kept = text.lstrip("\n")
            if len(kept) < len(text):
                released.clear()  # pieces without text
                self._flow = _AFTER_MARKER
            if not kept and self._flow is _AFTER_MARKER:
                return
            self.skips_newlines = not kept
            text = kept
        if text:
            self._flow = _FLOWING
        released.append((text, logprobs))
