"""Whether a JSON value is a valid JSON Schema, in the words of jsonschema-rs.

The draft follows `$schema` (2020-12 without one); nothing is fetched. Clients send the same schemas again and again, so
verdicts are remembered.
"""

from __future__ import annotations

from functools import lru_cache

import jsonschema_rs
import msgspec

from recipe.errors import ConversionError
from recipe.json_value import JsonValue
from recipe.protocol.json_text import compact_json

_REMEMBERED = 1024
_REMEMBERED_BYTES = 16_384  # larger schemas are checked each time


def check_schema(schema: JsonValue, prefix: str) -> None:
    """ConversionError, `prefix` and what is wrong, unless `schema` is a valid JSON Schema."""
    text = msgspec.json.encode(schema)
    problem = _remembered_problem(text) if len(text) <= _REMEMBERED_BYTES else _problem(text)
    if problem is not None:
        raise ConversionError(prefix + problem)


def check_function_schema(schema: JsonValue, function: str) -> None:
    """ConversionError unless `schema` is a valid JSON Schema whose `type` is exactly "object"."""
    prefix = f"Invalid schema for function '{function}': "
    check_schema(schema, prefix)
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        raise ConversionError(
            f"{prefix}schema must be a JSON Schema of 'type: \"object\"', got 'type: {compact_json(kind)}'."
        )


def _problem(text: bytes) -> str | None:
    """What is wrong with the schema that `text` encodes."""
    schema = msgspec.json.decode(text)
    if isinstance(schema, str):  # the validator would take it for JSON text
        return f'{compact_json(schema)} is not of types "boolean", "object"'
    try:
        jsonschema_rs.validator_for(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        return error.message
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


_remembered_problem = lru_cache(maxsize=_REMEMBERED)(_problem)
