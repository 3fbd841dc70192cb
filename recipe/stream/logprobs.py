"""Log probabilities as JSON, spelled once where tokens are decoded; all protocols report the same items."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from json.encoder import encode_basestring as json_string

from recipe.stream.inference import TokenLogprob

_SINGLE = struct.Struct("<f")
_SMALLEST_NORMAL = 2.0**-126


def logprob_json(token_id: int, logprob: TokenLogprob, token_bytes: Callable[[int], bytes]) -> str:
    """One item of a log-probability list; `token_bytes` gives the bytes of any token, added ones included."""
    value, alternatives = logprob
    top = ",".join(f"{{{_token_fields(token_bytes(other), chance)}}}" for other, chance in alternatives)
    return f'{{{_token_fields(token_bytes(token_id), value)},"top_logprobs":[{top}]}}'


def _token_fields(spelling: bytes, logprob: float) -> str:
    numbers = ",".join(map(str, spelling))
    return f'"token":{json_string(_readable(spelling))},"logprob":{single_text(logprob)},"bytes":[{numbers}]'


def _readable(spelling: bytes) -> str:
    """The text of a token, or its bytes as `\\xe4` when it holds a part of a character."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in spelling)


def single_text(value: float) -> str:
    """The shortest JSON number that single precision reads as `value`; `null` for what is not finite."""
    try:
        single: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        return "null"
    if not math.isfinite(single):
        return "null"
    return _positional(_shortest(single))


def _shortest(single: float) -> str:
    """The fewest significant digits that still round to `single`, in scientific notation."""
    first = 6 if abs(single) >= _SMALLEST_NORMAL else 1  # any decimal of six digits survives single precision
    for digits in range(first, 9):
        text = f"{single:.{digits - 1}e}"
        if _SINGLE.unpack(_SINGLE.pack(float(text)))[0] == single:
            return text
    return f"{single:.8e}"


def _positional(scientific: str) -> str:
    """A number in scientific notation as JSON spells it: positional from 1e-6 up to 1e13."""
    mantissa, exponent_text = scientific.split("e")
    exponent = int(exponent_text)
    sign = "-" if mantissa.startswith("-") else ""
    digits = mantissa.lstrip("-").replace(".", "").rstrip("0") or "0"
    if not -6 <= exponent < 13:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{exponent:+d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    digits = digits.ljust(exponent + 1, "0")
    return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :] or '0'}"
