"""`structured_outputs` as vLLM spells it: one field that says what the answer must be, as a response format."""

from __future__ import annotations

import msgspec

from recipe.errors import ConversionError
from recipe.json_value import JsonValue
from recipe.protocol.constraint import TEXT, ResponseFormat
from recipe.protocol.extension_fields import ExtensionFields, StructuredOutputs
from recipe.request import ConversionOptions

MAX_CHOICES = 1024
_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_WITHOUT_EFFECT = ("structural_tag", "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")


def with_structured_outputs(
    requested: ResponseFormat, fields: ExtensionFields, options: ConversionOptions, *, has_tools: bool
) -> ResponseFormat:
    """The format that `structured_outputs` asks for, else `requested`.

    ConversionError unless it asks for one thing, beside which there is no other format and no tool to call.
    """
    wanted = fields.structured_outputs
    if wanted is None or not options.extensions.structured_outputs:
        return requested
    for name in _WITHOUT_EFFECT:
        if getattr(wanted, name):
            raise ConversionError(f"structured_outputs.{name} is not supported.")
    if requested is not TEXT:
        raise ConversionError("structured_outputs should not be used with response_format")
    if has_tools:
        raise ConversionError("structured_outputs should not be used with tools")
    return _response_format(wanted)


def _response_format(wanted: StructuredOutputs) -> ResponseFormat:
    given = [name for name in _KINDS if getattr(wanted, name) not in (None, False)]
    if len(given) != 1:
        raise ConversionError(f"structured_outputs must have exactly one of {', '.join(_KINDS)}")
    if given[0] == "json":
        return ResponseFormat("json_schema", _schema(wanted.json))
    if given[0] == "json_object":
        return ResponseFormat("json_object")
    if given[0] == "choice":
        return ResponseFormat("choice", _choices(wanted.choice or []))
    if given[0] == "regex":
        return ResponseFormat("regex", regex=wanted.regex)
    return ResponseFormat("grammar", grammar=wanted.grammar)


def _schema(schema: JsonValue) -> JsonValue:
    """The schema, which may also be given as JSON text."""
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(schema)
    except msgspec.DecodeError:
        raise ConversionError("structured_outputs.json is not a valid JSON text") from None


def _choices(choices: list[str]) -> JsonValue:
    if not choices or len(choices) > MAX_CHOICES or not all(choices):
        raise ConversionError(f"structured_outputs.choice must have between 1 and {MAX_CHOICES} non-empty strings")
    return list(choices)
