"""Checks of constructor arguments, and values as the messages and reprs of this package show them."""

import operator
import unicodedata
from collections.abc import Sequence
from typing import TypeVar

from recipe.json_value import utf8_str

_T = TypeVar("_T")
_L = TypeVar("_L", bound=str)

U32_MAX = 2**32 - 1

_ESCAPES = {"\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def text(name: str, value: object) -> str:
    """Return `value` if it is a str that UTF-8 can hold; else TypeError or UnicodeEncodeError."""
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str):
        raise _wrong_type(name, value, "str")
    return utf8_str(value)


def flag(name: str, value: object) -> bool:
    """Return `value` if it is a bool; numbers are not taken for one."""
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "bool")
    return value


def instance(value: _T, kind: type[_T]) -> _T:
    """Return `value` if it is of the type `kind`; else TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, not {type(value).__name__}")
    return value


def u32(value: int) -> int:
    """Return the integer; TypeError for another type, OverflowError outside [0, 2^32)."""
    value = operator.index(value)
    if not -(2**63) <= value < 2**63:
        raise OverflowError("Python int too large to convert to C long")
    if not 0 <= value <= U32_MAX:
        raise OverflowError("out of range integral type conversion attempted")
    return value


def items(name: str, values: object, kind: type[_T]) -> tuple[_T, ...]:
    """Return the items of the sequence `values`, each of the type `kind`."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _wrong_type(name, values, "Sequence")
    for value in values:
        if not isinstance(value, kind):
            raise _wrong_type(name, value, kind.__name__)
    return tuple(values)


def choice(name: str, value: object, allowed: tuple[_L, ...]) -> _L:
    """Return `value` if it is one of `allowed`; else ValueError with the list."""
    if not isinstance(value, str):
        raise _wrong_type(name, value, "str")
    for candidate in allowed:
        if candidate == value:
            return candidate
    raise ValueError(f"invalid {name} {quoted(value)}; expected {_alternatives(allowed)}")


def quoted(value: str) -> str:
    """Return `value` in double quotes, with escapes for what cannot be seen."""
    if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    return '"' + "".join(map(_visible, value)) + '"'


def option(value: str | None) -> str:
    """Return an optional text as reprs show it: None or Some("text")."""
    return "None" if value is None else f"Some({quoted(value)})"


def _visible(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and unicodedata.category(char) not in ("Mn", "Me"):
        return char
    return f"\\u{{{ord(char):x}}}"


def _alternatives(allowed: tuple[str, ...]) -> str:
    *head, last = map(quoted, allowed)
    return f"{head[0]} or {last}" if len(head) == 1 else f"{', '.join(head)}, or {last}"


def _wrong_type(name: str, value: object, wanted: str) -> TypeError:
    return TypeError(f"argument '{name}': '{type(value).__name__}' object cannot be cast as '{wanted}'")
