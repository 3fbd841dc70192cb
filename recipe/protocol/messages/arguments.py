"""The input of a tool call as argument text: JSON with `: ` and `, `, non-ASCII kept, floats as Rust spells them."""

from __future__ import annotations

import json
import re
from decimal import Decimal

from recipe.json_value import JsonValue

_encode = json.JSONEncoder(ensure_ascii=False).encode
_STRING_OR_SMALL_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d(?:\.\d+)?e-0\d')


def argument_text(value: JsonValue) -> str:
    """`value` as argument text. Python and Rust spell a float alike but for the exponents -5 to -9."""
    text = _encode(value)
    return _STRING_OR_SMALL_FLOAT.sub(_respell, text) if "e-0" in text else text


def _respell(match: re.Match[str]) -> str:
    token = match[0]
    if token.startswith('"'):
        return token
    return f"{Decimal(token):f}" if token.endswith("e-05") else token.replace("e-0", "e-")
