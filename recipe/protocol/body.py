"""Request bodies: bytes, text or a Python dict, decoded into the typed schema of a protocol.

Bytes and text take the fast road: one typed msgspec pass. What that pass does not see of strict JSON is looked for with
a few C-speed scans (encoding, nesting depth, numbers that integers or doubles cannot hold), not again in a beginning
that has passed before; only a body that shows one of them, or that fails, is parsed again, generically, for an exact
value or an exact reason. Errors name the path of the field.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec.inspect import Type, type_info

from recipe.json_value import json_value
from recipe.protocol.known_beginning import MIN_BYTES, KnownBeginnings
from recipe.protocol.spelling import first_spelling

RequestBody: TypeAlias = bytes | str | dict[str, Any]
T = TypeVar("T")

MAX_DEPTH = 127  # nested arrays and objects of a JSON text

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
# Numbers that a typed pass may not take at their exact JSON value: -0, and, with every digit written as 0, integers
# that may need more than 64 bits and exponents that may leave the range of a double.
_MINUS_ZERO = re.compile(rb"-0(?<=[:\[,\s]-0)(?![.\deE])")
_LONG_NUMBER = b"0" * 19
_LONG_EXPONENT = re.compile(rb"0e\+?0000*[\s,\]}]")

_known = KnownBeginnings()
"""What has been found plain."""


class BodyDecoder(Generic[T]):
    """Decodes bodies into `schema`, a msgspec Struct.

    Raises ValueError: `invalid JSON request: ...` for what is no JSON, `invalid request body: ...` for JSON of another
    shape. A Python object that is no JSON raises what `json_value` raises.
    """

    __slots__ = ("_decode", "_schema", "_structure")

    def __init__(self, schema: type[T]) -> None:
        self._schema = schema
        self._decode = msgspec.json.Decoder(schema).decode
        self._structure: Type | None = None  # of the schema, once a body fails

    def decode(self, body: RequestBody) -> T:
        """The body as the schema; unknown fields are ignored, of duplicate keys the last counts."""
        if isinstance(body, str):
            return self._from_json(body.encode())
        if isinstance(body, bytes):
            return self._from_json(body)
        return self._from_value(json_value(body))

    def _from_json(self, text: bytes) -> T:
        try:
            decoded = self._decode(text)
        except (msgspec.DecodeError, RecursionError):
            return self._from_value(strict_json(text))
        if _is_plain(text):
            return decoded
        return self._from_value(strict_json(text))

    def _from_value(self, value: Any) -> T:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, self._schema)
        if self._structure is None:
            self._structure = type_info(self._schema)
        try:
            return msgspec.convert(first_spelling(value, self._structure), self._schema)
        except msgspec.ValidationError as error:
            raise ValueError(f"invalid request body: {_explained(str(error))}") from None


def _explained(problem: str) -> str:
    """The problem; an array in the place of an object also lacks the field that would tell what it is."""
    return problem.replace("`object`, got `array`", "`object` with its `type`, `role` or `name`, got `array`")


def strict_json(text: bytes) -> Any:
    """The JSON value of `text`, with integers beyond 64 bits as floats and -0 as -0.0; ValueError if it has none."""
    try:
        text.decode()
        msgspec.json.decode(text)
    except UnicodeDecodeError as error:
        raise _not_json(f"invalid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise _not_json("recursion limit exceeded") from None
    except msgspec.DecodeError as error:
        raise _not_json(str(error).removeprefix("JSON is malformed: ")) from None
    if depth(text) > MAX_DEPTH:
        raise _not_json("recursion limit exceeded")
    return json.loads(text, parse_int=_integer, parse_float=_float)


def depth(text: bytes) -> int:
    """How deep the arrays and objects of a valid JSON text nest."""
    return _depth(_brackets(_without_strings(text)))


def _brackets(bare: bytes) -> bytes:
    """The brackets of both kinds, as square ones."""
    return bare.translate(_BRACKETS, _NO_BRACKETS)


def _depth(brackets: bytes) -> int:
    levels = 0
    while b"[]" in brackets:  # each pass takes off the innermost level
        brackets = brackets.replace(b"[]", b"")
        levels += 1
    return levels


def _without_strings(text: bytes) -> bytes:
    """What a valid JSON text has outside of strings: marks, numbers and words."""
    if text.find(b"\\") >= 0:  # `in` would ask first whether the other is a number, and make an error of the answer
        text = b"".join(text.split(b"\\\\"))  # faster than replace where there are many
        text = b"".join(text.split(b'\\"'))
    return b"".join(text.split(b'"')[::2])


def _is_plain(text: bytes) -> bool:
    """Whether a JSON text that decoded well is as strict JSON and as exact as the typed pass took it."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
    if len(text) < MIN_BYTES:
        return _is_exact(text)
    if not _is_exact(text[_known.length(text) :]):
        return False
    _known.add(text)
    return True


def _is_exact(rest: bytes) -> bool:
    """Whether the rest of a JSON text, from outside of strings to its end, has no number or depth of these kinds."""
    bare = _without_strings(rest)
    if bare.count(b"]") + bare.count(b"}") > MAX_DEPTH and _nests_too_deep(_brackets(bare)):
        return False
    if bare.find(b"-0") >= 0 and _MINUS_ZERO.search(bare):
        return False
    digits = bare.translate(_DIGITS)
    return digits.find(_LONG_NUMBER) < 0 and not (digits.find(b"0e") >= 0 and _LONG_EXPONENT.search(digits))


def _nests_too_deep(brackets: bytes) -> bool:
    """Whether a JSON text nests too deep that ends with these brackets; those it opened before are known by its end."""
    return _depth(b"[" * (2 * brackets.count(b"]") - len(brackets)) + brackets) > MAX_DEPTH


def _integer(digits: str) -> int | float:
    value = int(digits) if len(digits) < 40 else None
    if value is None or not -(2**63) <= value < 2**64 or digits == "-0":
        return _float(digits)
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _not_json("number out of range")
    return value


def _not_json(reason: str) -> ValueError:
    return ValueError(f"invalid JSON request: {reason}")
