"""JSON Schemas as rules of a Lark grammar.

At first every schema is taken at its word, and the grammar as a whole tells whether that works. If not, each schema is
tried alone: as it is, then with `oneOf` as `anyOf`, then — where nobody was promised more — without the keywords that
cannot be enforced. A promised schema that fails is refused with the keyword and its path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from engine.backend import ConstraintRefusedError
from engine.grammar.keyword_finder import find_keyword

# Enough for pretty-printed JSON, and never more than one line: no model can pad an answer until max_tokens.
_WHITESPACE = r"[ \t]{1,2}|\n[ \t]{0,24}"
_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE, "lenient": False, "coerce_one_of": False}

_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")

ErrorOf = Callable[[str], str]
"""Compiles a Lark grammar; what is wrong with it, or ""."""


class Reading(Enum):
    """How literally a schema is taken."""

    STRICT = auto()
    ONE_OF_AS_ANY_OF = auto()
    LENIENT = auto()


_OPTIONS_OF: dict[Reading, dict[str, bool]] = {
    Reading.STRICT: {},
    Reading.ONE_OF_AS_ANY_OF: {"coerce_one_of": True},
    Reading.LENIENT: {"coerce_one_of": True, "lenient": True},
}


class JsonRules:
    """Collects the rules of the schemas of one grammar; equal ones share one. Without `error_of` nothing is tried."""

    def __init__(self, error_of: ErrorOf | None = None) -> None:
        self._error_of = error_of
        self._names: dict[str, str] = {}

    @property
    def lark(self) -> str:
        """The text of the rules."""
        return "".join(f"{name}: %json {schema}\n" for schema, name in self._names.items())

    def add(self, schema: Any, *, is_promise: bool, where: str) -> str:
        """The name of the rule for JSON that `schema` allows; `where` names the schema in an error.

        Raises `ConstraintRefusedError` when a promised schema cannot be enforced, and for one that is none.
        """
        text = _with_options(schema, self._reading(schema, is_promise, where))
        return self._names.setdefault(text, f"json_{len(self._names)}")

    def _reading(self, schema: Any, is_promise: bool, where: str) -> Reading:
        if self._error_of is None:
            return Reading.STRICT
        readings = [Reading.STRICT, Reading.ONE_OF_AS_ANY_OF] + [Reading.LENIENT] * (not is_promise)
        for reading in readings:
            if not self._error(schema, reading):
                return reading
        found = find_keyword(schema, lambda part: self._error(part, readings[-1]))
        raise ConstraintRefusedError(f"{where} cannot be enforced: {found}")

    def _error(self, schema: Any, reading: Reading) -> str:
        if self._error_of is None:
            return ""
        return _PLACE.sub("", self._error_of(f"start: value\nvalue: %json {_with_options(schema, reading)}\n"))


def _with_options(schema: Any, reading: Reading) -> str:
    """The schema as JSON text with our options, whatever options it came with."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise ConstraintRefusedError("a JSON schema must be an object or a boolean")
    return json.dumps({**schema, "x-guidance": {**_OPTIONS, **_OPTIONS_OF[reading]}})
