"""JSON text as prompts contain it: in the style of Python's json.dumps, with non-ASCII characters as they are.

The two encodings differ in small floats: V4.1 writes them like Python (1e-05, 1e-06), V4 without padding of the
exponent and with one more plain decade (0.00001, 1e-6).
"""

import json
import re

import msgspec

from recipe.json_value import JsonValue

_of_any_value = json.JSONEncoder(ensure_ascii=False).encode
_compact = msgspec.json.Encoder().encode
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_STRING_OR_SMALL_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|(-?)([0-9])(?:\.([0-9]+))?e-0([0-9])')


def python_json(value: JsonValue) -> str:
    """Return the JSON text of a value: separators ", " and ": ", key order kept, floats by their repr."""
    compact = _compact(value)
    digits = compact.translate(_DIGITS)
    if b"0." in digits or b"0e" in digits:  # perhaps a float
        return _of_any_value(value)
    return msgspec.json.format(compact, indent=0).decode()


def short_exponent_json(value: JsonValue) -> str:
    """Return the same text as `python_json`, with exponents unpadded and 1e-05 written out."""
    text = python_json(value)
    return _STRING_OR_SMALL_FLOAT.sub(_rewrite, text) if "e-0" in text else text


def _rewrite(match: re.Match[str]) -> str:
    sign, digit, fraction, exponent = match.groups()
    if digit is None:
        return match.group()
    if exponent == "5":
        return f"{sign}0.0000{digit}{fraction or ''}"
    return f"{sign}{digit}{'.' + fraction if fraction else ''}e-{exponent}"
