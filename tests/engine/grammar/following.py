"""Leads matchers along outputs. An output is text, or pieces: text in ordinary tokens, and markers by spelling."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from engine.grammar.compiled_grammar import CompiledGrammar
from engine.grammar.compiler import compile_grammar
from engine.grammar.matcher import Matcher
from engine.grammar.vocabulary import Vocabulary
from recipe.request import OutputConstraint

EOS = 1


def compiled(vocabulary: Vocabulary, kind: str, schema: str = "", **fields: str | bool) -> CompiledGrammar:
    return compile_grammar(OutputConstraint(kind, schema, **fields), vocabulary)  # type: ignore[arg-type]


def tokens_of(vocabulary: Vocabulary, output: str, *markers: str) -> list[int]:
    """The tokens of `output`, with each spelling of `markers` in it as that token."""
    pieces = re.split(f"({'|'.join(map(re.escape, markers))})", output) if markers else [output]
    tokens = []
    for piece in pieces:
        marker = vocabulary.marker_id(piece) if piece in markers else None
        tokens += vocabulary.encode(piece.encode()) if marker is None else [marker]
    return tokens


def mask_of(matcher: Matcher) -> NDArray[np.uint8]:
    """One byte a token: 1 = allowed."""
    row = np.zeros(-(-matcher.vocab_size // 32), np.int32)
    matcher.fill_bitmask(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert bits.all() or not matcher.allows_everything()
    return bits


def follow(matcher: Matcher, tokens: list[int]) -> int:
    """Accept tokens as far as the masks allow; how many. What a mask allows the matcher must accept."""
    for count, token in enumerate(tokens):
        if not mask_of(matcher)[token]:
            return count
        assert matcher.accept_token(token)
    return len(tokens)


def may_end(matcher: Matcher, stop_id: int = EOS) -> bool:
    return bool(mask_of(matcher)[stop_id])


def accepts(grammar: CompiledGrammar, tokens: list[int], stop_id: int = EOS) -> bool:
    """Whether `tokens` are a whole output."""
    matcher = grammar.new_matcher(frozenset([stop_id]))
    return follow(matcher, tokens) == len(tokens) and may_end(matcher, stop_id)
