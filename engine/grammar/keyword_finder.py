"""Finds the keyword that keeps a schema from being enforced: the smallest part of it that fails in the same way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_MAX_TRIALS = 200
_MAX_REASON_CHARS = 200

# What the grammar engine says -> the keyword it means; a group is the keyword itself.
_KEYWORDS = [
    (re.compile(r'Unimplemented keys: \["([^"]+)"'), r"\1"),
    (re.compile(r"oneOf constraints"), "oneOf"),
    (re.compile(r"Unknown format"), "format"),
    (re.compile(r"patternPropert"), "patternProperties"),  # before the regexes of these
    (re.compile(r"[Rr]egex|look-?around"), "pattern"),
    (re.compile(r"min/maxProperties"), "minProperties"),
    (re.compile(r"Pointer|\$ref"), "$ref"),
    (re.compile(r"Invalid type"), "type"),
]
_SCHEMA = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
           "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_SHARED = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class UnsupportedKeyword:
    """What cannot be enforced, where, and why; `keyword` is None when the reason names none."""

    keyword: str | None
    path: str
    reason: str

    def __str__(self) -> str:
        path = self.path or "the top level"
        if self.keyword is None:
            return f"{self.reason} at {path}"
        return f"keyword {self.keyword!r} at {path} ({self.reason})"


def find_keyword(schema: Any, error_of: Callable[[Any], str]) -> UnsupportedKeyword:
    """The smallest failing part of `schema`, which fails; `error_of` says what is wrong with a schema."""
    shared = {name: schema[name] for name in _SHARED if isinstance(schema, dict) and name in schema}
    error = error_of(schema)
    path, trials = "", 0
    while True:
        for step, part in _likely_first(_parts(schema), _keyword(error)):
            trials += 1
            if trials > _MAX_TRIALS:
                return _described(schema, path, error)
            found = error_of(shared | part)
            if found and _keyword(found) == _keyword(error):
                schema, path, error = part, path + step, found
                break
        else:
            return _described(schema, path, error)


def _likely_first(parts: Iterable[tuple[str, Any]], keyword: str | None) -> list[tuple[str, Any]]:
    """The parts that mention the keyword before those that do not."""
    spelling = json.dumps(keyword)
    return sorted(parts, key=lambda part: spelling not in json.dumps(part[1]))


def _parts(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas right inside a schema, each with its step of a JSON pointer."""
    if not isinstance(schema, dict):
        return
    candidates: list[tuple[str, Any]] = [(f"/{name}", schema.get(name)) for name in _SCHEMA]
    for name in _SCHEMA_LISTS:
        if isinstance(listed := schema.get(name), list):
            candidates += [(f"/{name}/{index}", part) for index, part in enumerate(listed)]
    for name in _SCHEMA_MAPS:
        if isinstance(mapped := schema.get(name), dict):
            candidates += [(f"/{name}/{_escaped(key)}", part) for key, part in mapped.items()]
    yield from ((step, part) for step, part in candidates if isinstance(part, dict))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _keyword(error: str) -> str | None:
    for pattern, keyword in _KEYWORDS:
        if match := pattern.search(error):
            return match.expand(keyword)
    return None


def _described(schema: Any, path: str, error: str) -> UnsupportedKeyword:
    keyword = _keyword(error)
    if keyword == "minProperties" and keyword not in schema:
        keyword = "maxProperties"
    at = f"{path}/{keyword}" if keyword else path
    value = json.dumps(schema.get(keyword)) if keyword in ("format", "pattern", "type", "$ref") else ""
    reason = " ".join(error.split())[:_MAX_REASON_CHARS]
    return UnsupportedKeyword(keyword, at, value[:_MAX_REASON_CHARS] if value and value != "null" else reason)
