"""The input of a custom tool, out of the JSON arguments of its call.

The model calls a custom tool with one string parameter named `input`. Its text is decoded piece by piece as the argument text
comes in; arguments of another shape are passed on as they are.
"""

from __future__ import annotations

import json

_PREFIX = '{"input": "'


class CustomInput:
    """Decodes the arguments of one call."""

    __slots__ = ("_head", "_is_over", "_is_text")

    def __init__(self) -> None:
        self._head: str | None = ""  # argument text that may still be the beginning of a text input
        self._is_text = False
        self._is_over = False

    def feed(self, text: str) -> str | None:
        """The input that a piece of argument text brings; None when it brings none yet."""
        if self._head is not None:
            return self._begin(self._head + text)
        if not self._is_text:
            return text
        if text == '"':
            self._is_over = True
        return None if self._is_over else json.loads(f'"{text}"')

    def end(self) -> str | None:
        """What was held because the arguments ended within the beginning."""
        head, self._head = self._head, None
        return head or None

    def _begin(self, head: str) -> str | None:
        if head == _PREFIX:
            self._head = None
            self._is_text = True
            return None
        if _PREFIX.startswith(head):
            self._head = head
            return None
        self._head = None
        return head
