"""The content blocks of a Messages response, as far as they have come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from json.encoder import encode_basestring as json_string

from recipe.protocol.call_arguments import arguments_json


class AccumulatedBlock(ABC):
    """A content block that grows piece by piece."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        """Append a piece."""
        self._pieces.append(text)

    @abstractmethod
    def to_json(self) -> str:
        """The block as JSON."""

    def _text(self) -> str:
        return "".join(self._pieces)


class ThinkingBlock(AccumulatedBlock):
    """Reasoning, with a signature at its end."""

    __slots__ = ("_signature",)

    def __init__(self) -> None:
        super().__init__()
        self._signature = ""

    def sign(self, signature: str) -> None:
        """Set the signature."""
        self._signature = signature

    def to_json(self) -> str:
        return (
            f'{{"type":"thinking","thinking":{json_string(self._text())},"signature":{json_string(self._signature)}}}'
        )


class TextBlock(AccumulatedBlock):
    """A part of the answer."""

    __slots__ = ()

    def to_json(self) -> str:
        return f'{{"type":"text","text":{json_string(self._text())}}}'


class ToolUseBlock(AccumulatedBlock):
    """A tool call; input that is no JSON, as when it was cut off, is shown as an empty object."""

    __slots__ = ("_call_id", "_name")

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__()
        self._call_id = call_id
        self._name = name

    def to_json(self) -> str:
        arguments = arguments_json(self._text()) or "{}"
        return f'{{"type":"tool_use","id":"{self._call_id}","name":{json_string(self._name)},"input":{arguments}}}'
