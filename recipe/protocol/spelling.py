"""Second spellings of typed JSON, which the reference takes as well.

A struct may be the array of its fields, in order, and a string of a fixed set `{"string": null}`. These are looked for
only in bodies that do not decode as they stand. A field that the reference does not have (`Beyond`) is in no array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from recipe.json_value import JsonValue

Beyond: TypeAlias = Annotated[Any, msgspec.Meta(extra={"beyond": "the reference"})]
"""The type of an optional field that only extensions look at; it takes anything."""

_T = TypeVar("_T", bound=inspect.Type)


def first_spelling(value: JsonValue, kind: inspect.Type) -> JsonValue:
    """`value` with the second spellings of what belongs into `kind` replaced; the decoder judges all else."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    structs = _of_type(kinds, inspect.StructType)
    if isinstance(value, list):
        lists = _of_type(kinds, inspect.ListType)
        if lists:
            return [first_spelling(item, lists[0].item_type) for item in value]
        value = _as_object(value, structs)
    if isinstance(value, dict):
        if structs:
            return _fields(value, structs)
        if len(value) == 1 and _of_type(kinds, inspect.LiteralType):
            [(name, content)] = value.items()
            return name if content is None else value
    return value


def _of_type(kinds: Sequence[inspect.Type], wanted: type[_T]) -> list[_T]:
    return [kind for kind in kinds if isinstance(kind, wanted)]


def _as_object(items: list[JsonValue], structs: Sequence[inspect.StructType]) -> JsonValue:
    """The array as an object if it holds the tag, where there is one, and every field of one of the structs."""
    for struct in structs:
        names = [field.encode_name for field in struct.fields if not isinstance(field.type, inspect.Metadata)]
        if struct.tag_field is not None:
            if not items:
                return {}
            if items[0] != struct.tag:
                continue
            names = [struct.tag_field, *names]
        if len(names) == len(items):
            return dict(zip(names, items, strict=True))
    return items


def _fields(value: dict[str, JsonValue], structs: Sequence[inspect.StructType]) -> dict[str, JsonValue]:
    struct = next((s for s in structs if s.tag_field is None or value.get(s.tag_field) == s.tag), None)
    kinds = {field.encode_name: field.type for field in struct.fields} if struct else {}
    return {name: first_spelling(item, kinds[name]) if name in kinds else item for name, item in value.items()}
