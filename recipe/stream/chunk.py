"""What the chunks of all protocols have in common: JSON for the wire, and one use in a response."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

ResponseT = TypeVar("ResponseT")


class ProtocolChunk(Generic[ResponseT]):
    """One chunk of a stream. Accumulating it into a response consumes it.

    Abstract, but no `ABC`: every chunk is asked for its type, and an `ABC` answers that in Python.
    """

    __slots__ = ("_consumed",)

    def __init__(self) -> None:
        self._consumed = False

    def to_json(self) -> str:
        """The chunk as it goes over the wire. RuntimeError when it has been consumed."""
        if self._consumed:
            raise RuntimeError("protocol chunk has been consumed")
        return self._json()

    def consume_into(self, response: ResponseT) -> None:
        """Apply the chunk to the response. RuntimeError when it has been consumed."""
        if self._consumed:
            raise RuntimeError("protocol chunk has been consumed")
        self._consumed = True
        self._add_to(response)

    @abstractmethod
    def _json(self) -> str:
        """The JSON text."""

    @abstractmethod
    def _add_to(self, response: ResponseT) -> None:
        """Make the response what it is after this chunk."""
