"""JSON data, from text and from Python values.

`parse_json` reads JSON text with the number model of the wire: integers that fit i64 or u64, floats for all others.
`json_value` turns what a caller built in Python (dict, list, tuple, str, bool, int, float, None) into plain JSON data,
or says what is not JSON about it.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

JsonValue: TypeAlias = Any
"""None, bool, int, float, str, list of them, or dict from str to them."""

MAX_DEPTH = 128
_INT_RANGE = range(-(2**63), 2**64)
_DELICATE_INTEGER = re.compile(r"-0|[0-9]{19}")


def parse_json(text: str) -> JsonValue:
    """Parse one JSON text; of duplicate keys the last value wins.

    Raises ValueError for what is not JSON, numbers out of range and lone surrogates included, or nests deeper than 127.
    """
    try:
        value = msgspec.json.decode(text)
        if _DELICATE_INTEGER.search(text):
            value = json.loads(text, parse_int=_wire_integer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if text.count("[") + text.count("{") >= MAX_DEPTH and _depth(value) >= MAX_DEPTH:
        raise ValueError("recursion limit exceeded")
    return value


def json_value(value: object) -> JsonValue:
    """Return `value` as new JSON data, tuples as lists and subclasses as their plain types.

    Raises TypeError for a type that JSON lacks or a key that is no string, ValueError for NaN and infinities,
    OverflowError for an integer outside i64 and u64, UnicodeEncodeError for a lone surrogate, RecursionError past 128
    nested containers.
    """
    return _convert(value, MAX_DEPTH)


def utf8_str(text: str) -> str:
    """Return `text` as a plain str; a lone surrogate raises UnicodeEncodeError."""
    if not text.isascii():
        text.encode()
    return text if type(text) is str else str.__str__(text)


def _convert(value: object, depth_left: int) -> JsonValue:
    if value is None or value is True or value is False:
        return value
    for kind, convert in _SCALARS:
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, dict | list | tuple):
        if depth_left == 0:
            raise RecursionError(f"JSON input exceeds the maximum nesting depth of {MAX_DEPTH}")
        return _container(value, depth_left - 1)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _container(value: dict[Any, Any] | list[Any] | tuple[Any, ...], depth_left: int) -> JsonValue:
    if not isinstance(value, dict):
        return [_convert(item, depth_left) for item in value]
    return {_key(key): _convert(item, depth_left) for key, item in value.items()}


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError("JSON object keys must be str")
    return utf8_str(key)


def _integer(value: int) -> int:
    number = int(value)  # a subclass would be searched in the range one by one
    if number not in _INT_RANGE:
        raise OverflowError("integer is outside the JSON number range")
    return number


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{_non_finite_name(value)} is not a finite JSON number")
    return float(value)


def _non_finite_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _wire_integer(digits: str) -> int | float:
    if digits == "-0" or len(digits) > 20 or int(digits) not in _INT_RANGE:
        number = float(digits)
        if math.isinf(number):
            raise ValueError("number out of range")
        return number
    return int(digits)


def _depth(value: JsonValue) -> int:
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


_SCALARS: tuple[tuple[type, Callable[[Any], JsonValue]], ...] = ((str, utf8_str), (int, _integer), (float, _float))
