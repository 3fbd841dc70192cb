"""Fields beyond the reference that all three protocols share, spelled as vLLM spells them.

A body with these fields is made from the plain schema of a protocol (`extended`), so one pass decodes everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated, Any, TypeAlias, TypeVar, cast

import msgspec

from recipe.json_value import JsonValue

U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
I32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
U64: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_B = TypeVar("_B", bound=msgspec.Struct)


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """One of the first five says what the answer must be; the others are options of vLLM that have no effect here."""

    json: JsonValue = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: JsonValue = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class ExtensionFields(msgspec.Struct, kw_only=True):
    """The shared fields; None is missing."""

    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: U64 | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**32 - 1)] | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: U32 | None = None
    stop_token_ids: list[U32] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    priority: I32 | None = None
    cache_salt: str | None = None
    parallel_tool_calls: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None


_FIELDS = msgspec.structs.fields(ExtensionFields)
_VALUES = attrgetter(*ExtensionFields.__struct_fields__)
NO_FIELDS = ExtensionFields()
_NO_VALUES = _VALUES(NO_FIELDS)


def extended(body: type[_B], refused: Iterable[str], *, name: str = "", module: str | None = None) -> type[_B]:
    """`body` with the shared fields, and behind all others the names in `refused` as fields that take anything.

    Pickling finds the class as `name` in `module`.
    """
    own = set(body.__struct_fields__)
    shared = [(field.name, field.type, None) for field in _FIELDS if field.name not in own]
    known = [(name, Any, None) for name in refused]
    return cast(
        "type[_B]",
        msgspec.defstruct(name or body.__name__, shared + known, bases=(body,), module=module, kw_only=True),
    )


def extension_fields(body: msgspec.Struct) -> ExtensionFields:
    """The shared fields of a decoded body, `NO_FIELDS` if it has none or is not of an `extended` class."""
    if not hasattr(body, "structured_outputs"):
        return NO_FIELDS
    values = _VALUES(body)
    if values == _NO_VALUES:
        return NO_FIELDS
    return ExtensionFields(**dict(zip(ExtensionFields.__struct_fields__, values, strict=True)))
