"""Bodies: strict JSON, exact numbers, and one kind of error for each way to fail."""

import json
import random
from typing import Annotated, Any, Literal

import deepseek_recipe
import msgspec
import pytest

from recipe.protocol.body import BodyDecoder, depth
from recipe.protocol.chat_completions.convert import ChatCompletionRequest


class Point(msgspec.Struct):
    x: int | None = None
    y: Annotated[float, msgspec.Meta(ge=0)] | None = None


class Circle(msgspec.Struct, tag_field="type", tag="circle"):
    r: int


class Square(msgspec.Struct, tag_field="type", tag="square"):
    a: int


class Body(msgspec.Struct):
    model: str
    data: Any = None
    point: Point | None = None
    shapes: list[Circle | Square] = []
    kind: Literal["a", "b"] | None = None


decoder = BodyDecoder(Body)


@pytest.mark.parametrize("body", ['{"model":"m"}', b' {"model":"m","unknown":[1,{}]}\n', {"model": "m"}])
def test_bytes_text_and_dicts_are_bodies_and_unknown_fields_are_ignored(body: Any) -> None:
    assert decoder.decode(body) == Body("m")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{} x",
        b'{"model":"m",}',
        b"{'model':1}",
        b'{"model":01}',
        b'{"model":NaN}',
        b'{"model":"a\nb"}',
        b'{"model":"\\x"}',
        b'{"model":"\\ud800"}',
        b'{"model":"\xff"}',
        b'\xef\xbb\xbf{"model":"m"}',
        b'{"model":"m","unknown":1e999}',
        b'{"model":"m","unknown":"\xff"}',
        b'{"model":"m","unknown":' + b"9" * 400 + b"}",
        b'{"model":"m","unknown":' + b"[" * 127 + b"]" * 127 + b"}",
        b"[" * 100_000,
    ],
)
def test_what_is_no_strict_json_is_an_invalid_json_request(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"^invalid JSON request: "):
        decoder.decode(text)


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"5", b"{}", b'{"model":null}', None, [], 5])
def test_json_of_another_shape_is_an_invalid_request_body(body: Any) -> None:
    with pytest.raises(ValueError, match=r"^invalid request body: "):
        decoder.decode(body)


def test_an_error_names_the_path_of_the_field() -> None:
    with pytest.raises(ValueError, match=r"\$\.point\.x"):
        decoder.decode(b'{"model":"m","point":{"x":"one"}}')
    with pytest.raises(ValueError, match="`model`"):
        decoder.decode(b'{"point":{}}')


def test_a_syntax_error_is_told_before_a_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"^invalid JSON request: "):
        decoder.decode(b'{"model":1, ]')


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (b"-0", -0.0),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 2.0**64),
        (b"-9223372036854775809", -(2.0**63)),
        (b"1e3", 1000.0),
        (b"1e-999", 0.0),
    ],
)
def test_numbers_have_their_json_value(number: bytes, value: float) -> None:
    data = decoder.decode(b'{"model":"m","data":[' + number + b"]}").data[0]
    assert (data, type(data)) == (value, type(value))
    assert str(data) == str(value)  # tells -0.0 from 0


@pytest.mark.parametrize("number", [b"-0", b"1.0", b"99999999999999999999"])
def test_a_float_is_no_integer(number: bytes) -> None:
    with pytest.raises(ValueError, match=r"^invalid request body: "):
        decoder.decode(b'{"model":"m","point":{"x":' + number + b"}}")


def test_of_repeated_keys_the_last_counts_even_if_an_earlier_one_has_the_wrong_type() -> None:
    assert decoder.decode(b'{"model":1,"model":"m"}') == Body("m")


def test_arrays_may_nest_127_deep() -> None:
    text = b'{"model":"m","data":' + b"[" * 126 + b"]" * 126 + b"}"
    assert depth(text) == 127
    assert decoder.decode(text).model == "m"


@pytest.mark.parametrize(
    ("text", "levels"),
    [("1", 0), ("[]", 1), ('["[[[[", "\\"[[", "\\\\"]', 1), ('{"a\\n":"b\\n"}', 1), ('[[],{"":[{}]}]', 4)],
)
def test_brackets_inside_strings_do_not_nest(text: str, levels: int) -> None:
    json.loads(text)
    assert depth(text.encode()) == levels


def test_depth_agrees_with_a_walk_over_random_values() -> None:
    random_values = random.Random(5)

    def value(levels: int) -> Any:
        if levels == 0 or random_values.random() < 0.3:
            return random_values.choice([1, "", "[", '"]', "\\", "{\n", '\\\\"', None])
        items = [value(levels - 1) for _ in range(random_values.randrange(3))]
        return items if random_values.random() < 0.5 else {str(i) + '"{\\': item for i, item in enumerate(items)}

    def walked(item: Any) -> int:
        if isinstance(item, dict):
            item = list(item.values())
        return 1 + max(map(walked, item), default=0) if isinstance(item, list) else 0

    for _ in range(300):
        item = value(6)
        assert depth(json.dumps(item).encode()) == walked(item)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({1: 2}, TypeError),
        ({"model": {1}}, TypeError),
        ({"model": b"x"}, TypeError),
        (bytearray(b"{}"), TypeError),
        ({"model": 2**64}, OverflowError),
        ({"model": float("nan")}, ValueError),
        ({"model": "\ud800"}, UnicodeEncodeError),
        ('{"model":"\ud800"}', UnicodeEncodeError),
    ],
)
def test_a_python_value_that_is_no_json_raises_its_own_error(body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        decoder.decode(body)


def test_tuples_are_arrays() -> None:
    assert decoder.decode({"model": "m", "data": (1, (2,))}).data == [1, [2]]


def test_a_struct_may_be_the_array_of_its_fields() -> None:
    assert decoder.decode(b'{"model":"m","point":[1,2.5]}').point == Point(1, 2.5)
    assert decoder.decode(b'{"model":"m","shapes":[["square",3],{"type":"circle","r":1}]}').shapes == [
        Square(3),
        Circle(1),
    ]
    with pytest.raises(ValueError, match="`type`"):
        decoder.decode(b'{"model":"m","shapes":[[]]}')
    with pytest.raises(ValueError, match=r"^invalid request body: "):
        decoder.decode(b'{"model":"m","point":[1]}')


def test_a_fixed_string_may_be_a_map_from_it_to_null() -> None:
    assert decoder.decode(b'{"model":"m","kind":{"a":null}}').kind == "a"
    with pytest.raises(ValueError, match=r"^invalid request body: "):
        decoder.decode(b'{"model":"m","kind":{"a":1}}')


def test_damaged_texts_are_taken_and_refused_as_by_the_reference() -> None:
    whole = (
        b'{"model":"DeepSeek-V4-Pro","messages":[{"role":"user","content":"a\\n\\u00e9\xe4\xbd\xa0"}],"x":[1,-2.5e3]}'
    )
    tokens = [
        b'"',
        b"\\",
        b",",
        b":",
        b"{",
        b"]",
        b"0",
        b"-",
        b"e9",
        b".",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\\ud800",
    ]
    damage = random.Random(1)
    for _ in range(1500):
        at = damage.randrange(len(whole))
        text = whole[:at] + damage.choice(tokens) + whole[at + damage.randrange(2) :]
        assert outcome(ChatCompletionRequest, text) == outcome(deepseek_recipe.ChatCompletionRequest, text), text


def outcome(request: Any, body: bytes) -> str:
    """Whether a body decodes, or the kind of its error."""
    try:
        request(body)
    except ValueError as error:
        return str(error).partition(":")[0]
    return "decodes"
