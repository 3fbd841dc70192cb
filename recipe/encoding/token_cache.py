"""Token IDs of ordinary text, kept by the text.

Whoever sends a conversation again with one message more sends the same stretches again, and stretches between special
tokens are encoded independently. Pieces of a template are kept for good; everything else is kept while it fits a
budget, and what was not asked for longest goes first. IDs are packed (native 32-bit unsigned integers), so that a
prompt is one join of bytes.
"""

from collections import OrderedDict
from collections.abc import Mapping
from sys import getsizeof
from threading import Lock

_OVERHEAD_BYTES = 120
"""What the table itself needs for an entry, roughly."""


class TokenCache:
    """Packed IDs by text. `budget_bytes` bounds what is kept; 0 keeps nothing but the constants."""

    __slots__ = ("_budget_bytes", "_constants", "_kept", "_lock", "hits", "misses", "used_bytes")

    def __init__(self, budget_bytes: int = 0) -> None:
        self._budget_bytes = budget_bytes
        self._constants: dict[str, bytes] = {}
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()
        self.hits = 0
        self.misses = 0
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep_always(self, constants: Mapping[str, bytes]) -> None:
        """Keep the IDs of these texts whatever the budget."""
        self._constants |= constants

    def limit(self, budget_bytes: int) -> None:
        """Set the budget, and drop what no longer fits."""
        with self._lock:
            self._budget_bytes = budget_bytes
            self._shrink()

    def get(self, text: str) -> bytes | None:
        """Return the packed IDs of `text`; None when they are not kept."""
        found = self._constants.get(text)
        if found is not None:
            return found
        found = self._kept.get(text)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        try:
            self._kept.move_to_end(text)
        except KeyError:  # another thread has dropped it meanwhile
            return found
        return found

    def put(self, text: str, packed_ids: bytes) -> None:
        """Keep the packed IDs of `text`, unless they alone are larger than the budget."""
        size = _size_bytes(text, packed_ids)
        with self._lock:
            if size > self._budget_bytes or text in self._kept:
                return
            self._kept[text] = packed_ids
            self.used_bytes += size
            self._shrink()

    def _shrink(self) -> None:
        while self.used_bytes > self._budget_bytes:
            self.used_bytes -= _size_bytes(*self._kept.popitem(last=False))


def _size_bytes(text: str, packed_ids: bytes) -> int:
    return getsizeof(text) + getsizeof(packed_ids) + _OVERHEAD_BYTES
