"""A compiled constraint, shared by all sequences that have it: the grammar, and the gates in front of it."""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLMatcher

from engine.grammar.gate import Gate
from engine.grammar.matcher import Matcher
from engine.grammar.vocabulary import Vocabulary


@dataclass(slots=True)
class CompiledGrammar:
    """`start` stands at the grammar's beginning and is only ever copied.

    Copies share what they learn of the grammar's tokens, and so its limits: `has_failed` says that one of them has run
    into these. The others may, too; whoever wants the grammar again should compile it again.
    """

    start: LLMatcher
    gates: tuple[Gate, ...]
    vocabulary: Vocabulary
    has_failed: bool = False

    def new_matcher(self, stop_ids: frozenset[int]) -> Matcher:
        """A matcher at the beginning; see `engine.core.grammar.CompiledGrammar`."""
        return Matcher(self, stop_ids)
