"""Strict schemas: the JSON Schema subset that `strict: true` promises, and its one normal form.

A schema is read keyword by keyword through tables, which drop what the subset lacks, refuse what has the wrong shape
and put the rest into canonical order; then every object is closed: all properties required, no others allowed. Shapes
are reported in document order before any object is closed. The words of the errors are wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from recipe.argument import quoted
from recipe.errors import ConversionError
from recipe.json_value import JsonValue
from recipe.protocol.json_text import compact_json

Node: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[JsonValue], Any]


class _ShapeError(Exception):
    """A schema outside the subset; the message is the detail after the caller's prefix."""


def strict_parameters(parameters: JsonValue) -> Node:
    """The normal form of a function's parameters, which must be an object and may have no properties; None is that."""
    if parameters is None:
        parameters = {"type": "object"}
    node = _close(_read(parameters, "Invalid tool parameters schema : "), may_be_empty=True)
    if node.get("type") != "object":
        raise ConversionError("The top level of the function parameters schema must be an object.")
    return node


def strict_response_schema(schema: JsonValue) -> Node:
    """The normal form of a response schema, which must be an object with properties."""
    node = _close(_read(schema, "Invalid json schema: "))
    if node.get("type") != "object":
        raise ConversionError("The top level of the json schema must be an object.")
    return node


def _read(schema: JsonValue, prefix: str) -> Node:
    try:
        return _schema(schema)
    except _ShapeError as error:
        raise ConversionError(f"{prefix}{error}") from None


# ---- reading


def _schema(value: JsonValue) -> Node:
    """Any schema: told by its `type`, else by `anyOf`, else by `$ref`."""
    if isinstance(value, dict):
        if "type" in value:
            return _type_list(value) if isinstance(value["type"], list) else _typed(value)
        if "anyOf" in value:
            return _fields(value, anyOf=_any_of, description=_optional_text)
        if "$ref" in value:
            return _fields(value, **{"$ref": _text})
    raise _ShapeError("one of `type`, `anyOf`, `$ref` field is required")


def _type_list(value: Node) -> Node:
    return _fields(value, type=_type_names, description=_optional_text)


def _fields(value: Node, **checks: Check) -> Node:
    """The fields of `checks` that `value` has, in that order; an error names its field."""
    node: Node = {}
    for name, check in checks.items():
        try:
            checked = check(value.get(name))
        except _ShapeError as error:
            raise _ShapeError(f"field `{name}`: {error}") from None
        if checked is not None:
            node[name] = checked
    return node


def _typed(value: JsonValue) -> Node:
    """A schema with one `type`: its known keywords in canonical order."""
    if isinstance(value, list):
        value = _positional(value)
    if not isinstance(value, dict):
        raise _wrong(value, "internally tagged enum JsonSchemaType")
    if "type" not in value:
        raise _ShapeError("missing field `type`")
    kind = value["type"]
    keywords = _keywords(kind)
    found = {name: keywords[name](item) for name, item in value.items() if name in keywords}
    if kind == "array" and "items" not in found:
        raise _ShapeError("missing field `items`")
    return {"type": kind} | {name: found[name] for name in keywords if found.get(name) is not None}


def _keywords(kind: JsonValue) -> dict[str, Check]:
    if not isinstance(kind, str):
        raise _wrong(kind, "variant identifier")
    return _KEYWORDS[_variant(kind, _KEYWORDS)]


def _positional(items: list[Any]) -> Node:
    """The schema that is spelled as the array of its type and the values of all its keywords."""
    if not items:
        return {}
    kind, *values = items
    keywords = _keywords(kind)
    for check, value in zip(keywords.values(), values, strict=False):
        check(value)
    wanted = f"{len(keywords)} element{'s' if len(keywords) > 1 else ''}"
    if len(values) < len(keywords):
        variant = f"struct variant JsonSchemaType::{kind.capitalize()}"
        raise _ShapeError(f"invalid length {len(values)}, expected {variant} with {wanted}")
    if len(values) > len(keywords):
        raise _ShapeError(f"invalid length {len(values)}, expected {wanted} in sequence")
    return {"type": kind, **dict(zip(keywords, values, strict=True))}


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "a string")
    return value


def _texts(value: JsonValue) -> list[str]:
    return [_text(item) for item in _sequence(value)]


def _sequence(value: JsonValue) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(value, "a sequence")
    return value


def _boolean(value: JsonValue) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "a boolean")
    return value


def _number(value: JsonValue) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, "a JSON number")
    return value


def _i64(value: JsonValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(value, "i64")
    if value >= 2**63:
        raise _ShapeError(f"invalid value: integer `{value}`, expected i64")
    return value


def _properties(value: JsonValue) -> Node:
    if not isinstance(value, dict):
        raise _wrong(value, "a map")
    return {name: _schema(item) for name, item in value.items()}


def _any_of(value: JsonValue) -> list[Node]:
    return [_typed(item) for item in _sequence(value)]


def _type_names(value: JsonValue) -> list[str]:
    return [_plain_variant(item, _LISTABLE_TYPES) for item in _sequence(value)]


def _format(value: JsonValue) -> str:
    return _plain_variant(value, _FORMATS)


def _plain_variant(value: JsonValue, variants: tuple[str, ...]) -> str:
    """One of the variants, spelled as a string or as a map from it to null."""
    content = None
    if isinstance(value, dict):
        if len(value) != 1:
            raise _ShapeError("invalid value: map, expected map with a single key")
        [(value, content)] = value.items()
    if not isinstance(value, str):
        raise _wrong(value, "string or map")
    _variant(value, variants)
    if content is not None:
        raise _wrong(content, "unit")
    return value


def _variant(name: str, variants: tuple[str, ...] | Mapping[str, Any]) -> str:
    if name not in variants:
        expected = ", ".join(f"`{variant}`" for variant in variants)
        raise _ShapeError(f"unknown variant `{name}`, expected one of {expected}")
    return name


def _optional(check: Check) -> Check:
    """`check`, with null standing for a missing value."""
    return lambda value: None if value is None else check(value)


_optional_text = _optional(_text)


def _numeric(number: Check) -> dict[str, Check]:
    names = ("const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    return {"description": _optional_text} | dict.fromkeys(names, _optional(number))


_LISTABLE_TYPES = ("string", "number", "integer", "boolean", "null")
_FORMATS = ("email", "hostname", "ipv4", "ipv6", "uuid")

# The keywords of each type, in canonical order.
_KEYWORDS: dict[str, dict[str, Check]] = {
    "object": {
        "properties": _optional(_properties),
        "additionalProperties": _optional(_boolean),
        "required": _optional(_texts),
        "description": _optional_text,
    },
    "string": {
        "description": _optional_text,
        "pattern": _optional_text,
        "format": _optional(_format),
        "enum": _optional(_texts),
    },
    "number": _numeric(_number),
    "integer": _numeric(_i64),
    "boolean": {"description": _optional_text},
    "array": {"items": _schema, "description": _optional_text},
    "null": {"description": _optional_text},
}


def _wrong(value: JsonValue, wanted: str) -> _ShapeError:
    return _ShapeError(f"invalid type: {_described(value)}, expected {wanted}")


def _described(value: JsonValue) -> str:
    """What a value is, as errors put it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, str):
        return f"string {quoted(value)}"
    if isinstance(value, dict | list):
        return "map" if isinstance(value, dict) else "sequence"
    return f"{'integer' if isinstance(value, int) else 'floating point'} `{compact_json(value)}`"


# ---- closing


def _close(node: Node, *, may_be_empty: bool = False) -> Node:
    """The node with all objects in it closed, inner ones first."""
    kind = node.get("type")
    if kind == "object":
        return _closed_object(node, may_be_empty)
    if kind == "array":
        return node | {"items": _close(node["items"])}
    if "anyOf" in node:
        return node | {"anyOf": [_close(item, may_be_empty=may_be_empty) for item in node["anyOf"]]}
    return node


def _closed_object(node: Node, may_be_empty: bool) -> Node:
    properties = {name: _close(item) for name, item in node.get("properties", {}).items()}
    if not properties and not may_be_empty:
        raise ConversionError("An object with no properties is not allowed.")
    if "required" in node:
        _check_required(node["required"], properties)
    if node.get("additionalProperties"):
        raise ConversionError("additionalProperties should not be true")
    closed = {"type": "object", "properties": properties, "additionalProperties": False, "required": list(properties)}
    if "description" in node:
        closed["description"] = node["description"]
    return closed


def _check_required(required: list[str], properties: Node) -> None:
    seen = set()
    for name in required:
        if name not in properties:
            raise ConversionError(f"Required property '{name}' not found in object")
        if name in seen:
            raise ConversionError(f"Duplicate required property '{name}'")
        seen.add(name)
    if len(seen) < len(properties):
        raise ConversionError("Required properties must match all properties in the object")
