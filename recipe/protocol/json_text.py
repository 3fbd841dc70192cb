"""Compact JSON text, spelled as the reference spells it: no spaces, non-ASCII kept, `1e+22` for a large float."""

from __future__ import annotations

import re

import msgspec

from recipe.json_value import JsonValue

_POSITIVE_EXPONENT = re.compile(rb"\de\d")


def compact_json(value: JsonValue) -> str:
    """`value` as compact JSON."""
    text = msgspec.json.encode(value)
    if _POSITIVE_EXPONENT.search(text):
        text = msgspec.json.encode(_spell_floats(value))
    return text.decode()


def _spell_floats(value: JsonValue) -> JsonValue:
    """`value` with its floats as JSON text."""
    if isinstance(value, float):
        return msgspec.Raw(_POSITIVE_EXPONENT.sub(_signed, msgspec.json.encode(value)))
    if isinstance(value, dict):
        return {key: _spell_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_spell_floats(item) for item in value]
    return value


def _signed(exponent: re.Match[bytes]) -> bytes:
    return exponent[0].replace(b"e", b"e+")
