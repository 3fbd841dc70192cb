"""Checks of numbers and byte strings given to the image classes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex


def unsigned(name: str, value: SupportsIndex, bits: int = 32) -> int:
    """Return `value` as an int if `bits` bits (32 or 64) hold it; else TypeError or OverflowError."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"argument '{name}': {error}") from None
    if not 0 <= number < 1 << bits:
        raise OverflowError(_overflow_64(number) if bits == 64 else _overflow_32(number))
    return number


def _overflow_32(number: int) -> str:
    fits_a_long = -(1 << 63) <= number < 1 << 63
    return (
        "out of range integral type conversion attempted"
        if fits_a_long
        else "Python int too large to convert to C long"
    )


def _overflow_64(number: int) -> str:
    return "can't convert negative int to unsigned" if number < 0 else "int too big to convert"


def byte_string(name: str, value: object) -> bytes:
    """Return `value` as bytes if it is a byte string or a sequence of small ints; else TypeError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence | bytearray | memoryview):
        raise TypeError(f"argument '{name}': '{type(value).__name__}' object is not bytes")
    return bytes(value)
