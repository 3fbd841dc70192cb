"""Beginnings of JSON texts that have been looked through before.

Whoever sends a conversation again with one message more sends the same text again, up to near its end. What was found
out about a beginning that ends outside of a string holds for every text that begins so: the state of a JSON reader
depends on what it has read alone.
"""

MIN_BYTES = 1 << 14
"""Shorter beginnings are looked through again, which takes as long as to find them."""

_BUDGET_BYTES = 4 << 20
_MAX_KEPT = 64
_MESSAGES_LEFT_OUT = 3
"""The last messages may come back changed: clients move the marks that tell where to cache."""
_MESSAGE_STARTS = (b'{"role"', b'{"type"')


class KnownBeginnings:
    """The beginnings of the texts that came last, at most 64 of at most `budget_bytes` together. Threads may share it:
    of two that add at the same time one may be forgotten.
    """

    __slots__ = ("_budget_bytes", "_kept")

    def __init__(self, budget_bytes: int = _BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._kept: tuple[bytes, ...] = ()

    def length(self, text: bytes) -> int:
        """How many bytes of `text` are known, 0 for none."""
        if len(text) < MIN_BYTES:
            return 0
        return next((len(known) for known in reversed(self._kept) if text.startswith(known)), 0)

    def add(self, text: bytes) -> None:
        """Keep what stands before the last messages of a valid JSON text, in place of what it is longer than."""
        end = _end_of_beginning(text) if len(text) >= MIN_BYTES else 0
        if not MIN_BYTES <= end <= self._budget_bytes:
            return
        beginning = text[:end]
        others = [known for known in self._kept if not beginning.startswith(known)][1 - _MAX_KEPT :]
        room = self._budget_bytes - end
        while sum(map(len, others)) > room:
            del others[0]
        self._kept = (*others, beginning)


def _end_of_beginning(text: bytes) -> int:
    """The place behind the brace that opens the third last message, 0 if that is not to be seen.

    A quote before a letter opens a string, so the brace in front of it stands outside of strings. With the brace a
    beginning does not end where a number could go on or start.
    """
    for start in _MESSAGE_STARTS:
        end = len(text)
        for _ in range(_MESSAGES_LEFT_OUT):
            end = max(text.rfind(start, 0, end), 0)
        if end:
            return end + 1
    return 0
