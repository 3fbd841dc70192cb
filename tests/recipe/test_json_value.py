"""JSON text with the number model of the wire."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.encoding.pyjson import python_json, short_exponent_json
from recipe.json_value import parse_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_json_dumps_writes_is_read_back(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value


@given(JSON)
def test_short_exponents_leave_the_value_and_the_strings_alone(value: Any) -> None:
    text = short_exponent_json(value)
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "python", "short"),
    [
        (1e-05, "1e-05", "0.00001"),
        (1.2345e-05, "1.2345e-05", "0.000012345"),
        (-1e-06, "-1e-06", "-1e-6"),
        (1.5e-07, "1.5e-07", "1.5e-7"),
        (5e-324, "5e-324", "5e-324"),
        (1e16, "1e+16", "1e+16"),
        (0.0001, "0.0001", "0.0001"),
        ({"1e-07": '2e-05 \\" 1e-06'}, None, None),
    ],
)
def test_small_floats_are_written_in_two_styles(value: Any, python: str | None, short: str | None) -> None:
    assert python_json(value) == (python or json.dumps(value))
    assert short_exponent_json(value) == (short or json.dumps(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 1.8446744073709552e19),
        ("-9223372036854775809", -9.223372036854776e18),
        ('["-0", 12345678901234567890]', ["-0", 12345678901234567890]),
        ('{"y": 0, "x": 1, "y": 2}', {"y": 2, "x": 1}),
    ],
)
def test_integers_outside_64_bits_become_floats(text: str, value: Any) -> None:
    parsed = parse_json(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_minus_zero_is_a_float() -> None:
    zero = parse_json("-0")
    assert isinstance(zero, float)
    assert math.copysign(1, zero) == -1


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", "1e400", "1" + "0" * 400, '"\\ud800"', "01", '{"a":1}x', "\ufeff1", '"\t"', "[" * 128 + "]" * 128],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_127_levels_are_not_too_deep() -> None:
    assert parse_json("[" * 127 + "]" * 127) != []
