"""Writes the Lark text of one grammar, rule by rule."""

from __future__ import annotations

from typing import Any

from engine.grammar.json_rules import ErrorOf, JsonRules
from engine.grammar.vocabulary import Vocabulary


class GrammarWriter:
    """Names rules as they come; equal ones share a name.

    With `error_of`, which compiles a grammar, whatever is added is tried first; see `JsonRules`.
    """

    def __init__(self, vocabulary: Vocabulary, error_of: ErrorOf | None = None) -> None:
        self.vocabulary = vocabulary
        self.error_of = error_of
        self._json_rules = JsonRules(error_of)
        self._names: dict[str, str] = {}

    def rule(self, body: str) -> str:
        """The name of a rule for `body`."""
        return self._names.setdefault(body, f"rule_{len(self._names)}")

    def terminal(self, body: str) -> str:
        """The name of a terminal for `body`: it matches as much as it can."""
        return self._names.setdefault(body, f"TERMINAL_{len(self._names)}")

    def json(self, schema: Any, *, is_promise: bool, where: str) -> str:
        """The name of a rule for JSON that `schema` allows; see `JsonRules.add`."""
        return self._json_rules.add(schema, is_promise=is_promise, where=where)

    def symbol(self, spelling: str) -> str:
        """A marker: its token, or its text where the vocabulary has none."""
        return self.vocabulary.symbol(spelling)

    def grammar(self, start: str) -> str:
        """The whole text; `start` is the body of the first rule."""
        rules = "".join(f"{name}: {body}\n" for body, name in self._names.items())
        return f"start: {start}\n{rules}{self._json_rules.lark}"
