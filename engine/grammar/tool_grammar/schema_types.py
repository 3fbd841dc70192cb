"""Parts a schema into what it allows of strings and what it allows of everything else."""

from __future__ import annotations

from typing import Any

from engine.backend import ConstraintRefusedError

_OTHER_TYPES = ["object", "array", "number", "boolean", "null"]
_MAX_DEPTH = 16

Schema = dict[str, Any]


def split(schema: Any, root: Schema, depth: int = 0) -> tuple[list[Schema], Schema | None]:
    """Schemas of strings, any of which will do, and a schema of all other values that are allowed, if any are.

    References are looked up in `root`. Raises `ConstraintRefusedError` for one that leads nowhere, or in circles.
    """
    if depth > _MAX_DEPTH:
        raise ConstraintRefusedError("a schema that refers to itself cannot be told apart by type")
    if not isinstance(schema, dict):
        return ([{}], {"type": _OTHER_TYPES}) if schema is not False else ([], None)
    schema = resolved(schema, root)
    for name in ("enum", "const"):
        if name in schema:
            return _split_values(schema, schema["enum"] if name == "enum" else [schema["const"]])
    for name in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(name), list):
            base = {key: value for key, value in schema.items() if key != name}
            return _split_branches(name, [_merged(base, branch) for branch in branches], root, depth)
    if isinstance(parts := schema.get("allOf"), list):
        merged: Any = {key: value for key, value in schema.items() if key != "allOf"}
        for part in parts:
            merged = _merged(merged, resolved(part, root) if isinstance(part, dict) else part)
        return split(merged, root, depth + 1)
    return _split_types(schema)


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema with its reference, and that one's, replaced by what they refer to."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        schema = _merged(_look_up(reference, root), siblings)
    raise ConstraintRefusedError(f"keyword '$ref' cannot be enforced: {reference!r:.80} refers to itself")


def _look_up(reference: str, root: Schema) -> Schema:
    found: Any = root
    if not reference.startswith("#"):
        found = None
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise ConstraintRefusedError(f"keyword '$ref' cannot be enforced: there is no {reference!r:.80}")
    return found


def _merged(first: Any, second: Any) -> Any:
    """Both schemas at once; types that both name are intersected, other keywords of the second count."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second if first is not False else False
    both = {**first, **second}
    if "type" in first and "type" in second:
        both["type"] = [name for name in _types(first) if name in _types(second)]
    return both


def _types(schema: Schema) -> list[str]:
    kinds = schema.get("type", ["string", *_OTHER_TYPES])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _split_values(schema: Schema, values: list[Any]) -> tuple[list[Schema], Schema | None]:
    allowed = _types(schema)
    texts = [value for value in values if isinstance(value, str)] if "string" in allowed else []
    rest = [value for value in values if not isinstance(value, str)]
    return [{"enum": texts}] if texts else [], {"enum": rest} if rest else None


def _split_branches(name: str, branches: list[Any], root: Schema, depth: int) -> tuple[list[Schema], Schema | None]:
    strings: list[Schema] = []
    others: list[Schema] = []
    for branch in branches:
        texts, rest = split(branch, root, depth + 1)
        strings += texts
        others += [] if rest is None else [rest]
    return strings, {name: others} if others else None


def _split_types(schema: Schema) -> tuple[list[Schema], Schema | None]:
    kinds = _types(schema)
    others = [kind for kind in kinds if kind != "string"]
    return [schema] if "string" in kinds else [], {**schema, "type": others} if others else None
