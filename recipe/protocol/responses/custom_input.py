"""The input of a custom tool, out of the JSON arguments of its call.

The model calls a custom tool with one string parameter named `input`. Its text is decoded piece by piece as the
argument text comes in. Arguments of another shape are passed on as they are, and so is an escape that means
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_HEAD = re.compile(r'\{[ \t\n\r]*"input"[ \t\n\r]*:[ \t\n\r]*"')
_COMPACT_HEAD = '{"input":"'
_HEX = "[0-9a-fA-F]"
_CODE_UNIT = rf"u(?:{_HEX}{{4}}|{_HEX}{{0,3}}[^0-9a-fA-F])"  # of a wrong one, up to the character that is wrong
_HIGH_SURROGATE = rf"u[dD][89abAB]{_HEX}{{2}}"
_RUN_OR_ESCAPE = re.compile(
    rf'[^"\\]+|\\(?:[^u]|{_HIGH_SURROGATE}(?:[^\\]|\\(?:[^u]|{_CODE_UNIT}))|(?!{_HIGH_SURROGATE}){_CODE_UNIT})',
    re.DOTALL,
)


class CustomInput:
    """Decodes the arguments of one call."""

    __slots__ = ("_feed", "_held")

    def __init__(self) -> None:
        self._held = ""  # argument text that cannot be judged yet
        self._feed: Callable[[str], str] = self._begin

    def feed(self, text: str) -> str:
        """The input that a piece of argument text brings."""
        return self._feed(text)

    def end(self) -> str:
        """What was held, now that nothing more comes."""
        held, self._held = self._held, ""
        return held

    def _begin(self, text: str) -> str:
        """Decide whether the arguments are a text input."""
        head = self._held + text
        self._held = ""
        if (match := _HEAD.match(head)) is not None:
            self._feed = self._decode
            return self._decode(head[match.end() :])
        if _COMPACT_HEAD.startswith("".join(head.split())):
            self._held = head
            return ""
        self._feed = _as_it_is
        return head

    def _decode(self, text: str) -> str:
        """Decode the inside of a JSON string, holding an unfinished escape."""
        text = self._held + text
        position = 0
        decoded = []
        while match := _RUN_OR_ESCAPE.match(text, position):
            decoded.append(_unescaped(match[0]) if match[0].startswith("\\") else match[0])
            position = match.end()
        self._held = text[position:]
        if self._held.startswith('"'):
            self._held = ""
            self._feed = _nothing
        return "".join(decoded)


def _unescaped(escape: str) -> str:
    try:
        character: str = json.loads(f'"{escape}"')
        character.encode()
    except ValueError:  # no escape, or a surrogate without its other half
        return escape
    return character


def _as_it_is(text: str) -> str:
    return text


def _nothing(_text: str) -> str:
    return ""
