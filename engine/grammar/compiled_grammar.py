"""A compiled constraint, shared by all sequences that have it: the grammar, and the gates in front of it."""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLMatcher

from engine.grammar.gate import Gate
from engine.grammar.matcher import Matcher
from engine.grammar.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """`start` stands at the grammar's beginning and is only ever copied."""

    start: LLMatcher
    gates: tuple[Gate, ...]
    vocabulary: Vocabulary

    def new_matcher(self, stop_ids: frozenset[int]) -> Matcher:
        """A matcher at the beginning; see `engine.core.grammar.CompiledGrammar`."""
        return Matcher(self.start, self.gates, self.vocabulary, stop_ids)
