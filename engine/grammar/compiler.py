"""Compiles constraints in threads, once for equal content, and keeps the last ones.

The first compile of a content is shared by everybody who waits for it; a waiter that leaves does not stop it. Refusals
are kept like grammars. A thread cannot be killed, so the work is bounded by the grammar engine's own limits; whoever
waits longer than `timeout_s` is told that the constraint is too complex.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from engine.backend import ConstraintHandle, ConstraintRefusedError
from engine.grammar.compiled_grammar import CompiledGrammar
from engine.grammar.constraint_grammar import constraint_grammar
from engine.grammar.reason import reason_of
from engine.grammar.vocabulary import Vocabulary
from recipe.request import OutputConstraint

_LIMITS = LLParserLimits(
    max_grammar_size=100_000, max_lexer_states=50_000, max_items_in_row=10_000, verbose_errors=False
)  # items in a row: what may come next, four for each property of an object; matchers watch the time that takes
_MAX_MASK_S = 0.2  # of CPU time for the first mask: whatever takes longer would hold up every step
_NUM_THREADS = 4


class GrammarCompiler:
    """A `ConstraintCompiler` for one model. All methods belong to the event loop's thread."""

    def __init__(
        self,
        tokenizer_json: str,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        *,
        max_entries: int = 128,
        timeout_s: float = 10.0,
    ) -> None:
        self._vocabulary_source = (tokenizer_json, vocab_size, tuple(eos_token_ids))
        self._max_entries = max_entries
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "grammar")
        self._vocabulary: asyncio.Future[Vocabulary] | None = None
        self._compiles: OrderedDict[OutputConstraint, asyncio.Future[ConstraintHandle]] = OrderedDict()

    def warm_up(self) -> asyncio.Future[Vocabulary]:
        """Start to read the tokenizer, which the first constraint would otherwise wait for."""
        if self._vocabulary is None:
            loop = asyncio.get_running_loop()
            self._vocabulary = loop.run_in_executor(self._threads, Vocabulary, *self._vocabulary_source)
            self._vocabulary.add_done_callback(_look_at_failure)
        return self._vocabulary

    async def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        """The handle of `constraint`. Raises `ConstraintRefusedError` naming what cannot be enforced."""
        compiling = self._compiles.get(constraint)
        if compiling is None or _has_failed(compiling):
            compiling = self._compiles[constraint] = asyncio.ensure_future(self._compile(constraint))
            compiling.add_done_callback(_look_at_failure)
        self._compiles.move_to_end(constraint)
        while len(self._compiles) > self._max_entries:
            self._compiles.popitem(last=False)
        if compiling.done():
            return compiling.result()
        try:
            return await asyncio.wait_for(asyncio.shield(compiling), self._timeout_s)
        except TimeoutError:
            raise ConstraintRefusedError(
                f"the constraint is too complex: it does not compile in {self._timeout_s:g} s"
            ) from None

    def close(self) -> None:
        """Start no further compile; those under way end in their threads. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        try:
            vocabulary = await asyncio.shield(self.warm_up())
        except ValueError as error:
            raise ConstraintRefusedError(f"this model's tokenizer cannot be constrained: {error}") from None
        loop = asyncio.get_running_loop()
        grammar = await loop.run_in_executor(self._threads, compile_grammar, constraint, vocabulary)
        return ConstraintHandle(grammar)


def compile_grammar(constraint: OutputConstraint, vocabulary: Vocabulary) -> CompiledGrammar:
    """Compile in this thread, which gives the GIL away meanwhile. Raises `ConstraintRefusedError`."""

    def error_of(lark: str) -> str:
        return reason_of(_matcher(lark, vocabulary))

    try:
        source = constraint_grammar(constraint, vocabulary)
        start = _matcher(source.lark, vocabulary)
        is_sound = not start.is_error()
    except ConstraintRefusedError:
        is_sound = False
    if not is_sound:
        source = constraint_grammar(constraint, vocabulary, error_of)
        start = _matcher(source.lark, vocabulary)
    _check(start)
    return CompiledGrammar(start, source.gates, vocabulary)


def _matcher(lark: str, vocabulary: Vocabulary) -> LLMatcher:
    grammar = LLMatcher.grammar_from_lark(lark)
    return LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=_LIMITS)


def _check(start: LLMatcher) -> None:
    """Raise `ConstraintRefusedError` for a grammar that is wrong, too slow to follow, or over a limit at once."""
    started = time.thread_time()
    if reason := reason_of(start) or reason_of(_behind_first_token(start)):
        raise ConstraintRefusedError(f"the constraint cannot be enforced: {reason}")
    if time.thread_time() - started > _MAX_MASK_S:
        raise ConstraintRefusedError("the constraint is too complex: its tokens cannot be told fast enough")


def _behind_first_token(start: LLMatcher) -> LLMatcher:
    """A matcher behind a token that `start` allows, with its mask known; an object with all its keys is open there."""
    allowed = np.unpackbits(np.frombuffer(start.compute_bitmask(), np.uint8), bitorder="little")
    ahead = start if start.is_error() else start.deep_copy()
    if ahead.try_consume_tokens([int(allowed.argmax())]) and not ahead.is_stopped():
        ahead.compute_bitmask()
    return ahead


def _has_failed(compiled: asyncio.Future[ConstraintHandle]) -> bool:
    """Whether this is a grammar that has run into its limits since."""
    return compiled.done() and compiled.exception() is None and compiled.result().payload.has_failed


def _look_at_failure(future: asyncio.Future[Any]) -> None:
    """A failure is raised to whoever waits; there may be nobody left."""
    if not future.cancelled():
        future.exception()
