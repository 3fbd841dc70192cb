"""What the chunk generators of all protocols have in common: one stream each, and the chunks made so far."""

from __future__ import annotations

from typing import Generic, TypeVar

ChunkT = TypeVar("ChunkT")


class ChunkQueue(Generic[ChunkT]):
    """The output side of a generator. A stream, or a method that makes another generator, consumes it once."""

    __slots__ = ("_chunks", "_consumed")

    def __init__(self) -> None:
        self._chunks: list[ChunkT] = []
        self._consumed = False

    def consume(self) -> None:
        """Take the generator. RuntimeError when it has been taken before."""
        if self._consumed:
            raise RuntimeError("chunk generator has been consumed")
        self._consumed = True

    def take(self) -> list[ChunkT]:
        """The chunks made since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks
